"""Writes decoders as builders write them that start from no network: in Microsoft's operators.

    python benchmarks/built_models.py --out built_models            # all of them
    python benchmarks/built_models.py --out built_models word_4bit
    python benchmarks/compare.py built_models/*.onnx --rounds 3

Four layers of 1024 (2816 between the products of a perceptron), 16 heads of 64 that share 8 of keys
and values, positions turned in, a cache in and out; the mask says how many words there are.
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

    def ones(self) -> str:
        return self.constant(np.ones(WIDTH, np.float32))


def export(name: str, seed: int) -> onnx.ModelProto:
    new, past, bits = KNOWN[name]
    build = Builder(bits, seed)

    def info(tensor: str, kind: int, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(tensor, kind, shape)

    inputs = [
        info("input_ids", TensorProto.INT64, 1, new),
        info("attention_mask", TensorProto.INT64, 1, new + past),
    ]
    outputs = [info("logits", TensorProto.FLOAT, 1, new, WORDS)]
    one = build.constant(np.array([1]))
    last = build("Sub", build("ReduceSum", "attention_mask", one, keepdims=0), one)
    total = build("Gather", build("Shape", "attention_mask"), build.constant(np.array(1)))
    lengths = [build("Cast", source, to=TensorProto.INT32) for source in (last, total)]
    angles = np.arange(PLACES)[:, None] / 10000 ** (np.arange(HEAD // 2) * 2 / HEAD)
    turns = [build.constant(part(angles).astype(np.float32)) for part in (np.cos, np.sin)]

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
        gate, up = (build.product(norm, WIDTH, BETWEEN) for _ in range(2))
        gated = build("Mul", build("Mul", gate, build("Sigmoid", gate)), up)
        x, norm = _skipped(build, x, build.product(gated, BETWEEN, WIDTH))
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


if __name__ == "__main__":
    write_models(__doc__, KNOWN, export)
