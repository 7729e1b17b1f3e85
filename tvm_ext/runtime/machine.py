"""TVM's virtual machine, without TVM's compiler: all that running an artifact needs.

`import tvm` maps the compiler, 400 MB of it; the runtime libraries alone are 5 MB.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from tvm_ext.cuda_libraries import load_cudart
from tvm_ext.errors import InputError, InstallError
from tvm_ext.without_torch import without_torch

_TYPES = {"cpu": 1, "cuda": 2}
"""Devices by name, as DLPack numbers them."""
_NAIVE, _POOLED = 1, 2
"""TVM's allocators. The pool keeps blocks for the next tensor of that size, and gives none back: of
caches that grow word by word it would hold one of every length."""
LARGE_BYTES = 1 << 16
"""The pool hands out whole pages: many small results that are kept would each hold one."""
Instrument = Callable[..., None]
_silenced = RLock()


@cache
def ffi() -> Any:
    """The module `tvm_ffi`, with TVM's runtime library loaded. Raises InstallError without TVM."""
    try:
        with without_torch():
            import tvm_ffi
        # Raised in a call back, Ctrl-C would come out of TVM as a RuntimeError.
        tvm_ffi.register_error(KeyboardInterrupt)
    except ImportError as error:
        raise InstallError(f"package apache-tvm-ffi: {error}; pip install tvm-ext") from error
    if "tvm" not in sys.modules:
        folder = _libraries()
        ctypes.CDLL(str(folder / "libtvm_runtime.so"), ctypes.RTLD_GLOBAL)
        extra = folder / "libtvm_runtime_extra.so"  # sorting and scans
        if extra.exists():
            ctypes.CDLL(str(extra), ctypes.RTLD_GLOBAL)
    return tvm_ffi


def _libraries() -> Path:
    """Where TVM's are. Raises InstallError without TVM."""
    found = importlib.util.find_spec("tvm")
    if found is None or found.origin is None:
        raise InstallError("package apache-tvm: not installed; pip install tvm-ext")
    return Path(found.origin).parent / "lib"


def load_cuda() -> None:
    """Loads TVM's CUDA runtime, where there is a driver; TVM's Python has done so."""
    if "tvm" in sys.modules:
        return
    load_cudart()
    with suppress(OSError):
        ctypes.CDLL(str(_libraries() / "libtvm_runtime_cuda.so"), ctypes.RTLD_GLOBAL)


def tensor(array: np.ndarray, device: str = "cpu") -> Any:
    """A copy of the array in memory of a device, aligned as kernels expect it."""
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    room = _function("runtime.TVMTensorAllocWithScope")(
        ffi().Shape(array.shape), ffi().dtype(str(array.dtype)), ffi().device(device, 0), None
    )
    address = ctypes.c_void_p(contiguous.ctypes.data)
    _function("runtime.TVMTensorCopyFromBytes")(room, address, contiguous.nbytes)
    return room


def shared(array: np.ndarray) -> Any:
    """The array itself as a tensor, or a copy where it has gaps, is read-only, or is of a type that
    numpy does not hand over."""
    if array.flags.carray:
        with suppress(BufferError, TypeError, RuntimeError):
            return ffi().from_dlpack(array)
    return tensor(array)


def to_arrays(result: Any, own: Container[int] = ()) -> list[np.ndarray]:
    """What a model returned, a tensor or a tuple of them, as arrays that nothing else writes to.

    Large ones whose places are in `own` are the memory that the model wrote, which goes back to its
    pool with the array; of all others that is a copy.
    """
    tensors = [result] if isinstance(result, ffi().Tensor) else list(result)
    return [_array(value, place in own) for place, value in enumerate(tensors)]


def _array(value: Any, own: bool) -> np.ndarray:
    try:
        view = np.from_dlpack(value)
    except (BufferError, TypeError, RuntimeError):
        return _copied(value)
    return view if own and view.nbytes >= LARGE_BYTES else view.copy()


def _copied(value: Any) -> np.ndarray:
    array = np.empty(tuple(value.shape), str(value.dtype))
    address = ctypes.c_void_p(array.ctypes.data)
    _function("runtime.TVMTensorCopyToBytes")(value, address, array.nbytes)
    return array


def wait(device: str) -> None:
    """Returns when what a device was told to do is done; a CPU has done it."""
    if device != "cpu":
        _function("runtime.Device_StreamSync")(ffi().device(device, 0), 0)


@cache
def _function(name: str) -> Any:
    return ffi().get_global_func(name)


class Machine:
    """A loaded module's functions, by name: `machine["main"](tensor)`, whose tensors are on a
    device; sizes may change from call to call if it `is_open`."""

    def __init__(self, module: Any, device: str = "cpu", *, is_open: bool = False) -> None:
        devices = dict.fromkeys((device, "cpu"))  # the last one computes shapes
        allocator = _NAIVE if is_open else _POOLED
        with silence():
            self._functions = module["vm_load_executable"]()
            self._functions["vm_initialization"](
                *(word for name in devices for word in (_TYPES[name], 0, allocator))
            )

    def __getitem__(self, name: str) -> Any:
        return self._functions[name]

    @property
    def main(self) -> Callable[..., Any]:
        """The model. Raises InputError for more along an open extent than it has values for."""
        entry = self["main"]

        def limited(*given: Any) -> Any:
            try:
                return entry(*given)
            except IndexError as error:  # `tvm_lowering.LIMIT`
                raise InputError(f"inputs: {error}; give less at once") from None

        return limited

    def instrument(self, note: Instrument) -> None:
        """Calls `note(function, name, begins, result, *arguments)` around every call it makes."""
        self._functions["set_instrument"](note)


@contextmanager
def silence() -> Iterator[None]:
    """Keeps TVM's C++ from printing a warning for every constant it saves or loads.

    Errors come as exceptions, so nothing that matters goes to this stream meanwhile.
    """
    with _silenced:  # another thread would keep this one's silence for good
        sys.stderr.flush()
        kept = os.dup(2)
        with open(os.devnull, "w") as sink:
            os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
