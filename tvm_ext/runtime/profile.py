"""Timing every kernel where it runs: in the whole model, its weights as cold as they are there.

A kernel that is timed alone, again and again, finds its weights in cache. Here the VM tells of
every call it makes, before and after, and the clock is read at both.

What is timed follows a run of the same machine that is not. Machines have activations of their own:
run in turn, each found the other's in the caches (MobileNetV2: 2018 us instead of 1434, its widest
kernel 173 instead of 92).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any

import numpy as np

from tvm_ext.errors import InputError
from tvm_ext.records.manifest import TensorInfo
from tvm_ext.records.profile import Profile
from tvm_ext.runtime.machine import Machine, tensor, wait

WARM_UPS = 3
Mark = tuple[str, bool, float]
"""A call's name, whether it begins, and when, in seconds."""


def random_inputs(
    infos: Sequence[TensorInfo], seed: int = 0, extents: int | Mapping[str, int] = 1
) -> list[np.ndarray]:
    """Inputs in model order: floats standard normal; integers 0 or 1, to fit as indices and masks.

    extents  what is left open, as in `TensorInfo.at`
    """
    source = np.random.default_rng(seed)
    drawn = []
    for info in infos:
        if np.issubdtype(np.dtype(info.dtype), np.floating):
            drawn.append(source.standard_normal(info.at(extents)).astype(info.dtype))
        else:
            drawn.append(source.integers(0, 2, info.at(extents)).astype(info.dtype))
    return drawn


def profile(
    module: Any,
    kernels: Iterable[str],
    arrays: Sequence[np.ndarray],
    runs: int,
    read_peak: Callable[[], float] | None = None,
    device: str = "cpu",
) -> Profile:
    """Runs the model `runs` times with the clock around every call, and as often without, in turn,
    each after one more run that is not timed.

    kernels    names of the functions that count as kernels; the VM's other calls are taken together
    read_peak  the machine's peak at this moment, GFLOP/s; read between the two
    device     what the kernels run on; each is waited for

    Raises InputError without a run to time, and as `Machine.main`.
    """
    if runs < 1:
        raise InputError(f"profile: {runs} runs tell no time; give 1 or more")
    marks: list[Mark] = []

    def note(function: Any, name: str, begins: bool, result: Any, *arguments: Any) -> None:
        wait(device)
        marks.append((name, begins, time.perf_counter()))

    plain, clocked = Machine(module, device), Machine(module, device)
    clocked.instrument(note)
    plain_main, clocked_main = plain.main, clocked.main
    tensors = [tensor(array, device) for array in arrays]
    latencies: list[float] = []
    whole: list[float] = []
    rounds: list[dict[str, list[float]]] = []
    peaks: list[float] = []
    for _ in range(WARM_UPS + runs):
        plain_main(*tensors)
        latencies.append(_seconds(plain_main, tensors, device))
        if read_peak is not None:
            peaks.append(read_peak())
        clocked_main(*tensors)
        marks.clear()
        whole.append(_seconds(clocked_main, tensors, device))
        rounds.append(by_name(marks))
    del latencies[:WARM_UPS], whole[:WARM_UPS], rounds[:WARM_UPS]
    each_us = {name: _medians_us([spent[name] for spent in rounds]) for name in rounds[0]}
    names = [name for name in kernels if name in each_us]
    return Profile(
        runs=runs,
        measured_us={name: mean(each_us[name]) for name in names},
        calls={name: len(each_us[name]) for name in names},
        other_us=sum(sum(each_us[name]) for name in set(each_us).difference(names)),
        clocked_us=1e6 * median(whole),
        latency_us=1e6 * median(latencies),
        peak_gflops=median(peaks[WARM_UPS:]) if peaks else 0.0,
    )


def by_name(marks: Iterable[Mark]) -> dict[str, list[float]]:
    """Seconds of every call in order, by name; without those of the calls made inside it."""
    spent: dict[str, list[float]] = defaultdict(list)
    open_calls: list[tuple[float, float]] = []
    for name, begins, now in marks:
        if begins:
            open_calls.append((now, 0.0))
            continue
        start, inside = open_calls.pop()
        spent[name].append(now - start - inside)
        if open_calls:
            outer, sum_inside = open_calls[-1]
            open_calls[-1] = (outer, sum_inside + now - start)
    return spent


def _medians_us(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Of each call of a kernel, in order, its median over the runs of the model."""
    return [1e6 * median(call) for call in zip(*rounds, strict=True)]


def _seconds(main: Any, tensors: Sequence[Any], device: str) -> float:
    wait(device)
    start = time.perf_counter()
    main(*tensors)
    wait(device)
    return time.perf_counter() - start
