"""`FuseTiles`: products and what lies around them as one kernel, strip by strip (Welder §3.2).

    n = layer_norm(x); h = gelu(n @ w1); y = h @ w2 + x    three kernels, n and h through memory
        →
    parallel strips of rows: n, h, y of one strip          one, n and h in a core's caches

An edge between two kernels is lowered from memory to the caches of a core where the model says that
this takes less time. A region grows from its last kernel, edge by edge, over what nobody else
reads (Welder's greedy connection of edges); kernels apart are what every step competes with. It
needs rows that all stages share; where a window slides over them, as of a depthwise convolution
behind an expansion, strips compute the rows at their seams twice:

    e = clip(x @ w1); y = depthwise(pad(e))    →    parallel strips: 9 rows of e, 4 of y
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tvm_ext.graph.concat_places import CONCAT_AXIS
from tvm_ext.graph.grower import Grower
from tvm_ext.graph.memory_order import fresh_bytes, type_bytes
from tvm_ext.graph.merger import Explain, Predict
from tvm_ext.graph.region import Calls, KernelCall, Region, is_settled
from tvm_ext.records.manifest import Fusion
from tvm_ext.tile.chain import transform_chain
from tvm_ext.tile.strassen import products_of_quarters
from tvm_ext.tile.strip import repeats, row_axes, strip_tiles
from tvm_ext.tir import prepare
from tvm_ext.tvm_api import GenericConst, IRModule, PrimFunc, structural_walk, tvm

STRIPS = "strips"
"""The rule of its kernels."""
CERTAIN = 0.95
"""Part of the time of kernels apart from which one that repeats work at seams is faster for sure
(0.96 to 1.00 by the model: 0.95 to 1.05 measured)."""
MOST_SAVED = 0.25
"""Part of the time of kernels apart that memory written for the first time takes at most (by hand
22 % of a block of MobileNetV2)."""


Cold = Callable[[int, int], float]
"""Called with bytes that are written where nobody has in a run, and with those of all that the run
touches: the time in which they come."""
Unwritten = Callable[[PrimFunc], str]
"""Called with a function: why its plan by strips cannot be written; empty if it can."""


@tvm.transform.module_pass(opt_level=0, name="FuseTiles")
@dataclass(frozen=True)
class FuseTiles:
    """Merges products with the kernels before them that only they read, and with those behind.

    predict_us      predicted time of a PrimFunc by its best plan, infinite if that is not of the
                    rule asked for
    most            kernels of a region
    explain         told of each region, and why it is no larger
    cold_us         what new memory between kernels costs; nothing by default
    why_unwritten   why a function's best plan by strips cannot be written, empty if it can; asked
                    before it is made
    """

    predict_us: Predict
    most: int = 8
    explain: Explain | None = None
    cold_us: Cold | None = None
    why_unwritten: Unwritten | None = None

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module after `Fuse`, with fewer kernels."""
        return _Fuser(
            mod,
            self.predict_us,
            self.explain,
            most=self.most,
            cold_us=self.cold_us,
            why_unwritten=self.why_unwritten,
        ).run()


@dataclass
class _Fuser(Grower):
    name = "FuseTiles"
    no_gain = "slower than without it"
    cold_us: Cold | None = None
    why_unwritten: Unwritten | None = None
    _fit: dict[str, str] = field(default_factory=dict)
    _fresh_bytes: list[int] = field(default_factory=list)
    """Of what each binding of the block makes."""
    _run_bytes: int = 0
    _again: bool = False
    """Whether the block has been looked at before."""
    _counted_us: dict[Any, float] = field(default_factory=dict)
    """What regions, by their keys, were thought to save when they were looked at."""
    _certain: dict[Any, float] = field(default_factory=dict)
    """Part of the time of regions apart that one kernel must stay below."""

    def _block(self, block: Any) -> Any:
        """Looks again while kernels become one: what the largest no longer write others are then
        the first to write."""
        explain, told = self.explain, list[Fusion]()
        self.explain = told.append
        self._again = False
        while True:
            self._read_memory(block)
            made = super()._block(block)
            if made is block:
                break
            told[:] = [fusion for fusion in told if len(fusion.kernels) > 1]
            self.mod = IRModule({**self.mod.functions, **self.builder.get().functions})
            block, self._again = made, True
        self.explain = explain
        if explain is not None:
            for fusion in told:
                explain(fusion)
        return block

    def _read_memory(self, block: Any) -> None:
        if self.cold_us is None:
            return
        weights: dict[Any, int] = {}
        structural_walk(
            block, (GenericConst, lambda one: weights.setdefault(one, type_bytes(one.ty)))
        )
        self._fresh_bytes = fresh_bytes(block)
        self._run_bytes = sum(weights.values()) + sum(self._fresh_bytes)

    def variable(self, region: Region) -> Any:
        """The variable of a region's function; another time only of what saves more than before."""
        key, saved_us = region.key, self._saved_us(region)
        if saved_us > self._counted_us.setdefault(key, 0.0 if self._again else saved_us):
            self._counted_us[key] = saved_us
            if self._merged.get(key) is None:
                self._merged.pop(key, None)
        elif self._again and key not in self._merged:
            self.refused[key] = self.no_gain
            return None
        variable = super().variable(region)
        if variable is None:
            return None
        self._us[str(variable.name_hint)] = self.together_us[key]
        if not self._pays(region):  # equal kernels elsewhere may reach for new memory, these do not
            self.refused[key] = self.no_gain
            return None
        return variable

    def chosen(self, calls: Calls, taken: set[int]) -> Iterator[tuple[Region, Any]]:
        for number in sorted(calls.kernels, reverse=True):
            if number not in taken and not self._unfit(calls.kernels[number]):
                region, variable = self.grown(calls, number, taken)
                if variable is not None:
                    yield region, variable

    def candidate(self, calls: Calls, numbers: set[int], closed: set[int]) -> int | None:
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

    def gains(self, region: Region, before: Region, more: KernelCall) -> bool:
        """Whether a region takes less time than without one of its kernels, and that by itself."""
        saved_us = self._saved_us(region) - self._saved_us(before)
        apart_us = sum(self.parts_us(before, more)) + saved_us
        return self.together_us[region.key] < apart_us * self._certain[region.key]

    def apart_us(self, region: Region) -> float:
        """Predicted time of a region's kernels with that of new memory between them."""
        return super().apart_us(region) + self._saved_us(region)

    def _saved_us(self, region: Region) -> float:
        if self.cold_us is None:
            return 0.0
        inner = [call for call in region.calls if call.var not in region.results]
        new_bytes = sum(self._fresh_bytes[call.number] for call in inner)
        return min(self.cold_us(new_bytes, self._run_bytes), MOST_SAVED * super().apart_us(region))

    def _pays(self, region: Region) -> bool:
        """Whether a region is faster as one kernel, for sure, where it stands."""
        key = region.key
        return self.together_us[key] < self.apart_us(region) * self._certain[key]

    def refusal(self, region: Region, func: PrimFunc) -> str:
        """Why it cannot be computed strip by strip, or not faster so."""
        prepared = prepare(func)
        if prepared is None or not row_axes(prepared.graph):
            return "no rows that all stages share"
        slower = self.slower(region, func, rule=STRIPS)
        if slower:
            return slower
        again = repeats(prepared.graph, strip_tiles(prepared.graph)[-1])
        self._certain[region.key] = CERTAIN if again else 1.0
        if not self._pays(region):
            apart_us, together_us = self.apart_us(region), self.together_us[region.key]
            return f"hardly faster: {together_us:.1f} us, {apart_us:.1f} us apart"
        return self.why_unwritten(func) if self.why_unwritten else ""

    def _unfit(self, call: KernelCall) -> str:
        """Why a kernel can be no part of a region; empty if it can."""
        name = str(call.kernel.name_hint)
        if name not in self._fit:
            self._fit[name] = self._why_unfit(self.mod[call.kernel])
        return self._fit[name]

    @staticmethod
    def _why_unfit(func: PrimFunc) -> str:
        if is_settled(func):
            return "has a plan of its own"
        if func.attrs and CONCAT_AXIS in func.attrs:
            return "becomes parts written in place"
        prepared = prepare(func)
        if prepared is None or not row_axes(prepared.graph):
            return "has no rows that all stages share"
        if products_of_quarters(prepared.graph):
            return "multiplies quarters"
        return "computes image tiles by themselves" if transform_chain(prepared.graph) else ""
