"""Calls of kernels that are written loop by loop, with nothing left to plan.

    made = TopK(rows, length, count, ...)   →   call_tir(top_k, x)

Passes say of a call what it becomes (`lowered`). A kernel says of itself how many rows it works
on, which cores share out, and about how long it takes; called with its inputs it writes the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm_ext.compute.grid_sample import GridSample
from tvm_ext.compute.non_max import NonMaxSuppression
from tvm_ext.compute.non_zero import NonZero
from tvm_ext.compute.resize import Resize
from tvm_ext.compute.roi_align import RoiAlign
from tvm_ext.compute.scatter_rows import ScatterRows
from tvm_ext.compute.top_k import TopK
from tvm_ext.graph.legalise_norm import STANDS_ALONE
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import IRModule, mark_written, relax, rewritten, static_extents, te

WrittenKernel = TopK | NonMaxSuppression | NonZero | Resize | RoiAlign | GridSample | ScatterRows
Lower = Callable[[Any, Any, HardwareModel], Any]
"""What a call becomes, by a block builder and for a machine; None if it stays."""
LEAST_CYCLES = 20_000
"""Work that is worth sharing out among cores."""


def call_written(
    builder: Any, kernel: WrittenKernel, name: str, inputs: Sequence[Any], hardware: HardwareModel
) -> Any:
    """The call of a kernel on inputs of static shape; a tuple of its results."""
    cores = min(hardware.cores, kernel.rows) if kernel.cycles > LEAST_CYCLES else 1
    # not by the builder, which makes all of a kernel's numbers 64 bits wide
    given = [te.placeholder(static_extents(x.ty), str(x.ty.dtype.dtype), name="x") for x in inputs]
    results = kernel(*given, parallel=cores > 1)
    func = te.create_prim_func([*given, *results]).without_attr("global_symbol")
    func = mark_written(func.with_attrs(STANDS_ALONE), kernel.cycles / cores)
    types = [relax.TensorType([int(e) for e in one.shape], one.dtype) for one in results]
    return builder.emit(relax.call_tir(builder.add_func(func, name), list(inputs), types))


def lowered(mod: IRModule, hardware: HardwareModel, lower: Lower) -> IRModule:
    """The module with what `lower` makes of its calls."""
    return rewritten(mod, _Calls(mod, hardware, lower))


@relax.expr_functor.mutator
class _Calls(relax.PyExprMutator):
    def __init__(self, mod: IRModule, hardware: HardwareModel, lower: Lower) -> None:
        super().__init__(mod)
        self._hardware, self._lower = hardware, lower

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        made = self._lower(self.builder_, call, self._hardware)
        return call if made is None else made
