"""`resolve(target)`: from whatever a user may call a target to a `HardwareModel`."""

from __future__ import annotations

import platform
import re
from typing import Any

import msgspec

from tvm_ext.errors import TargetError
from tvm_ext.hardware import catalog, isa
from tvm_ext.hardware.host import host
from tvm_ext.hardware.model import HardwareModel

_ACCEPTED = 'give "cpu", "cuda", "arm", a catalog name, a TVM target, tag or dict'


def resolve(target: Any) -> HardwareModel:
    """The machine that `target` means.

    target: "cpu" (this host), "arm" (this host, if AArch64), "cuda" (the device present), a
    catalog name (`cpu/x86-avx2`), a `tvm.target.Target`, its dict, or a TVM target string or tag
    (`llvm -mcpu=znver4`, `nvidia/nvidia-a100`). A TVM target is mapped to the nearest preset, or
    to this host if it names this host's CPU, and carried along unchanged. A `HardwareModel`
    is returned as it is.

    TargetError if the target is unknown, not supported, or names a device that is not here.
    """
    if isinstance(target, HardwareModel):
        return target
    if isinstance(target, str):
        if target in ("cpu", "cpu/host"):
            return host()
        if target == "arm":
            return _arm_host()
        if target == "cuda":
            return _cuda_device()
        if target in catalog.names():
            return catalog.get(target)
        return _from_tvm(_parse(target))
    if isinstance(target, dict):
        return _from_tvm(target)
    from tvm.target import Target

    if isinstance(target, Target):
        return _from_tvm(target)
    raise TargetError(f"target of type {type(target).__name__} is not understood: {_ACCEPTED}")


def runs_here(hardware: HardwareModel) -> bool:
    """Whether kernels for a machine run on this one: on its processor, or the device beside it."""
    if hardware.kind != "cuda":
        return hardware.name == "cpu/host"
    import tvm

    device = tvm.cuda(0)
    return bool(device.exist) and _arch(device) == hardware.target.get("arch")


def _arch(device: Any) -> str:
    return "sm_" + str(device.compute_version).replace(".", "")


def _arm_host() -> HardwareModel:
    if platform.machine() not in ("aarch64", "arm64"):
        raise TargetError(
            f"target 'arm' is this host only on AArch64, and this is {platform.machine()}: "
            f"name the machine, one of {_names('arm')}"
        )
    return host()


def _cuda_device() -> HardwareModel:
    """The first CUDA device: the nearest preset with this device's size and clock."""
    import tvm

    device = tvm.cuda(0)
    if not device.exist:
        raise TargetError(
            "target 'cuda': no CUDA device is present: to compile for one elsewhere, name it, "
            f"one of {_names('cuda')}"
        )
    arch = _arch(device)
    preset = catalog.nearest_gpu(arch)
    sms, l2_bytes = int(device.multi_processor_count), int(device.l2_cache_size_bytes)
    sizes = {"l2": l2_bytes, "dram": int(device.total_global_memory or 0)}
    # Peak of a multiprocessor follows its clock, which TVM gives in kHz.
    cycle_gflops = 2 * 32 * preset.fma_per_cycle
    ghz = preset.peak_gflops["float32"] / cycle_gflops
    faster = (device.max_clock_rate / 1e6) / ghz if device.max_clock_rate else 1.0
    return msgspec.structs.replace(
        preset,
        cores=sms,
        peak_gflops={name: peak * faster for name, peak in preset.peak_gflops.items()},
        levels=tuple(
            msgspec.structs.replace(level, size_bytes=sizes.get(level.name) or level.size_bytes)
            for level in preset.levels
        ),
        target={**preset.target, "arch": arch, "l2_cache_size_bytes": l2_bytes},
    )


def _parse(text: str) -> Any:
    """A dict from the `llvm -mcpu=znver4 -mattr=+a,+b` form, which TVM reads no more; anything
    else as it is."""
    words = text.split()
    if len(words) < 2 or text.lstrip().startswith("{"):
        return text
    parsed: dict[str, Any] = {"kind": words[0]}
    for option in words[1:]:
        match = re.fullmatch(r"--?([\w-]+)=(\S+)", option)
        if match is None:
            raise TargetError(f"target '{text}': '{option}' is not -name=value; {_ACCEPTED}")
        name, value = match.groups()
        if name in ("mattr", "keys", "libs"):
            parsed[name] = value.split(",")
        else:
            parsed[name] = int(value) if value.isdigit() else value
    return parsed


def _from_tvm(given: Any) -> HardwareModel:
    """The model for a TVM target, a tag, or a dict."""
    from tvm.target import Target

    if isinstance(given, Target):
        target = given
    else:
        try:
            target = Target(given)
        except (ValueError, TypeError, RuntimeError, KeyError) as error:
            raise _unknown(given, error) from error
    carried = dict(given) if isinstance(given, dict) else _plain(target.export())
    kind = str(target.kind)
    if kind == "llvm":
        return _cpu_model(target, carried)
    if kind == "cuda":
        preset = catalog.nearest_gpu(str(target.attrs["arch"]))
        return msgspec.structs.replace(preset, target=carried)
    raise TargetError(f"target kind '{kind}' is not supported: tvm_ext compiles for llvm and cuda")


def _cpu_model(target: Any, carried: dict[str, Any]) -> HardwareModel:
    here, default_triple = isa.system_cpu()
    mtriple = str(target.attrs.get("mtriple", default_triple))
    mcpu = str(target.attrs.get("mcpu", "generic"))
    machine = mtriple.split("-")[0]
    if machine not in ("x86_64", "aarch64", "arm64"):
        raise TargetError(f"target machine '{machine}' is not supported: only x86_64 and aarch64")
    if not isa.is_valid_cpu(mcpu, mtriple):
        raise TargetError(
            f"target mcpu '{mcpu}' is unknown to LLVM for {mtriple}: give one that "
            "tvm.target.codegen.llvm_get_cpu_archlist lists"
        )
    features = isa.llvm_features(carried)
    model = catalog.nearest_cpu(mcpu, features)
    if (mcpu, machine) == (here, default_triple.split("-")[0]) and mcpu != "generic":
        measured = host()
        if measured.vector_bytes == isa.vector_bytes(features):
            model = measured
    peaks = isa.peaks(model.peak_gflops["float32"], features)
    return msgspec.structs.replace(
        model,
        cores=int(target.attrs.get("num-cores", model.cores)),
        peak_gflops={dtype: model.peak_gflops.get(dtype, peak) for dtype, peak in peaks.items()},
        target=carried,
        isa=features,
    )


def _unknown(given: Any, error: Exception) -> TargetError:
    if isinstance(given, str) and not given.lstrip().startswith("{"):
        try:
            catalog.get(given)
        except TargetError as unknown:
            return TargetError(f"{unknown}; or {_ACCEPTED.removeprefix('give ')}")
    reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return TargetError(f"target {given!r} is refused by TVM: {reason}")


def _names(kind: str) -> str:
    return ", ".join(name for name in catalog.names() if name.startswith(f"{kind}/"))


def _plain(exported: Any) -> Any:
    """TVM containers as Python ones, without what TVM derives itself and refuses to be told."""
    from tvm_ffi import Array, Map

    if isinstance(exported, Map | dict):
        return {
            str(key): _plain(value)
            for key, value in exported.items()
            if not str(key).startswith("feature.") and (str(key) != "tag" or value)
        }
    if isinstance(exported, Array | list | tuple):
        return [_plain(value) for value in exported]
    return str(exported) if isinstance(exported, str) else exported
