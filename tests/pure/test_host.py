"""This machine without measuring it: fake /proc, /sys and control groups; and the probe's cache."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tvm_ext.hardware import HardwareModel, host, isa, probe, system

host_module = importlib.import_module("tvm_ext.hardware.host")

ZEN4 = "fpu sse4_2 avx avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16"
GRAVITON2 = "fp asimd evtstrm aes atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"


class Machine:
    """A fake machine: writes the files `system` reads."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def cpuinfo(self, text: str) -> None:
        self.write("proc/cpuinfo", f"{text}\n\nprocessor : 1\n")

    def core(self, cpu: int, core: int, package: int = 0) -> None:
        self.write(f"cpu/cpu{cpu}/topology/core_id", f"{core}\n")
        self.write(f"cpu/cpu{cpu}/topology/physical_package_id", f"{package}\n")

    def cache(self, index: int, level: int, kind: str, size: str, shared: str) -> None:
        folder = f"cpu/cpu0/cache/index{index}"
        files = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
        for name, value in {**files, "coherency_line_size": 64}.items():
            self.write(f"{folder}/{name}", f"{value}\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Four logical CPUs; Zen 4 according to LLVM."""
    fake = Machine(tmp_path)
    monkeypatch.setattr(system, "PROC", tmp_path / "proc")
    monkeypatch.setattr(system, "CPUS", tmp_path / "cpu")
    monkeypatch.setattr(system, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(system, "_allowed_cpus", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(isa, "system_cpu", lambda: ("znver4", "x86_64-linux-gnu"))
    monkeypatch.setattr(isa, "llvm_features", lambda target: isa.from_cpuinfo(ZEN4.split()))
    monkeypatch.setenv("TVM_EXT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TVM_EXT_PROBE", raising=False)
    system.core_cpus.cache_clear()
    host_module._host.cache_clear()
    yield fake
    system.core_cpus.cache_clear()
    host_module._host.cache_clear()


@pytest.fixture
def zen4(machine: Machine) -> Machine:
    """Two cores with two siblings each, and a shared L3."""
    for cpu, core in ((0, 0), (1, 0), (2, 1), (3, 1)):
        machine.core(cpu, core)
    machine.cpuinfo(f"model name : AMD EPYC 9R14\nflags : {ZEN4}")
    machine.write("proc/meminfo", "MemTotal:       15900000 kB\n")
    machine.cache(0, 1, "Data", "32K", "0-1")
    machine.cache(1, 1, "Instruction", "32K", "0-1")
    machine.cache(2, 2, "Unified", "1024K", "0-1")
    machine.cache(3, 3, "Unified", "32M", "0-3")
    return machine


# Cores


def test_siblings_count_once(zen4: Machine) -> None:
    assert system.core_cpus() == (0, 2)
    assert system.physical_cores() == 2


def test_same_core_number_in_two_packages_counts_twice(machine: Machine) -> None:
    for cpu in range(4):
        machine.core(cpu, core=cpu % 2, package=cpu // 2)
    assert system.physical_cores() == 4


def test_affinity_limits_cores(zen4: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_allowed_cpus", lambda: [2, 3])
    assert system.core_cpus() == (2,)


def test_first_answer_outlives_a_change_of_affinity(
    zen4: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = system.core_cpus()
    monkeypatch.setattr(system, "_allowed_cpus", lambda: [0])
    assert system.core_cpus() == before


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": "max 100000\n"}, 4),
        ({"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": "250000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/pod/box\n", "cgroup/pod/cpu.max": "300000 100000\n"}, 3),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n3:memory:/x\n",
                "cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
                "cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
    ],
    ids=["unlimited", "v2", "less-than-one", "v2-parent", "v1-in-container", "v1-unlimited"],
)
def test_quota_of_the_control_group_limits_cores(
    machine: Machine, files: dict[str, str], cores: int
) -> None:
    for cpu in range(4):
        machine.core(cpu, cpu)
    for path, text in files.items():
        machine.write(path, text)
    assert system.physical_cores() == cores


def test_without_topology_psutil_is_asked(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "_cores_by_psutil", lambda: 2)
    assert system.core_cpus() == (0, 1)


def test_without_topology_and_psutil_all_cpus_count(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "_cores_by_psutil", lambda: None)
    assert system.physical_cores() == 4


# The static model


def test_caches_are_data_caches_with_their_sharers(zen4: Machine) -> None:
    found = [(cache.level, cache.size_bytes, cache.sharers) for cache in system.caches()]
    assert found == [(1, 32 << 10, 1), (2, 1 << 20, 1), (3, 32 << 20, 2)]


def test_static_model_has_this_machines_sizes(zen4: Machine) -> None:
    model = system.static_model()
    assert (model.name, model.kind, model.cores) == ("cpu/host", "cpu", 2)
    assert (model.vector_bytes, model.vector_registers) == (64, 32)
    assert {"avx512f", "avx512vnni", "avx512bf16"} <= set(model.isa)
    assert set(model.peak_gflops) == {"float32", "int8", "bfloat16"}
    assert [level.name for level in model.levels] == ["register", "l1", "l2", "l3", "dram"]
    assert model.level("l3").shared
    assert not model.level("l2").shared
    assert model.level("dram").size_bytes == 16 << 30
    assert model.target == {
        "kind": "llvm",
        "mtriple": "x86_64-linux-gnu",
        "mcpu": "znver4",
        "num-cores": 2,
    }


def test_one_core_shares_the_last_cache_with_others_it_may_not_use(
    zen4: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a core's own it would hold whole images (UNet 1.13 times as long)."""
    monkeypatch.setattr(system, "_allowed_cpus", lambda: [0])
    model = system.static_model()
    assert (model.cores, model.level("l3").shared) == (1, True)
    assert model.own_cache_bytes == 1 << 20


def test_what_the_kernel_keeps_of_memory_does_not_change_the_fingerprint(zen4: Machine) -> None:
    before = system.static_model().fingerprint()
    zen4.write("proc/meminfo", "MemTotal:       16100000 kB\n")
    assert system.static_model().fingerprint() == before


def test_features_hidden_by_a_hypervisor_are_switched_off(zen4: Machine) -> None:
    hidden = ZEN4.replace(" avx512_bf16", "")
    zen4.cpuinfo(f"model name : AMD EPYC 9R14\nflags : {hidden}")
    model = system.static_model()
    assert model.target["mattr"] == ["-avx512bf16"]
    assert "avx512bf16" not in model.isa
    assert "bfloat16" not in model.peak_gflops


def test_features_llvm_does_not_expect_are_switched_on(zen4: Machine) -> None:
    zen4.cpuinfo(f"model name : AMD EPYC 9R14\nflags : {ZEN4} avx_vnni")
    assert system.static_model().target["mattr"] == ["+avxvnni"]


def test_arm_host(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "system_cpu", lambda: ("neoverse-n1", "aarch64-linux-gnu"))
    monkeypatch.setattr(isa, "llvm_features", lambda target: isa.from_cpuinfo(GRAVITON2.split()))
    for cpu in range(4):
        machine.core(cpu, cpu)
    machine.cpuinfo(
        f"Features : {GRAVITON2}\nCPU implementer : 0x41\nCPU architecture: 8\nCPU part : 0xd0c"
    )
    machine.cache(0, 1, "Data", "64K", "0")
    machine.cache(1, 2, "Unified", "1024K", "0")
    model = system.static_model()
    assert (model.kind, model.vector_bytes, model.vector_registers) == ("arm", 16, 32)
    assert model.isa == ("dotprod", "fullfp16", "neon")
    # No L3 is reported, so none is assumed.
    assert [level.name for level in model.levels] == ["register", "l1", "l2", "dram"]
    assert system.cpu_name() == "0x41 0xd0c"


def test_machine_that_tells_nothing_gets_the_presets_sizes(machine: Machine) -> None:
    model = system.static_model()
    assert model.vector_bytes == 64
    assert [level.name for level in model.levels] == ["register", "l1", "l2", "l3", "dram"]
    assert model.level("l2").size_bytes == 1 << 20


# The cache of the probe


def measured() -> HardwareModel:
    """What a probe of the fake machine would find: the same machine, other speeds."""
    static = system.static_model()
    levels = tuple(msgspec.structs.replace(level, gbps=1.0) for level in static.levels)
    return msgspec.structs.replace(static, levels=levels, launch_us=0.25)


@pytest.fixture
def probes(zen4: Machine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry per probe that was run."""
    runs: list[int] = []

    def run() -> HardwareModel:
        runs.append(len(runs))
        return measured()

    monkeypatch.setattr(probe, "run", run)
    return runs


def new_process() -> None:
    host_module._host.cache_clear()


def kept_file(machine: Machine) -> Path:
    (path,) = (machine.root / "cache").glob("hardware-*.json")
    return path


def test_probed_once_per_user(probes: list[int], zen4: Machine) -> None:
    first = host()
    assert first is host()
    new_process()
    assert host() == first
    assert first.launch_us == 0.25
    assert len(probes) == 1
    assert msgspec.json.decode(kept_file(zen4).read_bytes(), type=HardwareModel) == first


def test_static_and_probed_have_one_fingerprint(
    probes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    probed = host()
    monkeypatch.setenv("TVM_EXT_PROBE", "0")
    static = host()
    assert len(probes) == 1
    assert static.launch_us != probed.launch_us
    assert static.fingerprint() == probed.fingerprint()


def test_probing_disabled_writes_nothing(
    probes: list[int], zen4: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_EXT_PROBE", "0")
    host()
    assert not probes
    assert not (zen4.root / "cache").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:200]),
        lambda path: path.write_text('{"name": 3}'),
        lambda path: path.write_bytes(b"\xff\x00\xfe"),
    ],
    ids=["empty", "truncated", "wrong-fields", "not-text"],
)
def test_corrupt_file_is_probed_again_and_replaced(
    probes: list[int], zen4: Machine, damage: Callable[[Path], object]
) -> None:
    first = host()
    damage(kept_file(zen4))
    new_process()
    assert host() == first
    assert len(probes) == 2
    assert msgspec.json.decode(kept_file(zen4).read_bytes(), type=HardwareModel) == first


def test_file_of_another_machine_is_not_used(probes: list[int], zen4: Machine) -> None:
    path_content = msgspec.structs.replace(host(), cores=64)
    kept_file(zen4).write_bytes(msgspec.json.encode(path_content))
    new_process()
    assert host().cores == 2
    assert len(probes) == 2


def test_changed_machine_is_probed_again(probes: list[int], zen4: Machine) -> None:
    host()
    zen4.cache(3, 3, "Unified", "16M", "0-3")
    new_process()
    assert host().level("l3").size_bytes == 16 << 20
    assert len(probes) == 2


def test_unwritable_folder_warns_once_and_still_measures(probes: list[int], zen4: Machine) -> None:
    (zen4.root / "cache").write_text("a file where the folder should be")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert host() is host()
    assert host().launch_us == 0.25
    assert len(probes) == 1
    (warning,) = caught
    assert "set TVM_EXT_CACHE to a writable folder" in str(warning.message)


def test_failed_probe_gives_static_figures_and_keeps_nothing(
    zen4: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> HardwareModel:
        raise RuntimeError("illegal instruction")

    monkeypatch.setattr(probe, "run", fail)
    with pytest.warns(RuntimeWarning, match=r"probe failed \(illegal instruction\)"):
        model = host()
    assert model == system.static_model()
    assert not list((zen4.root / "cache").glob("hardware-*.json"))


def test_no_draft_is_left_behind(probes: list[int], zen4: Machine) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        host()
    names = {path.suffix for path in (zen4.root / "cache").iterdir()}
    assert names <= {".json", ".lock"}
