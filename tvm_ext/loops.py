"""Loops as kernels (`graph/reroll_loops.py`), compiled and checked against those they are of.

A loop is made of schedules that have been checked one by one; what can be wrong is how they were
put together. So it runs once on random data, and so do its kernels, turn by turn, on the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from statistics import mean
from typing import Any

import numpy as np

from tvm_ext.graph.reroll_loops import RerollLoops
from tvm_ext.hardware import physical_cores
from tvm_ext.measure.build import build as compile_kernel
from tvm_ext.measure.inputs import numpy_dtype
from tvm_ext.measure.job import Failure
from tvm_ext.planner import Planned
from tvm_ext.records.manifest import Group
from tvm_ext.runtime.child import verdict
from tvm_ext.runtime.kernel import Kernel
from tvm_ext.runtime.machine import tensor
from tvm_ext.shield import shield
from tvm_ext.tir.roll import Part, Rolled
from tvm_ext.tvm_api import IRModule, array_of, element_bytes, ir, relax, structural_walk, tvm
from tvm_ext.verify import arguments_of

BOUND = 1e-4
"""Largest difference over largest magnitude: LLVM may contract sums otherwise in another place."""
SMALL = 0.125
"""Standard deviation of random data, which is handed on from turn to turn."""
LONG_US = 100.0
"""Predicted time of kernels, in the mean, beside which a call is nothing (twelve layers of one set
of weights, ALBERT's: 0.99 times as fast as a loop, and compiled twice)."""
NAME_CHARS = 24
"""Of the name of a kernel inside."""
Main = Callable[..., Any]


class Loops:
    """The loops of one model.

    planned  how the kernels that they are of were planned, by name
    kernels  those, compiled
    target   what they are compiled for
    checked  whether this machine is to run them once
    apart    in a process of its own, each
    """

    def __init__(
        self,
        planned: Mapping[str, Planned],
        kernels: Mapping[str, Any],
        target: Any,
        checked: bool,
        apart: bool,
    ) -> None:
        self._planned, self._kernels = planned, kernels
        self._target, self._checked, self._apart = target, checked, apart
        self._found: dict[str, Rolled] = {}
        self._times: Counter[str] = Counter()
        self.kernels: dict[str, Kernel] = {}
        self.notes: list[str] = []
        """Why loops are not kernels."""

    def rerolled(self, mod: IRModule) -> IRModule:
        """The module, after CallTIRRewrite, with those loops as kernels that compile and are right;
        without any if a `PassContext` leaves the pass out."""
        if "RerollLoops" in tvm.transform.PassContext.current().disabled_pass:
            return mod
        rerolled = RerollLoops(accepts=self._accepted)(mod)  # type: ignore[operator]
        return self._without_those_inside(rerolled)

    def groups(self) -> list[Group]:
        """The report lines of the loops."""
        return [self._group(name, loop) for name, loop in self._found.items()]

    def calls(self, kernel: str) -> int:
        """How often a kernel is called inside loops."""
        return sum(
            self._times[name] * loop.turns * sum(inside == kernel for inside, _ in loop.kernels)
            for name, loop in self._found.items()
        )

    def _without_those_inside(self, mod: IRModule) -> IRModule:
        """The module without kernels that loops alone call."""
        if not self._found:
            return mod
        called: set[Any] = set()
        for function in mod.functions.values():
            if isinstance(function, relax.Function):
                structural_walk(function, (ir.Call, lambda call: called.add(call.op)))
        inside = {name for loop in self._found.values() for name, _ in loop.kernels}
        return IRModule(
            {
                variable: function
                for variable, function in mod.functions.items()
                if variable in called or variable.name_hint not in inside
            }
        )

    def _accepted(self, loops: Sequence[tuple[str, Rolled]]) -> Collection[str]:
        """The loops that are kernels from now on: compiled on all cores, checked when ready."""
        likely: dict[str, Rolled] = {}
        for name, loop in loops:
            if not self._times[name] and self._is_short(loop):
                likely[name] = loop
            self._times[name] += 1
        with ThreadPoolExecutor(physical_cores()) as pool:
            jobs = [(name, pool.submit(self._compiled, name, likely[name])) for name in likely]
            for name, job in jobs:
                if kernel := self._right(name, likely[name], job.result()):
                    self.kernels[name] = kernel
                    self._found[name] = likely[name]
        return self._found.keys()

    def _is_short(self, loop: Rolled) -> bool:
        if any(kernel not in self._kernels for kernel, _ in loop.kernels):
            return False
        return mean(self._planned[one].option.predicted_us for one, _ in loop.kernels) <= LONG_US

    def _compiled(self, name: str, loop: Rolled) -> Kernel | Failure:
        built = compile_kernel(loop.func, self._target, name, run=False)
        if isinstance(built, Failure):
            return built
        return Kernel.of(built.module, name, self._checked)

    def _right(self, name: str, loop: Rolled, kernel: Kernel | Failure) -> Kernel | None:
        """The kernel, if it is one and does what those inside do."""
        found: list[str] = []
        reason = f"loop {name} left as calls"
        if isinstance(kernel, Failure):
            found.append(f"{reason}: {kernel.message}")
        elif self._checked:
            mains = {inside: self._kernels[inside].main for inside, _ in loop.kernels}
            with shield(reason, found):
                if wrong := verdict(partial(differs, loop, kernel.main, mains), self._apart):
                    found.append(f"{reason}: {wrong}")
        self.notes += found
        return None if found or isinstance(kernel, Failure) else kernel

    def _group(self, name: str, loop: Rolled) -> Group:
        """Without a predicted time: those of its kernels are of weights out of cache, which they
        are in the first turn alone."""
        each = [self._planned[kernel].group() for kernel, _ in loop.kernels]
        return Group(
            name=name,
            kind=f"{loop.turns} x ({', '.join(group.kind[:NAME_CHARS] for group in each)})",
            signature="",
            source="loop",
            bound=max(each, key=lambda group: group.predicted_us).bound,
            flops=loop.turns * sum(group.flops for group in each),
            io_bytes=sum(
                prod(map(int, param.shape)) * element_bytes(param) for param in loop.func.params
            ),
            calls=self._times[name],
            verified=self._checked and all(group.verified for group in each),
        )


def differs(loop: Rolled, main: Main, mains: Mapping[str, Main], seed: int = 0) -> str:
    """Runs a loop, and its kernels turn by turn, on the same random data. Returns what is wrong, or
    an empty text."""
    source = np.random.default_rng(seed)
    spans = _spans(loop)
    given = [
        _random(source, param, spans[place]) if array is None else np.array(array)
        for place, (param, array) in enumerate(zip(loop.func.params, loop.constants, strict=True))
    ]
    at_once = [tensor(array) for array in given]
    main(*at_once)
    in_turn = [tensor(array) for array in given]
    flat = [array_of(one).reshape(-1) for one in in_turn]
    for turn in range(loop.turns):
        for (name, func), parts in zip(loop.kernels, loop.parts, strict=True):
            moved: list[tuple[Any, np.ndarray]] = []
            arguments: list[Any] = []
            for param, part in zip(func.params, parts, strict=True):
                if isinstance(part, int):
                    arguments.append(in_turn[part])
                    continue
                shape = tuple(map(int, param.shape))
                begin = part.at(turn)
                lies = flat[part.tensor][begin : begin + prod(shape)].reshape(shape)
                arguments.append(tensor(lies))
                moved.append((arguments[-1], lies))
            mains[name](*arguments)
            for argument, lies in moved:
                lies[...] = argument.numpy()
    for place, (one, other) in enumerate(zip(at_once, in_turn, strict=True)):
        actual, expected = (x.numpy().astype("float64") for x in (one, other))
        bound = BOUND * np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected))
        if not np.allclose(actual, expected, rtol=0.0, atol=bound, equal_nan=True):
            return f"tensor {place} is not what its kernels make, call by call"
    return ""


def _spans(loop: Rolled) -> list[tuple[int, int]]:
    """For each of a loop's tensors between which numbers integers may be: as indices, and as
    divisors, of all kernels that take it."""
    found = [(0, 1 << 31)] * len(loop.func.params)
    for (_, func), parts in zip(loop.kernels, loop.parts, strict=True):
        for argument, part in zip(arguments_of(func, 0), parts, strict=True):
            place = part.tensor if isinstance(part, Part) else part
            low, high = argument.span
            found[place] = max(low, found[place][0]), min(high, found[place][1])
    return [(low, max(low + 1, high)) for low, high in found]


def _random(source: np.random.Generator, param: Any, span: tuple[int, int]) -> np.ndarray:
    """Data for a tensor: small floats, for what is handed on; integers of a span."""
    shape, dtype = tuple(map(int, param.shape)), numpy_dtype(str(param.dtype))
    if dtype.kind in "iub":
        return source.integers(*span, shape).astype(dtype)
    return (SMALL * source.standard_normal(shape)).astype(dtype)
