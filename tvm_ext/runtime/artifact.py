"""Artifacts: one shared library that stock TVM loads, the manifest inside it as a function."""

from __future__ import annotations

import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.errors import ArtifactError
from tvm_ext.records.manifest import Manifest, decode_manifest, encode_manifest
from tvm_ext.tvm_api import IRModule, relax, tvm

MANIFEST_FUNCTION = "tvm_ext_manifest"


def with_manifest(mod: IRModule, manifest: Manifest) -> IRModule:
    """The module with a function that returns the manifest's JSON as a uint8 tensor."""
    data = np.frombuffer(encode_manifest(manifest), dtype="uint8")
    builder = relax.BlockBuilder(mod)
    with builder.function(MANIFEST_FUNCTION, []):
        builder.emit_func_output(relax.const(data))
    return builder.finalize()


def export(executable: Any, path: Path, manifest: Manifest) -> Path:
    """Links the executable into `path`, whole or not at all.

    Raises ArtifactError if the folder is missing or not writable, the disk is full, or no C
    compiler is there to link.
    """
    if path.suffix != ".so":
        raise ArtifactError(f"artifact {path}: must end in .so; try {path.with_suffix('.so')}")
    if not path.parent.is_dir():
        raise ArtifactError(f"artifact {path}: folder {path.parent} does not exist; create it")
    linker = _linker(manifest)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tvm_ext-") as folder:
            built = Path(folder) / path.name
            failure = _in_child(
                lambda: executable.export_library(str(built), fcompile=linker, workspace_dir=folder)
            )
            if failure:
                raise ArtifactError(f"artifact {path}: {failure}; nothing written")
            os.replace(built, path)
    except OSError as error:
        raise ArtifactError(
            f"artifact {path}: {error.strerror or error}; nothing written"
        ) from error
    return path


def load_artifact(path: Path) -> tuple[Any, Manifest]:
    """The executable and manifest of an artifact. Raises ArtifactError if it is not one."""
    if not path.is_file():
        raise ArtifactError(f"artifact {path}: no such file")
    if not _whole_elf(path):
        raise ArtifactError(
            f"artifact {path}: not a shared library, or one cut short; make it again"
        )
    try:
        with silence():
            module = tvm.runtime.load_module(str(path.resolve()))
    except Exception as error:
        raise ArtifactError(
            f"artifact {path}: not a shared library this machine can load: {_last_line(error)}"
        ) from error
    try:
        with silence():
            machine = relax.VirtualMachine(module, tvm.cpu())
        data = machine[MANIFEST_FUNCTION]().numpy().tobytes()
    except Exception as error:
        raise ArtifactError(
            f"artifact {path}: holds no tvm_ext model; make one with python -m tvm_ext.compile"
        ) from error
    return module, decode_manifest(data)


def _in_child(work: Callable[[], Any]) -> str:
    """Does `work` in a forked child; returns why it failed, or an empty text.

    LLVM ends the process it runs in when it cannot write its object file, on a full disk say.
    The child has this process' memory, so nothing need be handed over.
    """
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
            os.write(2, f"\n{_last_line(error)}\n".encode())
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, encoding="utf-8", errors="replace") as words:
        lines = [line.strip() for line in words if line.strip()]
    _, status = os.waitpid(child, 0)
    if status == 0:
        return ""
    return lines[-1] if lines else f"the writer died ({os.waitstatus_to_exitcode(status)})"


def copy(source: Path, path: Path) -> Path:
    """Copies a loaded artifact. Raises ArtifactError."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tvm_ext-") as folder:
            copied = shutil.copyfile(source, Path(folder) / path.name)
            os.replace(copied, path)
    except OSError as error:
        raise ArtifactError(f"artifact {path}: {error.strerror or error}; not written") from error
    return path


@contextmanager
def silence() -> Iterator[None]:
    """Keeps TVM's C++ from printing a warning for every constant it saves or loads.

    Errors come as exceptions, so nothing that matters goes to this stream meanwhile.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as sink:
        os.dup2(sink.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _whole_elf(path: Path) -> bool:
    """Whether the file is a 64-bit ELF file of the length its header implies.

    The loader maps a file that was cut short and dies later, on the first missing page.
    """
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return False
    order = "<" if header[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", header, 40)
    size, count = struct.unpack_from(f"{order}HH", header, 58)
    return path.stat().st_size >= table + size * count


def _linker(manifest: Manifest) -> Any:
    """TVM's linking helper with a compiler that exists; the host's own, or a cross compiler."""
    from tvm.support import cc

    arm = "aarch64" in manifest.target
    names = (
        ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++") if arm else ("g++", "gcc", "cc", "clang")
    )
    if arm and os.uname().machine == "aarch64":
        names = ("g++", "gcc", "cc", "clang")
    for name in names:
        found = shutil.which(name)
        if found:
            return cc.cross_compiler(found, options=["-shared", "-fPIC"])
    raise ArtifactError(
        f"artifact: linking needs a C compiler, none of {', '.join(names)} was found; install gcc"
    )


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
