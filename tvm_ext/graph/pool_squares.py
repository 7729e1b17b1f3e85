"""`PoolSquares`: means of squares over windows, without writing the squares.

    avg_pool(reshape(x * x))   →   call_tir(mean_squares, reshape(x))

So AlexNet's normalisation over neighbouring channels begins. A square takes no more than the
addition that it becomes a part of, and the mean no division: on 55 x 55 pixels of 192 channels it
all takes 97 us, where the squares took 35 and the rest 121.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_ext.compute.mean_squares import mean_squares
from tvm_ext.compute.windows import Window
from tvm_ext.graph.legalise_norm import ints, static_shape
from tvm_ext.graph.quantise_early import MOVES
from tvm_ext.tvm_api import IRModule, bound, call_of, op_name, relax, rewritten, tvm

POOLS = frozenset(f"relax.nn.avg_pool{rank}d" for rank in (1, 2, 3))


@tvm.transform.module_pass(opt_level=0, name="PoolSquares")
@dataclass(frozen=True)
class PoolSquares:
    """Rewrites them in float32, of static shapes, where every window has as many elements."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module before `Legalise`; squares that nobody else reads are gone."""
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Rewriter(mod)))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        windows = windows_of(call) if op_name(call) in POOLS and _counts_all(call.attrs) else {}
        source = self._squared(call.args[0]) if windows else None
        if source is None:
            return call
        return self.builder_.call_te(
            lambda x: mean_squares(x, windows), source, primfunc_name_hint="mean_squares"
        )

    def _squared(self, data: Any) -> Any:
        """The tensor whose squares these are, moved as they are; None if they are none."""
        made = bound(self, data)
        if op_name(made) == "relax.multiply":
            x, y = made.args
            return x if x.same_as(y) else None
        source = self._squared(made.args[0]) if op_name(made) in MOVES else None
        if source is None:
            return None
        return self.builder_.emit(call_of(made, source))


def _counts_all(attrs: Any) -> bool:
    """Whether every window has as many elements, padding among them."""
    return bool(attrs.count_include_pad) or not any(ints(attrs.padding))


def windows_of(call: Any) -> dict[int, Window]:
    """What a pool takes its elements of along each axis; nothing if windows are cut short or have
    holes, or shapes are not known."""
    attrs, layout = call.attrs, str(call.attrs.layout)
    names = "DHW"[-len(ints(attrs.pool_size)) :]
    shape, outputs = static_shape(call.args[0]), static_shape(call)
    same = str(attrs.out_layout) == layout and set(ints(attrs.dilation)) == {1}
    if shape is None or outputs is None or not same or len(layout) != len(shape):
        return {}
    padding = ints(attrs.padding)
    before, after = padding[: len(names)], padding[len(names) :]
    windows = {}
    for name, size, stride, first, last in zip(
        names, ints(attrs.pool_size), ints(attrs.strides), before, after, strict=True
    ):
        axis = layout.index(name)
        window = Window(size, stride, first, outputs[axis])
        if window.beyond(shape[axis]) > last:  # a window that is cut short
            return {}
        if (size, stride, first) != (1, 1, 0):
            windows[axis] = window
    return windows
