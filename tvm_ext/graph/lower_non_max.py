"""`LowerNonMax`: the best boxes that do not lie on better ones, as one kernel.

    all_class_non_max_suppression(boxes, scores, most, overlap, least)
        →
    call_tir(non_max, boxes, scores)

TVM's kernels, which sort all scores of every class, run out of memory or find nothing (0.27).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_ext.compute.non_max import NonMaxSuppression
from tvm_ext.compute.top_k import LARGEST
from tvm_ext.graph.legalise_norm import STANDS_ALONE
from tvm_ext.graph.lower_top_k import LEAST_CYCLES
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import (
    IRModule,
    constant_array,
    mark_written,
    op_name,
    relax,
    rewritten,
    static_extents,
    te,
    tvm,
)

NON_MAX = "relax.vision.all_class_non_max_suppression"


@tvm.transform.module_pass(opt_level=0, name="LowerNonMax")
@dataclass(frozen=True)
class LowerNonMax:
    """Rewrites suppression in ONNX's form, of float32 boxes of static shape by constant limits."""

    hardware: HardwareModel

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module without it."""
        return rewritten(mod, _Rewriter(mod, self.hardware))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule, hardware: HardwareModel) -> None:
        super().__init__(mod)
        self._hardware = hardware

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) != NON_MAX:
            return call
        if str(call.attrs.output_format) != "onnx":
            return call
        boxes, scores, *rest = call.args
        limits = [constant_array(limit) for limit in rest]
        shape = static_extents(scores.ty)
        if shape is None or not _is_known(boxes, scores, limits):
            return call
        images, classes, length = shape
        most, overlap, least = (limit.item() for limit in limits if limit is not None)
        lanes = self._hardware.lanes(4)
        kernel = NonMaxSuppression(images, classes, length, most, overlap, least, lanes)
        return self._called(kernel, boxes, scores)

    def _called(self, kernel: NonMaxSuppression, boxes: Any, scores: Any) -> Any:
        own = kernel.images * kernel.classes
        cores = min(self._hardware.cores, own) if kernel.cycles > LEAST_CYCLES else 1
        rows = self.builder_.emit(relax.op.reshape(scores, (own, kernel.length)))
        given = [
            te.placeholder((kernel.images, kernel.length, 4), "float32", name="boxes"),
            te.placeholder((own, kernel.length), "float32", name="scores"),
        ]
        func = te.create_prim_func([*given, *kernel(*given, parallel=cores > 1)])
        func = func.without_attr("global_symbol")
        func = mark_written(func.with_attrs(STANDS_ALONE), kernel.cycles / cores)
        types = [
            relax.TensorType((own * kernel.length, 3), "int64"),
            relax.TensorType((1,), "int64"),
        ]
        name = self.builder_.add_func(func, "non_max")
        return self.builder_.emit(relax.call_tir(name, [boxes, rows], types))


def _is_known(boxes: Any, scores: Any, limits: list[Any]) -> bool:
    shapes = [static_extents(x.ty) for x in (boxes, scores)]
    floats = all(str(x.ty.dtype.dtype) == "float32" for x in (boxes, scores))
    most = limits[0]
    return (
        floats
        and all(shapes)
        and all(limit is not None for limit in limits)
        and 0 < scores.ty.shape[2] <= LARGEST
        and most > 0
    )
