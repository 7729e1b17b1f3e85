"""`FuseMultiOutput`: kernels that share what they read, or of which one reads what others read as
well, as one kernel with several results.

    h = x + r; n = layer_norm(h); y = h + f(n)   →   h, n = add_layer_norm(x, r); y = h + f(n)
    m = mean(x); g = max(x)                      →   m, g = mean_max(x)

The first is XLA's producer-consumer multi-output fusion, the second its sibling fusion; AStitch
(section 4) stitches both. All stages share their rows (`tile.fuse.tiles_of_row`), so a row that is
read, or made, for one result is at hand for the next. What no path leads away from and back to can
become one call; the model says whether it takes less time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tvm_ext.graph.grower import Grower
from tvm_ext.graph.memory_order import type_bytes
from tvm_ext.graph.merger import CALL_US, Explain, Predict
from tvm_ext.graph.region import Calls, KernelCall, Region
from tvm_ext.graph.stitch import not_by_rows
from tvm_ext.tvm_api import IRModule, PrimFunc, tvm

MOST_USERS = 16
"""Readers of a tensor beyond which it is not asked which of them could be one."""
GAIN = 0.2
"""Part of the time of the shorter of two that one kernel has to save. A launch saved is no gain:
the kernels of other calls stay, and one more is compiled (two layer norms of one tensor in
SegFormer: 0.995 times as fast)."""


@tvm.transform.module_pass(opt_level=0, name="FuseMultiOutput")
@dataclass(frozen=True)
class FuseMultiOutput:
    """Merges kernels bound by memory whose results are read by others too.

    predict_us  predicted time of a PrimFunc by its best plan, infinite if that is not of the rule
                asked for
    most        kernels of a region
    attempts    kernels that are tried beside one
    explain     told of each region, and why it is no larger
    """

    predict_us: Predict
    most: int = 4
    attempts: int = 4
    explain: Explain | None = None

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module after `FuseTiles`, with fewer kernels."""
        told = self.predict_us, self.explain
        return _Fuser(mod, *told, most=self.most, attempts=self.attempts).run()


@dataclass
class _Fuser(Grower):
    name = "FuseMultiOutput"
    no_gain = "hardly faster than without it"
    _joined: list[set[int]] = field(default_factory=list)
    """The regions of this block so far."""

    def chosen(self, calls: Calls, taken: set[int]) -> Iterator[tuple[Region, Any]]:
        self._joined.clear()
        for number in sorted(calls.kernels, reverse=True):
            if number not in taken and self.is_light(calls.kernels[number]):
                region, variable = self.grown(calls, number, taken)
                if variable is not None:
                    self._joined.append({call.number for call in region.calls})
                    yield region, variable

    def candidate(self, calls: Calls, numbers: set[int], closed: set[int]) -> int | None:
        """The kernel that has most bytes in common with a region, among those that can be part of
        it."""
        shared: dict[int, int] = {}
        own = {calls.kernels[number].var for number in numbers}
        read = {operand for number in numbers for operand in calls.kernels[number].operands}
        for tensor in own | read:
            size = type_bytes(tensor.ty)
            others = calls.users(tensor)
            if len(others) <= MOST_USERS:
                for other in others | calls.maker(tensor):
                    shared[other] = shared.get(other, 0) + size
        found = [
            number
            for number in shared
            if number not in numbers | closed
            and number in calls.kernels
            and self.is_light(calls.kernels[number])
            and not calls.leads_back(numbers | {number}, self._joined)
        ]
        return max(found, key=lambda number: (shared[number], number), default=None)

    def gains(self, region: Region, before: Region, more: KernelCall) -> bool:
        """Whether one kernel takes clearly less time than a region without one of its kernels, and
        that by itself."""
        parts_us = self.parts_us(before, more)
        saved_us = sum(parts_us) + CALL_US - self.together_us[region.key]
        return saved_us >= GAIN * min(parts_us)

    def refusal(self, region: Region, func: PrimFunc) -> str:
        """Why it cannot be one kernel whose results share their rows, or one that is faster."""
        return not_by_rows(self, region, func)
