"""`Stitch`: chains of reductions as one kernel, row by row (AStitch §4, FusionStitching §4).

    m = mean(x); d = x - m; v = mean(d * d); y = d / sqrt(v + e) * w + b    three kernels
        →
    parallel rows: m, d, v, y of one row                                    one

TVM fuses by the kinds of operators: never a reduction with what reads its result beside its
input. Here a region grows from its last kernel back over what nobody else reads (AStitch's whole
region first; where that is refused, one kernel after another), and stands if every stage can be
computed row by row without repeating work (`tile.fuse.row_tile`) and the model says that it takes
less time. What lies between the stages is then a row long and stays in a core's caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from tvm_ext.graph.merger import Explain, Merger, Predict
from tvm_ext.graph.region import Calls, Region
from tvm_ext.tile.fuse import along_rows, in_vectors, row_tile
from tvm_ext.tir import prepare
from tvm_ext.tvm_api import IRModule, PrimFunc, tvm

RULE = "rows"


@tvm.transform.module_pass(opt_level=0, name="Stitch")
@dataclass(frozen=True)
class Stitch:
    """Merges kernels that are bound by memory and that nobody but each other reads.

    predict_us  predicted time of a PrimFunc by its best plan, infinite if that is not of the rule
                asked for; without it every region that can be one kernel becomes one
    most        kernels of a region
    attempts    regions that are tried for one last kernel where the largest is refused
    explain     told of each memory-bound kernel, merged or not, and why it is no larger
    """

    predict_us: Predict | None = None
    most: int = 32
    attempts: int = 8
    explain: Explain | None = None

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module after `Fuse`, with fewer kernels."""
        return _Stitcher(mod, self.predict_us, self.explain, self).run()


@dataclass
class _Stitcher(Merger):
    name = "Stitch"
    options: Stitch

    def chosen(self, calls: Calls, taken: set[int]) -> Iterator[tuple[Region, Any]]:
        for number in sorted(calls.kernels, reverse=True):
            if number in taken or not self.is_light(calls.kernels[number]):
                continue
            region, variable = self._region(calls, number, taken)
            own = {call.number for call in region.calls}
            self.stopped.setdefault(number, self._stop(calls, own, taken))
            if variable is not None:
                yield region, variable

    def _region(self, calls: Calls, sink: int, taken: set[int]) -> tuple[Region, Any]:
        """A region that ends with a call, and the function that takes its place; None for the call
        alone. All that can be part of it is tried first, then one call after another."""
        whole = self._grown(calls, {sink}, taken, self.options.most)
        found = self._try(calls, whole)
        if found[1] is not None or len(whole) == 1:
            return found
        numbers, closed = {sink}, set(taken)
        for _ in range(self.options.attempts):
            more = self._grown(calls, numbers, closed, len(numbers) + 1)
            if more == numbers:
                break
            tried = self._try(calls, more)
            if tried[1] is None:
                self.stopped.setdefault(sink, self._refused(calls, tried[0], more - numbers))
                closed |= more - numbers
            else:
                numbers, found = more, tried
        return found

    def _try(self, calls: Calls, numbers: set[int]) -> tuple[Region, Any]:
        region = calls.region(numbers)
        return region, self.variable(region) if len(numbers) > 1 else None

    def _grown(self, calls: Calls, known: set[int], closed: set[int], most: int) -> set[int]:
        """Calls with those before them that only they read, the latest first: when the turn of one
        comes, all that read it have had theirs."""
        numbers = set(known)
        waiting = sorted(-producer for number in known for producer in calls.producers(number))
        while waiting and len(numbers) < most:
            number = -heappop(waiting)
            if number in numbers or number in closed or not calls.readers(number) <= numbers:
                continue
            if self.is_light(calls.kernels[number]):
                numbers.add(number)
                for producer in calls.producers(number):
                    heappush(waiting, -producer)
        return numbers

    def _refused(self, calls: Calls, region: Region, new: set[int]) -> str:
        """Why a region was not made, by the kernel that it would have taken in."""
        names = ", ".join(str(calls.kernels[number].kernel.name_hint) for number in new)
        return f"with {names}: {self.refused[region.key]}"

    def _stop(self, calls: Calls, numbers: set[int], taken: set[int]) -> str:
        """Why a region takes in none of the kernels before it; empty if there are none."""
        before = {p for number in numbers for p in calls.producers(number)} - numbers
        for number in sorted(before, reverse=True):
            name = str(calls.kernels[number].kernel.name_hint)
            if heavy := self.heaviness(calls.kernels[number]):
                return f"{name} {heavy}"
            if number in taken:
                return f"{name} is part of another kernel"
            if not calls.readers(number) <= numbers:
                return f"{name} is read by others too"
        return f"{self.options.most} kernels are the most" if before else ""

    def refusal(self, region: Region, func: PrimFunc) -> str:
        """Why it cannot be one kernel, its stages computed row by row, or one that is faster."""
        return not_by_rows(self, region, func)


def not_by_rows(merger: Merger, region: Region, func: PrimFunc) -> str:
    """Why a function is no kernel whose stages are computed row by row, or no faster one."""
    prepared = prepare(func)
    if prepared is None or row_tile(prepared.graph) is None:
        return "no rows that all stages share"
    several = len(prepared.graph.results) > 1
    if not (in_vectors if several else along_rows)(prepared.graph):
        return "a reduction goes across what lies side by side"
    return merger.slower(region, func, rule=RULE)
