"""`AbsorbViews`: kernels that only permute outer axes vanish in the product that reads them.

    attention(permute(q), permute(k), permute(v))  →  permute    four copies and a kernel
        →
    attention of q, k and v where they lie                        one kernel

What lies side by side stays so, hence nothing is lost but rows next to each other: the product
reads its rows further apart, or copies them side by side for each task (`TilePlan.staged`). TVM
fuses no producer into a product. The copy's place is taken if the model says that it takes no
longer (Welder, section 3.2: an edge lowered to registers; FusionStitching, section 4.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tvm_ext.graph.region import Calls, KernelCall, Region
from tvm_ext.tir import prepare
from tvm_ext.tir.prepare import is_view
from tvm_ext.tir.read import copies, uses_again
from tvm_ext.tvm_api import IRModule, PrimFunc, is_scheduled, relax, tvm, with_blocks

Predict = Callable[[PrimFunc], float]


@tvm.transform.module_pass(opt_level=0, name="AbsorbViews")
@dataclass(frozen=True)
class AbsorbViews:
    """Merges kernels that permute into the products around them that are their only readers, or
    whose only reader they are.

    predict_us  predicted time of a PrimFunc by its best plan, infinite where there is none
    """

    predict_us: Predict

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module after `Fuse`, with fewer kernels."""
        kernels = {v: func for v, func in mod.functions.items() if isinstance(func, PrimFunc)}
        # a builder compares functions by hash, with weights: it is given those that have none
        absorber = _Absorber(mod, self.predict_us, relax.BlockBuilder(IRModule(kernels)))
        result = with_blocks(mod, absorber.block)
        result.update(absorber.builder.get())
        return relax.transform.DeadCodeElimination()(result)


@dataclass
class _Absorber:
    mod: IRModule
    predict_us: Predict
    builder: Any
    _views: dict[str, bool] = field(default_factory=dict)
    _products: dict[str, bool] = field(default_factory=dict)
    _us: dict[str, float] = field(default_factory=dict)
    _merged: dict[Any, Any] = field(default_factory=dict)
    """For each region, by its key, the variable of the function in its place; None if it stays."""

    def block(self, block: Any) -> Any:
        """The block with regions as single calls."""
        calls = Calls.of(block)
        placed: dict[int, Any] = {}
        gone: set[int] = set()
        for number, call in calls.kernels.items():
            if not self._is_product(call):
                continue
            for region in self._regions(calls, number, gone):
                variable = self._variable(region)
                if variable is not None:
                    gone |= {one.number for one in region.calls}
                    placed[region.calls[-1].number] = region.call(variable)
                    break
        if not placed:
            return block
        bindings = [
            relax.VarBinding(binding.var, placed[number]) if number in placed else binding
            for number, binding in enumerate(block.bindings)
            if number in placed or number not in gone
        ]
        return relax.DataflowBlock(bindings)

    def _regions(self, calls: Calls, number: int, gone: set[int]) -> list[Region]:
        """The product with the views before and after it; with those before it; with each alone."""
        before = sorted(
            place
            for place in calls.producers(number) - gone
            if calls.readers(place) == {number} and self._is_view(calls.kernels[place])
        )
        readers = calls.readers(number)
        after = [
            place
            for place in readers & calls.kernels.keys()
            if len(readers) == 1 and self._is_view(calls.kernels[place])
        ]
        choices = [[*before, number, *after], [*before, number], [number, *after]]
        choices += [[place, number] for place in before]
        found = {tuple(places): None for places in choices if len(places) > 1}
        return [Region(tuple(calls.kernels[place] for place in places)) for places in found]

    def _variable(self, region: Region) -> Any:
        """The variable of a region's function; None if it can be no kernel, or a slower one."""
        key = region.key
        if key not in self._merged:
            func = region.merged(self.mod)
            pays = func is not None and self._pays(region, func)
            self._merged[key] = self.builder.add_func(func, region.name) if pays else None
        return self._merged[key]

    def _pays(self, region: Region, func: PrimFunc) -> bool:
        """Whether one kernel computes the region at once, views being no stages of it."""
        product = next(call for call in region.calls if self._is_product(call))
        alone, merged = prepare(self.mod[product.kernel]), prepare(func)
        if alone is None or merged is None or len(merged.graph.nodes) != len(alone.graph.nodes):
            return False
        return self.predict_us(func) < sum(self._predicted_us(call) for call in region.calls)

    def _is_product(self, call: KernelCall) -> bool:
        """Whether a kernel is unscheduled and reads elements for several results."""
        name = str(call.kernel.name_hint)
        if name not in self._products:
            func = self.mod[call.kernel]
            self._products[name] = not is_scheduled(func) and uses_again(func)
        return self._products[name]

    def _is_view(self, call: KernelCall) -> bool:
        """Whether a kernel only permutes outer axes."""
        name = str(call.kernel.name_hint)
        if name not in self._views:
            func = self.mod[call.kernel]
            moves = not is_scheduled(func) and copies(func)
            prepared = prepare(func) if moves else None
            self._views[name] = prepared is not None and is_view(prepared.graph, 0)
        return self._views[name]

    def _predicted_us(self, call: KernelCall) -> float:
        name = str(call.kernel.name_hint)
        if name not in self._us:
            self._us[name] = self.predict_us(self.mod[call.kernel])
        return self._us[name]
