"""The catalog: figures that fit together, and errors that help."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tvm_ext.errors import TargetError
from tvm_ext.hardware import HardwareModel, get, names
from tvm_ext.hardware.catalog import nearest_cpu, nearest_gpu

PRESETS = [get(name) for name in names()]
by_name = pytest.mark.parametrize("preset", PRESETS, ids=names())


def test_the_promised_names_are_there() -> None:
    assert set(names()) == {
        *(f"cpu/x86-{isa}" for isa in ("sse", "avx2", "avx512")),
        *(f"cuda/sm_{number}" for number in (70, 75, 80, 86, 89, 90)),
        *(f"arm/neoverse-{core}" for core in ("n1", "v1")),
        *(f"arm/cortex-{core}" for core in ("a72", "a76")),
    }


@by_name
def test_levels_grow_and_slow_down_outward(preset: HardwareModel) -> None:
    assert preset.levels[0].name == "register"
    assert preset.levels[-1].name == "dram"
    for inner, outer in pairwise(preset.levels):
        assert inner.size_bytes < outer.size_bytes, (inner, outer)
        assert inner.gbps > outer.gbps, (inner, outer)


@by_name
def test_what_cores_share_is_less_than_what_they_could_draw(preset: HardwareModel) -> None:
    shared = [level for level in preset.levels if level.shared]
    assert preset.level("dram") in shared
    for level in shared:
        assert level.gbps <= level.total_gbps <= preset.cores * level.gbps, level


@by_name
def test_peaks_imply_a_real_clock(preset: HardwareModel) -> None:
    flops_per_cycle = 2 * preset.lanes(4) * preset.fma_per_cycle
    assert 1.0 < preset.peak_gflops["float32"] / flops_per_cycle < 5.0
    assert all(peak >= preset.peak_gflops["float32"] for peak in preset.peak_gflops.values())


@by_name
def test_register_level_is_the_register_file(preset: HardwareModel) -> None:
    assert preset.level("register").size_bytes == preset.vector_bytes * preset.vector_registers


@by_name
def test_kind_name_and_target_agree(preset: HardwareModel) -> None:
    assert preset.name.startswith(f"{preset.kind}/")
    assert preset.target["kind"] == ("cuda" if preset.kind == "cuda" else "llvm")
    if preset.kind == "cuda":
        assert preset.name == f"cuda/{preset.target['arch']}"
        # A block may opt into more shared memory than it may declare statically.
        assert preset.level("shared").size_bytes > preset.target["max_shared_memory_per_block"]
    else:
        assert preset.target["num-cores"] == preset.cores


def test_fingerprints_are_distinct() -> None:
    assert len({preset.fingerprint() for preset in PRESETS}) == len(PRESETS)


def test_unknown_name_gets_close_matches_and_the_whole_list() -> None:
    with pytest.raises(TargetError) as caught:
        get("cpu/x86-avx521")
    message = str(caught.value)
    assert "'cpu/x86-avx521' is not in the catalog" in message
    assert "did you mean cpu/x86-avx512" in message
    assert all(name in message for name in names())
    assert "\n" not in message


def test_unknown_name_like_nothing_gets_no_guess() -> None:
    with pytest.raises(TargetError, match=r"catalog: known: cpu/x86-sse"):
        get("zzz")


@pytest.mark.parametrize(
    ("mcpu", "isa", "name"),
    [
        ("znver4", ("avx2", "fma", "avx512f"), "cpu/x86-avx512"),
        ("znver3", ("avx", "avx2", "fma"), "cpu/x86-avx2"),
        ("sandybridge", ("avx",), "cpu/x86-sse"),
        ("cortex-a76", ("neon", "dotprod"), "arm/cortex-a76"),
        ("neoverse-v2", ("neon", "dotprod", "sve", "sve2"), "arm/neoverse-v1"),
        ("apple-m1", ("neon", "dotprod"), "arm/neoverse-n1"),
        ("cortex-a53", ("neon",), "arm/cortex-a72"),
    ],
)
def test_nearest_cpu_never_needs_more_than_the_cpu_has(
    mcpu: str, isa: tuple[str, ...], name: str
) -> None:
    assert nearest_cpu(mcpu, isa).name == name


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("sm_60", "cuda/sm_70"),
        ("sm_80", "cuda/sm_80"),
        ("sm_87", "cuda/sm_86"),
        ("sm_90a", "cuda/sm_90"),
        ("sm_120", "cuda/sm_90"),
    ],
)
def test_nearest_gpu_is_the_newest_not_newer(arch: str, name: str) -> None:
    assert nearest_gpu(arch).name == name


def test_nearest_gpu_refuses_what_is_not_an_arch() -> None:
    with pytest.raises(TargetError, match="'ada' is not understood"):
        nearest_gpu("ada")
