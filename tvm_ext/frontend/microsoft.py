"""Operators of Microsoft's domain in standard ones, as ONNX Runtime's own tools write them.

    SkipLayerNormalization(x, skip, gamma, beta)   →   n / Sqrt(ReduceMean(n n) + eps) gamma + beta,
                                                       n = s - ReduceMean(s), s = x + skip

`onnxruntime.transformers.optimizer` fuses a transformer's layers into such operators, and builders
of decoders write them in the first place. What they were is what our own passes fuse. Attention is
in `microsoft_attention`, quantised operators are in `quantised`, weights of a few bits in
`packed_weights`.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import onnx

from tvm_ext.frontend.load import STANDARD, onnx_opset
from tvm_ext.frontend.microsoft_attention import ATTENTION
from tvm_ext.frontend.quantised import MICROSOFT
from tvm_ext.frontend.writer import Known, Restate, Writer

OLDEST = 7
"""Operator set from which on the nodes that are written mean what is meant,"""
COUNTING = 11
"""and from which on those do that slice and count."""


def restated(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the operators of `RESTATED` in terms of standard ones, in place; those inside
    branches and loops, and in forms that are not read, are left, and reported later."""
    opset = onnx_opset(model)
    nodes = list(model.graph.node)
    ways = [_way(node, opset) for node in nodes]
    if not any(ways):
        return model
    known = Known(model.graph)
    del model.graph.node[:]
    for node, way in zip(nodes, ways, strict=True):
        written = [node]
        if way is not None:
            writer = Writer(node, opset, known)
            written = writer.nodes if way(writer) else written
        model.graph.node.extend(written)
    return model


def _way(node: onnx.NodeProto, opset: int) -> Restate | None:
    if opset < (COUNTING if node.op_type in COUNTED else OLDEST):
        return None
    if node.op_type in ANYWHERE and node.domain in (*STANDARD, MICROSOFT):
        return RESTATED[node.op_type]
    return RESTATED.get(node.op_type) if node.domain == MICROSOFT else None


def _layer_norm(w: Writer, x: str, gamma: str, beta: str | None, output: str) -> None:
    small = w.real(w.number("epsilon", 1e-12))
    centred = w("Sub", x, w.axis("ReduceMean", x, -1))
    spread = w.axis("ReduceMean", w("Mul", centred, centred), -1)
    unit = w("Div", centred, w("Sqrt", w("Add", spread, small)))
    if beta is None:
        w("Mul", unit, gamma, output=output)
    else:
        w("Add", w("Mul", unit, gamma), beta, output=output)


def _rms_norm(w: Writer, x: str, gamma: str, output: str) -> None:
    small = w.real(w.number("epsilon", 1e-5))
    spread = w.axis("ReduceMean", w("Mul", x, x), -1)
    w("Mul", w("Div", x, w("Sqrt", w("Add", spread, small))), gamma, output=output)


def _skipped(w: Writer, bias: int) -> str | None:
    """x + skip + bias, also where it is a result of its own; None if statistics are as well."""
    if w.outputs.keys() - {0, 3}:
        return None
    *before, last = (w.inputs[place] for place in (0, 1, bias) if place in w.inputs)
    return w("Add", reduce(partial(w, "Add"), before), last, output=w.outputs.get(3, ""))


def _skip_layer_norm(w: Writer) -> bool:
    total = _skipped(w, 4)
    if total is not None:
        _layer_norm(w, total, w.inputs[2], w.inputs.get(3), w.outputs[0])
    return total is not None


def _skip_rms_norm(w: Writer) -> bool:
    total = _skipped(w, 3)
    if total is not None:
        _rms_norm(w, total, w.inputs[2], w.outputs[0])
    return total is not None


def _plain_rms_norm(w: Writer) -> bool:
    if w.outputs.keys() - {0} or w.count("axis", -1) != -1:
        return False
    _rms_norm(w, w.inputs[0], w.inputs[1], w.outputs[0])
    return True


def _embed_layer_norm(w: Writer) -> bool:
    ids, segments, words, places, kinds, gamma, beta = (w.inputs.get(at) for at in range(7))
    if ids is None or words is None or places is None or gamma is None or beta is None:
        return False
    at = w.inputs.get(8) or w.counted(w.extent(ids, 1))
    total = w("Add", w("Gather", words, ids), w("Gather", places, at))
    if segments and kinds:
        total = w("Add", total, w("Gather", kinds, segments))
    if 2 in w.outputs:
        total = w("Identity", total, output=w.outputs[2])
    if 1 in w.outputs:  # how long each text is
        mask = w.inputs.get(7)
        if mask is None:
            return False
        w.axis("ReduceSum", mask, 1, keepdims=0, output=w.outputs[1])
    _layer_norm(w, total, gamma, beta, w.outputs[0])
    return True


def _quick_gelu(w: Writer) -> bool:
    x = w.inputs[0]
    w("Mul", x, w("Sigmoid", w("Mul", x, w.real(w.number("alpha", 1.702)))), output=w.outputs[0])
    return True


def _activated(w: Writer, x: str) -> bool:
    """What a fused operator does to its sum at last."""
    kind = w.attributes.get("activation", b"")
    name = kind.decode() if isinstance(kind, bytes) else str(kind)
    apart = [w.attributes.get(f"activation_{one}") for one in ("alpha", "beta")]
    given = w.attributes.get("activation_params") or [n for n in apart if n is not None]
    numbers = [float(value) for value in given]
    names = {"LeakyRelu": ("alpha",), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
    named = dict(zip(names.get(name, ()), numbers, strict=False))
    if name == "Clip" and len(numbers) == 2 and w.opset < COUNTING:
        w("Clip", x, min=numbers[0], max=numbers[1], output=w.outputs[0])
    elif name == "Clip" and len(numbers) == 2:
        w("Clip", x, *map(w.real, numbers), output=w.outputs[0])
    elif name in names:
        w(name, x, output=w.outputs[0], **named)
    elif name in ("Relu", "Sigmoid", "Tanh", "Identity"):
        w(name, x, output=w.outputs[0])
    else:
        return False
    return True


def _own(w: Writer) -> dict[str, Any]:
    """The attributes of what an activation was fused with."""
    return {k: v for k, v in w.attributes.items() if not k.startswith("activation")}


def _fused_conv(w: Writer) -> bool:
    x = w("Conv", *(w.inputs[at] for at in range(3) if at in w.inputs), **_own(w))
    if 3 in w.inputs:
        x = w("Add", x, w.inputs[3])
    return _activated(w, x)


def _fused_gemm(w: Writer) -> bool:
    return _activated(w, w("Gemm", *w.node.input, **_own(w)))


def _fused_matmul(w: Writer) -> bool:
    if w.count("transBatchA") or w.count("transBatchB"):
        return False
    operands = []
    for place, name in enumerate(("transA", "transB")):
        operand = w.inputs[place]
        rank = w.known.rank(operand)
        if w.count(name):
            if rank is None or rank < 2:
                return False
            operand = w("Transpose", operand, perm=[*range(rank - 2), rank - 1, rank - 2])
        operands.append(operand)
    alpha = w.number("alpha", 1.0)
    if alpha == 1.0:
        w("MatMul", *operands, output=w.outputs[0])
    else:
        w("Mul", w("MatMul", *operands), w.real(alpha), output=w.outputs[0])
    return True


def _scaled(w: Writer, product: str, scale: str, bias: int) -> bool:
    """The sum of products of integers as the floats that it stands for."""
    floats = w("Cast", product, to=onnx.TensorProto.FLOAT)
    if bias in w.inputs:
        w("Add", w("Mul", floats, scale), w.inputs[bias], output=w.outputs[0])
    else:
        w("Mul", floats, scale, output=w.outputs[0])
    return True


def _matmul_integer_to_float(w: Writer) -> bool:
    given = [w.inputs.get(at, "") for at in (0, 1, 4, 5)]
    while not given[-1]:
        given.pop()
    product = w("MatMulInteger", *given)
    return _scaled(w, product, w("Mul", w.inputs[2], w.inputs[3]), 6)


def _dynamic_quantize_matmul(w: Writer) -> bool:
    octets = w("DynamicQuantizeLinear", w.inputs[0])
    step, point = w.also("step", "point")
    weight_point = [w.inputs[3]] if 3 in w.inputs else []
    product = w("MatMulInteger", octets, w.inputs[1], point, *weight_point)
    return _scaled(w, product, w("Mul", step, w.inputs[2]), 4)


RESTATED: dict[str, Restate] = {
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "EmbedLayerNormalization": _embed_layer_norm,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _plain_rms_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "TransposeMatMul": _fused_matmul,
    **ATTENTION,
}
COUNTED = {"EmbedLayerNormalization", *ATTENTION}
ANYWHERE = {"SimplifiedLayerNormalization"}
"""Operators that ONNX Runtime knows in ONNX's own domain as well, where ONNX does not."""
