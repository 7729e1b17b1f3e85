"""Structural hashes of PrimFuncs: the name by which a tuning log knows a task, and what tells
whether a plan still becomes the kernel that was measured.

They are our own, of a canonical text, because TVM's `structural_hash` changes between versions and
sees attributes that do not change the computation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tvm_ext.tvm_api import PrimFunc, ir, tvm
from tvm_ext.tvm_steal import STEAL

# What of a node is its meaning, in the order it is written down. Names, spans, reads and writes
# (they follow from the body), the place of a buffer in memory, and block annotations (hints to
# scheduling rules) are not.
# A kind that is not listed is written with every field it has.
_EXPRESSIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max", "And", "Or",
            "EQ", "NE", "LT", "LE", "GT", "GE", "LShift", "RShift",
            "BitwiseAnd", "BitwiseOr", "BitwiseXor",
        ),
        ("a", "b"),
    ),
    "Not": ("a",), "BitwiseNot": ("a",),
    "IntImm": ("ty", "value"), "FloatImm": ("ty", "value"), "StringImm": ("value",),
    "Cast": ("ty", "value"), "Select": ("condition", "true_value", "false_value"),
    "Let": ("var", "value", "body"),
    "Call": ("ty", "op", "attrs", "ty_args", "args"), "TensorLoad": ("source", "indices"),
    "Ramp": ("base", "stride", "lanes"), "Broadcast": ("value", "lanes"),
    "Shuffle": ("vectors", "indices"),
}  # fmt: skip
_STATEMENTS: dict[str, tuple[str, ...]] = {
    "SeqStmt": ("seq",), "BufferStore": ("buffer", "indices", "value"),
    "For": ("kind", "thread_binding", "annotations", "loop_var", "min", "extent", "step", "body"),
    "While": ("condition", "body"), "IfThenElse": ("condition", "then_case", "else_case"),
    "Bind": ("var", "value"), "Evaluate": ("value",),
    "AttrStmt": ("attr_key", "node", "value", "body"),
    "AllocBuffer": ("buffer", "annotations"), "DeclBuffer": ("buffer", "data"),
    "SBlockRealize": ("iter_values", "predicate", "block"),
    "SBlock": ("iter_vars", "match_buffers", "init", "body"),
    "MatchBufferRegion": ("buffer", "source"), "TensorRegion": ("source", "region"),
    "IterVar": ("iter_type", "thread_tag", "var", "dom"), "Range": ("min", "extent"),
}  # fmt: skip
_TYPES: dict[str, tuple[str, ...]] = {
    "BufferType": ("dtype", "storage_scope", "shape", "strides"),
    "PrimType": ("dtype",),
    "PointerType": ("element_type", "storage_scope"),
}
_FIELDS = {**_EXPRESSIONS, **_STATEMENTS, **_TYPES}
_SCHEDULED = {**_FIELDS, "SBlock": (*_FIELDS["SBlock"], "alloc_buffers", "annotations")}
_NAMELESS = frozenset({"span", "name", "name_hint"})


def signature(func: PrimFunc) -> str:
    """Sixteen hex digits that two functions share when they compute the same in the same way.

    Independent of all names (function, buffers, variables, blocks), of function attributes, of the
    process and of TVM's version; any other difference (shapes, dtypes, loops, operations, symbolic
    dimensions in other places) gives another signature. Works on every PrimFunc.
    """
    return hashlib.sha256(_Writer(_FIELDS).write(func).encode()).hexdigest()[:16]


def hash_func(func: PrimFunc) -> str:
    """Twelve hex digits that two scheduled functions share when they become the same kernel:
    independent of names, as `signature` is, but annotations, places of allocation and work stealing
    count."""
    shared_out = bool(func.attrs) and STEAL in func.attrs
    return hash_text(f"{_Writer(_SCHEDULED).write(func)} {shared_out}")


def hash_text(text: str) -> str:
    """Twelve hex digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class _Writer:
    """Writes the canonical text: variables and buffers become numbers in order of appearance."""

    def __init__(self, fields: Mapping[str, tuple[str, ...]]) -> None:
        self._fields = fields
        self._out: list[str] = []
        self._numbers: dict[Any, int] = {}

    def write(self, func: PrimFunc) -> str:
        for param in func.params:
            self._value(param)
        self._value(func.body)
        return " ".join(self._out)

    def _value(self, value: Any) -> None:
        kind = type(value)
        writer = _WRITERS.get(kind)
        if writer is None:
            writer = _WRITERS[kind] = _writer_of(value)
        writer(self, value)

    def _operation(self, value: Any) -> None:
        # tir.exp, tirx.exp and prim.exp are one operation in different versions
        self._out.append(value.name.rpartition(".")[2])

    def _tensor(self, value: Any) -> None:
        array = value.numpy()
        self._out.append(f"{array.dtype}{array.shape}")
        self._out.append(hashlib.sha256(array.tobytes()).hexdigest())

    def _mapping(self, value: Any) -> None:
        self._sequence([x for key in sorted(value, key=str) for x in (key, value[key])])

    def _text(self, value: Any) -> None:
        self._out.append(repr(str(value)))

    def _plain(self, value: Any) -> None:
        self._out.append(repr(int(value) if isinstance(value, bool) else value))

    def _named(self, var: Any) -> None:
        """A variable: its number, and at first sight its type."""
        number = self._numbers.get(var)
        self._out.append(f"%{len(self._numbers) if number is None else number}")
        if number is None:
            self._numbers[var] = len(self._numbers)
            if isinstance(var, ir.Var):
                self._value(var.ty)

    def _sequence(self, values: Iterable[Any]) -> None:
        self._out.append("[")
        for value in values:
            self._value(value)
        self._out.append("]")

    def _object(self, node: Any) -> None:
        kind = type(node).__name__
        fields = self._fields.get(kind)
        if fields is None:
            kind, fields = _reflect(type(node))
        self._out.append(f"{kind}(")
        for field in fields:
            self._value(getattr(node, field))
        self._out.append(")")


_WRITERS: dict[type, Callable[[_Writer, Any], None]] = {}
"""How values of a type are written: looked up for every node, so it is worked out once."""


def _writer_of(value: Any) -> Callable[[_Writer, Any], None]:
    for kind, writer in (
        (ir.Var | ir.GlobalVar, _Writer._named),
        (ir.Op, _Writer._operation),
        (tvm.runtime.Tensor, _Writer._tensor),
        (Mapping, _Writer._mapping),
        (str, _Writer._text),
        (Sequence, _Writer._sequence),
        (tvm.runtime.Object, _Writer._object),
    ):
        if isinstance(value, kind):
            return writer
    return _Writer._plain


def _reflect(kind: Any) -> tuple[str, tuple[str, ...]]:
    """The registered name of a node kind and all of its fields that are not names."""
    info = kind.__tvm_ffi_type_info__
    key, fields = info.type_key, []
    while info is not None:
        fields += [field.name for field in info.fields if field.name not in _NAMELESS]
        info = info.parent_type_info
    return key, tuple(fields)
