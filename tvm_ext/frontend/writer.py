"""`Writer`: the nodes that take the place of one, in whatever operator set the model is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
LIKE_THEIR_INPUT = {"Cast", "Identity", "LayerNormalization", "Softmax", "Relu", "Tanh", "Neg"}
"""Operators whose result has as many dimensions as their first input."""


class Known:
    """What a graph says of its tensors before any shape is inferred."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._makers = {name: node for node in graph.node for name in node.output}
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._infos = {
            value.name: value.type.tensor_type for value in [*graph.input, *graph.value_info]
        }
        self._floats = self._usual_floats()
        self.names = {*self._makers, *self._tensors, *self._infos}
        """Names of tensors that are taken."""

    def shape(self, name: str) -> tuple[int | None, ...] | None:
        """The extents of a tensor as far as they are known; None if even their number is not."""
        if name in self._tensors:
            return tuple(self._tensors[name].dims)
        info = self._infos.get(name)
        if info is not None and info.HasField("shape"):
            return tuple(dim.dim_value or None for dim in info.shape.dim)
        return None

    def rank(self, name: str) -> int | None:
        """The number of dimensions of a tensor, if it can be told from near by."""
        shape = self.shape(name)
        maker = self._makers.get(name)
        if shape is not None or maker is None:
            return None if shape is None else len(shape)
        if maker.op_type in LIKE_THEIR_INPUT:
            return self.rank(maker.input[0])
        if maker.op_type == "Transpose":
            return next((len(one.ints) for one in maker.attribute if one.name == "perm"), None)
        if maker.op_type == "Reshape" and (target := self._makers.get(maker.input[1])) is not None:
            values = [one.t.dims for one in target.attribute if one.name == "value"]
            return int(values[0][0]) if values and values[0] else None
        if maker.op_type == "Reshape":
            given = self.shape(maker.input[1])
            return given[0] if given else None
        return None

    def float_type(self, node: onnx.NodeProto) -> int:
        """The type of the floats that a node takes, or of most of the weights."""
        for name in node.input:
            if name in self._tensors and self._tensors[name].data_type in FLOATS:
                return self._tensors[name].data_type
            if name in self._infos and self._infos[name].elem_type in FLOATS:
                return self._infos[name].elem_type
        return self._floats

    def _usual_floats(self) -> int:
        sizes = dict.fromkeys(FLOATS, 0)
        for tensor in self._tensors.values():
            if tensor.data_type in FLOATS:
                sizes[tensor.data_type] += int(np.prod(tensor.dims))
        return max(sizes, key=lambda kind: sizes[kind])


class Writer:
    """Writes nodes in the place of `node`; called, one more of them, whose result it names.

    `inputs` and `outputs` are those of the node that are there, by their places.
    """

    def __init__(self, node: onnx.NodeProto, opset: int, known: Known) -> None:
        self.node, self.opset, self.known = node, opset, known
        self.nodes: list[onnx.NodeProto] = []
        self.inputs = {place: name for place, name in enumerate(node.input) if name}
        self.outputs = {place: name for place, name in enumerate(node.output) if name}
        self.attributes: Mapping[str, Any] = {
            one.name: helper.get_attribute_value(one) for one in node.attribute
        }
        self._floats = known.float_type(node)

    def __call__(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        place = len(self.nodes)
        result = output or self._fresh(f"{next(iter(self.outputs.values()))}_{op_type}_{place}")
        name = f"{self.node.name}_{place}"
        self.nodes.append(helper.make_node(op_type, inputs, [result], name=name, **attributes))
        return result

    def also(self, *kinds: str) -> list[str]:
        """Names of further results of the last node, by what each is."""
        (first,) = self.nodes[-1].output
        names = [self._fresh(f"{first}_{kind}") for kind in kinds]
        self.nodes[-1].output.extend(names)
        return names

    def _fresh(self, name: str) -> str:
        while name in self.known.names:
            name += "_"
        self.known.names.add(name)
        return name

    def number(self, name: str, default: float) -> float:
        """An attribute that is a number."""
        return float(self.attributes.get(name, default))

    def count(self, name: str, default: int = 0) -> int:
        """An attribute that is a whole number."""
        return int(self.attributes.get(name, default))

    def ints(self, *values: int) -> str:
        """A vector of int64."""
        return self("Constant", value=numpy_helper.from_array(np.array(values, np.int64)))

    def whole(self, value: int) -> str:
        """An int64."""
        return self("Constant", value=numpy_helper.from_array(np.array(value, np.int64)))

    def real(self, value: float) -> str:
        """A number of the type that the node's floats have."""
        return self("Constant", value=helper.make_tensor("value", self._floats, (), [value]))

    def as_floats(self, source: str) -> str:
        """Whatever numbers, as the type that the node's floats have."""
        return self("Cast", source, to=self._floats)

    def axis(self, op_type: str, source: str, axis: int, **attributes: Any) -> str:
        """`Unsqueeze`, `Squeeze`, or a reduction of one axis: its axes became an input."""
        since = {"Unsqueeze": 13, "Squeeze": 13, "ReduceSum": 13}.get(op_type, 18)
        if self.opset >= since:
            return self(op_type, source, self.ints(axis), **attributes)
        return self(op_type, source, axes=[axis], **attributes)

    def part(self, source: str, axis: int, begin: int, end: int, step: int = 1) -> str:
        """source[begin:end:step] along an axis."""
        limits = [self.ints(value) for value in (begin, end, axis, step)]
        return self("Slice", source, *limits)

    def extent(self, source: str, axis: int) -> str:
        """The extent of an axis, an int64."""
        return self("Gather", self("Shape", source), self.whole(axis))

    def counted(self, extent: str) -> str:
        """0, 1, .. up to an extent."""
        return self("Range", self.whole(0), extent, self.whole(1))


Restate = Callable[[Writer], bool]
"""Writes what a node does; False if it can't, and the node is left."""
