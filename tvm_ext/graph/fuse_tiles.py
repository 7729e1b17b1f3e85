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
from typing import Any

from tvm_ext.graph.concat_in_place import CONCAT_AXIS
from tvm_ext.graph.grower import Grower
from tvm_ext.graph.merger import Explain, Predict
from tvm_ext.graph.region import Calls, KernelCall, Region, is_settled
from tvm_ext.tile.classify import transform_chain
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
        return _Fuser(mod, self.predict_us, self.explain, most=self.most).run()


@dataclass
class _Fuser(Grower):
    name = "FuseTiles"
    no_gain = "slower than without it"
    _fit: dict[str, str] = field(default_factory=dict)

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
        return self.together_us[region.key] < sum(self.parts_us(before, more))

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
        return "computes image tiles by themselves" if transform_chain(prepared.graph) else ""
