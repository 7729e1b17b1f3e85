"""`FuseTiles`: products and what lies around them as one kernel, strip by strip (Welder §3.2).

    n = layer_norm(x); h = gelu(n @ w1); y = h @ w2 + x    three kernels, n and h through memory
        →
    parallel strips of rows: n, h, y of one strip          one, n and h in a core's caches

An edge between two kernels is lowered from memory to the caches of a core where the model says that
this takes less time. A region grows from its last kernel, edge by edge, over what nobody else
reads (Welder's greedy connection of edges); kernels apart are what every step competes with. It
needs rows that all stages share, so a window over rows, as of a convolution, ends it: its
neighbours would compute the same rows again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tvm_ext.graph.concat_in_place import CONCAT_AXIS
from tvm_ext.graph.merger import Explain, Merger, Predict
from tvm_ext.graph.region import Calls, KernelCall, Region, is_settled
from tvm_ext.tile.strip import row_axes
from tvm_ext.tir import prepare
from tvm_ext.tvm_api import IRModule, PrimFunc, tvm

STRIPS = "strips"
"""The rule of its kernels."""


@tvm.transform.module_pass(opt_level=0, name="FuseTiles")
@dataclass(frozen=True)
class FuseTiles:
    """Merges products with the kernels before them that only they read, and with those behind.

    predict_us  predicted time of a PrimFunc by its best plan, infinite if that is not of the rule
                asked for
    most        kernels of a region
    explain     told of each region, and why it is no larger
    """

    predict_us: Predict
    most: int = 8
    explain: Explain | None = None

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module after `Fuse`, with fewer kernels."""
        return _Fuser(mod, self.predict_us, self.explain, self).run()


@dataclass
class _Fuser(Merger):
    name = "FuseTiles"
    options: FuseTiles
    _fit: dict[str, str] = field(default_factory=dict)

    def chosen(self, calls: Calls, taken: set[int]) -> Iterator[tuple[Region, Any]]:
        for number in sorted(calls.kernels, reverse=True):
            if number not in taken and not self._unfit(calls.kernels[number]):
                region, variable = self._grown(calls, number, taken)
                if variable is not None:
                    yield region, variable

    def _grown(self, calls: Calls, sink: int, taken: set[int]) -> tuple[Region, Any]:
        """The region that ends with a call, and the function that takes its place; None for the
        call alone."""
        numbers, closed = {sink}, set(taken)
        best: tuple[Region, Any] = _region(calls, numbers), None
        while len(numbers) < self.options.most:
            number = self._next(calls, numbers, closed)
            if number is None:
                break
            region = _region(calls, numbers | {number})
            variable = self.variable(region)
            if variable is None or not self._gains(region, best[0], calls.kernels[number]):
                closed.add(number)
                name = str(calls.kernels[number].kernel.name_hint)
                reason = self.refused[region.key] or "slower than without it"
                self.stopped.setdefault(sink, f"with {name}: {reason}")
            else:
                numbers.add(number)
                best = region, variable
        return best

    def _next(self, calls: Calls, numbers: set[int], closed: set[int]) -> int | None:
        """The latest kernel before a region that only it reads, a product in one of them."""
        before = {p for number in numbers for p in calls.producers(number)} - numbers - closed
        heavy = any(self.is_product(calls.kernels[number]) for number in numbers)
        return max(
            (
                number
                for number in before
                if calls.readers(number) <= numbers
                and (heavy or self.is_product(calls.kernels[number]))
                and not self._unfit(calls.kernels[number])
            ),
            default=None,
        )

    def _gains(self, region: Region, before: Region, more: KernelCall) -> bool:
        """Whether a region takes less time than without one of its kernels, and that by itself."""
        apart_us = self.together_us.get(before.key, inf)
        if len(before.calls) == 1:
            apart_us = self.apart_us(before)
        return self.together_us[region.key] < apart_us + self.apart_us(Region((more,)))

    def refusal(self, region: Region, func: PrimFunc) -> str:
        """Why it cannot be computed strip by strip, or not faster so."""
        prepared = prepare(func)
        if prepared is None or not row_axes(prepared.graph):
            return "no rows that all stages share"
        return self.slower(region, func, rule=STRIPS)

    def _unfit(self, call: KernelCall) -> str:
        """Why a kernel can be no part of a region; empty if it can."""
        name = str(call.kernel.name_hint)
        if name not in self._fit:
            func = self.mod[call.kernel]
            self._fit[name] = (
                "has a plan of its own"
                if is_settled(func)
                else "becomes parts written in place"
                if func.attrs and CONCAT_AXIS in func.attrs
                else ""
                if (prepared := prepare(func)) and row_axes(prepared.graph)
                else "has no rows that all stages share"
            )
        return self._fit[name]


def _region(calls: Calls, numbers: set[int]) -> Region:
    return Region(tuple(calls.kernels[number] for number in sorted(numbers)))
