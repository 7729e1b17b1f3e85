"""Writing an artifact: the manifest put in, the weights moved to a section, all of it linked."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.errors import ArtifactError
from tvm_ext.hardware import physical_cores
from tvm_ext.records.manifest import Manifest, encode_manifest
from tvm_ext.runtime.artifact import MANIFEST_FUNCTION, last_line
from tvm_ext.runtime.weights import section
from tvm_ext.tvm_api import IRModule, relax


def with_manifest(mod: IRModule, manifest: Manifest) -> IRModule:
    """The module with a function that returns the manifest's JSON as a uint8 tensor."""
    data = np.frombuffer(encode_manifest(manifest), dtype="uint8")
    builder = relax.BlockBuilder(mod)
    with builder.function(MANIFEST_FUNCTION, []):
        builder.emit_func_output(relax.const(data))
    return builder.finalize()


class Parts(NamedTuple):
    """What an artifact is linked from: the VM's code, kernels in modules of their own, and the
    weights that the code asks for by number."""

    executable: Any
    kernels: Sequence[Any]
    weights: Sequence[np.ndarray]


def export(parts: Parts, path: Path, manifest: Manifest) -> Path:
    """Links the parts into `path`, whole or not at all.

    Raises ArtifactError if the folder is missing or not writable, the disk is full, or no C
    compiler is there to link.
    """
    if path.suffix != ".so":
        raise ArtifactError(f"artifact {path}: must end in .so; try {path.with_suffix('.so')}")
    if not path.parent.is_dir():
        raise ArtifactError(f"artifact {path}: folder {path.parent} does not exist; create it")
    compiler = _compiler(manifest)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tvm_ext-") as folder:
            built = Path(folder) / path.name
            objects = section(parts.weights, Path(folder), compiler)
            kernels = [f"{folder}/kernel{place}.o" for place in range(len(parts.kernels))]
            jobs = list(zip(parts.kernels, kernels, strict=True))
            workers = min(physical_cores(), len(jobs))

            def link() -> None:
                from tvm.support import cc

                linker = cc.cross_compiler(compiler, options=["-shared", "-fPIC"])
                parts.executable.export_library(
                    str(built), fcompile=linker, addons=[*objects, *kernels], workspace_dir=folder
                )

            shares = [partial(_write_objects, jobs[first::workers]) for first in range(workers)]
            failure = _in_children(shares) or _in_children([link])
            if failure:
                raise ArtifactError(f"artifact {path}: {failure}; nothing written")
            os.replace(built, path)
    except CalledProcessError as error:
        words = error.stderr.strip().splitlines()[-1:] or [str(error)]
        raise ArtifactError(f"artifact {path}: {words[0]}; nothing written") from error
    except OSError as error:
        raise ArtifactError(
            f"artifact {path}: {error.strerror or error}; nothing written"
        ) from error
    return path


def _write_objects(jobs: Sequence[tuple[Any, str]]) -> None:
    """The object file of each kernel: machine code made anew."""
    for kernel, path in jobs:
        kernel.write_to_file(path)


def _in_children(works: Sequence[Callable[[], None]]) -> str:
    """Does the works at once, each in a forked child; returns why one failed, or an empty text.

    LLVM ends the process it runs in when it cannot write its object file, on a full disk say, and
    what other threads of that process do meanwhile fails in any way: hence a process for each.
    A child has this process' memory, so nothing need be handed over.
    """
    failures = [_outcome(*child) for child in [_fork(work) for work in works]]
    return next(filter(None, failures), "")


def _fork(work: Callable[[], None]) -> tuple[int, int]:
    """A child that does `work`: its process id, and where to read what it prints."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.close(reader)
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:
            os.write(2, f"\n{last_line(error)}\n".encode())
        finally:
            os._exit(code)
    os.close(writer)
    return child, reader


def _outcome(child: int, reader: int) -> str:
    """Why the child failed, once it has ended, or an empty text."""
    with open(reader, encoding="utf-8", errors="replace") as words:
        lines = [line.strip() for line in words if line.strip()]
    _, status = os.waitpid(child, 0)
    if status == 0:
        return ""
    return lines[-1] if lines else f"the writer died ({os.waitstatus_to_exitcode(status)})"


def _compiler(manifest: Manifest) -> str:
    """A C compiler that links for the target: the host's own, or a cross compiler."""
    arm = "aarch64" in manifest.target
    names = (
        ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++") if arm else ("g++", "gcc", "cc", "clang")
    )
    if arm and os.uname().machine == "aarch64":
        names = ("g++", "gcc", "cc", "clang")
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    raise ArtifactError(
        f"artifact: linking needs a C compiler, none of {', '.join(names)} was found; install gcc"
    )
