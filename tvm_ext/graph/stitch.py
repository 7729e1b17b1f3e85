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
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from tvm_ext.graph.concat_in_place import CONCAT_AXIS
from tvm_ext.graph.region import Calls, KernelCall, Merger, Predict, Region
from tvm_ext.tile.fuse import along_rows, row_tile
from tvm_ext.tir import prepare
from tvm_ext.tir.read import uses_again
from tvm_ext.tvm_api import IRModule, PrimFunc, is_scheduled, tvm

RULE = "rows"


@tvm.transform.module_pass(opt_level=0, name="Stitch")
@dataclass(frozen=True)
class Stitch:
    """Merges kernels that are bound by memory and that nobody but each other reads.

    predict_us  predicted time of a PrimFunc by its best plan, infinite if that is not of the rule
                asked for; without it every region that can be one kernel becomes one
    most        kernels of a region
    attempts    regions that are tried for one last kernel where the largest is refused
    """

    predict_us: Predict | None = None
    most: int = 32
    attempts: int = 8

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module after `Fuse`, with fewer kernels."""
        return _Stitcher(mod, self.predict_us, self).run()


@dataclass
class _Stitcher(Merger):
    options: Stitch
    _light: dict[str, bool] = field(default_factory=dict)

    def chosen(self, calls: Calls, taken: set[int]) -> Iterator[tuple[Region, Any]]:
        for number in sorted(calls.kernels, reverse=True):
            if number in taken or not self._is_light(calls.kernels[number]):
                continue
            region, variable = self._region(calls, number, taken)
            if variable is not None:
                yield region, variable

    def _region(self, calls: Calls, sink: int, taken: set[int]) -> tuple[Region, Any]:
        """A region that ends with a call, and the function that takes its place; None for the call
        alone. All that can be part of it is tried first, then one call after another."""
        whole = self._grown(calls, {sink}, taken, self.options.most)
        found = self._try(calls, whole)
        if found[1] is not None:
            return found
        numbers, closed = {sink}, set(taken)
        for _ in range(self.options.attempts):
            more = self._grown(calls, numbers, closed, len(numbers) + 1)
            if more == numbers:
                break
            tried = self._try(calls, more)
            if tried[1] is None:
                closed |= more - numbers
            else:
                numbers, found = more, tried
        return found

    def _try(self, calls: Calls, numbers: set[int]) -> tuple[Region, Any]:
        region = Region(tuple(calls.kernels[number] for number in sorted(numbers)))
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
            if self._is_light(calls.kernels[number]):
                numbers.add(number)
                for producer in calls.producers(number):
                    heappush(waiting, -producer)
        return numbers

    def _is_light(self, call: KernelCall) -> bool:
        """Whether a kernel is worth a look: unscheduled, and none that reads elements for several
        results, as products do. Asked of every kernel of a model, so the blocks are not read."""
        name = str(call.kernel.name_hint)
        if name not in self._light:
            func = self.mod[call.kernel]
            concatenates = bool(func.attrs) and CONCAT_AXIS in func.attrs
            self._light[name] = not (concatenates or is_scheduled(func) or uses_again(func))
        return self._light[name]

    def pays(self, region: Region, func: PrimFunc) -> bool:
        """Whether it can be one kernel, and one that is faster."""
        if not _fits(func):
            return False
        return self.predict_us is None or self.predict_us(func, rule=RULE) < self.apart_us(region)


def _fits(func: PrimFunc) -> bool:
    """Whether all stages can be computed row by row, reductions in vectors."""
    prepared = prepare(func)
    if prepared is None or row_tile(prepared.graph) is None:
        return False
    return along_rows(prepared.graph)
