"""Attention of lengths that are not known, counted in whole tiles.

    attention(q[1, n, 12, 64], k[1, n, 12, 64], v)
        =   `rows` keys and `columns` queries, any numbers from n on, of which n count

A function of the lengths known carries `OPEN`, by which it is found again once they are open; the
plan is that of one with typical lengths, and its kernel that of any (`tir.generalise`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm_ext.compute.attention import attention
from tvm_ext.tvm_api import PrimFunc, structural_equal, te, tirx, topi

OPEN = "tvm_ext.open_attention"
"""Attribute of such a function: its scale, whether it is guarded, and whether heads come before
positions in queries, in keys and in values."""
SPARE_ROWS = 96
"""Rows of a bias beyond the keys, where it has a column for each query: a last tile of queries may
read on beyond the last row. No block of queries is wider."""
TYPICAL = 384
"""What a length that is not known is planned for."""


class Lengths(NamedTuple):
    """Of an attention in whole tiles; numbers or expressions."""

    rows: Any
    """Keys, in whole tiles; or how many tiles."""
    columns: Any
    """Queries likewise."""
    keys: Any
    queries: Any
    bias: Any
    """Elements of a bias for each head, if it has a column for each query."""
    batch: Any
    """Texts, each with all heads."""
    blocks: Any
    """Tiles of queries of all texts together."""


@dataclass(frozen=True)
class OpenAttention:
    """What is known of it, and its lengths as they are given."""

    q: tuple[Any, ...]
    k: tuple[Any, ...]
    v: tuple[Any, ...]
    bias: tuple[Any, ...] | None
    scale: float
    guarded: bool
    heads_first: tuple[bool, ...]
    """Of queries, keys and values as they are given; the shapes here are with positions first."""

    @classmethod
    def of(cls, func: PrimFunc) -> OpenAttention | None:
        """That of a function that carries `OPEN`; None of any other, and where more than lengths
        and the number of texts is open."""
        if not func.attrs or OPEN not in func.attrs:
            return None
        scale, guarded, *first = func.attrs[OPEN]
        shapes = [tuple(param.shape) for param in func.params if hasattr(param, "shape")]
        *given, _ = shapes
        heads_first = tuple(bool(int(one)) for one in first)
        q, k, v = (
            _swapped(shape) if swapped else shape
            for shape, swapped in zip(given, heads_first, strict=False)
        )
        bias = given[3] if len(given) > 3 else None
        beside = [*q[2:], *k[2:], *v[2:], *(bias or ())[1:2]]
        if not all(isinstance(extent, tirx.IntImm) for extent in beside):
            return None
        batches = [k[0], v[0], *(one for one in (bias or ())[:1] if not _is_one(one))]
        if not all(structural_equal(q[0], one) for one in batches):
            return None
        return cls(q, k, v, bias, float(scale), bool(int(guarded)), heads_first)

    @property
    def has_columns(self) -> bool:
        """Whether a bias has a column for each query."""
        return self.bias is not None and not _is_one(self.bias[3])

    @property
    def has_batch(self) -> bool:
        """Whether the number of texts is open."""
        return not isinstance(self.q[0], tirx.IntImm)

    def typical(self, lanes: int) -> PrimFunc:
        """The function of typical lengths, in whole vectors of queries, for one text if their
        number is open."""
        queries, keys = (
            int(shape[1]) if isinstance(shape[1], tirx.IntImm) else TYPICAL
            for shape in (self.q, self.k)
        )
        columns = -(-queries // lanes) * lanes
        batch = 1 if self.has_batch else int(self.q[0])
        shape = self.bias and (
            *self._of_bias(batch),
            1 if _is_one(self.bias[2]) else keys,
            columns if self.has_columns else 1,
        )
        bias = None if shape is None else te.placeholder(shape, "float32", "bias")
        return self._func(bias, bias, Lengths(keys, columns, keys, queries, 0, batch, batch))

    def at(self, lengths: Lengths) -> PrimFunc:
        """The function of those lengths, rows and columns more than keys and queries."""
        if self.bias is None:
            return self._func(None, None, lengths)
        heads = self._of_bias(lengths.batch)
        if not self.has_columns:
            keys = 1 if _is_one(self.bias[2]) else lengths.keys
            given = te.placeholder((*heads, keys, 1), "float32", "bias")
        else:
            given = te.placeholder((*heads, lengths.bias), "float32", "bias")
        rows = 1 if _is_one(self.bias[2]) else lengths.rows
        last = lengths.keys - 1

        def view(b: Any, h: Any, j: Any, i: Any) -> Any:
            key = j if rows == 1 else tirx.min(j, last)
            if not self.has_columns:
                return given[b, h, key, 0]
            return given[b, h, key * lengths.queries + i]

        shape = (*heads, rows, lengths.columns if self.has_columns else 1)
        return self._func(given, te.compute(shape, view, name="view"), lengths)

    def _of_bias(self, batch: Any) -> tuple[Any, Any]:
        """For how many texts and heads there is a bias."""
        own, heads = (self.bias or (1, 1))[:2]
        return own if _is_one(own) else batch, heads

    def _func(self, given: Any, bias: Any, lengths: Lengths) -> PrimFunc:
        (_, _, heads, depth), (_, _, groups, _), width = self.q, self.k, self.v[3]
        batch = lengths.batch
        shapes = {
            "q": (batch, lengths.queries, heads, depth),
            "k": (batch, lengths.keys, groups, depth),
            "v": (batch, lengths.keys, groups, width),
        }
        operands = [
            te.placeholder(_swapped(shape) if first else shape, "float32", name)
            for (name, shape), first in zip(shapes.items(), self.heads_first, strict=True)
        ]
        q, k, v = by_positions(operands, self.heads_first)
        y = attention(q, k, v, bias, self.scale, self.guarded, lengths.columns, lengths.rows)
        return te.create_prim_func([*operands, *([] if given is None else [given]), y])


def by_positions(operands: Sequence[Any], heads_first: Sequence[bool]) -> list[Any]:
    """Operands with positions before heads: those with heads first as views."""
    return [
        topi.transpose(operand, (0, 2, 1, 3)) if first else operand
        for operand, first in zip(operands, heads_first, strict=True)
    ]


def _swapped(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    batch, heads, positions, *rest = shape
    return (batch, positions, heads, *rest)


def _is_one(extent: Any) -> bool:
    return isinstance(extent, int | tirx.IntImm) and int(extent) == 1
