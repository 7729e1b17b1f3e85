"""`Grower`: a `Merger` whose regions take in one kernel after another.

{c}   →   {b, c}, if that is one kernel and gains   →   {a, b, c}
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from tvm_ext.graph.merger import Merger
from tvm_ext.graph.region import Calls, KernelCall, Region


@dataclass
class Grower(Merger):
    """Grows regions while kernels are found that each make one faster (Welder's greedy connection
    of edges)."""

    no_gain: ClassVar[str]
    """What is said of a kernel that does not."""

    most: int = 8
    """Kernels of a region."""
    attempts: float = inf
    """Kernels that are tried beside one."""

    @abstractmethod
    def candidate(self, calls: Calls, numbers: set[int], closed: set[int]) -> int | None:
        """The kernel to try next, none of the closed ones; None if there is no more."""

    @abstractmethod
    def gains(self, region: Region, before: Region, more: KernelCall) -> bool:
        """Whether a region is enough faster than without one of its kernels, and that by itself."""

    def grown(self, calls: Calls, first: int, taken: set[int]) -> tuple[Region, Any]:
        """The region that a call is part of, and the function that takes its place; None for the
        call alone."""
        numbers, closed, tried = {first}, set(taken), 0
        best: tuple[Region, Any] = calls.region(numbers), None
        while len(numbers) < self.most and tried < self.attempts:
            tried += 1
            number = self.candidate(calls, numbers, closed)
            if number is None:
                break
            region, more = calls.region(numbers | {number}), calls.kernels[number]
            variable = self.variable(region)
            if variable is None or not self.gains(region, best[0], more):
                closed.add(number)
                reason = self.refused[region.key] or self.no_gain
                self.stopped.setdefault(first, f"with {more.kernel.name_hint}: {reason}")
            else:
                numbers.add(number)
                best = region, variable
        return best
