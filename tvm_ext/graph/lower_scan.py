"""`LowerScan`: cumulative sums on a GPU, each element a sum of its own.

    cumsum(x)   →   call_tir(y[.., i] = sum of x[.., k] for k ≤ i)

In TVM's kernel the threads of a warp read in one step what their neighbours write in it. That they
go in step CUDA has not promised since it schedules threads one by one (Volta).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_ext.tvm_api import IRModule, op_name, relax, rewritten, static_extents, te, tirx, tvm

LONGEST = 4096
"""Elements of a row at most: the work is their square. Longer ones stay TVM's."""


@tvm.transform.module_pass(opt_level=0, name="LowerScan")
@dataclass(frozen=True)
class LowerScan:
    """Rewrites cumulative sums along one axis of static shape."""

    longest: int = LONGEST

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module without them."""
        return rewritten(mod, _Rewriter(mod, self.longest))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule, longest: int) -> None:
        super().__init__(mod)
        self._longest = longest

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) != "relax.cumsum" or call.attrs.axis is None:
            return call
        shape = static_extents(call.args[0].ty)
        if not shape:
            return call
        axis, dtype = int(call.attrs.axis) % len(shape), str(call.ty.dtype.dtype)
        if not 0 < shape[axis] <= self._longest:
            return call
        exclusive = int(bool(call.attrs.exclusive))

        def summed(x: Any) -> Any:
            k = te.reduce_axis((0, shape[axis]), "k")

            def element(*at: Any) -> Any:
                place = (*at[:axis], k, *at[axis + 1 :])
                taken = x[place].astype(dtype)
                none = tirx.const(0, dtype)
                return te.sum(tirx.Select(k + exclusive <= at[axis], taken, none), k)

            return te.compute(x.shape, element, name="cumsum")

        return self.builder_.call_te(summed, call.args[0], primfunc_name_hint="cumsum")
