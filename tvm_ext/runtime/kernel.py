"""A kernel's machine code, made once: what was checked is what the artifact is linked from."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tvm_ext.runtime.launcher import use_own_threads
from tvm_ext.runtime.machine import tensor
from tvm_ext.tvm_api import tvm


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel: its object file, and what runs it here."""

    code: bytes
    module: Any
    main: Any

    @staticmethod
    def of(compiled: Any, name: str, run: bool) -> Kernel:
        """Makes machine code of TVM's module.

        name  the kernel's symbol
        run   whether this machine is the one it is for
        """
        code = object_file(compiled)
        library = _library(code) if run and code else None
        module = library or compiled
        return Kernel(code, module, module[name] if run else None)

    @staticmethod
    def linked(code: bytes, name: str) -> Kernel | None:
        """A kernel for this machine of an object file; None where it cannot be linked."""
        library = _library(code)
        return Kernel(code, library, library[name]) if library else None

    def write(self, path: Path) -> None:
        """The object file on disk. LLVM, if it has to make it first, ends the process when the disk
        is full."""
        if self.code:
            path.write_bytes(self.code)
        else:
            self.module.write_to_file(str(path), "o")


@dataclass(frozen=True)
class DeviceKernel:
    """A kernel of a GPU: TVM's module for the CPU, which has that for the device beside it."""

    module: Any
    main: Any

    @staticmethod
    def of(compiled: Any, name: str, run: bool) -> DeviceKernel:
        """Takes TVM's module as it is; arguments as for a `Kernel`."""
        return DeviceKernel(compiled, from_host(compiled[name], "cuda") if run else None)


def from_host(kernel: Any, device: str) -> Any:
    """A device's kernel for tensors of the CPU: they go there, and come back."""

    def run(*host: Any) -> None:
        moved = [tensor(array.numpy(), device) for array in host]
        kernel(*moved)
        for array, result in zip(host, moved, strict=True):
            array.copyfrom(result.numpy())

    return run


def files_are_limited() -> bool:
    """Whether this process may write files of some size only, those in memory among them."""
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY


def object_file(compiled: Any) -> bytes:
    """Written to memory, for LLVM ends the process that writes to a full disk; nothing where the
    size of files is limited, those in memory too."""
    if files_are_limited():
        return b""
    file = os.memfd_create("kernel")  # names of files are shorter than those of kernels
    try:
        compiled.write_to_file(f"/proc/self/fd/{file}", "o")
        return os.pread(file, os.fstat(file).st_size, 0)
    finally:
        os.close(file)


def _library(code: bytes) -> Any:
    """The object as a shared library of this process; None where it cannot be linked, and LLVM has
    to make the code once more."""
    linker = _linker()
    if not linker:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="tvm_ext-") as folder:
            made, linked = Path(folder) / "kernel.o", Path(folder) / "kernel.so"
            made.write_bytes(code)
            command = [linker, "-shared", "-o", str(linked), str(made)]
            subprocess.run(command, check=True, capture_output=True)
            library = tvm.runtime.load_module(str(linked))
            use_own_threads(linked)
            return library
    except (OSError, RuntimeError, subprocess.CalledProcessError):
        return None


@cache
def _linker() -> str | None:
    return shutil.which("ld")
