"""`PoolAxes`: the largest elements of windows, along one axis after another.

    y = max_pool2d(x, 13 x 13)                               169 elements each
        →
    y = max_pool2d(max_pool2d(x, 13 x 1), 1 x 13)            26

Detectors pool a stage's last image by windows of 5, 9 and 13 (YOLO's SPP and SPPF). The largest of
the largest is the same element, so results are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import Any, NamedTuple

from tvm_ext.graph.legalise_norm import ints
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    op_name,
    relax,
    rewritten,
    static_extents,
    te,
    topi,
    tvm,
)

POOLS = {f"relax.nn.max_pool{rank}d": "DHW"[3 - rank :] for rank in (2, 3)}
"""Operators, and what layouts call the axes that their windows lie on."""

GAIN = 1.25
"""Predicted; below, the tensor in between may cost what the model does not see."""


class Window(NamedTuple):
    """Along one axis; `before` and `after` are pads."""

    size: int = 1
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0


Windows = tuple[Window, ...]


@tvm.transform.module_pass(opt_level=0, name="PoolAxes")
@dataclass(frozen=True)
class PoolAxes:
    """Rewrites max pools of static shapes where that is predicted to take less time.

    predict_us  predicted time of a PrimFunc; both ways are compared by it
    """

    predict_us: Callable[[PrimFunc], float]

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module; what is not worth it stays as it is."""
        return rewritten(mod, _Rewriter(mod, self.predict_us))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule, predict_us: Callable[[PrimFunc], float]) -> None:
        super().__init__(mod)
        self._predict_us = predict_us

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        windows = _windows(call) if op_name(call) in POOLS else None
        if windows is None or sum(window.size > 1 for window in windows) < 2:
            return call
        layout, dtype = str(call.attrs.layout), str(call.ty.dtype.dtype)
        shape = static_extents(call.args[0].ty)
        assert shape is not None
        axes = [layout.index(name) for name in POOLS[op_name(call)]]
        steps = in_turn(shape, windows, axes)
        parts, source = 0.0, shape
        for step in steps:
            parts += self._predict_us(pool_function(source, dtype, step, layout))
            source = results(source, step, axes)
        behind = ints(call.attrs.padding)[len(windows) :]
        given = (w._replace(after=max(w.after, n)) for w, n in zip(windows, behind, strict=True))
        if GAIN * parts >= self._predict_us(pool_function(shape, dtype, tuple(given), layout)):
            return call
        pool, value = getattr(relax.op.nn, op_name(call).removeprefix("relax.nn.")), call.args[0]
        for step in steps:
            sizes, strides, dilation, before, after = map(list, zip(*step, strict=True))
            made = pool(value, sizes, strides, before + after, dilation, False, False, layout)
            value = self.builder_.emit(made)
        return value


def pool_function(shape: tuple[int, ...], dtype: str, windows: Windows, layout: str) -> PrimFunc:
    """A pool as TVM computes it."""
    x = te.placeholder(shape, dtype, name="x")
    sizes, strides, dilation, before, after = map(list, zip(*windows, strict=True))
    pool = getattr(topi.nn, f"pool{len(windows)}d")
    y = pool(x, sizes, strides, dilation, before + after, "max", False, layout)
    return te.create_prim_func([x, y])


def in_turn(shape: tuple[int, ...], windows: Windows, axes: list[int]) -> tuple[Windows, ...]:
    """The windows along one axis each, in the order that reads the fewest elements; the outermost
    first where several do. `axes` are those that windows lie on."""
    wide = [place for place, window in enumerate(windows) if window != Window()]

    def alone(place: int) -> Windows:
        return tuple(w if n == place else Window() for n, w in enumerate(windows))

    def read(order: Iterable[int]) -> int:
        count, source = 0, shape
        for place in order:
            source = results(source, alone(place), axes)
            count += windows[place].size * prod(source)
        return count

    return tuple(map(alone, min(permutations(wide), key=read)))


def results(shape: tuple[int, ...], windows: Windows, axes: list[int]) -> tuple[int, ...]:
    """The extents that a pool makes of these."""
    made = list(shape)
    for axis, window in zip(axes, windows, strict=True):
        reach = (window.size - 1) * window.dilation + 1
        made[axis] = (shape[axis] + window.before + window.after - reach) // window.stride + 1
    return tuple(made)


def _windows(call: Any) -> Windows | None:
    """Those of a pool, padded at the end as far as its last ones reach; None if it is not one that
    is rewritten."""
    attrs, names, layout = call.attrs, POOLS[op_name(call)], str(call.attrs.layout)
    shape, outputs = static_extents(call.args[0].ty), static_extents(call.ty)
    same = str(attrs.out_layout) == layout and len(layout) == len(shape or ())
    if shape is None or outputs is None or not same:
        return None
    found = []
    padding = ints(attrs.padding)[: len(names)]
    for name, size, stride, dilation, before in zip(
        names,
        ints(attrs.pool_size),
        ints(attrs.strides),
        ints(attrs.dilation),
        padding,
        strict=True,
    ):
        axis = layout.index(name)
        reach = (outputs[axis] - 1) * stride + (size - 1) * dilation + 1
        after = max(0, reach - before - shape[axis])
        found.append(Window(size, stride, dilation, before, after))
    return tuple(found)
