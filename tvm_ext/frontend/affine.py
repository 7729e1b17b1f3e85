"""Batch norms and other per-channel affine maps, folded into the operator before them.

In inference `BatchNormalization`, and `Mul`, `Add`, `Sub`, `Div` by a constant per channel, all
compute y = scale * x + shift. A chain of them is one such map, and a linear operator absorbs it:

rewrite:
    conv(x, W, b) -> batch norm -> mul -> add   =>   conv(x, scale * W, scale * b + shift)
    concat(...)   -> batch norm -> mul -> add   =>   scale * concat(...) + shift

The maps are composed in float64, so each weight is rounded once or twice, never more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

LINEAR = ("Conv", "ConvTranspose", "Gemm")
FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True)
class Affine:
    """y = scale * x + shift, along `axis` of x; axis None: two numbers for the whole tensor."""

    scale: np.ndarray
    shift: np.ndarray
    axis: int | None

    def then(self, after: Affine) -> Affine | None:
        """`after` applied to the result of this map; None if they run along different axes."""
        if None not in (self.axis, after.axis) and self.axis != after.axis:
            return None
        return Affine(
            after.scale * self.scale,
            after.scale * self.shift + after.shift,
            self.axis if self.axis is not None else after.axis,
        )


@dataclass(frozen=True)
class _Link:
    """One node that computes an affine map of `source`."""

    node: ir.Node
    source: ir.Value
    map: Affine


def fold_affine(graph: ir.Graph) -> None:
    """Fold every chain of affine maps in `graph`, in place.

    Weights come from initialisers that no caller can override (frontend.load sees to that), and a
    value that anyone else reads is never folded away. A weight shared with another operator is
    copied, not changed.
    """
    for node in list(graph):
        if node.graph is None:
            continue
        chain = _chain_ending_at(node)
        if chain is None:
            continue
        links, total = chain
        if not _absorb(graph, links, total):
            _restate(graph, links, total)


def _chain_ending_at(node: ir.Node) -> tuple[list[_Link], Affine] | None:
    """The longest chain whose last node is `node`, first link first; None in mid-chain."""
    link = _link(node)
    if link is None:
        return None
    if _read_once(node.outputs[0]):
        follower = _link(next(iter(node.outputs[0].consumers())))
        if (
            follower is not None
            and follower.source is node.outputs[0]
            and link.map.then(follower.map) is not None
        ):
            return None
    links, total = [link], link.map
    while _read_once(links[0].source):
        producer = links[0].source.producer()
        before = _link(producer) if producer is not None else None
        joined = before.map.then(total) if before is not None else None
        if before is None or joined is None:
            break
        links, total = [before, *links], joined
    return links, total


def _link(node: ir.Node) -> _Link | None:
    if node.domain or not node.inputs or node.inputs[0] is None:
        return None
    if node.op_type == "BatchNormalization":
        return _batch_norm(node)
    if node.op_type in ("Add", "Sub", "Mul", "Div") and len(node.inputs) == 2:
        return _binary(node)
    return None


def _batch_norm(node: ir.Node) -> _Link | None:
    unused = all(not out.uses() and not out.is_graph_output() for out in node.outputs[1:])
    if int_of(node, "training_mode", 0) or not int_of(node, "spatial", 1) or not unused:
        return None
    parameters = [constant_of(value) for value in node.inputs[1:]]
    if any(parameter is None for parameter in parameters):
        return None
    gamma, beta, mean, variance = (
        parameter.astype(np.float64) for parameter in parameters if parameter is not None
    )
    epsilon = node.attributes.get("epsilon")
    scale = gamma / np.sqrt(variance + (1e-5 if epsilon is None else epsilon.as_float()))
    source = node.inputs[0]
    assert source is not None
    return _Link(node, source, Affine(scale, beta - mean * scale, 1))


def _binary(node: ir.Node) -> _Link | None:
    left, right = node.inputs
    constants = [constant_of(value) for value in node.inputs]
    if left is None or right is None or (constants[0] is None) == (constants[1] is None):
        return None
    source, operand = (left, constants[1]) if constants[0] is None else (right, constants[0])
    assert operand is not None
    placed = _per_channel(source, operand)
    if placed is None:
        return None
    vector, axis = placed
    one, zero = np.ones_like(vector), np.zeros_like(vector)
    if node.op_type == "Add":
        return _Link(node, source, Affine(one, vector, axis))
    if node.op_type == "Mul":
        return _Link(node, source, Affine(vector, zero, axis))
    if node.op_type == "Sub":
        constant_first = source is right
        sign = -1.0 if constant_first else 1.0
        return _Link(node, source, Affine(sign * one, -sign * vector, axis))
    if source is right or not vector.all():
        return None
    return _Link(node, source, Affine(1.0 / vector, zero, axis))


def _per_channel(source: ir.Value, operand: np.ndarray) -> tuple[np.ndarray, int | None] | None:
    """`operand` as a float64 vector and the axis of `source` it runs along, if there is one."""
    if source.dtype not in FLOATS or source.shape is None or operand.ndim > len(source.shape):
        return None
    long = [axis for axis, extent in enumerate(operand.shape) if extent != 1]
    vector = operand.astype(np.float64).reshape(-1)
    if not long:
        return vector, None
    axis = len(source.shape) - operand.ndim + long[0]
    # A different extent would mean that the operand widens x, which no scale of x can say.
    if len(long) > 1 or source.shape[axis] != vector.size:
        return None
    return vector, axis


def _absorb(graph: ir.Graph, links: list[_Link], total: Affine) -> bool:
    """Put the map into the weights of the linear operator before the chain, if there is one."""
    source, result = links[0].source, links[-1].node.outputs[0]
    linear = source.producer()
    if linear is None or linear.domain or linear.op_type not in LINEAR or not _read_once(source):
        return False
    weight = constant_of(linear.inputs[1])
    has_bias = len(linear.inputs) > 2 and linear.inputs[2] is not None
    bias = constant_of(linear.inputs[2]) if has_bias else np.zeros(1)
    if weight is None or bias is None or total.axis not in (None, 1):
        return False
    attributes = dict(linear.attributes)
    bias = bias.astype(np.float64)
    if linear.op_type == "Gemm":
        beta = attributes.pop("beta", None)
        bias *= 1.0 if beta is None else beta.as_float()
    channels = _channels(linear, weight.shape)
    wide = _wide(weight.dtype)
    scale = _cast(np.broadcast_to(total.scale, (channels,)), wide)
    bias = _cast(bias * total.scale + total.shift, wide)
    if scale is None or bias is None:
        return False
    if linear.op_type != "Gemm":
        bias = np.broadcast_to(bias, (channels,))
    scaled = weight.astype(wide) * _along_weight(linear, scale, weight.shape)
    inputs = [add_initialiser(graph, f"{result.name}_weight", scaled)]
    if has_bias or bias.any():
        inputs.append(add_initialiser(graph, f"{result.name}_bias", bias))

    def folded(x: ir.Value) -> list[ir.Node]:
        operands = [x, *inputs]
        return [ir.Node("", linear.op_type, operands, list(attributes.values()), name=linear.name)]

    assert linear.inputs[0] is not None
    nodes = _in(wide, linear.inputs[0], folded, result)
    _replace(graph, [*(link.node for link in reversed(links)), linear], nodes, result)
    return True


def _wide(dtype: np.dtype) -> np.dtype:
    """The type that weights of a type are folded in: of 16 bits each would be off by 2^-11, and a
    network of convolutions by 1 % of its largest value."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def _in(
    dtype: np.dtype,
    source: ir.Value,
    make: Callable[[ir.Value], list[ir.Node]],
    result: ir.Value,
) -> list[ir.Node]:
    """The nodes that are made of a tensor, in that type between casts where it has another."""
    if source.dtype is None or source.dtype.numpy() == dtype:
        return make(source)
    nodes = [_cast_node(source, ir.DataType.from_numpy(dtype))]
    nodes += make(nodes[0].outputs[0])
    made = nodes[-1].outputs[0]
    made.type, made.shape = nodes[0].outputs[0].type, result.shape
    return [*nodes, _cast_node(made, source.dtype)]


def _cast_node(value: ir.Value, dtype: ir.DataType) -> ir.Node:
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)])
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(dtype), value.shape
    return node


def _channels(linear: ir.Node, shape: tuple[int, ...]) -> int:
    """Output channels of a linear operator whose weight has this shape."""
    if linear.op_type == "Conv":
        return shape[0]
    if linear.op_type == "ConvTranspose":
        return shape[1] * int_of(linear, "group", 1)
    return shape[0 if int_of(linear, "transB", 0) else 1]


def _along_weight(linear: ir.Node, scale: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`scale` (one value per output channel) as a factor of the weight of `linear`.

    Weights are (out, in/groups, ...) for Conv, (in, out/groups, ...) for ConvTranspose, whose
    groups split the input channels, and (in, out) or, with transB, (out, in) for Gemm.
    """
    if linear.op_type == "Gemm":
        return scale[:, None] if int_of(linear, "transB", 0) else scale
    window = (1,) * (len(shape) - 2)
    if linear.op_type == "Conv":
        return scale.reshape(-1, 1, *window)
    groups = int_of(linear, "group", 1)
    rows = np.repeat(scale.reshape(groups, -1), shape[0] // groups, axis=0)
    return rows.reshape(*shape[:2], *window)


def _restate(graph: ir.Graph, links: list[_Link], total: Affine) -> None:
    """State the chain as one Mul and one Add, unless it is as short as that already."""
    source, result = links[0].source, links[-1].node.outputs[0]
    if source.shape is None or source.dtype not in FLOATS:
        return
    steps = [
        (op, vector)
        for op, vector, neutral in (("Mul", total.scale, 1.0), ("Add", total.shift, 0.0))
        if (vector != neutral).any()
    ]
    batch_norm = any(link.node.op_type == "BatchNormalization" for link in links)
    if len(steps) >= len(links) and not batch_norm:
        return
    tail = 0 if total.axis is None else len(source.shape) - 1 - total.axis
    shape = () if total.axis is None else (-1, *(1,) * tail)
    wide = _wide(source.dtype.numpy())
    cast = [(op, _cast(vector, wide)) for op, vector in steps]
    operands = [(op, one.reshape(shape)) for op, one in cast if one is not None]
    if len(operands) < len(steps):
        return

    def restated(value: ir.Value) -> list[ir.Node]:
        nodes: list[ir.Node] = [] if steps else [ir.Node("", "Identity", [value])]
        for op, operand in operands:
            inputs = [value, add_initialiser(graph, f"{result.name}_{op.lower()}", operand)]
            nodes.append(ir.Node("", op, inputs, name=f"{links[0].node.name}_{op.lower()}"))
            nodes[-1].outputs[0].type, nodes[-1].outputs[0].shape = value.type, value.shape
            value = nodes[-1].outputs[0]
        return nodes

    nodes = _in(wide, source, restated, result) if steps else restated(source)
    _replace(graph, [link.node for link in reversed(links)], nodes, result)


def _replace(graph: ir.Graph, old: list[ir.Node], new: list[ir.Node], result: ir.Value) -> None:
    """Put `new` where `old` (last node first) computed `result`."""
    ir.convenience.replace_nodes_and_values(graph, old[0], old, new, [result], [new[-1].outputs[0]])


def add_initialiser(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """A new initialiser of `graph`; its name is changed where it is taken."""
    while name in graph.initializers:
        name += "_"
    tensor = ir.Tensor(np.asarray(array, order="C"), name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """`array` in `dtype`; None if a value of it does not fit."""
    with np.errstate(over="ignore"):
        result = array.astype(dtype)
    return result if np.isfinite(result).all() else None


def _read_once(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """The array that a value is known to be; None for any other, and for none."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def int_of(node: ir.Node, name: str, default: int) -> int:
    """An attribute that is a number, or its default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def text_of(node: ir.Node, name: str, default: str) -> str:
    """An attribute that is a text, or its default."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_string()
