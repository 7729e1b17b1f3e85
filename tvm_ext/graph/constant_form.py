"""A constant that follows an extent that is not known: what makes it for any (`constant_forms` says
of what forms it may be)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.tvm_api import constant, ir, mark_written, relax, te, tirx
from tvm_ext.tvm_lowering import LIMIT

Place = tuple[Any, ...]
NUMBER = "tvm_ext.grown"
"""Attribute of a kernel that makes a constant."""
LIMITS = "tvm_ext.limits"
"""Attribute of one that has no more values than for some number, by the name of the extent."""
FEW = 8
"""Rows that may lie before those that are looked up, or be looked up, where that is not told: it
may follow another extent."""
CYCLES = 1000
"""What making one takes, about: little, and nothing of it is planned."""


class Length(NamedTuple):
    """step * extent + offset."""

    step: int
    offset: int

    @classmethod
    def of(cls, pair: Sequence[int], extents: Sequence[int]) -> Length | None:
        """None of two numbers of which that is not so. Of two squares it would be, or of products
        like n * (n + 1): with an offset that leaves little of the steps at the extents."""
        step, left = divmod(pair[1] - pair[0], extents[1] - extents[0])
        offset = pair[0] - step * extents[0]
        return None if left or step < 1 or -2 * offset >= step * extents[0] else cls(step, offset)

    def at(self, symbol: Any) -> Any:
        """As an expression."""
        grown = symbol if self.step == 1 else symbol * self.step
        return grown + self.offset if self.offset else grown


def number_of(value: int | Length, extent: Any) -> Any:
    """A number that may follow an extent, as an expression."""
    return value.at(extent) if isinstance(value, Length) else tirx.const(value, "int64")


class Limit(NamedTuple):
    """So many rows from one on must be no more than there are."""

    begin: int | Length
    rows: int | Length
    most: int

    def said(self, symbol: Any) -> str:
        """What a run is told that asks for more: without numbers, which may follow other
        extents."""
        if isinstance(self.begin, Length):
            subject = f"{self.begin.at(symbol)} and what follows"
        else:
            assert isinstance(self.rows, Length)
            before = " and what lies before" if self.begin else ""
            subject = f"{self.rows.at(symbol)}{before}"
        return f"{subject}: the model has values for {self.most} at most"

    def takes(self, extent: int) -> bool:
        """Whether there are as many as for that extent."""
        begin, rows = (
            int(each.at(extent)) if isinstance(each, Length) else each
            for each in (self.begin, self.rows)
        )
        return begin + rows <= self.most

    def largest(self) -> int:
        """The extent up to which there surely are, few of others given."""
        own = self.begin if isinstance(self.begin, Length) else self.rows
        assert isinstance(own, Length)
        return (self.most - FEW - own.offset) // own.step


@dataclass(frozen=True)
class Form(ABC):
    """A constant that can be made for any extent."""

    shape: tuple[int | Length, ...]

    @property
    @abstractmethod
    def tables(self) -> tuple[np.ndarray, ...]:
        """What it is made of."""

    @abstractmethod
    def element(self, tables: Sequence[Any], at: Place, sizes: Place, extent: Any) -> Any:
        """The element at a place of a constant of those sizes."""

    @property
    def is_told(self) -> bool:
        """Whether the extent itself is needed."""
        return False

    @property
    def limit(self) -> Limit | None:
        """What the extent may be at most; None if there is no such."""
        return None

    @abstractmethod
    def made(self, extent: int) -> np.ndarray:
        """The constant for an extent, which is no more than the limit."""

    def sizes(self, extent: int) -> tuple[int, ...]:
        """Its shape for an extent."""
        return tuple(int(e.at(extent)) if isinstance(e, Length) else e for e in self.shape)

    def call(self, symbol: Any, builder: Any, number: int = 0) -> Any:
        """The call that makes it, of a kernel that is added by the builder.

        number  in its function: with it no kernel is another's by chance, for some numbers only
        """
        lengths = [extent for extent in self.shape if isinstance(extent, Length)]
        own = {length: tirx.Var(f"{symbol.name}{i}", "int64") for i, length in enumerate(lengths)}
        extent = tirx.Var(str(symbol.name), "int64")
        dtype = str(self.tables[0].dtype)
        shapes = [[tirx.const(extent, "int64") for extent in table.shape] for table in self.tables]
        given = [te.placeholder(shape, dtype, f"t{i}") for i, shape in enumerate(shapes)]
        sizes = [own[e] if isinstance(e, Length) else tirx.const(e, "int64") for e in self.shape]
        out = te.compute(
            sizes, lambda *at: self.element(given, at, tuple(sizes), extent), name="grown"
        )
        told = [extent] if self.is_told else []
        func = te.create_prim_func([*given, *told, out]).without_attr("global_symbol")
        if self.limit is not None:
            begin, rows, most = self.limit
            end = own[rows] if isinstance(rows, Length) else tirx.const(rows, "int64")
            if begin != 0:
                end = end + number_of(begin, extent)
            within = tirx.AssertStmt(
                end <= tirx.const(most, "int64"),
                ir.StringImm(LIMIT),
                [ir.StringImm(self.limit.said(symbol))],
            )
            func = func.with_body(tirx.SeqStmt([within, func.body]))
            func = func.with_attr(LIMITS, {str(symbol.name): self.limit.largest()})
        func = mark_written(func, CYCLES).with_attr(NUMBER, number)
        variable = builder.add_func(func, "grown")
        operands = [constant(np.asarray(table, order="C")) for table in self.tables]
        taken = relax.Tuple([*operands, *([symbol] if self.is_told else [])])
        shape = [e.at(symbol) if isinstance(e, Length) else e for e in self.shape]
        return relax.call_tir(variable, taken, relax.TensorType(shape, dtype))
