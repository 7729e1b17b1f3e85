"""Which layouts each value of a function exists in, and the conversions between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_ext.graph.layout_perm import (
    Perm,
    after_permute,
    between,
    channels_last,
    identity,
    moves_only_ones,
)
from tvm_ext.graph.layout_tir import permute_program
from tvm_ext.tvm_api import GenericConst, array_of, constant, ir, relax


@dataclass
class Value:
    """A tensor: one piece of data, seen through a permutation of its axes.

    twins: the expression of the data in each layout it has been put in; the first is the one it
    was computed in. Every permuted view of the data shares this table.
    axes: axis i of this view is axis `axes[i]` of the data.
    perm: the layout, of this view, that users should prefer.
    """

    twins: dict[Perm, relax.Expr]
    axes: Perm
    perm: Perm

    @staticmethod
    def of(expr: relax.Expr, perm: Perm) -> Value:
        """The tensor that `expr` holds in layout `perm`."""
        return Value({perm: expr}, identity(len(perm)), perm)

    @property
    def rank(self) -> int:
        return len(self.axes)

    @property
    def is_plain(self) -> bool:
        return self.perm == identity(self.rank)

    @property
    def is_constant(self) -> bool:
        return isinstance(next(iter(self.twins.values())), GenericConst)

    @property
    def shape(self) -> list[Any] | None:
        """The extents of this view, as ints where known; None when TVM does not know them."""
        perm, expr = next(iter(self.twins.items()))
        extents = known_shape(expr.ty)
        return None if extents is None else [extents[perm.index(axis)] for axis in self.axes]

    @property
    def static_size(self) -> int:
        """The product of the extents that are known."""
        return math.prod(extent for extent in self.shape or [0] if isinstance(extent, int))

    def permute(self, axes: Sequence[int]) -> Value:
        """The view `permute_dims(self, axes)`, which costs nothing until it is used.

        A plain value stays preferred as it reads (a transposed matmul operand is not a layout
        choice), unless the view turns it into exactly channels-last.
        """
        perm = after_permute(self.perm, axes)
        if self.is_plain and perm != channels_last(len(perm)):
            perm = identity(len(perm))
        return Value(self.twins, tuple(self.axes[axis] for axis in axes), perm)

    def reshape_constant(self, shape: Sequence[Any]) -> Value | None:
        """The constant in another shape; None if this is not a constant."""
        perm, source = next(iter(self.twins.items()))
        if not isinstance(source, GenericConst):
            return None
        array = np.transpose(array_of(source.value), between(perm, self.axes)).reshape(shape)
        return Value.of(constant(array, str(source.value.dtype)), identity(len(shape)))


def known_shape(ty: Any) -> list[Any] | None:
    """The extents of a tensor type, as Python ints where static; None when unknown."""
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    return [int(x) if hasattr(x, "value") else x for x in ty.shape.values]


class Layouts:
    """The values of the function being rewritten; emits each conversion once, where first needed.

    `visit` rewrites an expression to its plain form, as the mutator that owns this table does.
    """

    def __init__(
        self, builder: relax.BlockBuilder, visit: Callable[[relax.Expr], relax.Expr]
    ) -> None:
        self.builder = builder
        self.plain = visit
        self.entries: dict[relax.Expr, Value | list[Value]] = {}
        self.programs: dict[tuple[Any, Perm], Any] = {}

    def value(self, expr: relax.Expr) -> Value | None:
        """The tensor an argument stands for; None for anything that is not a ranked tensor."""
        if expr not in self.entries:
            ranked = isinstance(expr.ty, relax.TensorType) and expr.ty.ndim >= 0
            if not ranked or not isinstance(expr, (relax.Var, GenericConst)):
                return None
            self.entries[expr] = Value.of(self.plain(expr), identity(expr.ty.ndim))
        entry = self.entries[expr]
        return entry if isinstance(entry, Value) else None

    def fields(self, expr: relax.Expr) -> list[Value] | None:
        """The tensors of a tuple argument; None when one of them is not a ranked tensor."""
        if isinstance(expr, relax.Tuple):
            values = [self.value(field) for field in expr.fields]
            return None if None in values else [value for value in values if value is not None]
        entry = self.entries.get(expr)
        return entry if isinstance(entry, list) else None

    def to(
        self, value: Value, perm: Perm, emit: Callable[..., relax.Var] | None = None
    ) -> relax.Expr:
        """The value in layout `perm`. A value once converted prefers its new layout."""
        emit = emit or self.builder.emit
        if perm != identity(value.rank):
            value.perm = perm
        wanted = tuple(value.axes[axis] for axis in perm)
        if wanted not in value.twins:
            held, source = next(iter(value.twins.items()))
            axes = between(held, wanted)
            if isinstance(source, GenericConst):
                value.twins[wanted] = constant(
                    np.transpose(array_of(source.value), axes), str(source.value.dtype)
                )
            else:
                value.twins[wanted] = emit(transposed(self._emitted(value, held), axes))
        return self._emitted(value, wanted)

    def broadcast(self, value: Value, perm: Perm) -> relax.Expr:
        """The value as an operand of an element-wise operator that works in layout `perm`."""
        missing = len(perm) - value.rank
        if value.rank == 0 or missing == 0:
            return self.to(value, perm if value.rank else ())
        shape = [1] * missing + list(value.shape or ())
        source = self.to(value, identity(value.rank))
        if isinstance(source, GenericConst):
            array = np.transpose(array_of(source.value).reshape(shape), perm)
            return constant(array, str(source.value.dtype))
        if moves_only_ones(perm, shape):
            return self.builder.emit(relax.op.reshape(source, [shape[axis] for axis in perm]))
        lifted = self.builder.emit(relax.op.reshape(source, shape))
        return self.builder.emit(relax.op.permute_dims(lifted, perm))

    def permuted_program(self, name: ir.GlobalVar, perm: Perm) -> ir.GlobalVar | None:
        """The tensor program of that name, on buffers in layout `perm`; None if it cannot be."""
        if (name, perm) not in self.programs:
            program = permute_program(self.builder.get()[name], perm)
            added = program and self.builder.add_func(program, name.name_hint)
            self.programs[name, perm] = added
        return self.programs[name, perm]

    @contextmanager
    def dataflow_block(self) -> Iterator[None]:
        """Forgets, at its end, all that a dataflow block keeps to itself."""
        outer = {expr: _copy(entry) for expr, entry in self.entries.items()}
        yield
        for expr, entry in self.entries.items():
            if isinstance(entry, Value) and (isinstance(expr, GenericConst) or expr not in outer):
                twins = {perm: twin for perm, twin in entry.twins.items() if _is_visible(twin)}
                if twins:
                    preferred = tuple(entry.axes[axis] for axis in entry.perm) in twins
                    perm = entry.perm if preferred else identity(entry.rank)
                    outer[expr] = Value(twins, entry.axes, perm)
        self.entries = outer

    def _emitted(self, value: Value, base: Perm) -> relax.Expr:
        """A field of a tuple is only read out of it when it is used."""
        if isinstance(value.twins[base], relax.TupleGetItem):
            value.twins[base] = self.builder.emit(value.twins[base])
        return value.twins[base]


def _is_visible(expr: relax.Expr) -> bool:
    """Whether later blocks may use an expression of a dataflow block."""
    return isinstance(expr, (relax.Var, GenericConst)) and not isinstance(expr, relax.DataflowVar)


def _copy(entry: Value | list[Value]) -> Value | list[Value]:
    if isinstance(entry, list):
        return [replace(value, twins=dict(value.twins)) for value in entry]
    return replace(entry, twins=dict(entry.twins))


def transposed(expr: relax.Expr, axes: Perm) -> relax.Expr:
    """`permute_dims(expr, axes)`, or a reshape where that moves no data."""
    shape = known_shape(expr.ty)
    if shape is not None and moves_only_ones(axes, shape):
        return relax.op.reshape(expr, [shape[axis] for axis in axes])
    return relax.op.permute_dims(expr, axes)
