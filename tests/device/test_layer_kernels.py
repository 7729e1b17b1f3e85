"""A transformer's layer is six kernels at most, norms before its parts or behind them, and computes
what ONNX Runtime does."""

from __future__ import annotations

from math import sqrt

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx_models import make_model, value

import tvm_ext

LAYERS = 2
MOST_KERNELS = 6


class Encoder:
    """Nodes and weights of layers as exporters write them."""

    def __init__(self, words: int, heads: int, depth: int, hidden: int) -> None:
        self.words, self.heads, self.depth, self.hidden = words, heads, depth, hidden
        self.width = heads * depth
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.random = np.random.default_rng(words)

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        name = f"w{len(self.weights)}"
        drawn = self.random.standard_normal(shape) * scale
        self.weights[name] = drawn.astype(np.float32)
        return name

    def integers(self, *values: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.array(values, np.int64)
        return name

    def scalar(self, number: float) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.array(number, np.float32)
        return name

    def dense(self, x: str, given: int, made: int) -> str:
        product = self.node("MatMul", x, self.weight(given, made, scale=1 / sqrt(given)))
        return self.node("Add", product, self.weight(made))

    def norm(self, x: str) -> str:
        scale, shift = self.weight(self.width), self.weight(self.width)
        return self.node("LayerNormalization", x, scale, shift, axis=-1)

    def attention(self, x: str) -> str:
        shape = self.integers(1, self.words, self.heads, self.depth)

        def split(order: list[int]) -> str:
            apart = self.node("Reshape", self.dense(x, self.width, self.width), shape)
            return self.node("Transpose", apart, perm=order)

        q, k, v = split([0, 2, 1, 3]), split([0, 2, 3, 1]), split([0, 2, 1, 3])
        scores = self.node("Div", self.node("MatMul", q, k), self.scalar(sqrt(self.depth)))
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), v)
        turned = self.node("Transpose", mixed, perm=[0, 2, 1, 3])
        whole = self.node("Reshape", turned, self.integers(1, self.words, self.width))
        return self.dense(whole, self.width, self.width)

    def feed_forward(self, x: str) -> str:
        wide = self.dense(x, self.width, self.hidden)
        erf = self.node("Erf", self.node("Div", wide, self.scalar(sqrt(2))))
        gelu = self.node("Mul", wide, self.node("Add", erf, self.scalar(1)))
        return self.dense(self.node("Mul", gelu, self.scalar(0.5)), self.hidden, self.width)

    def model(self, norm_first: bool, layers: int) -> onnx.ModelProto:
        x = "x"
        for _ in range(layers):
            for part in (self.attention, self.feed_forward):
                if norm_first:
                    x = self.node("Add", x, part(self.norm(x)))
                else:
                    x = self.norm(self.node("Add", x, part(x)))
        return make_model(self.nodes, [value("x", 1, self.words, self.width)], [x], self.weights)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("shape", [(64, 4, 32, 512), (37, 3, 20, 130)])
def test_a_layer_is_six_kernels_at_most(shape: tuple[int, ...], norm_first: bool) -> None:
    counts = []
    for layers in (1, 1 + LAYERS):
        model = Encoder(*shape).model(norm_first, layers)
        compiled = tvm_ext.compile(model)
        assert {group.source for group in compiled.manifest.groups} == {"picker"}
        counts.append(sum(group.calls for group in compiled.manifest.groups))
        x = np.random.default_rng(0).standard_normal((1, shape[0], shape[1] * shape[2]))
        given = x.astype(np.float32)
        session = onnxruntime.InferenceSession(model.SerializeToString())
        (expected,) = session.run(None, {"x": given})
        (y,) = compiled(given)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    assert counts[1] - counts[0] <= LAYERS * MOST_KERNELS
