"""A CUDA device that is none: libcuda, libcudart and nvcc with which TVM's CUDA runs on the CPU.

    env = {**os.environ, **emulated(folder)}

TVM writes its CUDA code, loads it and launches it as for a device. `driver.cpp` says how kernels
run, `cuda.h` what their code means, `runtime.cpp` what memory is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
VERSIONED = "libcudart.so.13 { global: *; };"


def emulated(folder: Path) -> dict[str, str]:
    """Builds the emulator in a folder: what a process' environment needs to find it."""
    for name in ("cuda.h", "math_constants.h", "nvcc"):
        shutil.copy(HERE / name, folder)
    script = folder / "versions"
    script.write_text(VERSIONED)
    _library("driver.cpp", folder / "libcuda.so.1", "-ldl")
    _library("runtime.cpp", folder / "libcudart.so.13", f"-Wl,--version-script={script}")
    return {
        "LD_LIBRARY_PATH": _first(folder, "LD_LIBRARY_PATH"),
        "PATH": _first(folder, "PATH"),
    }


def _library(source: str, made: Path, option: str) -> None:
    assert COMPILER is not None
    command = [COMPILER, "-std=c++17", "-O2", "-shared", "-fPIC", f"-Wl,-soname,{made.name}"]
    subprocess.run([*command, "-o", made, HERE / source, option], check=True)


def _first(folder: Path, variable: str) -> str:
    known = os.environ.get(variable)
    return f"{folder}{os.pathsep}{known}" if known else str(folder)
