"""Matrix products by x86's matrix unit (AMX), out of loops over `dot`s (`tvm_dots`), or over
`dot_pairs` (`tvm_pairs`), which are products of bfloat16 to sums of float32.

    for k < 12, i < 14, j < 16: sums[32 * i + j] += dot(a[64 * i + k], b[32 * k + j])
        →
    tdpbusd(0, 1, 2)                    registers: 14 x 16 sums, 14 x 12 of a, 12 x 16 of b

A register tile is some such nests in a row, inside loops that go through the reduction:

    sums[..] = 0; for ..: nests; epilogue
        →
    tilezero; for ..: tileloadd of what nests need, tdpbusd; tilestored to `sums`; epilogue

Registers have shapes, which each task sets and releases. The system grants them on request, which a
kernel makes before it begins: it then runs in any process, and raises where they are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tvm_ext import tvm_pairs
from tvm_ext.amx_permission import ARCH_PRCTL, REQUEST, TILE_DATA
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    TensorLoad,
    WalkResult,
    ir,
    lanes_of,
    structural_equal,
    structural_map,
    structural_walk,
    tirx,
    tvm,
)
from tvm_ext.tvm_dots import BYTES, multiplies_tensors, operands

AMX = "tvm_ext.amx"
"""Attribute of functions with register tiles for it."""
REGISTERS = 8
SIDE = 16
"""Rows of a register, and int32 of a row, at most."""
PALETTE, ROW_BYTES, ROWS = 1, 16, 48
"""The table of shapes: its kind, and where it says how long the rows of registers are and how many
there are."""
REFUSED = (
    "AMX: the system does not grant its registers; compile for a target without amx-int8, amx-bf16"
)


class Shape(NamedTuple):
    """How registers are used: so many for sums, for rows `a` and for columns `b`."""

    rows: int
    """Of sums, and of `a`."""
    dots: int
    """Of a row of `a`, and rows of `b`."""
    sums: int
    a: int
    b: int


@dataclass(frozen=True)
class Operand:
    """A matrix in memory: where it begins, and int32 from one row to the next."""

    buffer: Any
    begin: Any
    stride: int

    def is_same(self, other: Operand) -> bool:
        """Whether both are the same matrix."""
        same = self.buffer.same_as(other.buffer) and self.stride == other.stride
        return same and bool(structural_equal(self.begin, other.begin))

    @property
    def place(self) -> tuple[Any, Any]:
        """What intrinsics take: its address and the bytes between its rows."""
        load = tirx.BufferLoad(self.buffer, [self.begin])
        address = tirx.call_intrin("handle", "tirx.address_of", load)
        return address, tirx.const(BYTES * self.stride, "int64")


@dataclass(frozen=True)
class Nest:
    """Loops that add the product of two matrices to a third."""

    instruction: str
    """That which does it."""
    sums: Operand
    a: Operand
    b: Operand
    rows: int
    dots: int


def _nest(stmt: Any) -> Nest | None:
    """The product that a statement is; None for others."""
    loops, store = _loops(stmt)
    if len(loops) != 3 or not isinstance(store, tirx.BufferStore):
        return None
    value = store.value
    instruction = _instruction(value.b) if isinstance(value, tirx.Add) else ""
    if not instruction:
        return None
    adds_up = isinstance(value.a, TensorLoad) and value.a.source.same_as(store.buffer)
    if not adds_up or not _is_local(store.buffer):
        return None
    dots, rows, columns = (int(loop.extent) for loop in loops)
    if columns != SIDE or rows > SIDE or dots > SIDE:
        return None
    variables = [loop.loop_var for loop in loops]
    sums = _operand(store.buffer, store.indices, variables, 1, 2)
    a, b = (
        _operand(load.source, load.indices, variables, *axes)
        for load, axes in zip(operands(value.b), ((1, 0), (0, 2)), strict=True)
    )
    return Nest(instruction, sums, a, b, rows, dots) if sums and a and b else None


def _instruction(product: Any) -> str:
    """That which multiplies matrices of such products; "" if none does."""
    if multiplies_tensors(product):
        return "tdpbusd"
    return "tdpbf16ps" if tvm_pairs.multiplies_tensors(product) else ""


def _loops(stmt: Any) -> tuple[list[Any], Any]:
    """The serial loops from zero to a number around a statement, and the statement."""
    loops = []
    while isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.SERIAL:
        if not isinstance(stmt.extent, tirx.IntImm) or not _is_zero(stmt.min):
            break
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def _operand(
    buffer: Any, indices: Any, variables: Sequence[Any], row: int, column: int
) -> Operand | None:
    """The matrix whose rows and columns two of the loops go through; None if others do, or it does
    not lie in rows."""
    if len(indices) != 1:
        return None
    form = list(tvm.sym.detect_linear_equation(indices[0], list(variables)))
    if not form or not all(isinstance(step, tirx.IntImm) for step in form[:-1]):
        return None
    *steps, begin = form
    strides = [int(step) for step in steps]
    idle = [place for place in range(len(strides)) if place not in (row, column)]
    if strides[column] != 1 or any(strides[place] for place in idle):
        return None
    return Operand(buffer, begin, strides[row])


def _clears(stmt: Any, sums: Sequence[Operand]) -> bool:
    """Whether a statement sets sums to zero, and does nothing else."""
    if isinstance(stmt, tirx.SeqStmt):
        return all(_clears(one, sums) for one in stmt.seq)
    if isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
        return _clears(stmt.then_case, sums)
    loops, store = _loops(stmt)
    if len(loops) != 2 or not isinstance(store, tirx.BufferStore) or not _is_zero(store.value):
        return False
    variables = [loop.loop_var for loop in loops]
    cleared = _operand(store.buffer, store.indices, variables, 0, 1)
    return cleared is not None and any(cleared.is_same(one) for one in sums)


def _is_local(buffer: Any) -> bool:
    return bool(buffer.scope() == "local")


def _is_zero(expr: Any) -> bool:
    if isinstance(expr, tirx.FloatImm):
        return float(expr.value) == 0.0
    return isinstance(expr, tirx.IntImm) and int(expr) == 0


def _intrinsic(name: str, *arguments: Any) -> Any:
    """A statement; numbers among the arguments are those of registers."""
    given = [tirx.const(one, "int8") if isinstance(one, int) else one for one in arguments]
    return tirx.Evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *given))


class _Registers:
    """Registers of one sort, each with the matrix that was loaded into it last."""

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self.held: list[Operand | None] = [None] * count
        self.turn = 0

    def load(self, operand: Operand) -> tuple[int, list[Any]]:
        """The register that holds an operand, and what fills it if none did."""
        for at, other in enumerate(self.held):
            if other is not None and operand.is_same(other):
                return self.first + at, []
        at = self.turn % len(self.held)
        self.held[at] = operand
        self.turn += 1
        return self.first + at, [_intrinsic("tileloadd64", self.first + at, *operand.place)]


def _members(stmt: Any) -> list[Any]:
    return list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else [stmt]


def _nests(stmt: Any) -> list[Nest]:
    """All of a statement, in order."""
    found: list[Nest] = []

    def look(loop: Any) -> Any:
        nest = _nest(loop)
        if nest is None:
            return None
        found.append(nest)
        return WalkResult.SKIP

    structural_walk(stmt, [(tirx.For, look)], order="pre")
    return found


def _distinct(operands: Iterable[Operand]) -> list[Operand]:
    found: list[Operand] = []
    for operand in operands:
        if not any(operand.is_same(one) for one in found):
            found.append(operand)
    return found


def _by_unit(stmt: Any, sums: Sequence[Operand], shape: Shape) -> Any:
    """A statement with its nests done by the unit."""
    members = _members(stmt)
    nests = [_nest(member) for member in members]
    if isinstance(stmt, tirx.For) and nests == [None]:
        body = _by_unit(stmt.body, sums, shape)
        return tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body)
    if isinstance(stmt, tirx.IfThenElse) and nests == [None]:
        return tirx.IfThenElse(stmt.condition, _by_unit(stmt.then_case, sums, shape), None)
    registers_a = _Registers(shape.sums, shape.a)
    registers_b = _Registers(shape.sums + shape.a, shape.b)
    done: list[Any] = []
    for member, nest in zip(members, nests, strict=True):
        if nest is None:
            done.append(_by_unit(member, sums, shape) if _nests(member) else member)
            continue
        total = next(at for at, one in enumerate(sums) if one.is_same(nest.sums))
        a, loading_a = registers_a.load(nest.a)
        b, loading_b = registers_b.load(nest.b)
        done += [*loading_a, *loading_b, _intrinsic(nest.instruction, total, a, b)]
    return tirx.SeqStmt(done) if len(done) > 1 else done[0]


@dataclass
class _Writer:
    """Writes register tiles for the unit. Shapes are set `each` time, or left to the caller."""

    each: bool
    shapes: set[Shape] = field(default_factory=set)
    """Those of the register tiles so far."""

    def write(self, stmt: Any) -> Any:
        """A statement with all of its register tiles written."""
        return structural_map(stmt, [(tirx.SeqStmt, self._tile)], order="pre")

    def _tile(self, block: Any) -> Any:
        """A block that sets sums to zero, adds products to them and uses them, with sums in
        registers until they are used; any other block as it is."""
        members = list(block.seq)
        adding = [at for at, member in enumerate(members) if _nests(member)] or [0]
        first, end = adding[0], adding[-1] + 1
        run = tirx.SeqStmt(members[first:end]) if end - first > 1 else members[first]
        nests = _nests(run)
        sums = _distinct(nest.sums for nest in nests)
        clearing = [at for at, one in enumerate(members[:first]) if _clears(one, sums)]
        if not sums or not clearing:
            return block
        shape = _shape(nests, len(sums))
        self.shapes.add(shape)
        done = [
            *(_intrinsic("tilezero", at) for at in range(len(sums))),
            _by_unit(run, sums, shape),
            *(_intrinsic("tilestored64", at, *one.place) for at, one in enumerate(sums)),
        ]
        before = [one for at, one in enumerate(members[:first]) if at not in clearing]
        own = _shaped(shape, done) if self.each else done
        return tirx.SeqStmt([*before, *own, *members[end:]])


def _shape(nests: Sequence[Nest], sums: int) -> Shape:
    """Room for as many columns as there are, then for rows."""
    rest = REGISTERS - sums
    b = min(len(_distinct(nest.b for nest in nests)), rest - 1)
    a = min(len(_distinct(nest.a for nest in nests)), rest - b)
    ((rows, dots),) = {(nest.rows, nest.dots) for nest in nests}
    return Shape(rows, dots, sums, a, b)


def _shaped(shape: Shape, members: Sequence[Any]) -> list[Any]:
    """Statements between those that give registers their shapes and take them back."""
    sizes = [
        *[(shape.rows, SIDE)] * shape.sums,
        *[(shape.rows, shape.dots)] * shape.a,
        *[(shape.dots, SIDE)] * shape.b,
    ]
    table = np.zeros(64, np.uint8)
    table[0] = PALETTE
    for register, (rows, columns) in enumerate(sizes):
        table[ROW_BYTES + 2 * register] = BYTES * columns
        table[ROWS + register] = rows
    words = table.view(np.int32)
    buffer = tirx.decl_buffer(words.shape, "int32", "shapes", scope="local")
    first = tirx.call_intrin("handle", "tirx.address_of", tirx.BufferLoad(buffer, [0]))
    return [
        tirx.AllocBuffer(buffer),
        *(tirx.BufferStore(buffer, int(word), [at]) for at, word in enumerate(words)),
        _intrinsic("ldtilecfg", first),
        *members,
        _intrinsic("tilerelease"),
    ]


def _task(loop: Any) -> Any:
    """A parallel loop each of whose tasks gives registers their shapes, once if one will do."""
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    writer = _Writer(each=False)
    body = writer.write(loop.body)
    if len(writer.shapes) > 1:
        body = _Writer(each=True).write(loop.body)
    elif writer.shapes:
        body = tirx.SeqStmt(_shaped(writer.shapes.pop(), [body]))
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body)


def _requested(scope: Any) -> Any:
    """The body of a function, after the registers have been asked for."""
    if scope.attr_key != "compute_scope":
        return scope
    numbers = [tirx.const(one, "int64") for one in (ARCH_PRCTL, REQUEST, TILE_DATA)]
    granted = tirx.call_extern("int64", "syscall", *numbers) == tirx.const(0, "int64")
    request = tirx.AssertStmt(granted, ir.StringImm("RuntimeError"), [ir.StringImm(REFUSED)])
    body = tirx.SeqStmt([request, scope.body])
    return tirx.AttrStmt(scope.node, scope.attr_key, scope.value, body)


def _has_dots(stmt: Any) -> bool:
    """Whether there are dots of two tensors' elements left, one by one."""
    found: list[Any] = []

    def look(call: Any) -> None:
        if _instruction(call) and lanes_of(call) == 1:
            found.append(call)

    structural_walk(stmt, [(ir.Call, look)])
    return bool(found)


def mark_amx(func: PrimFunc) -> PrimFunc:
    """The function with the attribute."""
    return func.with_attr(AMX, 1)


@tirx.transform.prim_func_pass(opt_level=0, name="UseAmx")
def use_amx(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Register tiles of a marked function, by the matrix unit."""
    if not (func.attrs and func.attrs.get(AMX, 0)):
        return func
    body = structural_map(func.body, [(tirx.For, _task)], order="pre")
    body = _Writer(each=True).write(body)
    if _has_dots(body):
        raise ValueError("AMX: a register tile that is not one for the unit")
    return func.with_body(structural_map(body, [(tirx.AttrStmt, _requested)], order="post"))
