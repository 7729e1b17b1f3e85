"""`HardwareModel`: lookups, and what its fingerprint does and does not depend on."""

from __future__ import annotations

import msgspec
import pytest

from tvm_ext.hardware import HardwareModel, MemoryLevel, get

AVX2 = get("cpu/x86-avx2")


def changed(**fields: object) -> HardwareModel:
    return msgspec.structs.replace(AVX2, **fields)


def test_level_by_name() -> None:
    assert AVX2.level("l2").size_bytes == 512 * 1024
    with pytest.raises(KeyError):
        AVX2.level("l4")


@pytest.mark.parametrize(("dtype_bytes", "lanes"), [(1, 32), (2, 16), (4, 8), (8, 4), (64, 1)])
def test_lanes_fill_the_vector_and_are_never_zero(dtype_bytes: int, lanes: int) -> None:
    assert AVX2.lanes(dtype_bytes) == lanes


def test_json_round_trip_keeps_everything() -> None:
    again = msgspec.json.decode(msgspec.json.encode(AVX2), type=HardwareModel)
    assert again == AVX2
    assert again.fingerprint() == AVX2.fingerprint()


def test_fingerprint_ignores_what_a_measurement_changes() -> None:
    levels = tuple(
        msgspec.structs.replace(level, gbps=level.gbps * 1.7, total_gbps=1.0)
        for level in AVX2.levels
    )
    measured = changed(
        name="cpu/host",
        levels=levels,
        peak_gflops={"float32": 1.0},
        launch_us=9.0,
        barrier_us=9.0,
        fma_per_cycle=1,
        fma_latency_cycles=5,
    )
    assert measured.fingerprint() == AVX2.fingerprint()
    assert len(AVX2.fingerprint()) == 12


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "arm"},
        {"cores": 7},
        {"vector_bytes": 16},
        {"vector_registers": 32},
        {"isa": ("avx2",)},
        {"levels": (*AVX2.levels[:-1], MemoryLevel("l4", 1 << 20, 1.0))},
        {"target": {"kind": "llvm", "mcpu": "znver3"}},
    ],
)
def test_fingerprint_follows_what_decides_code(fields: dict[str, object]) -> None:
    assert changed(**fields).fingerprint() != AVX2.fingerprint()


def test_whether_weights_fit_into_the_last_cache() -> None:
    cache_bytes = AVX2.level("l3").size_bytes
    small, large = AVX2.running(cache_bytes), AVX2.running(cache_bytes + 1)
    assert small.weights_fit
    assert large == AVX2
    assert small.fingerprint() == AVX2.fingerprint()


@pytest.mark.parametrize(
    ("bfloat16_gflops", "pace"), [(0.0, 1), (124.0, 4), (495.0, 1), (470.0, 1), (990.0, 1)]
)
def test_how_long_dots_take_beside_multiply_adds(bfloat16_gflops: float, pace: int) -> None:
    machine = changed(peak_gflops={"float32": 248.0, "bfloat16": bfloat16_gflops})
    assert machine.pace_of_dots("bfloat16", 2) == pace
    assert machine.pace_of_dots("int8", 4) == 1


def test_a_cache_behind_a_mesh_is_not_this_machines_alone() -> None:
    """340 MB of BERT's weights came from memory in every run, beside 480 MiB of last cache."""
    cache_bytes = AVX2.level("l3").size_bytes
    assert not changed(shared_cache_cycles=123).running(cache_bytes).weights_fit
    assert changed(shared_cache_cycles=123).running(cache_bytes // 4).weights_fit
    assert changed(shared_cache_cycles=50).running(cache_bytes).weights_fit


def test_fingerprint_ignores_the_order_of_features() -> None:
    assert changed(isa=AVX2.isa[::-1]).fingerprint() == AVX2.fingerprint()
