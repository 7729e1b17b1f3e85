"""Equal tensor programs are made once: what legalisation asks for instead of a block builder.

layer 1: call_te(dense, x, A)    TE → PrimFunc → call_tir(dense, x, A)      some ms
layer 2: call_te(dense, y, B)    call_tir(dense, y, B)                      the same function
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_ext.tvm_api import Call, constant_array, op_name, relax, static_extents, tirx

FUSES_EPILOGUE = {"op_pattern": 4}
"""Attributes of kernels that take what follows element by element in."""


@dataclass(frozen=True)
class Programs:
    """A block builder, and the calls that were made with it, by what their programs follow from."""

    builder: Any
    made: dict[Any, Call]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.builder, name)

    def call_te(
        self, body: Callable[..., Any], *args: Any, key: Hashable = None, **hints: Any
    ) -> Any:
        """The builder's `call_te`. `key`: all that the program follows from beside the types of its
        arguments, which are tensors; without one it is made anew."""
        if key is None or not all(map(_is_tensor, args)):
            return self.builder.call_te(body, *args, **hints)
        whole = (key, hints.get("primfunc_name_hint"), tuple(_type(arg) for arg in args))
        if whole in self.made:
            return _again(self.made[whole], args)
        result = self.builder.call_te(body, *args, **hints)
        if _takes(result, args):  # not where one argument stands for two
            self.made[whole] = result
        return result

    def of_operator(self, legalise: Callable[[Any, Call], Any], call: Call) -> Any:
        """What an operator without attributes becomes; `legalise` makes it the first time. Scalars
        are part of the program, other constants are not."""
        if call.attrs is not None or not all(map(_is_tensor, call.args)):
            return legalise(self.builder, call)
        key = (op_name(call), tuple(_value(arg) or _type(arg) for arg in call.args))
        given = [arg for arg in call.args if _value(arg) is None]
        if key in self.made:
            return _again(self.made[key], given)
        result = legalise(self.builder, call)
        if _takes(result, given):
            self.made[key] = result
        return result


def _again(made: Call, args: Sequence[Any]) -> Call:
    """The call with other arguments of the same types."""
    return relax.Call(made.op, [made.args[0], relax.Tuple(args)], made.attrs, made.ty_args)


def _takes(call: Any, args: Sequence[Any]) -> bool:
    """Whether it is the call of a kernel that takes these, in this order, and nothing else."""
    if op_name(call) != "relax.call_tir" or len(call.args) != 2:
        return False
    taken = call.args[1].fields
    return len(taken) == len(args) and all(a.same_as(b) for a, b in zip(taken, args, strict=True))


def _is_tensor(arg: Any) -> bool:
    return _extents(getattr(arg, "ty", None)) is not None


def _type(arg: Any) -> Hashable:
    return _extents(arg.ty), str(arg.ty.dtype.dtype)


def _extents(ty: Any) -> tuple[Any, ...] | None:
    """The extents of a tensor's type, numbers and variables; None where one is worked out."""
    extents = getattr(getattr(ty, "shape", None), "values", None)
    if extents is None or not all(isinstance(e, tirx.IntImm | tirx.Var) for e in extents):
        return None
    return tuple(int(e) if isinstance(e, tirx.IntImm) else e for e in extents)


def _value(arg: Any) -> Hashable:
    """The type and bits of a scalar constant; None of any other argument."""
    if static_extents(arg.ty):
        return None
    array = constant_array(arg)
    return None if array is None else (str(array.dtype), array.tobytes())
