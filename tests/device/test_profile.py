"""Timing kernels inside the running model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tiny import tiny_model

import tvm_ext
from tvm_ext.errors import InputError
from tvm_ext.records.profile import with_profile
from tvm_ext.runtime import profile as profiling
from tvm_ext.runtime.executor import Compiled
from tvm_ext.runtime.profile import by_name


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return tvm_ext.compile(tiny_model(), verify=False)


def test_every_kernel_is_found_with_its_calls(compiled: Compiled) -> None:
    profile = compiled.profile(runs=3)
    assert profile.calls == {group.name: group.calls for group in compiled.manifest.groups}
    assert profile.runs == 3
    assert all(us > 0 for us in profile.measured_us.values())
    assert profile.kernels_us > 0
    assert profile.other_us > 0
    assert profile.latency_us > 0 < profile.clocked_us


def test_peaks_are_read_beside_the_runs(compiled: Compiled) -> None:
    readings = iter(range(1, 100))
    profile = compiled.profile(runs=3, read_peak=lambda: float(next(readings)))
    assert profile.peak_gflops == 5.0  # of 4, 5 and 6, after three runs to warm up


def test_what_is_timed_follows_a_run_of_the_same_machine(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the caches hold what the other machine wrote."""
    runs: list[tuple[int, bool]] = []
    seconds = profiling._seconds

    class Noted(profiling.Machine):
        def __getitem__(self, name: str) -> Callable[..., Any]:
            function = super().__getitem__(name)

            def run(*arguments: Any) -> Any:
                runs.append((id(self), timed))
                return function(*arguments)

            return run

    timed = False

    def note(*arguments: Any) -> float:
        nonlocal timed
        timed = True
        spent = seconds(*arguments)
        timed = False
        return spent

    monkeypatch.setattr(profiling, "Machine", Noted)
    monkeypatch.setattr(profiling, "_seconds", note)
    compiled.profile(runs=2)
    assert [is_timed for _, is_timed in runs] == [False, True] * (len(runs) // 2)
    assert all(a == b for (a, _), (b, _) in zip(runs[::2], runs[1::2], strict=True))
    assert len({machine for machine, _ in runs}) == 2


def test_a_profile_does_not_stay_with_the_model(compiled: Compiled) -> None:
    before = compiled.manifest
    x = np.random.default_rng(0).standard_normal((1, 3, 18, 17), dtype=np.float32)
    expected = compiled(x)
    profile = compiled.profile(x, runs=1)
    assert compiled.manifest is before
    for given, wanted in zip(compiled(x), expected, strict=True):
        np.testing.assert_array_equal(given, wanted)
    groups = with_profile(compiled.manifest, profile).groups
    assert {group.name: group.measured_us for group in groups} == profile.measured_us


def test_given_inputs_are_checked(compiled: Compiled) -> None:
    with pytest.raises(InputError, match="'x'"):
        compiled.profile(np.zeros((1, 3, 18, 18), np.float32))


def test_a_call_is_charged_without_the_calls_inside_it() -> None:
    marks = [
        *(("outer", True, 0.0), ("a", True, 1.0), ("a", False, 3.0), ("a", True, 4.0)),
        *(("a", False, 5.0), ("outer", False, 10.0), ("b", True, 10.0), ("b", False, 11.0)),
    ]
    assert by_name(marks) == {"outer": [7.0], "a": [2.0, 1.0], "b": [1.0]}


def test_multiply_adds_are_counted_for_the_tiled_reductions(compiled: Compiled) -> None:
    (dense,) = (g for g in compiled.manifest.groups if g.kind == "dense_add")
    assert dense.flops - dense.multiply_flops == 10  # the bias
    (first,) = (g for g in compiled.manifest.groups if g.kind == "conv2d_add_relu")
    assert first.multiply_flops == 2 * 16 * 18 * 17 * 3 * 9
