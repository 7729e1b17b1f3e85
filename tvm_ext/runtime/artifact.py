"""Artifacts: one shared library that stock TVM loads, the manifest inside it as a function."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

from tvm_ext.cuda_libraries import use_nvcc
from tvm_ext.errors import ArtifactError
from tvm_ext.records.manifest import Manifest, decode_manifest
from tvm_ext.runtime.machine import Machine, ffi, load_cuda, silence, to_arrays

MANIFEST_FUNCTION = "tvm_ext_manifest"
WEIGHT_FUNCTION = "tvm_ext_weight"
_CUDA_LOADER, _CUDA_COMPILER = "load_from_bytes.cuda", "tvm_callback_cuda_compile"
"""What TVM asks for in vain where it has no runtime for GPUs, or no compiler."""


def load_artifact(path: Path) -> tuple[Any, Manifest]:
    """The library and manifest of an artifact. Raises ArtifactError if it is not one."""
    if path.is_dir():
        raise ArtifactError(f"artifact {path}: is a directory; name the .so file in it")
    try:
        whole = _whole_elf(path)
    except FileNotFoundError:
        raise ArtifactError(
            f"artifact {path}: no such file; make one with python -m tvm_ext.compile"
        ) from None
    except OSError as error:
        raise ArtifactError(
            f"artifact {path}: cannot be read: {error.strerror or error}; check its permissions"
        ) from error
    if not whole:
        raise ArtifactError(
            f"artifact {path}: not a shared library, or one cut short; make it again"
        )
    try:
        with silence():
            module = _opened(path)
    except Exception as error:
        if _CUDA_LOADER in str(error):
            raise ArtifactError(
                f"artifact {path}: is for a CUDA device, and this machine has none, or no driver"
            ) from error
        raise ArtifactError(
            f"artifact {path}: not a shared library this machine can load: {last_line(error)}"
        ) from error
    try:
        data = to_arrays(Machine(module)[MANIFEST_FUNCTION]())[0].tobytes()
    except Exception as error:
        raise ArtifactError(
            f"artifact {path}: holds no tvm_ext model; make one with python -m tvm_ext.compile"
        ) from error
    if not _has_weights(module):
        raise ArtifactError(
            f"artifact {path}: cut short or stripped, its weights are missing; make it again"
        )
    return module, decode_manifest(data)


def _opened(path: Path) -> Any:
    """The library as TVM's module.

    One for a GPU takes TVM's runtime for it, and its Python and a compiler where the kernels are
    CUDA code, as they were written where there was no GPU.
    """
    for need in (load_cuda, _load_compiler):
        try:
            return ffi().load_module(str(path.resolve()))
        except RuntimeError as error:
            if not any(word in str(error) for word in (_CUDA_LOADER, _CUDA_COMPILER)):
                raise
        need()
    return ffi().load_module(str(path.resolve()))


def _load_compiler() -> None:
    import tvm  # noqa: F401 - registers what compiles CUDA

    use_nvcc()


def copy(source: Path, path: Path) -> Path:
    """Copies a loaded artifact. Raises ArtifactError."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tvm_ext-") as folder:
            copied = shutil.copyfile(source, Path(folder) / path.name)
            os.replace(copied, path)
    except OSError as error:
        raise ArtifactError(f"artifact {path}: {error.strerror or error}; not written") from error
    return path


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


def _has_weights(module: Any) -> bool:
    """Whether the weights that lie behind the library, if it has any, are there."""
    if not module.implements_function(WEIGHT_FUNCTION, True):
        return True
    try:
        module.get_function(WEIGHT_FUNCTION, True)(0)
    except RuntimeError:
        return False
    return True


def last_line(error: BaseException) -> str:
    """The last line of an error's message, or its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
