"""TIR expressions as a DAG of plain Python nodes: the form the reference evaluator works on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm_ext import tvm_pairs
from tvm_ext.tvm_api import Call, TensorLoad, tirx
from tvm_ext.tvm_dots import is_dot, operands


class NotUnderstoodError(Exception):
    """The function holds something the reference evaluator has no meaning for."""


class Node:
    """One operation of an expression DAG; equal nodes are the same object (see `NodePool`).

    `op` is a TIR class name or intrinsic name, or one of `const`, `var`, `load`, `state`; `data` is
    what tells two of those apart. `dynamic`: whether the value depends on a tensor's elements.
    """

    __slots__ = ("args", "data", "dtype", "dynamic", "op")

    def __init__(self, op: str, args: tuple[Node, ...], dtype: str, data: Any) -> None:
        self.op = op
        self.args = args
        self.dtype = dtype
        self.data = data
        self.dynamic: bool = op in ("load", "state") or any(arg.dynamic for arg in args)


class NodePool:
    """Makes nodes, one object for each distinct expression."""

    def __init__(self) -> None:
        self._nodes: dict[Any, Node] = {}

    def make(self, op: str, args: tuple[Node, ...], dtype: str, data: Any = None) -> Node:
        """The node of that operation on those arguments."""
        key = (op, args, dtype, data)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = Node(op, args, dtype, data)
        return node

    def substitute(self, roots: Sequence[Node], leaves: dict[Node, Node]) -> list[Node]:
        """The expressions with some leaves replaced."""
        new = dict(leaves)
        for node in topological(roots):
            if node not in new:
                args = tuple(new[arg] for arg in node.args)
                same = args == node.args
                new[node] = node if same else self.make(node.op, args, node.dtype, node.data)
        return [new[root] for root in roots]


def topological(roots: Sequence[Node]) -> list[Node]:
    """Every node the roots are made of, arguments before their users."""
    order: dict[Node, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if node in order:
            continue
        if ready:
            order[node] = None
        else:
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args))
    return list(order)


class ExpressionReader:
    """Reads TIR expressions into nodes of one pool.

    `load(buffer, indices)` decides what reading a buffer means. `bind` gives a variable its value.
    Raises NotUnderstoodError on vectors, opaque calls and unbound variables.
    """

    def __init__(
        self,
        pool: NodePool,
        known: frozenset[str],
        load: Callable[[Any, tuple[Node, ...], str], Node],
    ) -> None:
        self._pool = pool
        self._known = known
        self._load = load
        self._bound: dict[Any, Node] = {}

    def bind(self, var: Any, node: Node) -> None:
        """From here on the TIR variable means that node."""
        self._bound[var] = node

    def read(self, expr: Any) -> Node:
        """The node of a scalar TIR expression."""
        if isinstance(expr, tirx.Let):
            self.bind(expr.var, self.read(expr.value))
            return self.read(expr.body)
        if isinstance(expr, tirx.Var):
            if expr not in self._bound:
                raise NotUnderstoodError(f"variable {expr.name} has no value")
            return self._bound[expr]
        dtype = str(expr.ty.dtype)
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            # repr: -0.0 and 0.0, or nan and nan, must be told apart and found again
            return self._pool.make("const", (), dtype, repr(expr.value))
        if isinstance(expr, TensorLoad):
            indices = tuple(self.read(index) for index in expr.indices)
            return self._load(expr.source, indices, dtype)
        op, operands = _operation(expr)
        if op not in self._known:
            raise NotUnderstoodError(f"operation {op}")
        return self._pool.make(op, tuple(self.read(operand) for operand in operands), dtype)


def _operation(expr: Any) -> tuple[str, Sequence[Any]]:
    if is_dot(expr):
        return "dot", operands(expr)
    if tvm_pairs.is_dot_of_pairs(expr):
        return "dot_pairs", tvm_pairs.operands(expr)
    if tvm_pairs.is_rounding(expr):
        return "rounded", tvm_pairs.operands(expr)
    if tvm_pairs.is_paired(expr):
        return "paired", tvm_pairs.operands(expr)
    if isinstance(expr, Call):
        return str(getattr(expr.op, "name", "?")).rpartition(".")[2], expr.args
    name = type(expr).__name__
    if isinstance(expr, tirx.Select):
        return name, (expr.condition, expr.true_value, expr.false_value)
    if isinstance(expr, tirx.Cast):
        return name, (expr.value,)
    if hasattr(expr, "b"):
        return name, (expr.a, expr.b)
    return name, (expr.a,) if hasattr(expr, "a") else ()
