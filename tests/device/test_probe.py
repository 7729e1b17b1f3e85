"""The probe on this machine: plausible figures, and kernels that do the work they are timed for."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar, TypeVar

import msgspec
import numpy as np
import pytest
import tvm
from tvm_ffi import get_global_func

from tvm_ext.hardware import HardwareModel, catalog, isa, kernels, physical_cores, probe, system
from tvm_ext.hardware.probe import _working_sets
from tvm_ext.runtime.peak import Peak

Result = TypeVar("Result")


@pytest.fixture(scope="module")
def measured() -> HardwareModel:
    return probe.run()


def on_own_pool(work: Callable[[], Result]) -> Result:
    """The result of `work` on a thread of its own: TVM keeps one thread pool per thread."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_peak_is_what_lanes_and_clock_allow(measured: HardwareModel) -> None:
    per_cycle = 2 * measured.lanes(4) * measured.fma_per_cycle
    # Wide bounds: any clock from a throttled board to an overclocked desktop.
    assert 0.2 * per_cycle < measured.peak_gflops["float32"] < 7.0 * per_cycle
    assert 1 <= measured.fma_per_cycle <= 8
    assert 2 <= measured.fma_latency_cycles <= 16


def test_a_peak_can_be_read_at_any_moment() -> None:
    hardware = system.static_model()
    reading = on_own_pool(lambda: Peak(hardware).gflops())
    assert 0 < reading < 16 * hardware.peak_gflops["float32"] * hardware.cores


def test_every_type_with_an_instruction_has_a_peak(measured: HardwareModel) -> None:
    assert set(measured.peak_gflops) == set(kernels.instructions(measured.isa))
    for dtype, used in kernels.instructions(measured.isa).items():
        assert measured.peak_gflops[dtype] > 0.2 * used.macs_per_lane * used.lanes, dtype


def test_bandwidths_fall_outward_and_cores_add_up(measured: HardwareModel) -> None:
    for inner, outer in pairwise(measured.levels):
        assert inner.size_bytes < outer.size_bytes
        assert inner.gbps >= outer.gbps > 0
    for inner, outer in pairwise(measured.levels[1:]):
        assert inner.total_gbps >= outer.total_gbps
    assert all(level.total_gbps >= level.gbps for level in measured.levels[1:])


def test_a_shared_cache_answers_later_than_arithmetic(measured: HardwareModel) -> None:
    if not any(level.shared for level in measured.levels[:-1]):
        assert measured.shared_cache_cycles == 0
    else:
        assert 2 * measured.fma_latency_cycles < measured.shared_cache_cycles < 2000


def test_regions_cost_something_but_not_milliseconds(measured: HardwareModel) -> None:
    assert 0 < measured.launch_us < 1000
    assert 0 < measured.barrier_us < 1000


def test_measured_is_the_same_machine_as_static(measured: HardwareModel) -> None:
    static = system.static_model()
    assert measured.fingerprint() == static.fingerprint()
    assert measured.target == static.target
    assert measured.cores == physical_cores()


def test_command_prints_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tvm_ext.hardware.probe"], capture_output=True, check=True
    )
    model = msgspec.json.decode(done.stdout, type=HardwareModel)
    assert model.fingerprint() == system.static_model().fingerprint()
    # Running the module must not import it twice, which Python would warn of.
    assert b"RuntimeWarning" not in done.stderr


def test_probe_leaves_the_callers_pool_alone() -> None:
    def threads_before_and_after() -> tuple[int, int]:
        threads = get_global_func("runtime.NumThreads")
        before = threads()
        probe.run()
        return before, threads()

    before, after = on_own_pool(threads_before_and_after)
    assert before == after


def test_child_that_fails_is_a_runtime_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "core_cpus", lambda: ("none",))
    with pytest.raises(RuntimeError, match="ValueError: invalid literal"):
        probe.run()


def test_child_that_hangs_is_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="timed out"):
        probe.run(timeout_s=0.01)


@pytest.mark.skipif("avx2" not in system.static_model().isa, reason="x86 with AVX2 only")
@pytest.mark.parametrize("mcpu", ["x86-64-v2", "x86-64-v3", "alderlake"])
def test_narrower_instruction_sets_are_measured_too(mcpu: str) -> None:
    static = system.static_model()
    target = {**static.target, "mcpu": mcpu}
    target.pop("mattr", None)
    features = tuple(sorted(set(isa.llvm_features(target)) & set(static.isa)))
    narrow = msgspec.structs.replace(
        static,
        target=target,
        isa=features,
        vector_bytes=isa.vector_bytes(features),
        vector_registers=isa.vector_registers(features),
    )
    model = on_own_pool(lambda: probe.measure(narrow))
    assert 0.2 * model.lanes(4) < model.peak_gflops["float32"] < 7.0 * 2 * model.lanes(4) * 4
    assert set(model.peak_gflops) == set(kernels.instructions(features))


# The kernels compute what their operation counts say.


def compiled(kernel: tvm.tirx.PrimFunc) -> tvm.runtime.Module:
    module = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    return tvm.compile(module, target=tvm.target.Target(system.static_model().target)).jit()


@pytest.mark.parametrize("dtype", sorted(kernels.instructions(system.static_model().isa)))
@pytest.mark.parametrize("alone", [False, True])
def test_chains_count_every_multiply_accumulate(dtype: str, alone: bool) -> None:
    used = kernels.instructions(system.static_model().isa)[dtype]
    ones = {"float32": 0x3F800000, "int8": 0x01010101, "bfloat16": 0x3F803F80}[dtype]
    tasks, chains, rounds = 2, 3, 5
    out = tvm.runtime.tensor(np.zeros(tasks * chains * used.lanes, used.accumulator))
    seed = tvm.runtime.tensor(np.array([ones, ones], "int32"))
    compiled(kernels.chains(used, chains, alone))["main"](seed, out, tasks, rounds)
    np.testing.assert_array_equal(out.numpy(), rounds * used.macs_per_lane)


@pytest.mark.parametrize("alone", [False, True])
def test_stream_reads_every_word_of_every_task(alone: bool) -> None:
    lanes, vectors, tasks, blocks = 4, 8, 2, 5
    words = np.random.default_rng(0).integers(0, 1 << 30, tasks * blocks * lanes * vectors)
    data = tvm.runtime.tensor(words.astype("int32"))
    out = tvm.runtime.tensor(np.zeros(tasks * lanes * vectors, "int32"))
    compiled(kernels.stream(lanes, vectors, alone))["main"](data, out, tasks, blocks, 3)
    expected = np.bitwise_xor.reduce(words.reshape(tasks, blocks, -1), axis=1).reshape(-1)
    np.testing.assert_array_equal(out.numpy(), expected)


def test_what_a_core_does_alone_waits_for_no_other_thread() -> None:
    """A region of one task waits for the whole pool: beside other programs a clock was read as
    thousands of times too slow, and the distance of the shared cache as nothing."""
    used = kernels.instructions(system.static_model().isa)["float32"]
    alone = (
        kernels.cycles(8),
        kernels.walk(8),
        kernels.chains(used, 2, alone=True),
        kernels.stream(4, 2, alone=True),
    )
    assert not any("parallel" in kernel.script() for kernel in alone)
    assert "parallel" in kernels.chains(used, 2).script()


def test_a_walk_goes_on_from_where_it_ended() -> None:
    places = probe._round_trip(64 * 64, line_bytes=64)
    data = tvm.runtime.tensor(places)
    at = tvm.runtime.tensor(np.zeros(1, "int32"))
    walk = compiled(kernels.walk(4))["main"]
    expected, seen = 0, set()
    for rounds in (3, 5, 8):
        walk(data, at, 1, rounds)
        for _ in range(4 * rounds):
            expected = int(places[expected])
            seen.add(expected)
        assert at.numpy()[0] == expected
    assert len(seen) == 64, "every line once before any comes again"


def test_clock_chain_is_not_simplified_away() -> None:
    steps, rounds = 8, 3
    out = tvm.runtime.tensor(np.zeros(1, "int32"))
    seed = tvm.runtime.tensor(np.array([5, 9], "int32"))
    compiled(kernels.cycles(steps))["main"](seed, out, 1, rounds)
    value = 5
    for _ in range(rounds * steps // 2):
        value = (value + 5) ^ 9
    assert out.numpy()[0] == value


@pytest.mark.parametrize("barrier", [False, True])
def test_every_region_runs_on_every_core(barrier: bool) -> None:
    cores, rounds = physical_cores(), 7

    def written() -> np.ndarray:
        get_global_func("runtime.config_threadpool")(-2, 0, [str(c) for c in system.core_cpus()])
        out = tvm.runtime.tensor(np.zeros(cores * 16, "int32"))
        compiled(kernels.launches(barrier))["main"](out, cores, rounds)
        return out.numpy()

    assert (on_own_pool(written)[::16] == rounds - 1).all()


def test_working_sets_miss_the_level_inside_and_fit_their_own() -> None:
    model = system.static_model()
    sets = _working_sets(model)
    inner_bytes = 0
    for level in model.levels[1:]:
        alone, each = sets[level.name]
        assert inner_bytes < alone <= level.size_bytes, level
        assert each <= alone, level
        inner_bytes = level.size_bytes


class _OtherwiseBusy:
    """A bench of a 4 GHz core, 8 lanes, 2 multiply-adds a cycle and 12 chains of 4 cycles."""

    chains = 12
    operations: ClassVar = {"float32": 2.0 * 12 * 8}
    bytes: ClassVar = dict.fromkeys(
        (f"{level} {name}" for level in ("l1", "l2", "l3", "dram") for name in ("alone", "total")),
        1000.0,
    )
    slowed: str

    def __init__(self, model: HardwareModel) -> None:
        pass

    def seconds(self) -> dict[str, float]:
        calm = {"clock": 64 * 0.25e-9, "latency": 1e-9, "launch": 1e-6, "barrier": 1e-6}
        calm |= dict.fromkeys(("float32", "float32 alone"), 1.5e-9)
        calm |= dict.fromkeys(self.bytes, 1e-8)
        calm[self.slowed] *= 2
        return calm


@pytest.mark.parametrize("slowed", ["float32 alone", "float32", "latency"])
def test_one_busy_reading_leaves_the_multiply_adds_per_cycle(
    slowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them were once read: the core was lent to others whenever it was timed alone."""
    monkeypatch.setattr(_OtherwiseBusy, "slowed", slowed, raising=False)
    monkeypatch.setattr(probe, "_Bench", _OtherwiseBusy)
    assert probe.measure(catalog.get("cpu/x86-avx2")).fma_per_cycle == 2


@pytest.mark.parametrize(
    ("numerator", "denominator", "found"),
    [(8.0, 2.0, 4), (8.0, 1e-9, 5), (8.0, 0.0, 5), (1e-9, 2.0, 5), (31.0, 2.0, 16)],
)
def test_a_timing_gone_wrong_is_not_believed(
    numerator: float, denominator: float, found: int
) -> None:
    """65255 cycles of latency were once read on a busy machine."""
    assert probe._plausible(numerator, denominator, 2, 16, 5) == found
