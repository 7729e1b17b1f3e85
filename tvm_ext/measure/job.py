"""What is asked of the measurer and what it answers. Plain data, sent between processes."""

from __future__ import annotations

from statistics import median
from typing import Any

import msgspec
import numpy as np

from tvm_ext.measure.inputs import Argument
from tvm_ext.tile.plan import TilePlan


class Failure(msgspec.Struct, frozen=True):
    """Why a candidate has no latency. `kind` is the reason of a plan that could not be written
    (`PlanError.reason`), or

    compile  TVM or LLVM refused it, died over it, or took too long
    launch   its arguments are not those of the job, or the call raised
    crash    the kernel was ended by a signal
    hang     the kernel did not return within the time limit
    wrong    an output differs from its reference, or was not written everywhere
    device   the devices of a fleet were lost: nothing is known of the kernel
    """

    kind: str
    message: str


class OutputCheck(msgspec.Struct, frozen=True, eq=False):
    """Reference values of one output at chosen points, computed by the caller from
    `make_inputs(job.arguments, job.seed)`. A point passes when |y - value| <= atol + rtol*|value|;
    infinities and NaNs must match."""

    output: int
    """Which output: 0 is the first argument with `output=True`."""
    flat_indices: np.ndarray
    """int64, row-major positions in the output."""
    values: np.ndarray
    rtol: float | np.ndarray
    atol: float | np.ndarray
    """One bound for all points, or one for each."""


class Job(msgspec.Struct, frozen=True, eq=False):
    """A kernel to schedule, compile, verify and time."""

    func: Any
    """A `tirx.PrimFunc` whose parameters are `arguments`, in order."""
    arguments: tuple[Argument, ...]
    checks: tuple[OutputCheck, ...] = ()
    seed: int = 0
    """Seed of the input data."""
    plan: TilePlan | None = None
    """By which it is scheduled; None if it is already."""
    cold: bool = False
    """Time single calls with all arguments but the first out of cache, as a model finds its
    weights."""
    in_full: bool = False
    """Repeat it however far it is behind the best, as what others are compared with must be."""


class Outcome(msgspec.Struct, frozen=True):
    """Latencies of all repeats, or a failure; both are empty after a mere verification."""

    latency_us: tuple[float, ...] = ()
    failure: Failure | None = None
    tir_hash: str = ""
    """`tir.hash_func` of the schedule; empty if there is none."""

    @property
    def lost(self) -> bool:
        """Whether a device failed, and not the kernel."""
        return self.failure is not None and self.failure.kind == "device"

    @property
    def best_us(self) -> float:
        """Median latency; infinite if there is none. Noise only ever adds time and comes in
        bursts: the median of many short repeats ignores a burst, the minimum would reward luck."""
        return median(self.latency_us) if self.latency_us else float("inf")
