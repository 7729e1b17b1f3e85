"""An unscheduled PrimFunc as stages: for each block, what one element of its buffers is.

Small blocks without a reduction are substituted into their readers, so that what remains is the
outputs, the reductions and what combines many elements, each defined over inputs and one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Literal, NamedTuple

from tvm_ext.tir.evaluate import KNOWN
from tvm_ext.tir.expression import ExpressionReader, Node, NodePool, NotUnderstoodError, topological
from tvm_ext.tvm_api import PrimFunc, s_tir, tirx

INLINE_NODES = 256
INLINE_LOADS = 2
"""Loads of a block that is substituted: what reads more (a transform of Winograd's) is read by
several, each of which would compute it again."""
SPACE, REDUCE = 0, 2
"""TVM's numbers for kinds of axes of a block."""
Rule = Literal["map", "add", "max", "min", "fold"]
_RULES: dict[str, Rule] = {"Add": "add", "Max": "max", "Min": "min"}


class Source(NamedTuple):
    """Where a `load` node reads: an input, or a component of a stage, by number."""

    kind: Literal["input", "stage"]
    number: int
    component: int
    shape: tuple[int, ...]


class Stage(NamedTuple):
    """What one element of one or more buffers of equal shape is.

    coords   per dimension the `var` node that stands for the index; None where the extent is 1
    reduce   `var` nodes of the reduction loops with their extents, outermost first
    rule     `map`: element i is `update[i]`; `add`, `max`, `min`: `init[0]` combined with the terms
             `update[0]` over the reduction; `fold`: `state` nodes start at `init` and become
             `update` at each step of the reduction, in loop order
    """

    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    coords: tuple[Node | None, ...]
    reduce: tuple[tuple[Node, int], ...]
    rule: Rule
    init: tuple[Node, ...]
    update: tuple[Node, ...]

    @property
    def steps(self) -> int:
        """Iterations of the reduction; 1 without one."""
        return prod(extent for _, extent in self.reduce)


class Program(NamedTuple):
    """A PrimFunc: shapes and dtypes of its inputs, stages in order, a stage for each output."""

    inputs: tuple[tuple[tuple[int, ...], str], ...]
    stages: tuple[Stage, ...]
    outputs: tuple[tuple[int, int], ...]


class _Block(NamedTuple):
    loops: dict[Any, int]
    realize: Any
    stores: tuple[Any, ...]


def read_program(func: PrimFunc) -> Program:
    """The stages of a function as legalisation and FuseTIR leave it, with static shapes.

    Raises NotUnderstoodError for anything else: symbolic shapes, opaque or extern calls, `while`,
    buffers written twice or read before they are written, partial writes, schedules.
    """
    body = func.body
    if isinstance(body, s_tir.SBlockRealize) and not isinstance(body.block.body, tirx.BufferStore):
        body = body.block.body
    blocks = list(_blocks(body, {}))
    reader = _Reader(func, blocks)
    for block in blocks:
        reader.add(block)
    return reader.program()


def _extent(expr: Any) -> int:
    if not isinstance(expr, tirx.IntImm):
        raise NotUnderstoodError(f"extent {expr} is not static")
    return int(expr.value)


def _blocks(stmt: Any, loops: dict[Any, int]) -> Iterator[_Block]:
    if isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from _blocks(part, loops)
    elif isinstance(stmt, tirx.For):
        if stmt.kind != tirx.ForKind.SERIAL or _extent(stmt.min) != 0:
            raise NotUnderstoodError(f"loop {stmt.loop_var.name} is not serial from 0")
        yield from _blocks(stmt.body, {**loops, stmt.loop_var: _extent(stmt.extent)})
    elif isinstance(stmt, s_tir.SBlockRealize):
        yield _Block(loops, stmt, tuple(_flat(stmt.block.body)))
    else:
        raise NotUnderstoodError(f"statement {type(stmt).__name__}")


def _flat(stmt: Any) -> Iterator[Any]:
    """The stores and bindings of a block body, in order."""
    if isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from _flat(part)
    elif isinstance(stmt, tirx.BufferStore | tirx.Bind):
        yield stmt
    elif stmt is not None:
        raise NotUnderstoodError(f"statement {type(stmt).__name__} in a block")


class _Reader:
    def __init__(self, func: PrimFunc, blocks: list[_Block]) -> None:
        self._pool = NodePool()
        self._exprs = ExpressionReader(self._pool, KNOWN, self._load)
        self._stages: list[Stage] = []
        self._sources: dict[Any, Source] = {}
        self._inlined: dict[Any, tuple[tuple[Node | None, ...], Node]] = {}
        self._state: dict[Any, Node] = {}
        self._state_indices: tuple[Node, ...] = ()
        self._vars = 0
        written = {s.buffer for b in blocks for s in b.stores if isinstance(s, tirx.BufferStore)}
        params = list(func.params)
        self._outputs = [param for param in params if param in written]
        self._inputs = [param for param in params if param not in written]
        for index, param in enumerate(self._inputs):
            self._sources[param] = Source("input", index, 0, _shape(param))

    def program(self) -> Program:
        return Program(
            tuple((_shape(param), str(param.ty.dtype)) for param in self._inputs),
            tuple(self._stages),
            tuple((self._sources[p].number, self._sources[p].component) for p in self._outputs),
        )

    def add(self, block: _Block) -> None:
        """Reads one block as a stage."""
        axes = self._bind_axes(block)
        reduce = tuple((var, extent) for var, extent, kind in axes if kind == REDUCE)
        stores = [s for s in block.stores if isinstance(s, tirx.BufferStore)]
        buffers = tuple(dict.fromkeys(store.buffer for store in stores))
        shapes = {_shape(buffer) for buffer in buffers}
        writes = {tuple(self._exprs.read(i) for i in store.indices) for store in stores}
        if len(shapes) != 1 or len(writes) != 1 or len(buffers) != len(stores):
            raise NotUnderstoodError("a block writes more than one place of a buffer")
        if any(buffer in self._sources for buffer in buffers):
            raise NotUnderstoodError("a buffer is written twice")
        shape, indices = shapes.pop(), writes.pop()
        space = {var: extent for var, extent, kind in axes if kind == SPACE}
        dtypes = tuple(str(buffer.ty.dtype) for buffer in buffers)
        coords = _coords(indices, shape, space)
        init = self._read_init(block, buffers, indices)
        states = tuple(
            self._pool.make("state", (), dtype, (len(self._stages), i))
            for i, dtype in enumerate(dtypes)
        )
        self._state = dict(zip(buffers, states, strict=True)) if init else {}
        self._state_indices = indices
        if reduce and not init:
            raise NotUnderstoodError("a reduction without init")
        for stmt in block.stores:
            if isinstance(stmt, tirx.Bind):
                self._exprs.bind(stmt.var, self._exprs.read(stmt.value))
            else:
                self._state[stmt.buffer] = self._exprs.read(stmt.value)
        update = tuple(self._state[buffer] for buffer in buffers)
        self._state = {}
        rule: Rule = "map"
        if init:
            rule, update = _rule(states, update)
        self._keep(buffers, Stage(shape, dtypes, coords, reduce, rule, init, update))

    def _keep(self, buffers: tuple[Any, ...], stage: Stage) -> None:
        nodes = topological(stage.update)
        loads = sum(node.op == "load" for node in nodes)
        small = stage.rule == "map" and len(nodes) <= INLINE_NODES and loads <= INLINE_LOADS
        for component, buffer in enumerate(buffers):
            source = Source("stage", len(self._stages), component, stage.shape)
            self._sources[buffer] = source
            if small:
                self._inlined[buffer] = stage.coords, stage.update[component]
        self._stages.append(stage)

    def _bind_axes(self, block: _Block) -> list[tuple[Node, int, int]]:
        """Gives every block variable a node; variables of extent 1 are the constant 0."""
        realize = block.realize
        if not isinstance(realize.predicate, tirx.IntImm) or not realize.predicate.value:
            raise NotUnderstoodError("a block has a predicate")
        unbound = {var for var, extent in block.loops.items() if extent != 1}
        axes = []
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            extent, dtype = _extent(axis.dom.extent), str(axis.var.ty.dtype)
            if _extent(axis.dom.min) != 0 or axis.iter_type not in (SPACE, REDUCE):
                raise NotUnderstoodError(f"block axis {axis.var.name}")
            if extent == 1:
                self._exprs.bind(axis.var, self._pool.make("const", (), dtype, "0"))
                continue
            if value not in unbound or block.loops[value] != extent:
                raise NotUnderstoodError(f"block axis {axis.var.name} is not a loop of its own")
            unbound.remove(value)
            self._vars += 1
            node = self._pool.make("var", (), dtype, self._vars)
            self._exprs.bind(axis.var, node)
            axes.append((node, extent, int(axis.iter_type)))
        if unbound:
            raise NotUnderstoodError("a loop that no block axis follows")
        return axes

    def _read_init(
        self, block: _Block, buffers: tuple[Any, ...], indices: tuple[Node, ...]
    ) -> tuple[Node, ...]:
        values = {}
        for store in _flat(block.realize.block.init):
            if not isinstance(store, tirx.BufferStore):
                raise NotUnderstoodError("a binding in an init")
            if tuple(self._exprs.read(i) for i in store.indices) != indices:
                raise NotUnderstoodError("init and update write different places")
            values[store.buffer] = self._exprs.read(store.value)
        if values and set(values) != set(buffers):
            raise NotUnderstoodError("init and update write different buffers")
        return tuple(values[buffer] for buffer in buffers) if values else ()

    def _load(self, buffer: Any, indices: tuple[Node, ...], dtype: str) -> Node:
        if buffer in self._state:
            if indices != self._state_indices:
                raise NotUnderstoodError("a reduction reads elsewhere in its own output")
            return self._state[buffer]
        if buffer in self._inlined:
            coords, value = self._inlined[buffer]
            leaves = {c: i for c, i in zip(coords, indices, strict=True) if c is not None}
            return self._pool.substitute([value], leaves)[0]
        if buffer not in self._sources:
            raise NotUnderstoodError(f"buffer {buffer.name} is read before it is written")
        return self._pool.make("load", indices, dtype, self._sources[buffer])


def _shape(buffer: Any) -> tuple[int, ...]:
    if not isinstance(buffer.ty, tirx.BufferType) or len(buffer.ty.strides):
        raise NotUnderstoodError(f"parameter {buffer.name} is not a dense buffer")
    return tuple(_extent(dim) for dim in buffer.ty.shape)


def _coords(
    indices: tuple[Node, ...], shape: tuple[int, ...], space: dict[Node, int]
) -> tuple[Node | None, ...]:
    """Which variable indexes each dimension; together they must write every element once."""
    coords: list[Node | None] = []
    for index, extent in zip(indices, shape, strict=True):
        if extent == 1 and index.op == "const":
            coords.append(None)
        elif space.get(index) == extent and index not in coords:
            coords.append(index)
        else:
            raise NotUnderstoodError("a block does not write its whole buffer once")
    if any(var not in coords for var in space):
        raise NotUnderstoodError("a block writes elements several times")
    return tuple(coords)


def _rule(states: tuple[Node, ...], update: tuple[Node, ...]) -> tuple[Rule, tuple[Node, ...]]:
    """`state op term` as that operation on the term, anything else as a fold."""
    (root, *others), state = update, states[0]
    if not others and root.op in _RULES and state in root.args:
        term = root.args[1] if root.args[0] is state else root.args[0]
        if state not in topological([term]):
            return _RULES[root.op], (term,)
    return "fold", update
