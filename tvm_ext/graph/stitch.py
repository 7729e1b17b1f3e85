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

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from tvm_ext.graph.concat_in_place import CONCAT_AXIS
from tvm_ext.graph.region import Calls, KernelCall, Region
from tvm_ext.tile.fuse import along_rows, row_tile
from tvm_ext.tir import prepare
from tvm_ext.tir.read import uses_again
from tvm_ext.tvm_api import IRModule, PrimFunc, is_scheduled, relax, tvm, with_blocks

Predict = Callable[..., float]
"""Called with a PrimFunc and perhaps the rule that it is to be planned by."""
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
        kernels = {v: func for v, func in mod.functions.items() if isinstance(func, PrimFunc)}
        # a builder compares functions by hash, with weights: it is given those that have none
        stitcher = _Stitcher(mod, self, relax.BlockBuilder(IRModule(kernels)))
        result = with_blocks(mod, stitcher.block)
        result.update(stitcher.builder.get())
        return relax.transform.DeadCodeElimination()(result)


@dataclass
class _Stitcher:
    mod: IRModule
    options: Stitch
    builder: Any
    _light: dict[str, bool] = field(default_factory=dict)
    _us: dict[str, float] = field(default_factory=dict)
    _merged: dict[Any, Any] = field(default_factory=dict)
    """For each region, by its key, the variable of the function in its place; None if it stays."""

    def block(self, block: Any) -> Any:
        """The block with regions as single calls."""
        calls = Calls.of(block)
        taken: set[int] = set()
        sinks: dict[int, Any] = {}
        for number in sorted(calls.kernels, reverse=True):
            if number in taken or not self._is_light(calls.kernels[number]):
                continue
            region, variable = self._region(calls, number, taken)
            if variable is not None:
                taken |= {call.number for call in region.calls}
                sinks[number] = region.call(variable)
        if not sinks:
            return block
        bindings = [
            relax.VarBinding(binding.var, sinks[number]) if number in sinks else binding
            for number, binding in enumerate(block.bindings)
            if number in sinks or number not in taken
        ]
        return relax.DataflowBlock(bindings)

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
        return region, self._variable(region) if len(numbers) > 1 else None

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

    def _variable(self, region: Region) -> Any:
        """The variable of a region's function; None if it can be no kernel, or a slower one."""
        key = region.key
        if key not in self._merged:
            func = region.merged(self.mod)
            pays = func is not None and _fits(func) and self._pays(region, func)
            self._merged[key] = self.builder.add_func(func, region.name) if pays else None
        return self._merged[key]

    def _pays(self, region: Region, func: PrimFunc) -> bool:
        if self.options.predict_us is None:
            return True
        apart_us = sum(self._predicted_us(call) for call in region.calls)
        return self.options.predict_us(func, rule=RULE) < apart_us

    def _predicted_us(self, call: KernelCall) -> float:
        name = str(call.kernel.name_hint)
        if name not in self._us and self.options.predict_us is not None:
            self._us[name] = self.options.predict_us(self.mod[call.kernel])
        return self._us[name]


def _fits(func: PrimFunc) -> bool:
    """Whether all stages can be computed row by row, reductions in vectors."""
    prepared = prepare(func)
    if prepared is None or row_tile(prepared.graph) is None:
        return False
    return along_rows(prepared.graph)
