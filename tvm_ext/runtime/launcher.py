"""The threads of `launch.c` for models that are run where they were compiled.

An artifact has them linked in. Here they are a library of the process, made at first use, and a
kernel's pointer to TVM's pool is set to it once TVM has loaded the kernel.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from threading import Lock

SOURCE = Path(__file__).with_name("launch.c")
C_COMPILERS = ("g++", "gcc", "cc", "clang")
"""What compiles C for this machine, the first that is found."""
_POINTER = "__TVMBackendParallelLaunch"
_first_use = Lock()


def use_own_threads(library: Path) -> None:
    """Lets the parallel loops of a library that TVM has loaded, if it has any, run on our threads;
    they stay on TVM's pool where no C compiler is found."""
    with _first_use:  # kernels are compiled side by side, and share one launcher
        launch = _launch()
    loaded = ctypes.CDLL(str(library))
    pointer = _pointer(loaded)
    if pointer is not None and launch:
        pointer.value = launch
    _close(loaded)


def _pointer(library: ctypes.CDLL) -> ctypes.c_void_p | None:
    try:
        return ctypes.c_void_p.in_dll(library, _POINTER)
    except ValueError:
        return None


def _close(library: ctypes.CDLL) -> None:
    """What ctypes opens it never closes: each kernel would stay for good."""
    close = ctypes.CDLL(None).dlclose
    close.argtypes = (ctypes.c_void_p,)
    close(library._handle)


@cache
def _launch() -> int | None:
    """Where the function is that runs a loop's parts."""
    compiler = next(filter(None, map(shutil.which, C_COMPILERS)), None)
    if compiler is None:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="tvm_ext-") as folder:
            made = Path(folder) / "launch.so"
            options = ["-O2", "-fPIC", "-pthread", "-shared", '-DVISIBILITY="default"']
            command = [compiler, "-x", "c", *options, str(SOURCE), "-o", str(made), "-ldl"]
            subprocess.run(command, check=True, capture_output=True)
            pointer = _pointer(ctypes.CDLL(str(made)))
    except (OSError, subprocess.CalledProcessError):
        return None
    return pointer.value if pointer is not None else None
