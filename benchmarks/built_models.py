"""Writes decoders as builders write them that start from no network: in Microsoft's operators, or
in ONNX's own of operator set 23.

    python benchmarks/built_models.py --out built_models            # all of them
    python benchmarks/built_models.py --out built_models word_4bit
    python benchmarks/compare.py built_models/*.onnx --rounds 3

Four layers of 1024 (2816 between the products of a perceptron), 16 heads of 64 that share 8 of keys
and values, positions turned in, a cache in and out; the mask says how many words there are. Those
in ONNX's own operators begin with embeddings and end before there are words again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from export_command import write_models
from onnx import TensorProto, helper, numpy_helper

LAYERS, WIDTH, HEADS, SHARED, HEAD, BETWEEN, WORDS, PLACES = 4, 1024, 16, 8, 64, 2816, 8000, 4096
BLOCK = 32
"""Weights with a scale of their own."""
MICROSOFT = "com.microsoft"

KNOWN = {"word": (1, 128, 32), "word_4bit": (1, 128, 4), "text_behind_words": (64, 32, 32)}
"""New words, those of the past, and bits of a weight."""
STANDARD = {
    "onnx_text": (128, 0, False),
    "onnx_text_masked": (128, 0, True),
    "onnx_text_behind_words": (64, 64, True),
    "onnx_word": (1, 128, True),
}
"""New words, those of the past, and whether a mask says what they see, or the order."""


class Builder:
    """A graph that grows node by node."""

    def __init__(self, bits: int, seed: int) -> None:
        self.bits, self.rng = bits, np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def __call__(
        self, op_type: str, *inputs: str, results: Sequence[str] = (), domain: str = "", **more: Any
    ) -> str:
        """A node; the name of its first result."""
        names = [*results] or [f"{op_type}_{len(self.nodes)}"]
        name = f"node_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, names, name, domain=domain, **more))
        return names[0]

    def constant(self, array: Any) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def product(self, x: str, inner: int, columns: int) -> str:
        """x by weights of the builder's bits."""
        weight = self.rng.standard_normal((inner, columns), np.float32) / np.float32(inner**0.5)
        if self.bits == 32:
            return self("MatMul", x, self.constant(weight))
        blocks = weight.T.reshape(columns, inner // BLOCK, BLOCK)
        scales = np.abs(blocks).max(-1) / 7
        steps = np.clip(np.round(blocks / scales[..., None]) + 8, 0, 15).astype(np.uint8)
        packed = steps[..., 0::2] | steps[..., 1::2] << 4
        return self(
            "MatMulNBits",
            x,
            self.constant(packed),
            self.constant(scales),
            domain=MICROSOFT,
            K=inner,
            N=columns,
            bits=self.bits,
            block_size=BLOCK,
        )

    def perceptron(self, x: str) -> str:
        """Two products, gated, and one back."""
        gate, up = (self.product(x, WIDTH, BETWEEN) for _ in range(2))
        gated = self("Mul", self("Mul", gate, self("Sigmoid", gate)), up)
        return self.product(gated, BETWEEN, WIDTH)

    def ones(self) -> str:
        return self.constant(np.ones(WIDTH, np.float32))


def info(tensor: str, kind: int, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor, kind, shape)


def export(name: str, seed: int) -> onnx.ModelProto:
    return _of_onnx(name, seed) if name in STANDARD else _of_microsoft(name, seed)


def _of_microsoft(name: str, seed: int) -> onnx.ModelProto:
    new, past, bits = KNOWN[name]
    build = Builder(bits, seed)
    inputs = [
        info("input_ids", TensorProto.INT64, 1, new),
        info("attention_mask", TensorProto.INT64, 1, new + past),
    ]
    outputs = [info("logits", TensorProto.FLOAT, 1, new, WORDS)]
    one = build.constant(np.array([1]))
    last = build("Sub", build("ReduceSum", "attention_mask", one, keepdims=0), one)
    total = build("Gather", build("Shape", "attention_mask"), build.constant(np.array(1)))
    lengths = [build("Cast", source, to=TensorProto.INT32) for source in (last, total)]
    turns = [build.constant(part(_angles()).astype(np.float32)) for part in (np.cos, np.sin)]

    table = build.constant(build.rng.standard_normal((WORDS, WIDTH), np.float32))
    x = build("Gather", table, "input_ids")
    norm = build("SimplifiedLayerNormalization", x, build.ones(), epsilon=1e-6, axis=-1)
    for layer in range(LAYERS):
        projected = [build.product(norm, WIDTH, n * HEAD) for n in (HEADS, SHARED, SHARED)]
        before, after = (
            [f"{when}.{layer}.{kind}" for kind in "kv"] for when in ("past", "present")
        )
        inputs += [info(name, TensorProto.FLOAT, 1, SHARED, past, HEAD) for name in before]
        outputs += [info(name, TensorProto.FLOAT, 1, SHARED, new + past, HEAD) for name in after]
        mixed = build(
            "GroupQueryAttention",
            *(*projected, *before, *lengths, *turns),
            results=[f"mixed.{layer}", *after],
            domain=MICROSOFT,
            num_heads=HEADS,
            kv_num_heads=SHARED,
            scale=1 / math.sqrt(HEAD),
            do_rotary=1,
        )
        x, norm = _skipped(build, x, build.product(mixed, HEADS * HEAD, WIDTH))
        x, norm = _skipped(build, x, build.perceptron(norm))
    logits = build.product(norm, WIDTH, WORDS)
    build("Identity", logits, results=["logits"])
    graph = helper.make_graph(build.nodes, name, inputs, outputs, build.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _skipped(build: Builder, x: str, more: str) -> tuple[str, str]:
    """x + more, and its norm."""
    place = len(build.nodes)
    norm, total = f"norm_{place}", f"sum_{place}"
    build(
        "SkipSimplifiedLayerNormalization",
        *(x, more, build.ones()),
        results=[norm, "", "", total],
        domain=MICROSOFT,
        epsilon=1e-6,
    )
    return total, norm


def _angles() -> np.ndarray:
    """By how much each pair of elements is turned at each place."""
    return np.arange(PLACES)[:, None] / 10000 ** (np.arange(HEAD // 2) * 2 / HEAD)


def _of_onnx(name: str, seed: int) -> onnx.ModelProto:
    new, past, masked = STANDARD[name]
    build = Builder(32, seed)
    inputs = [info("x", TensorProto.FLOAT, 1, new, WIDTH)]
    outputs = [info("y", TensorProto.FLOAT, 1, new, WIDTH)]
    if masked:
        inputs.append(info("mask", TensorProto.BOOL, 1, 1, new, new + past))
    at = _angles()[None, past : past + new]
    turns = [build.constant(part(at).astype(np.float32)) for part in (np.cos, np.sin)]

    def heads(source: str, count: int) -> str:
        apart = build("Reshape", source, build.constant(np.array([0, 0, count, HEAD])))
        return build("Transpose", apart, perm=[0, 2, 1, 3])

    x = "x"
    for layer in range(LAYERS):
        norm = build("RMSNormalization", x, build.ones(), axis=-1, epsilon=1e-6)
        q, k, v = (heads(build.product(norm, WIDTH, n * HEAD), n) for n in (HEADS, SHARED, SHARED))
        q, k = (build("RotaryEmbedding", part, *turns) for part in (q, k))
        given, results = [q, k, v, "mask" if masked else ""], [f"mixed.{layer}"]
        if past:
            before, after = (
                [f"{when}.{layer}.{kind}" for kind in "kv"] for when in ("past", "present")
            )
            inputs += [info(n, TensorProto.FLOAT, 1, SHARED, past, HEAD) for n in before]
            outputs += [info(n, TensorProto.FLOAT, 1, SHARED, past + new, HEAD) for n in after]
            given, results = [*given, *before], [*results, *after]
        mixed = build("Attention", *given, results=results, is_causal=int(not masked))
        rows = build("Transpose", mixed, perm=[0, 2, 1, 3])
        joined = build("Reshape", rows, build.constant(np.array([0, 0, -1])))
        x = build("Add", x, build.product(joined, HEADS * HEAD, WIDTH))
        norm = build("RMSNormalization", x, build.ones(), axis=-1, epsilon=1e-6)
        x = build("Add", x, build.perceptron(norm))
    build("Identity", x, results=["y"])
    graph = helper.make_graph(build.nodes, name, inputs, outputs, build.weights)
    opsets = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


if __name__ == "__main__":
    write_models(__doc__, KNOWN | STANDARD, export)
