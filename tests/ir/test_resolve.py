"""`resolve`: every way to name a target, and a clear error for everything else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import tvm
from tvm.target import Target

from tvm_ext.errors import TargetError
from tvm_ext.hardware import get, host, isa, names, resolve

TRIPLE_X86, TRIPLE_ARM = "x86_64-linux-gnu", "aarch64-linux-gnu"


@pytest.fixture(autouse=True)
def static_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_EXT_PROBE", "0")


@pytest.mark.parametrize("name", names())
def test_tvm_accepts_every_preset(name: str) -> None:
    preset = resolve(name)
    assert preset is get(name)
    target = Target(preset.target)
    assert str(target.kind) == preset.target["kind"]
    if preset.kind == "cuda":
        assert str(target.attrs["arch"]) == preset.target["arch"]
    else:
        assert isa.is_valid_cpu(preset.target["mcpu"], preset.target["mtriple"])
        # LLVM generates what the preset says the machine has.
        assert isa.llvm_features(preset.target) == preset.isa


def test_cpu_is_this_host() -> None:
    assert resolve("cpu") is host()
    assert resolve("cpu/host") is host()
    features = isa.llvm_features(host().target)
    assert features == host().isa, "LLVM must use what this machine has, no more and no less"


def test_a_model_is_returned_as_it_is() -> None:
    model = msgspec.structs.replace(get("cpu/x86-avx2"), cores=3)
    assert resolve(model) is model


@pytest.mark.parametrize(
    ("given", "preset", "cores"),
    [
        ({"kind": "llvm", "mtriple": TRIPLE_X86, "mcpu": "cascadelake"}, "cpu/x86-avx512", 16),
        ({"kind": "llvm", "mtriple": TRIPLE_X86, "mcpu": "haswell"}, "cpu/x86-avx2", 8),
        ({"kind": "llvm", "mtriple": TRIPLE_X86, "mcpu": "nehalem"}, "cpu/x86-sse", 4),
        ({"kind": "llvm", "mtriple": TRIPLE_X86}, "cpu/x86-sse", 4),
        (
            {"kind": "llvm", "mtriple": TRIPLE_X86, "mcpu": "haswell", "num-cores": 2},
            "cpu/x86-avx2",
            2,
        ),
        ({"kind": "llvm", "mtriple": TRIPLE_ARM, "mcpu": "neoverse-v2"}, "arm/neoverse-v1", 64),
        ({"kind": "llvm", "mtriple": TRIPLE_ARM, "mcpu": "cortex-a76"}, "arm/cortex-a76", 4),
        ({"kind": "llvm", "mtriple": TRIPLE_ARM, "mcpu": "cortex-a53"}, "arm/cortex-a72", 4),
        ({"kind": "cuda", "arch": "sm_90a"}, "cuda/sm_90", 132),
        ({"kind": "cuda", "arch": "sm_87"}, "cuda/sm_86", 72),
    ],
)
@pytest.mark.parametrize("form", ["dict", "target", "string"])
def test_tvm_targets_map_to_the_nearest_preset(
    given: dict[str, Any], preset: str, cores: int, form: str
) -> None:
    options = " ".join(f"-{key}={value}" for key, value in given.items() if key != "kind")
    forms = {"dict": given, "target": Target(given), "string": f"{given['kind']} {options}"}
    model = resolve(forms[form])
    assert (model.name, model.cores) == (preset, cores)
    assert given.items() <= model.target.items(), "the user's own target is carried along"
    assert str(Target(model.target)) == str(Target(given))
    assert msgspec.json.decode(msgspec.json.encode(model.target)) == model.target


@pytest.mark.parametrize(
    ("tag", "preset"),
    [
        ("nvidia/nvidia-a100", "cuda/sm_80"),
        ("nvidia/nvidia-h100", "cuda/sm_90"),
        ("raspberry-pi/4b-aarch64", "arm/cortex-a72"),
        ("aws/cpu/c5.xlarge", "cpu/x86-avx512"),
    ],
)
def test_tags(tag: str, preset: str) -> None:
    model = resolve(tag)
    assert model.name == preset
    assert str(Target(model.target)) == str(Target(tag))


def test_features_of_the_target_decide_isa_and_peaks() -> None:
    plain = resolve({"kind": "llvm", "mtriple": TRIPLE_X86, "mcpu": "skylake-avx512"})
    vnni = resolve({"kind": "llvm", "mtriple": TRIPLE_X86, "mcpu": "cascadelake"})
    assert "int8" not in plain.peak_gflops
    assert vnni.peak_gflops["int8"] == 4 * vnni.peak_gflops["float32"]
    assert set(vnni.isa) - set(plain.isa) == {"avx512vnni"}


def test_mattr_widens_and_narrows() -> None:
    wide = resolve(f"llvm -mtriple={TRIPLE_X86} -mcpu=x86-64 -mattr=+avx2,+fma")
    narrow = resolve(f"llvm -mtriple={TRIPLE_X86} -mcpu=cascadelake -mattr=-avx512f")
    assert wide.name == narrow.name == "cpu/x86-avx2"
    assert wide.target["mattr"] == ["+avx2", "+fma"]


def test_this_hosts_cpu_by_name_is_this_host() -> None:
    mcpu, mtriple = isa.system_cpu()
    given = {"kind": "llvm", "mcpu": mcpu, "mtriple": mtriple, "num-cores": 1}
    model = resolve(given)
    assert (model.name, model.cores, model.target) == ("cpu/host", 1, given)
    assert model.levels == host().levels


def test_arm_is_this_host_on_aarch64_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert resolve("arm") is host()
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(TargetError, match=r"this is x86_64: name the machine.*arm/neoverse-n1"):
        resolve("arm")


def test_cuda_without_a_device_names_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm, "cuda", lambda index: SimpleNamespace(exist=False))
    with pytest.raises(TargetError, match=r"no CUDA device is present.*cuda/sm_80"):
        resolve("cuda")


def test_cuda_with_a_device_takes_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(
        exist=True,
        compute_version="8.0",
        multi_processor_count=54,
        l2_cache_size_bytes=20 << 20,
        total_global_memory=20 << 30,
        max_clock_rate=705_000,
    )
    monkeypatch.setattr(tvm, "cuda", lambda index: device)
    model, preset = resolve("cuda"), get("cuda/sm_80")
    assert (model.name, model.cores) == ("cuda/sm_80", 54)
    assert model.level("l2").size_bytes == 20 << 20
    assert model.level("shared") == preset.level("shared")
    assert model.peak_gflops["float16"] == pytest.approx(preset.peak_gflops["float16"] / 2)
    assert str(Target(model.target).attrs["arch"]) == "sm_80"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("cpu/x86-avx51", "did you mean cpu/x86-avx512"),
        ("no-such-thing", "is not in the catalog: known: "),
        ("nvidia/no-such-card", "is not in the catalog"),
        ("", "is not in the catalog"),
        ("llvm avx2", "'avx2' is not -name=value"),
        ("llvm -no-such-option=1", "Unknown config option"),
        ("vulkan", "kind 'vulkan' is not supported"),
        ({"kind": "llvm", "mcpu": "zen4"}, "mcpu 'zen4' is unknown to LLVM"),
        ({"kind": "llvm", "mtriple": "riscv64-linux-gnu"}, "machine 'riscv64' is not supported"),
        ({"kind": "cuda", "arch": "ada"}, "is refused by TVM"),
        ({"kind": "cuda", "cores": 4}, "Unknown config option 'cores'"),
        ({"mcpu": "znver4"}, "is refused by TVM"),
        ({}, "is refused by TVM"),
        ({1: 2}, "is refused by TVM"),
        ('{"kind": ', "is refused by TVM"),
        (None, "of type NoneType is not understood"),
        (4, "of type int is not understood"),
        (["cpu"], "of type list is not understood"),
    ],
)
def test_errors_are_one_line_with_a_remedy(target: Any, text: str) -> None:
    with pytest.raises(TargetError) as caught:
        resolve(target)
    message = str(caught.value)
    assert text in message
    assert "\n" not in message
