"""Writing an artifact: the manifest put in, all of it linked, the weights put behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.errors import ArtifactError
from tvm_ext.records.manifest import Manifest, encode_manifest
from tvm_ext.runtime import launcher
from tvm_ext.runtime.artifact import MANIFEST_FUNCTION
from tvm_ext.runtime.child import in_child
from tvm_ext.runtime.kernel import Kernel
from tvm_ext.runtime.weights import append, getter, object_file
from tvm_ext.tvm_api import IRModule, relax


def with_manifest(mod: IRModule, manifest: Manifest) -> IRModule:
    """The module with a function that returns the manifest's JSON as a uint8 tensor."""
    data = np.frombuffer(encode_manifest(manifest), dtype="uint8")
    builder = relax.BlockBuilder(mod)
    with builder.function(MANIFEST_FUNCTION, []):
        builder.emit_func_output(relax.const(data))
    return builder.finalize()


class Parts(NamedTuple):
    """What an artifact is linked from: the VM's code, kernels that it does not bring along, and the
    weights that it asks for by number."""

    executable: Any
    kernels: Sequence[Kernel]
    weights: Sequence[np.ndarray]


def export(
    parts: Parts, path: Path, manifest: Manifest, check: Callable[[], object] | None = None
) -> Path:
    """Links the parts into `path`, whole or not at all; not if the `check` raises something, which
    is called before they take its place.

    Raises ArtifactError if the folder is missing or not writable, the disk is full, or no C
    compiler is there to link.
    """
    if path.suffix != ".so":
        raise ArtifactError(f"artifact {path}: must end in .so; try {path.with_suffix('.so')}")
    if not path.parent.is_dir():
        raise ArtifactError(f"artifact {path}: folder {path.parent} does not exist; create it")
    compiler = c_compiler(manifest.target)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tvm_ext-") as folder:
            built = Path(folder) / path.name
            objects = [object_file(launcher.SOURCE, Path(folder), compiler)]
            objects += getter(parts.weights, Path(folder), compiler, manifest.device)
            kernels = [Path(folder) / f"kernel{place}.o" for place in range(len(parts.kernels))]

            def link() -> None:
                from tvm.support import cc

                for kernel, place in zip(parts.kernels, kernels, strict=True):
                    kernel.write(place)
                linker = cc.cross_compiler(compiler, options=["-shared", "-fPIC", "-ldl"])
                parts.executable.export_library(
                    str(built),
                    fcompile=linker,
                    addons=[*objects, *map(str, kernels)],
                    workspace_dir=folder,
                )

            failure = in_child(link)  # LLVM ends the process that cannot write, on a full disk say
            if failure:
                raise ArtifactError(f"artifact {path}: {failure}; nothing written")
            append(parts.weights, built)
            if check is not None:
                check()
            os.replace(built, path)
    except CalledProcessError as error:
        words = [line for line in error.stderr.splitlines() if "error" in line.lower()]
        why = words[0] if words else str(error)
        raise ArtifactError(f"artifact {path}: {why}; nothing written") from error
    except OSError as error:
        raise ArtifactError(
            f"artifact {path}: {error.strerror or error}; nothing written"
        ) from error
    return path


def c_compiler(target: str) -> str:
    """A C compiler that links for a target, as text: the host's own, or a cross compiler. Raises
    ArtifactError if there is none."""
    names: tuple[str, ...] = launcher.C_COMPILERS
    remedy = "install gcc"
    if "aarch64" in target and os.uname().machine != "aarch64":
        names = ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++")
        remedy = f"install {names[0]} (on Debian gcc-aarch64-linux-gnu), which links for AArch64"
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    raise ArtifactError(
        f"artifact: linking needs a C compiler, none of {', '.join(names)} was found; {remedy}"
    )
