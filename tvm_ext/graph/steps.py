"""Which kernel reads what of which other: the tile graph of a whole function.

f(x, a); v = view(a); g(v, b)   →   f: reads an input; g: reads what f wrote
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from tvm_ext.tir.affine import linear
from tvm_ext.tir.read import written_places
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    element_bytes,
    extents_of,
    op_name,
    relax,
    structural_walk,
    variables,
)

INPUT = -1
TIR_CALL = "relax.call_tir"


class KernelStep(NamedTuple):
    """One call of a kernel."""

    kernel: str
    reads: tuple[tuple[int, int], ...]
    """The steps whose results it takes, `INPUT` for what is given to the function, and of how many
    bytes; constants are left out."""


def steps(mod: IRModule) -> tuple[KernelStep, ...]:
    """The calls of `main` in order, before or after CallTIRRewrite; none if it has branches."""
    function = mod["main"]
    kernels = {v: func for v, func in mod.functions.items() if isinstance(func, PrimFunc)}
    reader = _Reader(kernels, function.params)
    for block in getattr(function.body, "blocks", ()):
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if isinstance(value, relax.If):
                return ()
            reader.take(binding.var, value)
    return tuple(reader.found)


class _Reader:
    def __init__(self, kernels: Mapping[Any, PrimFunc], params: Any) -> None:
        self._kernels = kernels
        self._names: dict[Any, Any] = {}
        """For each variable that is another name of one, that one."""
        self._whole: dict[Any, frozenset[Any]] = {}
        """For each variable the tensors that it lies in, or is made of."""
        self._makers: dict[Any, set[int]] = {param: {INPUT} for param in params}
        self._written: dict[Any, frozenset[int]] = {}
        self.found: list[KernelStep] = []

    def take(self, var: Any, value: Any) -> None:
        """One binding."""
        call = op_name(value) == TIR_CALL
        kernel: Any = value.args[0] if call else getattr(value, "op", None)
        if isinstance(value, relax.Var):
            self._names[var] = self._named(value)
        elif isinstance(value, relax.Call) and kernel in self._kernels:
            operands = list(value.args[1].fields if call else value.args)
            places = frozenset[int]() if call else self._places(kernel)
            read = [one for place, one in enumerate(operands) if place not in places]
            number = len(self.found)
            self.found.append(KernelStep(str(kernel.name_hint), self._reads(read)))
            for one in [var] if call else [operands[place] for place in places]:
                self._write(one, number)
        else:
            used: list[Any] = []
            structural_walk(value, (relax.Var, lambda one: used.append(self._named(one))))
            self._whole[var] = frozenset[Any]().union(*(self._behind(one) for one in used))

    def _places(self, kernel: Any) -> frozenset[int]:
        if kernel not in self._written:
            self._written[kernel] = written_places(self._kernels[kernel])
        return self._written[kernel]

    def _named(self, var: Any) -> Any:
        return self._names.get(var, var)

    def _behind(self, var: Any) -> frozenset[Any]:
        """The tensors that a variable lies in, itself if in none."""
        return self._whole.get(var) or frozenset({var})

    def _write(self, one: Any, number: int) -> None:
        """A kernel writes a tensor, perhaps a part of others."""
        var = self._named(one)
        for tensor in {var, *self._behind(var)}:
            self._makers.setdefault(tensor, set()).add(number)

    def _reads(self, operands: list[Any]) -> tuple[tuple[int, int], ...]:
        """Of each maker the largest of what is read of it."""
        found: dict[int, int] = {}
        tensors = (one for one in operands if isinstance(one.ty, relax.TensorType))
        for var in (self._named(one) for one in tensors if isinstance(one, relax.Var)):
            makers = self._makers.get(var) or {
                maker for tensor in self._behind(var) for maker in self._makers.get(tensor, ())
            }
            for maker in makers:
                found[maker] = max(found.get(maker, 0), _bytes(var.ty))
        return tuple(sorted(found.items()))


def _bytes(ty: Any) -> int:
    """Bytes of a tensor, with 1 for what is left open."""
    return prod(map(_at_one, extents_of(ty))) * element_bytes(ty.dtype)


def _at_one(extent: Any) -> int:
    symbols = {symbol: place for place, symbol in enumerate(variables(extent))}
    form = linear(extent, symbols)
    return 1 if form is None else sum(form[0]) + form[1]
