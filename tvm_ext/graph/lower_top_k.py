"""`LowerTopK`: the first elements of rows in order, by a kernel that does not sort the rest.

    topk(x, k)            →   call_tir(top_k, x)
    topk(x, k, axis=1)    →   permute_dims(call_tir(top_k, permute_dims(x)))

TVM's picks the rows' one after another on one core (300 of 8400: 59 us, 15 so).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm_ext.compute.top_k import LARGEST, TopK
from tvm_ext.graph.written_kernel import call_written, lowered
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import (
    IRModule,
    op_name,
    relax,
    static_extents,
    tvm,
)


@tvm.transform.module_pass(opt_level=0, name="LowerTopK")
@dataclass(frozen=True)
class LowerTopK:
    """Rewrites topk of float32 of static shape; TVM sorts others."""

    hardware: HardwareModel

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module without them."""
        return lowered(mod, self.hardware, _top_k)


def _top_k(builder: Any, call: Any, hardware: HardwareModel) -> Any:
    if op_name(call) != "relax.topk":
        return None
    x, attrs = call.args[0], call.attrs
    shape = static_extents(x.ty)
    if not shape or str(x.ty.dtype.dtype) != "float32":
        return None
    axis, last = int(attrs.axis) % len(shape), len(shape) - 1
    if not 0 < shape[axis] <= LARGEST:
        return None
    order = [*(place for place in range(len(shape)) if place != axis), axis]
    back = [*range(axis), last, *range(axis, last)]
    outer, length = [shape[place] for place in order[:-1]], shape[axis]
    count = int(attrs.k) if 0 < int(attrs.k) <= length else length
    kernel = TopK(prod(outer), length, count, bool(attrs.largest), hardware.lanes(4))
    turned = x if axis == last else builder.emit(relax.op.permute_dims(x, order))
    rows = builder.emit(relax.op.reshape(turned, (kernel.rows, length)))
    made = call_written(builder, kernel, "top_k", [rows], hardware)
    wanted = {"both": (0, 1), "values": (0,), "indices": (1,)}[str(attrs.ret_type)]
    results = []
    for place in wanted:
        one = builder.emit(relax.TupleGetItem(made, place))
        if place and str(attrs.dtype) != "int64":
            one = builder.emit(relax.op.astype(one, str(attrs.dtype)))
        one = builder.emit(relax.op.reshape(one, (*outer, count)))
        results.append(one if axis == last else relax.op.permute_dims(one, back))
    if len(results) == 1:
        return results[0]
    return relax.Tuple([builder.emit(one) for one in results])
