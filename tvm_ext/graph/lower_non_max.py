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
from tvm_ext.graph.written_kernel import call_written, lowered
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import (
    IRModule,
    constant_array,
    op_name,
    relax,
    static_extents,
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
        return lowered(mod, self.hardware, _non_max)


def _non_max(builder: Any, call: Any, hardware: HardwareModel) -> Any:
    if op_name(call) != NON_MAX or str(call.attrs.output_format) != "onnx":
        return None
    boxes, scores, *rest = call.args
    limits = [limit.item() for limit in map(constant_array, rest) if limit is not None]
    corners, shape = (static_extents(x.ty) for x in (boxes, scores))
    floats = all(str(x.ty.dtype.dtype) == "float32" for x in (boxes, scores))
    if not floats or corners is None or shape is None or len(limits) < len(rest):
        return None
    (images, classes, length), (most, overlap, least) = shape, limits
    if not 0 < length <= LARGEST or most <= 0:
        return None
    lanes = hardware.lanes(4)
    kernel = NonMaxSuppression(images, classes, length, most, overlap, least, lanes)
    rows = builder.emit(relax.op.reshape(scores, (kernel.rows, length)))
    return call_written(builder, kernel, "non_max", [boxes, rows], hardware)
