"""CUDA as pip installs it, where neither the loader nor TVM looks: `tvm_ext[cuda]`."""

from __future__ import annotations

import ctypes
import os
import shutil
import site
from contextlib import suppress
from pathlib import Path


def load_cudart() -> None:
    """Loads CUDA's runtime library for TVM's, which asks for it by name; nothing without a driver,
    or where the loader will find another."""
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        for library in _installed("lib/libcudart.so.13"):
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
            return


def use_nvcc() -> bool:
    """Has TVM compile CUDA with nvcc, without fast maths, unless the environment says otherwise:
    whether there is one. Its other compiler, NVRTC, knows fast maths only."""
    if not shutil.which("nvcc"):
        for compiler in _installed("bin/nvcc"):
            os.environ["PATH"] = f"{compiler.parent}{os.pathsep}{os.environ.get('PATH', '')}"
            break
        else:
            return False
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    os.environ.setdefault("TVM_CUDA_NVCC_NO_FAST_MATH", "1")
    return True


def _installed(name: str) -> list[Path]:
    """Files of that name under pip's CUDA."""
    folders = (*site.getsitepackages(), site.getusersitepackages())
    return [found for folder in folders for found in Path(folder).glob(f"nvidia/cu13/{name}")]
