"""`without_sympy()`: imports that would import sympy, which comes when it is first asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

_SYMPY = "sympy"


@contextmanager
def without_sympy() -> Iterator[None]:
    """Gives those who import sympy meanwhile a module that imports it when they use it.

    onnx_ir reads extents that are expressions with it; few models have such, and it costs a third
    of a second. Others import it as usual afterwards.
    """
    if _SYMPY in sys.modules:
        yield
        return
    later = sys.modules[_SYMPY] = _Later(_SYMPY)
    try:
        yield
    finally:
        later.awaited = False
        if sys.modules.get(_SYMPY) is later:
            del sys.modules[_SYMPY]


class _Later(ModuleType):
    """Sympy; what is taken from it while importing are its `_Function`s."""

    awaited = True

    def __getattr__(self, name: str) -> Any:
        if not self.awaited:
            return getattr(import_module(_SYMPY), name)
        if name.startswith("__"):
            raise AttributeError(name)
        return _Function(name)


class _Function:
    """One of sympy's functions, by name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any) -> Any:
        return getattr(import_module(_SYMPY), self._name)(*args)
