"""Extents that data say, as far as a graph can be written without them: what is known of them.

A tensor of `n` rows, where data say `n`, is one of as many rows as there can be. The first `n` are
its own, what stands in the others means nothing. `Count` is such an `n`, `Counted` says where it
lies; `Writer` writes nodes and knows both of every value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from onnx.shape_inference import infer_node_outputs

from tvm_ext.frontend.affine import add_initialiser

DOMAIN = "tvm_ext"
"""Of operators that stand for standard ones, but have a count as one more result."""
FEW = 64
"""Elements of integers that are followed one by one: they may become a shape."""


class Unbounded(Exception):
    """A graph that these rules do not read; the message says where."""


@dataclass(frozen=True, eq=False)
class Count:
    """A number that data say, at least none: an extent, or what one is worked out from.

    value   an int64 of no dimensions; None until somebody asks for it
    """

    most: int
    value: ir.Value | None = None

    def __add__(self, other: Number) -> Count:
        return Count(self.most + most(other))

    def __mul__(self, other: Number) -> Count:
        return Count(self.most * most(other))

    def __sub__(self, other: Number) -> Count:
        return Count(self.most)

    def __rsub__(self, other: Number) -> Count:
        return Count(max(0, most(other)))

    def __floordiv__(self, other: Number) -> Count:
        return Count(self.most // other if isinstance(other, int) and other > 0 else self.most)

    __radd__, __rmul__ = __add__, __mul__


Number = int | Count
Numbers = np.ndarray[Any, Any]
"""Objects, each a number or a count."""


def most(number: Number) -> int:
    """The largest that it can be."""
    return number.most if isinstance(number, Count) else int(number)


class Counted(NamedTuple):
    """Of a tensor of static shape: along `axis` only the first so many elements are `there`."""

    axis: int
    there: Count


class Writer:
    """Writes nodes before `here`, which is where the walk is, with their shapes."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.here: ir.Node | None = None
        self.counted: dict[ir.Value, Counted] = {}
        self.numbers: dict[ir.Value, Numbers] = {}
        self.fronts: dict[tuple[object, ...], tuple[ir.Value, Count]] = {}
        self._masks: dict[tuple[Count, int], ir.Value] = {}
        self._constants: dict[tuple[object, ...], ir.Value] = {}
        self._instead: dict[ir.Value, ir.Value] = {}
        self._names = 0

    def __call__(self, op: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """One more node; its result."""
        return self.node(op, inputs, attributes).outputs[0]

    def node(
        self, op: str, inputs: Iterable[ir.Value | None], attributes: Any, outputs: int = 1
    ) -> ir.Node:
        """One more node, whose results are static."""
        name = self._fresh(op)
        node = ir.node(op, list(inputs), attributes=attributes, num_outputs=outputs, name=name)
        for place, value in enumerate(node.outputs):
            value.name = f"{name}_{place}"
        assert self.here is not None
        self.graph.insert_before(self.here, node)
        self.infer(node)
        return node

    def counting(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        shapes: Sequence[Sequence[int]],
        kind: ir.DataType = ir.DataType.INT64,
        **attributes: Any,
    ) -> Sequence[ir.Value]:
        """An operator of `DOMAIN`, with the shapes of its results."""
        name = self._fresh(op)
        node = ir.node(
            op,
            list(inputs),
            attributes={**attributes, "counted": 1},
            domain=DOMAIN,
            num_outputs=len(shapes),
            name=name,
        )
        for place, (value, shape) in enumerate(zip(node.outputs, shapes, strict=True)):
            value.name = f"{name}_{place}"
            value.type, value.shape = ir.TensorType(kind), ir.Shape(shape)
        assert self.here is not None
        self.graph.insert_before(self.here, node)
        return node.outputs

    def infer(self, node: ir.Node) -> None:
        """Gives the results of a node their types and shapes, from those of its inputs.

        Raises Unbounded: they are not static.
        """
        kinds, data = {}, {}
        for value in filter(None, node.inputs):
            if value.shape is None or not value.shape.is_static() or value.dtype is None:
                raise Unbounded(f"{node.op_type} (node {node.name!r}) of an unknown shape")
            shape = [int(extent) for extent in value.shape.numpy()]
            kinds[value.name] = onnx.helper.make_tensor_type_proto(value.dtype, shape)
            if value.const_value is not None and value.const_value.size <= FEW:
                array = np.asarray(value.const_value.numpy(), order="C")
                data[value.name] = onnx.numpy_helper.from_array(array, value.name)
        version = self.graph.opset_imports[""]
        try:
            schema = onnx.defs.get_schema(node.op_type, version, node.domain)
            found = infer_node_outputs(
                schema,
                ir.to_proto(node),
                kinds,
                data,
                opset_imports=[onnx.helper.make_opsetid("", version)],
            )
        except (onnx.shape_inference.InferenceError, onnx.defs.SchemaError) as error:
            raise Unbounded(f"{node.op_type} (node {node.name!r}): {error}") from error
        for value in node.outputs:
            kind = found[value.name].tensor_type if value.name in found else None
            extents = [] if kind is None else [dim.dim_value for dim in kind.shape.dim]
            if kind is None or not kind.HasField("shape"):
                raise Unbounded(f"{node.op_type} (node {node.name!r}) has an unknown shape")
            if any(not dim.HasField("dim_value") for dim in kind.shape.dim):
                raise Unbounded(f"{node.op_type} (node {node.name!r}) has an unknown extent")
            value.type, value.shape = ir.TensorType(ir.DataType(kind.elem_type)), ir.Shape(extents)

    def keep(self, node: ir.Node, axis: int, count: Count) -> None:
        """The node stays, its results have an axis of so many elements that are there."""
        self.infer(node)
        for value in node.outputs:
            self.counted[value] = Counted(axis, count)

    def constant(self, array: Any) -> ir.Value:
        """A constant; an equal one if there is one."""
        given = np.asarray(array)
        key = (str(given.dtype), given.shape, given.tobytes())
        if key not in self._constants:
            self._constants[key] = add_initialiser(self.graph, self._fresh("constant"), given)
        return self._constants[key]

    def ints(self, *values: int) -> ir.Value:
        """A vector of int64."""
        return self.constant(np.array(values, np.int64))

    def like(self, x: ir.Value, number: float) -> ir.Value:
        """A number of the type of a value."""
        assert x.dtype is not None
        return self.constant(np.array(number, x.dtype.numpy()))

    def reshape(self, x: ir.Value, *shape: int) -> ir.Value:
        """A reshape to a known shape."""
        return self("Reshape", x, self.ints(*shape))

    def first(self, x: ir.Value, axis: int, length: int) -> ir.Value:
        """The first elements along an axis."""
        if extents(x)[axis] == length:
            return x
        return self("Slice", x, self.ints(0), self.ints(length), self.ints(axis))

    def scalar(self, number: Number) -> ir.Value:
        """A number, or what a count is worked out by."""
        if isinstance(number, Count):
            assert number.value is not None
            return number.value
        return self.constant(np.int64(number))

    def known(self, value: ir.Value | None) -> Numbers | None:
        """The integers of a small tensor, those that data say as counts; None if they are not
        known."""
        if value is None or value in self.numbers:
            return None if value is None else self.numbers[value]
        tensor = value.const_value
        if tensor is None or tensor.size > FEW or tensor.dtype not in WHOLE:
            return None
        return tensor.numpy().astype(object)

    def settled(self, value: ir.Value) -> ir.Value | None:
        """A constant in the place of integers of which none hangs on data; None of others."""
        numbers = self.numbers.get(value)
        if numbers is None or any(isinstance(number, Count) for number in numbers.reshape(-1)):
            return None
        assert value.dtype is not None
        return self.constant(numbers.astype(value.dtype.numpy()))

    def picked(self, value: ir.Value, place: int) -> Number:
        """A number of a vector, to be an extent: its count has a value."""
        known = self.known(value)
        assert known is not None
        number = known.reshape(-1)[place]
        if not isinstance(number, Count):
            return int(number)
        if number.value is None:
            flat = self.reshape(value, -1)
            at = self.constant(np.int64(place))
            number = Count(number.most, self("Gather", flat, at, axis=0))
            known.reshape(-1)[place] = number
            self.numbers[value] = known
        return number

    def mask(self, count: Count, length: int) -> ir.Value:
        """Which elements of a row are there, bool [length]."""
        key = (count, length)
        if key not in self._masks:
            steps = self.constant(np.arange(length, dtype=np.int64))
            self._masks[key] = self("Less", steps, self.scalar(count))
        return self._masks[key]

    def masked(self, x: ir.Value, fill: float = 0) -> ir.Value:
        """A value with a number for all elements that are not there."""
        if x not in self.counted:
            return x
        axis, count = self.counted[x]
        shape = [1] * len(extents(x))
        shape[axis] = extents(x)[axis]
        there = self.reshape(self.mask(count, shape[axis]), *shape)
        return self("Where", there, x, self.like(x, fill))

    def replace(self, old: ir.Value, new: ir.Value, counted: Counted | None = None) -> None:
        """Readers of a value read another one, of which that is known."""
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        self._instead[old] = new
        if counted is not None:
            self.counted[new] = counted

    def now(self, value: ir.Value) -> ir.Value:
        """What is read in the place of a value."""
        while value in self._instead:
            value = self._instead[value]
        return value

    def _fresh(self, what: str) -> str:
        self._names += 1
        at = "" if self.here is None else self.here.name
        return f"{at}/{what}_counted_{self._names}"


WHOLE = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)
"""Types of what is followed number by number."""


def extents(value: ir.Value) -> list[int]:
    """The extents of a value of static shape."""
    assert value.shape is not None
    return [int(extent) for extent in value.shape.numpy()]


def neutral(source: ir.Value, fill: float) -> float:
    """A number, or in the place of an infinity the last one that the type of a value has."""
    assert source.dtype is not None
    if source.dtype.is_floating_point() or not np.isinf(fill):
        return fill
    limits = np.iinfo(source.dtype.numpy())
    return int(limits.max if fill > 0 else limits.min)


Rule = Callable[[Writer, ir.Node], None]
"""Writes a node anew, or gives it the shapes that it has now."""
