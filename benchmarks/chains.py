"""Chains of operators between products, in primitives as exporters write them, for compare.py.

    python benchmarks/chains.py --out chains      # norms, softmax, GELU, attention
    python benchmarks/compare.py chains/*.onnx \\
        --engines tvm_ext,tvm_ext-fuseops,tvm_ext-unfused,torch-chain,onnxruntime
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZES = ((512, 768), (512, 4096), (2048, 1024), (4096, 768))
SEQUENCES = (128, 512, 2048)
HEADS, HEAD = 12, 64


class Graph:
    """An ONNX graph that is written operator by operator."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Adds an operator; the name of its result."""
        name = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any, dtype: str = "float32") -> str:
        """Adds a constant; its name."""
        name = f"c{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, extent: int) -> str:
        """Adds a vector of weights about one; its name."""
        return self.constant(1 + 0.1 * self.random(extent))

    def random(self, *shape: int) -> np.ndarray:
        """Standard normal numbers."""
        return self._rng.standard_normal(shape)

    @property
    def operators(self) -> int:
        """Operators so far."""
        return len(self._nodes)

    def model(self, inputs: Sequence[tuple[str, Sequence[int]]], output: str) -> onnx.ModelProto:
        """The graph as a model."""
        self._nodes.append(helper.make_node("Identity", [output], ["y"]))
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs]
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(self._nodes, "chain", values, [result], self._weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        return onnx.shape_inference.infer_shapes(made)


def layer_norm(g: Graph, x: str, columns: int) -> str:
    """Scaled and shifted by weights."""
    centred = g("Sub", x, g("ReduceMean", x, axes=[-1]))
    variance = g("ReduceMean", g("Pow", centred, g.constant(2.0)), axes=[-1])
    scale = g("Sqrt", g("Add", variance, g.constant(1e-5)))
    normal = g("Div", centred, scale)
    return g("Add", g("Mul", normal, g.weight(columns)), g.weight(columns))


def rms_norm(g: Graph, x: str, columns: int) -> str:
    """Scaled by weights."""
    square = g("ReduceMean", g("Mul", x, x), axes=[-1])
    scale = g("Sqrt", g("Add", square, g.constant(1e-5)))
    return g("Mul", g("Div", x, scale), g.weight(columns))


def softmax(g: Graph, x: str, columns: int) -> str:
    """From its exponentials."""
    powers = g("Exp", g("Sub", x, g("ReduceMax", x, axes=[-1])))
    return g("Div", powers, g("ReduceSum", powers, g.constant([-1], "int64")))


def gelu_tanh(g: Graph, x: str, columns: int) -> str:
    """The approximation by tanh."""
    cube = g("Mul", g("Mul", x, x), x)
    inner = g("Add", x, g("Mul", cube, g.constant(0.044715)))
    half = g("Mul", x, g.constant(0.5))
    return g(
        "Mul", half, g("Add", g("Tanh", g("Mul", inner, g.constant(0.7978846))), g.constant(1))
    )


def whole(g: Graph, x: str, columns: int) -> str:
    """add → layer norm → GELU → softmax."""
    shifted = g("Add", x, g.weight(columns))
    return softmax(g, gelu_tanh(g, layer_norm(g, shifted, columns), columns), columns)


def residual_norm(g: Graph, x: str, columns: int) -> str:
    """A residual sum, its layer norm, and the sum once more: what transformers hand on."""
    total = g("Add", g("Tanh", x), x)
    return g("Add", g("Relu", layer_norm(g, total, columns)), total)


CHAINS: dict[str, Callable[[Graph, str, int], str]] = {
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "softmax": softmax,
    "gelu_tanh": gelu_tanh,
    "whole": whole,
    "residual_norm": residual_norm,
}


def chain(name: str, rows: int, columns: int) -> onnx.ModelProto:
    """A chain over the rows of a matrix."""
    graph = Graph()
    return graph.model([("x", (rows, columns))], CHAINS[name](graph, "x", columns))


def attention(sequence: int) -> onnx.ModelProto:
    """Scaled dot-product attention of one batch, in primitives."""
    g = Graph()
    shape = (1, HEADS, sequence, HEAD)
    scores = g("MatMul", "q", g("Transpose", "k", perm=[0, 1, 3, 2]))
    mixed = g("Softmax", g("Mul", scores, g.constant(HEAD**-0.5)), axis=-1)
    return g.model([("q", shape), ("k", shape), ("v", shape)], g("MatMul", mixed, "v"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the .onnx files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    made = {
        f"{name}_{rows}x{columns}": chain(name, rows, columns)
        for name in CHAINS
        for rows, columns in SIZES
    }
    made |= {f"attention_{sequence}": attention(sequence) for sequence in SEQUENCES}
    for name, model in made.items():
        onnx.save(model, str(args.out / f"{name}.onnx"))
    print(f"{len(made)} models in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
