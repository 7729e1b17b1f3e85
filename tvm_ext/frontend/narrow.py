"""Numbers of eight bits and less that machines lack, as wider ones of the same values.

    Cast(x, to=float8e4m3fn)   →   x, rounded to such a number, of float32
    Cast(x, to=int4)           →   x, its lowest four bits, of int8

A graph holds them so throughout: what only moves them (`Reshape`, `Transpose`) moves the wider
ones, what reads them (`Cast`, `MatMul`) finds the values. Only inputs and outputs of the whole
graph are of their own types, those of a byte; `BitCast` goes from one to the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from tvm_ext.errors import ModelError
from tvm_ext.frontend.narrow_types import BYTE, HELD


def hold_wider(model: ir.Model) -> None:
    """Has a graph hold its narrow numbers in wider types, in place; the types of its values are
    known as far as onnx infers them.

    Raises ModelError: an input or output is of numbers of less than a byte.
    """
    from onnxscript.rewriter import RewritePass

    from tvm_ext.frontend import narrow_casts, narrow_quantised

    _check_ends(model.graph)
    ends = {*model.graph.inputs, *_set_apart(model.graph)}
    RewritePass([*narrow_casts.rules, *narrow_quantised.rules])(model)
    for value in _values(model.graph):
        held = HELD.get(value.dtype) if value.dtype is not None else None
        if held is None or value in ends:
            continue
        if value.const_value is not None:
            array = value.const_value.numpy().astype(held.numpy())
            value.const_value = ir.Tensor(array, name=value.name)
        value.type = ir.TensorType(held)


def _check_ends(graph: ir.Graph) -> None:
    for what, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            if value.dtype in HELD and value.dtype.bitwidth < BYTE:
                raise ModelError(
                    f"{what} {value.name!r} is of {value.dtype.name}, {value.dtype.bitwidth} bits "
                    f"a number, where {BYTE} are the fewest; cast it in the model"
                )


def _set_apart(graph: ir.Graph) -> list[ir.Value]:
    """Puts bytes between narrow inputs and outputs and what reads and makes them, in place; those
    outputs."""
    for value in list(graph.inputs):
        if value.dtype in HELD:
            nodes = _through_bytes(value)
            held = nodes[-1].outputs[0]
            ir.convenience.replace_all_uses_with(value, held, replace_graph_outputs=True)
            nodes[0].replace_input_with(0, value)
            graph.extend(nodes)
    made = []
    for place, value in enumerate(graph.outputs):
        if value.dtype in HELD:
            nodes = _through_bytes(value)
            graph.outputs[place] = nodes[-1].outputs[0]
            graph.extend(nodes)
            made.append(graph.outputs[place])
    graph.sort()
    return made


def _through_bytes(value: ir.Value) -> list[ir.Node]:
    """Nodes that make bytes of a value, and of them one of its type."""
    nodes: list[ir.Node] = []
    for kind in (ir.DataType.UINT8, value.dtype):
        assert kind is not None
        name = f"{value.name}_as_{kind.name.lower()}"
        source = nodes[-1].outputs[0] if nodes else value
        nodes.append(ir.node("BitCast", [source], {"to": kind}, name=name))
        (result,) = nodes[-1].outputs
        result.name, result.type, result.shape = name, ir.TensorType(kind), value.shape
    return nodes


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """All values of a graph and of the graphs in it."""
    for own in (graph, *graph.subgraphs()):
        yield from own.inputs
        yield from own.initializers.values()
    for node in graph.all_nodes():
        yield from node.outputs
