"""`StitchGlobal`: a product and a norm beside it as one kernel (AStitch §4, its Global scheme).

    h = x @ w + b + r; n = layer_norm(h)       two kernels
        →
    parallel tiles of h; wait for all; parallel rows of n       one, in one launch

A row of a norm needs all of its product's columns, which cores share out. Kept to rows of their own
they would each read all weights (`FuseTiles` does, where that takes less time); here the stages
keep their plans, `tile.cut` gives each a piece of the kernel, and what lies between them is a
barrier in place of a launch. The first one's result may be read by others as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_ext.graph.merger import Explain, Merger, Predict
from tvm_ext.graph.region import Calls, KernelCall, Region
from tvm_ext.tile.chain import transform_chain
from tvm_ext.tile.cut import Piece, cut
from tvm_ext.tir import prepare
from tvm_ext.tvm_api import IRModule, PrimFunc, tvm


@tvm.transform.module_pass(opt_level=0, name="StitchGlobal")
@dataclass(frozen=True)
class StitchGlobal:
    """Merges kernels bound by memory, reductions among their stages, with products beside them.

    predict_us  predicted time of a PrimFunc by its best plan
    explain     told of each region, and why others are none
    """

    predict_us: Predict
    explain: Explain | None = None

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module after `FuseMultiOutput`, with fewer kernels."""
        return _Stitcher(mod, self.predict_us, self.explain).run()


@dataclass
class _Stitcher(Merger):
    name = "StitchGlobal"

    def chosen(self, calls: Calls, taken: set[int]) -> Iterator[tuple[Region, Any]]:
        """Norms with the product before them, others with the one behind. A product that is also
        called without a norm stays: it would be compiled twice."""
        called = Counter(str(call.kernel.name_hint) for call in calls.kernels.values())
        joined: list[set[int]] = []
        for find in (self._before, self._behind):
            regions = list(self._regions(calls, find, joined))
            alike = Counter(region.key for region in regions)
            for region in regions:
                norm, product = sorted(region.calls, key=self.is_product)
                name = str(product.kernel.name_hint)
                if alike[region.key] == called[name]:
                    variable = self.variable(region)
                    if variable is not None:
                        joined.append({call.number for call in region.calls})
                        yield region, variable
                        continue
                reason = self.refused.get(region.key, "is called without it as well")
                self.stopped.setdefault(norm.number, f"with {name}: {reason}")

    def _regions(
        self, calls: Calls, find: Callable[[Calls, int], int | None], joined: Sequence[set[int]]
    ) -> Iterator[Region]:
        """Norms with the product that is found for them, if no other path leads from one to the
        other, each call in one region at most."""
        regions = list(joined)
        for number, call in sorted(calls.kernels.items(), reverse=True):
            product = find(calls, number)
            if product is None or not self.is_product(calls.kernels[product]):
                continue
            if not self._is_norm(call):
                continue
            numbers = {product, number}
            if all(map(numbers.isdisjoint, regions)) and not calls.leads_back(numbers, regions):
                regions.append(numbers)
                yield calls.region(numbers)

    @staticmethod
    def _before(calls: Calls, number: int) -> int | None:
        """The latest kernel of whose result a call makes its own."""
        return max(calls.producers(number), default=None)

    @staticmethod
    def _behind(calls: Calls, number: int) -> int | None:
        """The only kernel that takes a call's result."""
        (reader, *others) = calls.readers(number) or {-1}
        return reader if not others and reader in calls.kernels else None

    def _is_norm(self, call: KernelCall) -> bool:
        """Whether a kernel is bound by memory, with reductions among its stages."""
        prepared = prepare(self.mod[call.kernel]) if self.is_light(call) else None
        return prepared is not None and any(n.kind == "reduce" for n in prepared.graph.nodes)

    def refusal(self, region: Region, func: PrimFunc) -> str:
        """Why it cannot be one kernel of two pieces, or one that is faster. What has several pieces
        already goes by strips, perhaps; a chain is written as a whole kernel only."""
        apart = [len(self._pieces(self.mod[call.kernel])) for call in region.calls]
        pieces = self._pieces(func)
        if apart != [1, 1] or len(pieces) != 2:
            return "not a piece each"
        if any(transform_chain(piece.graph) for piece in pieces):
            return "a chain is no piece"
        return self.slower(region, func)

    @staticmethod
    def _pieces(func: PrimFunc) -> tuple[Piece, ...]:
        prepared = prepare(func)
        return cut(prepared.graph) if prepared is not None else ()
