"""Operators on quantised tensors as the same operators between dequantising and quantising.

    QLinearConv(x, w, bias)   →   QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w),
                                                      bias · scale of x · scale of w))

So are ONNX's own two and those that ONNX Runtime's quantiser writes (`QuantFormat.QOperator`). In
integers a sum is exact, here it is rounded to 24 bits: a result may be the next step of its scale.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import onnx
from onnx import TensorProto, helper

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
    if not any((node.domain, node.op_type) in FORMS for node in nodes):
        return model
    del model.graph.node[:]
    for node in nodes:
        form = FORMS.get((node.domain, node.op_type))
        restated = None if form is None else _Restated(node, form).nodes()
        model.graph.node.extend([node] if restated is None else restated)
    return model


class _Restated:
    """One operator restated."""

    def __init__(self, node: onnx.NodeProto, form: Form) -> None:
        self._node, self._form = node, form
        self._made: list[onnx.NodeProto] = []

    def nodes(self) -> list[onnx.NodeProto] | None:
        """What takes its place; None if that would not be the same."""
        node, form = self._node, self._form
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
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
        place = len(self._made)
        result = output or f"{self._node.output[0]}_{place}"
        name = f"{self._node.name}_{place}"
        made = helper.make_node(op_type, list(inputs), [result], name=name, **attributes)
        self._made.append(made)
        return result
