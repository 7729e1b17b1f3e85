"""Operators on quantised tensors as the same operators between dequantising and quantising.

    QLinearConv(x, w, bias)   →   QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w),
                                                      bias · scale of x · scale of w))

So are ONNX's own two and those that ONNX Runtime's quantiser writes (`QuantFormat.QOperator`), and
those of integers that `quantize_dynamic` leaves:

    Cast(ConvInteger(x, w, point of x), float)   →   Conv(Cast(x) - Cast(point of x), Cast(w))

In integers a sum is exact, here it is rounded to 24 bits: a result may be the next step of its
scale.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import onnx
from onnx import TensorProto

from tvm_ext.frontend.load import STANDARD, onnx_opset
from tvm_ext.frontend.writer import Known, Writer

MICROSOFT = "com.microsoft"


class Form(NamedTuple):
    """How an operator is written: `op_type` is what it does to floats, `operands` how many
    quantised tensors it takes, each with its scale and zero point. The scale and zero point of the
    result follow them, or, with `first`, come before. `plain` operands before them are taken as
    they are, and `channels` says along which axis the second operand may have a scale of its own
    for each channel."""

    op_type: str
    operands: int
    first: bool = False
    plain: int = 0
    channels: int | None = None


FORMS: dict[tuple[str, str], Form] = {
    ("", "QLinearConv"): Form("Conv", 2, channels=0),
    ("", "QLinearMatMul"): Form("MatMul", 2, channels=-1),
    (MICROSOFT, "QLinearAdd"): Form("Add", 2),
    (MICROSOFT, "QLinearMul"): Form("Mul", 2),
    (MICROSOFT, "QLinearSigmoid"): Form("Sigmoid", 1),
    (MICROSOFT, "QLinearLeakyRelu"): Form("LeakyRelu", 1),
    (MICROSOFT, "QLinearSoftmax"): Form("Softmax", 1),
    (MICROSOFT, "QLinearGlobalAveragePool"): Form("GlobalAveragePool", 1),
    (MICROSOFT, "QLinearAveragePool"): Form("AveragePool", 1),
    (MICROSOFT, "QLinearConcat"): Form("Concat", 0, first=True),
    (MICROSOFT, "QLinearWhere"): Form("Where", 2, plain=1),
    (MICROSOFT, "QGemm"): Form("Gemm", 2, channels=1),
}
INTEGER = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}
"""Operators that sum products of integers up, and those of floats."""
DROPPED: dict[str, tuple[str, Callable[[int], bool]]] = {
    "Softmax": ("opset", lambda opset: opset >= 13),  # of one axis
    "AveragePool": ("channels_last", operator.not_),
    "GlobalAveragePool": ("channels_last", operator.not_),
}
"""The attribute that only the quantised form has, and which of its values leave both the same."""


def dequantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the operators of `FORMS` restated, in place; those inside branches and loops
    are left, and reported as what cannot be compiled."""
    nodes = list(model.graph.node)
    for node in nodes:
        if node.domain == MICROSOFT and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.domain = ""  # written so for types that ONNX's own took later; they do the same
    if not any(_form(node) is not None for node in nodes):
        return model
    opset, known = onnx_opset(model), Known(model.graph)
    read = _read_as_floats(nodes) - {one.name for one in model.graph.output}
    single = {node.output[2] for node in nodes if node.op_type == "DynamicQuantizeLinear"}
    del model.graph.node[:]
    for node in nodes:
        form = _form(node)
        restated = None
        if form is not None:
            one = _Restated(Writer(node, opset, known), form)
            integers = node.op_type in INTEGER
            as_floats = node.output[0] in read
            restated = one.of_integers(single, as_floats) if integers else one.nodes()
        model.graph.node.extend([node] if restated is None else restated)
    return model


def _read_as_floats(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Tensors of which every reader makes floats first."""
    floats: set[str] = set()
    others: set[str] = set()
    for node in nodes:
        casts = any(one.name == "to" and one.i == TensorProto.FLOAT for one in node.attribute)
        (floats if node.op_type == "Cast" and casts else others).update(node.input)
    return floats - others


def _form(node: onnx.NodeProto) -> Form | None:
    """How an operator is written; None for those that are not restated."""
    if node.op_type in INTEGER and node.domain in STANDARD:
        return Form(INTEGER[node.op_type], 2)
    return FORMS.get((node.domain, node.op_type))


class _Restated:
    """One operator restated."""

    def __init__(self, writer: Writer, form: Form) -> None:
        self._writer, self._node, self._form = writer, writer.node, form
        self._made = writer.nodes

    def nodes(self) -> list[onnx.NodeProto] | None:
        """What takes its place; None if that would not be the same."""
        node, form = self._node, self._form
        attributes = dict(self._writer.attributes)
        if form.op_type in DROPPED:
            name, same = DROPPED[form.op_type]
            if name in attributes and not same(attributes.pop(name)):
                return None
        inputs = list(node.input)
        rest = inputs[form.plain + 3 * form.operands :]
        result = inputs[:2] if form.first else rest[form.op_type == "Gemm" :][:2]
        operands = inputs[2:] if form.first else inputs[form.plain :]
        count = len(operands) // 3 if form.first else form.operands
        given = inputs[: form.plain]
        for place in range(count):
            own = operands[3 * place : 3 * place + 3]
            along = self._axis(attributes) if place == 1 else None
            given.append(self._float(own, along))
        if bias := self._bias(inputs, attributes):
            given.append(bias)
        if form.op_type == "Gemm" and len(inputs) < 8:  # its result is no quantised one
            self._add(form.op_type, given, attributes, node.output[0])
            return self._made
        value = self._add(form.op_type, given, attributes)
        self._add("QuantizeLinear", [value, *filter(None, result)], {}, node.output[0])
        return self._made

    def of_integers(self, single: Container[str], as_floats: bool) -> list[onnx.NodeProto] | None:
        """What takes the place of a sum of products of integers; None, it is left to the importer,
        where a zero point may be one of several along another axis than that of the results.

        single     tensors of one element, besides those whose shape says so
        as_floats  whether its readers make floats of it, and can have them at once
        """
        node = self._node
        operands = []
        for place, name in enumerate(node.input[:2]):
            value = self._add("Cast", [name], {"to": TensorProto.FLOAT})
            if len(node.input) > 2 + place and node.input[2 + place]:
                point = self._point(node.input[2 + place], place, single)
                if not point:
                    return None
                value = self._add("Sub", [value, point], {})
            operands.append(value)
        attributes = dict(self._writer.attributes)
        if as_floats:
            self._add(self._form.op_type, operands, attributes, node.output[0])
            return self._made
        value = self._add(self._form.op_type, operands, attributes)
        self._add("Cast", [value], {"to": TensorProto.INT32}, node.output[0])
        return self._made

    def _point(self, name: str, place: int, single: Container[str]) -> str:
        """The zero point of an operand, or of each of its channels, as floats beside it; empty
        where that is not known."""
        known = self._writer.known
        shape, rank = known.shape(name), known.rank(self._node.input[place])
        point = self._add("Cast", [name], {"to": TensorProto.FLOAT})
        if name in single or (shape is not None and set(shape) <= {1}):
            return point
        if place == 0 or shape is None or len(shape) != 1:
            return ""
        if self._form.op_type == "MatMul":
            return point
        if rank is None:
            return ""
        return self._add("Reshape", [point, self._writer.ints(-1, *[1] * (rank - 1))], {})

    def _axis(self, attributes: Mapping[str, object]) -> int | None:
        if self._form.op_type == "Gemm" and attributes.get("transB", 0):
            return 0
        return self._form.channels

    def _float(self, operand: Sequence[str], axis: int | None) -> str:
        """A quantised tensor, its scale and its zero point as floats."""
        along: dict[str, object] = {} if axis is None else {"axis": axis}
        return self._add("DequantizeLinear", list(filter(None, operand)), along)

    def _bias(self, inputs: Sequence[str], attributes: Mapping[str, object]) -> str:
        """Its bias, integers in the scale of both operands' product, as floats; empty without."""
        place = {"Conv": 8, "Gemm": 6}.get(self._form.op_type, len(inputs))
        if place >= len(inputs) or not inputs[place]:
            return ""
        value = self._add("Cast", [inputs[place]], {"to": TensorProto.FLOAT})
        for scale in (inputs[1], inputs[4]):
            value = self._add("Mul", [value, scale], {})
        alpha = attributes.get("alpha", 1.0)
        if alpha == 1.0:
            return value
        return self._add("Mul", [value, self._add("Constant", [], {"value_float": alpha})], {})

    def _add(
        self,
        op_type: str,
        inputs: Sequence[str],
        attributes: Mapping[str, object],
        output: str = "",
    ) -> str:
        """One more node; the name of its result."""
        return self._writer(op_type, *inputs, output=output, **attributes)
