"""`LookUpBytes`: a function of one byte is a table of 256.

    quantize(gelu(dequantize(q, s, z)), s', z')   →   call_tir(look_up, q, table)

where everything between the two quantisers works element by element, on the one tensor of bytes and
on numbers. The table is worked out here, in numpy, as the operators would: behind a product an
error function and what goes with it take twenty times as long as the table does (`tvm_tables`).
Quantisers inside, as they are put around every operator, are steps of the same function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.graph.fuse import ELEMENTWISE
from tvm_ext.graph.legalise_quantised import BYTES, is_one_number
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import (
    IRModule,
    bound,
    constant,
    constant_array,
    op_name,
    relax,
    rewritten,
    static_extents,
    te,
    tvm,
)
from tvm_ext.tvm_rounding import LIMITS
from tvm_ext.tvm_tables import ENTRIES, ISA, looked_up

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


COSTLY: dict[str, Callable[..., np.ndarray]] = {
    "erf": _erf,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "power": np.power,
    "nn.gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "nn.gelu_tanh": lambda x: (
        0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "nn.silu": lambda x: x * _sigmoid(x),
}
"""Operators that a table is worth, as functions of float64."""
CHEAP: dict[str, Callable[..., np.ndarray]] = {
    "abs": np.abs,
    "negative": np.negative,
    "sqrt": np.sqrt,
    "nn.relu": lambda x: np.maximum(x, 0),
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
"""Others that may go with them."""
TABLE = "call_tir"
"""A table that was made before."""
ENOUGH = 6
"""Operators that are worth a table, whatever they are."""


class _Curve(NamedTuple):
    """A function of one tensor of bytes, or of none: a number."""

    given: Any
    """The tensor; None of a number."""
    values: np.ndarray
    """For each byte, as if it had no sign; or the number."""
    operators: frozenset[Any]
    """The calls that it is made of."""


@tvm.transform.module_pass(opt_level=0, name="LookUpBytes")
@dataclass(frozen=True)
class LookUpBytes:
    """Rewrites such functions where the machine has an instruction for tables."""

    hardware: HardwareModel

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module before `Legalise`."""
        if ISA not in self.hardware.isa:
            return mod
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Rewriter(mod)))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._known: dict[Any, _Curve | None] = {}
        """Of variables."""
        self._tables: set[Any] = set()
        """Kernels that look up."""

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        curve = self._of_call(call) if op_name(call) == "relax.quantize" else None
        if curve is None or not _is_worth_it(curve):
            return call
        if static_extents(call.ty) != static_extents(curve.given.ty):
            return call
        looked = self.builder_.call_te(
            _look_up,
            curve.given,
            constant(curve.values.astype(str(call.ty.dtype.dtype))),
            primfunc_name_hint="look_up",
            primfunc_attrs={ELEMENTWISE: 1},
        )
        self._tables.add(looked.args[0])
        return looked

    def _of(self, expr: Any) -> _Curve | None:
        """What function an expression is; None if it is none of bytes."""
        number = constant_array(expr)
        if number is not None:
            plain = number.size == 1 and number.dtype.kind in "fiu"
            return _Curve(None, number.reshape(()).astype(float), frozenset()) if plain else None
        if not isinstance(expr, relax.Var):
            return None
        if expr not in self._known:
            made = bound(self, expr)
            self._known[expr] = self._of_call(made) if isinstance(made, relax.Call) else None
        return self._known[expr]

    def _of_call(self, call: Any) -> _Curve | None:
        name = op_name(call).removeprefix("relax.")
        if name in ("quantize", "dequantize"):
            return self._of_quantiser(call, name)
        if name == TABLE and call.args[0] in self._tables:
            return self._of_table(call)
        apply = COSTLY.get(name) or CHEAP.get(name)
        if apply is None or (call.attrs is not None and len(call.attrs.keys())):
            return None
        return _combined([self._of(one) for one in call.args], apply, (call,))

    def _of_quantiser(self, call: Any, name: str) -> _Curve | None:
        data, *numbers = call.args
        scale, point = (constant_array(one) for one in numbers)
        if scale is None or point is None or not all(map(is_one_number, numbers)):
            return None
        step, shift = float(scale.reshape(())), float(point.reshape(()))
        if name == "dequantize":
            curve = self._bytes(data)
            return curve and curve._replace(values=(curve.values - shift) * step)
        dtype = str(call.ty.dtype.dtype)
        curve = self._of(data) if dtype in BYTES else None
        if curve is None or curve.given is None:
            return None
        whole = np.clip(np.rint(curve.values / step) + shift, *LIMITS[dtype])
        return curve._replace(values=whole)

    def _bytes(self, data: Any) -> _Curve | None:
        """A tensor of bytes: as a function of another one, if it is one, or of itself."""
        dtype = str(data.ty.dtype.dtype)
        if dtype not in BYTES or not isinstance(data, relax.Var):
            return None
        curve = self._of(data)
        if curve is not None and curve.given is not None:
            return curve
        octets = np.arange(ENTRIES, dtype=np.uint8).view(dtype)
        return _Curve(data, octets.astype(float), frozenset())

    def _of_table(self, call: Any) -> _Curve | None:
        """A table of what a function gives: what follows may as well be in it."""
        given, table = call.args[1].fields
        curve = self._bytes(given)
        if curve is None:
            return None
        places = curve.values.astype(np.int64).astype(np.uint8)
        values = constant_array(table)[places].astype(float)
        return _Curve(curve.given, values, curve.operators | {call})


def _look_up(x: te.Tensor, table: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda *at: looked_up(table, x(*at)), name="looked_up")


def _combined(
    parts: list[_Curve | None], apply: Callable[..., np.ndarray], calls: tuple[Any, ...]
) -> _Curve | None:
    """An operator of functions of one tensor and of numbers."""
    known = [part for part in parts if part is not None]
    tensors = [part.given for part in known if part.given is not None]
    if len(known) < len(parts) or not tensors:
        return None
    if any(not tensor.same_as(tensors[0]) for tensor in tensors):
        return None
    with np.errstate(all="ignore"):
        values = apply(*(part.values for part in known))
    operators = frozenset(calls).union(*(part.operators for part in known))
    return _Curve(tensors[0], values, operators) if np.isfinite(values).all() else None


def _is_worth_it(curve: _Curve) -> bool:
    names = [op_name(call).removeprefix("relax.") for call in curve.operators]
    costly = any(name in COSTLY or name == TABLE for name in names)
    return curve.given is not None and (costly or len(names) >= ENOUGH)
