"""`AbsorbViews`: slices and permutations of outer axes vanish in the product that reads them.

    attention(permute(q), permute(k), permute(v))  →  permute    four copies and a kernel
        →
    attention of q, k and v where they lie                        one kernel

What lies side by side stays so, hence nothing is lost but rows next to each other: the product
reads its rows further apart, or copies them side by side for each task (`TilePlan.staged`). TVM
fuses no producer into a product. The copy's place is taken if the model says that it takes no
longer (Welder, section 3.2: an edge lowered to registers; FusionStitching, section 4.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tvm_ext.graph.merger import Explain, Merger, Predict
from tvm_ext.graph.region import Calls, KernelCall, Region
from tvm_ext.tir import prepare
from tvm_ext.tir.prepare import is_view, permutes
from tvm_ext.tir.read import copies
from tvm_ext.tvm_api import IRModule, PrimFunc, is_scheduled, tvm


@tvm.transform.module_pass(opt_level=0, name="AbsorbViews")
@dataclass(frozen=True)
class AbsorbViews:
    """Merges kernels that permute into the products around them that are their only readers, or
    whose only reader they are.

    predict_us  predicted time of a PrimFunc by its best plan, infinite where there is none
    explain     told of each product with views around it, and why it takes in no more of them
    """

    predict_us: Predict
    explain: Explain | None = None

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module after `Fuse`, with fewer kernels."""
        return _Absorber(mod, self.predict_us, self.explain).run()


@dataclass
class _Absorber(Merger):
    name = "AbsorbViews"
    _views: dict[tuple[str, bool], bool] = field(default_factory=dict)

    def chosen(self, calls: Calls, taken: set[int]) -> Iterator[tuple[Region, Any]]:
        for number, call in calls.kernels.items():
            for region in self._regions(calls, number, taken) if self.is_product(call) else ():
                variable = self.variable(region)
                if variable is not None:
                    yield region, variable
                    break
                names = ", ".join(str(call.kernel.name_hint) for call in region.calls)
                self.stopped.setdefault(number, f"{names}: {self.refused[region.key]}")

    def _regions(self, calls: Calls, number: int, taken: set[int]) -> list[Region]:
        """The product with the views before and after it; with those before it; with each alone."""
        before = sorted(
            place
            for place in calls.producers(number) - taken
            if calls.readers(place) == {number} and self._is_view(calls.kernels[place])
        )
        readers = calls.readers(number)
        after = [
            place
            for place in readers & calls.kernels.keys()
            if len(readers) == 1 and self._is_view(calls.kernels[place], whole=True)
        ]
        choices = [[*before, number, *after], [*before, number], [number, *after]]
        choices += [[place, number] for place in before]
        found = {tuple(places): None for places in choices if len(places) > 1}
        return [Region(tuple(calls.kernels[place] for place in places)) for places in found]

    def refusal(self, region: Region, func: PrimFunc) -> str:
        """Why one kernel does not compute the region at once, views being no stages of it."""
        product = next(call for call in region.calls if self.is_product(call))
        alone, merged = prepare(self.mod[product.kernel]), prepare(func)
        if alone is None or merged is None or len(merged.graph.nodes) != len(alone.graph.nodes):
            return "a view would be a stage"
        return self.slower(region, func)

    def _is_view(self, call: KernelCall, whole: bool = False) -> bool:
        """Whether a kernel takes a slice or permutes outer axes, perhaps of the whole tensor."""
        name = str(call.kernel.name_hint)
        if (name, whole) not in self._views:
            func = self.mod[call.kernel]
            moves = not is_scheduled(func) and copies(func)
            prepared = prepare(func) if moves else None
            asked = permutes if whole else is_view
            self._views[name, whole] = prepared is not None and asked(prepared.graph, 0)
        return self._views[name, whole]
