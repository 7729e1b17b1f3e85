"""`Merger`: what passes have in common that merge kernels where the model says that it pays.

    a = f(x); b = g(a); c = h(b)   →   region {f, g} → one function → c = h(f_g(x))

A pass says which regions it wants and what refuses them; equal regions are looked at once, and each
decision is told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf, isfinite
from typing import Any, ClassVar

from tvm_ext.graph.concat_places import CONCAT_AXIS
from tvm_ext.graph.region import Calls, KernelCall, Region, is_settled
from tvm_ext.records.manifest import Fusion
from tvm_ext.tir.read import uses_again
from tvm_ext.tvm_api import IRModule, PrimFunc, relax, structural_walk, with_blocks

Predict = Callable[..., float]
"""Called with a PrimFunc and perhaps the rule that it is to be planned by: its predicted time,
infinite where it has no such plan."""
Explain = Callable[[Fusion], object]
"""Called with each decision."""

CALL_US = 0.2
"""What a call costs beside its kernel (200 kernels of 256 elements take 0.3 us each)."""
NO_FUNCTION = "TVM makes no function of them"


@dataclass
class Merger(ABC):
    """Merges regions of a module's kernels; equal ones are looked at once."""

    name: ClassVar[str]
    """Of the pass."""

    mod: IRModule
    predict_us: Predict | None
    explain: Explain | None
    builder: Any = field(init=False)
    stopped: dict[int, str] = field(default_factory=dict, init=False)
    """Why the region that ends with a call, perhaps the call alone, is no larger."""
    refused: dict[Any, str] = field(default_factory=dict, init=False)
    """Why regions, by their keys, did not become one kernel."""
    together_us: dict[Any, float] = field(default_factory=dict, init=False)
    _us: dict[str, float] = field(default_factory=dict, init=False)
    _products: dict[str, bool] = field(default_factory=dict, init=False)
    _heavy: dict[str, str] = field(default_factory=dict, init=False)
    _merged: dict[Any, Any] = field(default_factory=dict, init=False)
    """For each region, by its key, the variable of the function in its place; None if it stays."""

    def __post_init__(self) -> None:
        functions = self.mod.functions.items()
        kernels = {v: func for v, func in functions if isinstance(func, PrimFunc)}
        # a builder compares functions by hash, with weights: it is given those that have none
        self.builder = relax.BlockBuilder(IRModule(kernels))

    def run(self) -> IRModule:
        """The module with regions as single calls; what nobody calls any more is gone."""
        result = with_blocks(self.mod, self._block)
        result.update(self.builder.get())
        return relax.transform.DeadCodeElimination()(result)

    @abstractmethod
    def chosen(self, calls: Calls, taken: set[int]) -> Iterator[tuple[Region, Any]]:
        """The regions of a block to merge, with the variables of their functions; `taken` are the
        places of the calls of all regions so far."""

    @abstractmethod
    def refusal(self, region: Region, func: PrimFunc) -> str:
        """Why a function that does what a region does should not take its place; empty if it
        should."""

    def variable(self, region: Region) -> Any:
        """The variable of a region's function; None if it can be no kernel, or does not pay."""
        key = region.key
        if key not in self._merged:
            func = region.merged(self.mod)
            self.refused[key] = NO_FUNCTION if func is None else self.refusal(region, func)
            pays = not self.refused[key]
            self._merged[key] = self.builder.add_func(func, region.name) if pays else None
        return self._merged[key]

    def is_product(self, call: KernelCall) -> bool:
        """Whether a kernel is unscheduled and reads elements for several results."""
        name = str(call.kernel.name_hint)
        if name not in self._products:
            func = self.mod[call.kernel]
            self._products[name] = not is_settled(func) and uses_again(func)
        return self._products[name]

    def is_light(self, call: KernelCall) -> bool:
        """Whether a kernel is bound by memory, and can be part of another."""
        return not self.heaviness(call)

    def heaviness(self, call: KernelCall) -> str:
        """Why a kernel can be no part of one that is bound by memory; empty if it can: it is not
        settled, and does not read elements for several results, as products do. Asked of every
        kernel of a model, so the blocks are not read."""
        name = str(call.kernel.name_hint)
        if name not in self._heavy:
            func = self.mod[call.kernel]
            self._heavy[name] = (
                "becomes parts written in place"
                if func.attrs and CONCAT_AXIS in func.attrs
                else "has a plan of its own"
                if is_settled(func)
                else "is a product or a window"
                if uses_again(func)
                else ""
            )
        return self._heavy[name]

    def slower(self, region: Region, func: PrimFunc, **asked: str) -> str:
        """Why a function is no faster than the region apart; empty if it is."""
        if self.predict_us is None:
            return ""
        apart_us, together_us = self.apart_us(region), self.predict_us(func, **asked)
        self.together_us[region.key] = together_us
        if together_us < apart_us:
            return ""
        if together_us == inf:
            return "no plan for one kernel"
        return f"slower: {together_us:.1f} us, {apart_us:.1f} us apart"

    def parts_us(self, before: Region, more: KernelCall) -> tuple[float, float]:
        """Predicted times of a region, as one kernel if it is more than a call, and of a kernel
        that it might take in."""
        merged = len(before.calls) > 1
        own_us = self.together_us.get(before.key, inf) if merged else self.apart_us(before)
        return own_us, self.apart_us(Region((more,)))

    def apart_us(self, region: Region) -> float:
        """Predicted time of a region's kernels one after another, with what further calls cost."""
        kernels_us = sum(self._predicted_us(call) for call in region.calls)
        return kernels_us + CALL_US * (len(region.calls) - 1)

    def _tell(self, region: Region) -> None:
        if self.explain is None:
            return
        several = len(region.calls) > 1 and self.predict_us is not None
        numbers = [call.number for call in region.calls]
        self.explain(
            Fusion(
                by=self.name,
                kernels=tuple(str(call.kernel.name_hint) for call in region.calls),
                stopped=next(filter(None, map(self.stopped.get, numbers)), ""),
                apart_us=_known_us(self.apart_us(region)) if several else 0.0,
                together_us=_known_us(self.together_us.get(region.key, 0.0)) if several else 0.0,
                apart_bytes=region.apart_bytes,
                together_bytes=region.together_bytes,
            )
        )

    def _predicted_us(self, call: KernelCall) -> float:
        name = str(call.kernel.name_hint)
        if name not in self._us and self.predict_us is not None:
            self._us[name] = self.predict_us(self.mod[call.kernel])
        return self._us[name]

    def _block(self, block: Any) -> Any:
        calls = Calls.of(block)
        taken: set[int] = set()
        placed: dict[int, list[Any]] = {}
        several = False
        for region, variable in self.chosen(calls, taken):
            taken |= {call.number for call in region.calls}
            placed[region.calls[-1].number] = region.bindings(variable)
            several |= bool(region.others)
            self._tell(region)
        for number in sorted(self.stopped.keys() - taken):
            self._tell(Region((calls.kernels[number],)))
        self.stopped.clear()
        if not placed:
            return block
        bindings = [
            made
            for number, binding in enumerate(block.bindings)
            if number in placed or number not in taken
            for made in placed.get(number, [binding])
        ]
        return relax.DataflowBlock(_in_order(bindings) if several else bindings)


def _in_order(bindings: Sequence[Any]) -> list[Any]:
    """Bindings of which each comes after what it uses, otherwise as they were given."""
    places = {binding.var: place for place, binding in enumerate(bindings)}
    readers: list[set[int]] = [set() for _ in bindings]
    missing = [0] * len(bindings)
    for place, binding in enumerate(bindings):
        used: list[Any] = []
        structural_walk(getattr(binding, "value", None), (relax.Var, used.append))
        sources = {places[var] for var in used if var in places}
        missing[place] = len(sources)
        for source in sources:
            readers[source].add(place)
    ready = [place for place, count in enumerate(missing) if not count]
    found = []
    while ready:
        place = heappop(ready)
        found.append(bindings[place])
        for reader in readers[place]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return found


def _known_us(us: float) -> float:
    """A predicted time as a manifest has it: 0 where there is no plan to predict."""
    return round(us, 2) if isfinite(us) else 0.0
