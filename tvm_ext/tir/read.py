"""Reading a PrimFunc into a TileGraph: blocks become nodes, buffer indices become affine maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from msgspec import structs

from tvm_ext import tvm_pairs
from tvm_ext.tile.axis import Axis
from tvm_ext.tile.graph import Access, Hole, Tensor, TileGraph, TileNode
from tvm_ext.tir.affine import affine, linear, loads, operands
from tvm_ext.tvm_api import (
    Analyzer,
    Call,
    PrimFunc,
    Schedule,
    TensorLoad,
    WalkResult,
    ir,
    s_tir,
    schedule_of,
    structural_walk,
    sums_up,
    tirx,
    variables,
)
from tvm_ext.tvm_dots import is_dot, multiplies_tensors

_SPECIAL_FLOPS = 10.0
_DOT_FLOPS = 2.0
"""Of four bytes: with the sum it is added to it is one instruction, as a multiply-add is."""
_LEAVES = (TensorLoad, tirx.FloatImm, tirx.IntImm, tirx.Var)
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)


def _is_float(expr: Any) -> bool:
    return "float" in str(expr.ty.dtype)


def sources(store: Any) -> list[Any]:
    """The tensors that a statement reads, but for the one it writes, each once, in the order of
    their first loads: that in which a node's reads name them. Names may be equal."""
    found: list[Any] = []
    for load in loads(store.value):
        if not any(load.source.same_as(other) for other in (*found, store.buffer)):
            found.append(load.source)
    return found


def flops(expr: Any) -> float:
    """Floating-point operations of one evaluation; index arithmetic is free."""
    if isinstance(expr, _LEAVES):
        return 0.0
    total = 0.0

    def choice(node: Any) -> WalkResult:
        nonlocal total
        total += flops(node.condition) + max(flops(node.true_value), flops(node.false_value))
        return WalkResult.SKIP

    def arithmetic(node: Any) -> None:
        nonlocal total
        total += _is_float(node)

    def call(node: Any) -> None:
        nonlocal total
        if is_dot(node) or tvm_pairs.is_dot_of_pairs(node):
            total += _DOT_FLOPS - _is_float(node)
        elif _is_float(node) and not getattr(node.op, "name", "").endswith("if_then_else"):
            total += _SPECIAL_FLOPS

    kinds = [(tirx.Select, choice), (_ARITHMETIC, arithmetic), (Call, call)]
    structural_walk(expr, [(TensorLoad, lambda _: WalkResult.SKIP), *kinds], order="pre")
    return total


def adds(is_product: Callable[[Any], bool], value: Any) -> bool:
    """Whether a sum grows by products of two tensors' elements, of bytes or halves."""
    return isinstance(value, tirx.Add) and any(map(is_product, (value.a, value.b)))


def terms(condition: Any) -> Iterator[Any]:
    """What must all hold for the condition to hold, the last first."""
    return operands(condition, tirx.And)


def _guards(expr: Any) -> list[Any]:
    """The terms of every condition outside which the value is zero."""
    found: list[Any] = []

    def choice(condition: Any, otherwise: Any) -> None:
        if isinstance(otherwise, tirx.FloatImm) and otherwise.value == 0:
            found.extend(terms(condition))

    def call(node: Any) -> None:
        if getattr(node.op, "name", "").endswith("if_then_else"):
            choice(node.args[0], node.args[2])

    def select(node: Any) -> None:
        choice(node.condition, node.false_value)

    structural_walk(expr, [(Call, call), (tirx.Select, select)], order="pre")
    return found


def holes(expr: Any, axes: dict[Any, int], kinds: list[str]) -> tuple[Hole, ...]:
    """The zeros between elements in what a reduction adds up."""
    found = []
    for guard in _guards(expr):
        mod = guard.a if isinstance(guard, tirx.EQ) else None
        if not (isinstance(mod, tirx.FloorMod) and isinstance(mod.b, tirx.IntImm)):
            continue
        form = linear(mod.a, axes)
        if form is None or not isinstance(guard.b, tirx.IntImm) or int(guard.b.value):
            continue
        used = {kinds[axis]: axis for axis, step in enumerate(form[0]) if abs(step) == 1}
        if len(used) == 2 == sum(step != 0 for step in form[0]):
            found.append(Hole(used["space"], used["reduce"], int(mod.b.value)))
    return tuple(dict.fromkeys(found))


def _dtype_bytes(dtype: str) -> int:
    if dtype == "bool":
        return 1
    if dtype.startswith("bfloat16"):
        return 2
    return np.dtype(dtype).itemsize


class _Reader:
    """Collects tensors while blocks are read."""

    def __init__(self, func: PrimFunc) -> None:
        self.tensors: list[Tensor] = []
        self.index: dict[Any, int] = {}
        self.params = set(func.params)

    def node(self, block: Any) -> TileNode:
        """The node of one block. A block that is not one plain store becomes `opaque`."""
        if _is_plain(block):
            node, buffers = _plain_node(str(block.name_hint), block.body, _axes(block))
        else:
            node, buffers = _opaque_node(block)
        numbers = [self._number(buffer, written) for buffer, written in buffers]

        def renumbered(access: Access) -> Access:
            return Access(numbers[access.tensor], access.dims)

        reads = tuple(map(renumbered, node.reads))
        return structs.replace(node, reads=reads, write=renumbered(node.write))

    def _number(self, buffer: Any, written: bool) -> int:
        """Number of the buffer's tensor, added on first sight."""
        if buffer not in self.index:
            role = "inner"
            if buffer in self.params:
                role = "output" if written else "input"
            shape = tuple(int(extent) for extent in buffer.shape)
            dtype = str(buffer.dtype)
            self.index[buffer] = len(self.tensors)
            self.tensors.append(Tensor(str(buffer.name), shape, dtype, _dtype_bytes(dtype), role))
        return self.index[buffer]


Buffers = tuple[tuple[Any, bool], ...]
"""The tensors of a node that numbers them itself, with whether each is written first."""


def _is_plain(block: Any) -> bool:
    """Whether a block is one store, over axes of results and of sums."""
    kinds = all(iv.iter_type in (0, 2) for iv in block.iter_vars)
    return kinds and isinstance(block.body, tirx.BufferStore)


def _axes(block: Any) -> tuple[tuple[Any, Axis], ...]:
    """The axes of a block, behind their variables."""
    return tuple(
        (
            iv.var,
            Axis(str(iv.var.name), int(iv.dom.extent), "reduce" if iv.iter_type == 2 else "space"),
        )
        for iv in block.iter_vars
    )


def _opaque_node(block: Any) -> tuple[TileNode, Buffers]:
    if not block.writes:
        raise ValueError("a block without writes")
    read = [region.source for region in block.reads]
    regions = [*read, block.writes[0].source]
    numbers = {buffer: number for number, buffer in enumerate(dict.fromkeys(regions))}
    *reads, write = (Access(numbers[b], (None,) * len(b.shape)) for b in regions)
    axes = tuple(axis for _, axis in _axes(block))
    node = TileNode(str(block.name_hint), "opaque", axes, tuple(reads), write, 0.0)
    known = set(read)
    return node, tuple((buffer, buffer not in known) for buffer in numbers)


@lru_cache(maxsize=1024)
def _plain_node(
    name: str, store: Any, known: tuple[tuple[Any, Axis], ...]
) -> tuple[TileNode, Buffers]:
    """Kept, since a schedule is read again where few of its statements have changed."""
    axes = tuple(axis for _, axis in known)
    position = {var: i for i, (var, _) in enumerate(known)}
    bounds = Analyzer()
    for var, axis in known:
        dtype = str(var.ty.dtype)
        bounds.bind(var, ir.Range(tirx.const(0, dtype), tirx.const(axis.extent, dtype)))
    numbers: dict[Any, int] = {store.buffer: 0}

    def access(buffer: Any, indices: Any) -> Access:
        dims = tuple(affine(index, position, bounds) for index in indices)
        return Access(numbers.setdefault(buffer, len(numbers)), dims)

    write = access(store.buffer, store.indices)
    reads = dict.fromkeys(
        access(load.source, load.indices)
        for load in loads(store.value)
        if not load.source.same_as(store.buffer)
    )
    kind = "reduce" if any(axis.kind == "reduce" for axis in axes) else "map"
    zeros = holes(store.value, position, [axis.kind for axis in axes])
    useful = flops(store.value) / prod(hole.step for hole in zeros)
    halves = kind == "reduce" and adds(tvm_pairs.multiplies_tensors, store.value)
    dots = halves or (kind == "reduce" and adds(multiplies_tensors, store.value))
    node = TileNode(name, kind, axes, tuple(reads), write, useful, zeros, dots, halves)
    return node, tuple((buffer, number == 0) for buffer, number in numbers.items())


def read_schedule(schedule: Schedule, func: PrimFunc, signature: str = "") -> TileGraph | None:
    """The TileGraph of a schedule whose blocks are all children of the root block.

    None if the function has no such form (no blocks, symbolic extents, nested blocks, no elements):
    a rule that needs a graph then does not apply.
    """
    reader = _Reader(func)
    try:
        root = schedule.get_sblock("root")
        blocks = [schedule.get(block) for block in schedule.get_child_blocks(root)]
        nodes = tuple(reader.node(block) for block in blocks)
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return None
    if not nodes or any(0 in node.extents for node in nodes):
        return None
    name = str(func.attrs["global_symbol"]) if func.attrs and "global_symbol" in func.attrs else ""
    return TileGraph(name, tuple(reader.tensors), nodes, signature)


def read(func: PrimFunc, signature: str = "") -> TileGraph | None:
    """The TileGraph of an unscheduled PrimFunc; None if it has no such form."""
    return read_schedule(schedule_of(func), func, signature)


def uses_again(func: PrimFunc) -> bool:
    """Whether a reduction of the function reads elements for several results: some read ignores an
    axis of what is written, or steps through a window (`tile.classify.has_reuse` and `overlaps`,
    told without a TileGraph; of channels of a group perhaps wrongly)."""
    found = []

    def look(block: Any) -> None:
        if not sums_up(block) or not isinstance(block.body, tirx.BufferStore):
            return
        axes = [iv for iv in block.iter_vars if not _is_one(iv.dom)]
        space = {iv.var for iv in axes if iv.iter_type == 0}
        reduced = {iv.var for iv in axes} - space
        for load in loads(block.body.value):
            if not load.source.same_as(block.body.buffer):
                used = [set(variables(index)) for index in load.indices]
                windows = any(own & space and own & reduced for own in used)
                found.append(windows or not space <= set[Any]().union(*used))

    structural_walk(func.body, (s_tir.SBlock, look))
    return any(found)


def written_places(func: PrimFunc) -> frozenset[int]:
    """The places of the parameters that a function writes."""
    written: set[Any] = set()
    structural_walk(func.body, (tirx.BufferStore, lambda store: written.add(store.buffer)))
    return frozenset(place for place, param in enumerate(func.params) if param in written)


def copies(func: PrimFunc) -> bool:
    """Whether the function is one block that copies elements of one tensor, worked out or not."""
    found: list[Any] = []
    structural_walk(func.body, (tirx.BufferStore, found.append))
    return len(found) == 1 and isinstance(found[0].value, TensorLoad)


def _is_one(domain: Any) -> bool:
    return isinstance(domain.extent, tirx.IntImm) and int(domain.extent) == 1
