"""Compile time against depth: a residual network at 1x, 2x and 4x its depth has the same distinct
kernels, so it should compile in nearly the same time.

    python benchmarks/depth.py [--json depth.json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BLOCKS = 2
"""Residual blocks of each of the four stages at depth 1."""

CHILD = """
import time
start = time.perf_counter()
import tvm_ext
compiled = tvm_ext.compile({path!r})
print(time.perf_counter() - start, len({{g.signature for g in compiled.manifest.groups}}))
"""


def residual_network(depth: int) -> onnx.ModelProto:
    """A ResNet-18 whose stages are `depth` times as long, weights random."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def conv(x: str, inner: int, outer: int, size: int, stride: int) -> str:
        name = f"conv{len(weights)}"
        scale = (2 / (inner * size * size)) ** 0.5
        data = (rng.standard_normal((outer, inner, size, size)) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(data, f"{name}.w"))
        nodes.append(
            helper.make_node(
                "Conv",
                [x, f"{name}.w"],
                [name],
                kernel_shape=[size, size],
                strides=[stride, stride],
                pads=[size // 2] * 4,
            )
        )
        return name

    def unary(op: str, x: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, [x], [f"{x}.{op}"], **attributes))
        return f"{x}.{op}"

    x = unary("Relu", conv("input", 3, 64, 7, 2))
    x = unary("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    width = 64
    for stage, outer in enumerate((64, 128, 256, 512)):
        for block in range(BLOCKS * depth):
            stride = 2 if stage and not block else 1
            short = conv(x, width, outer, 1, stride) if width != outer else x
            y = unary("Relu", conv(x, width, outer, 3, stride))
            y = conv(y, outer, outer, 3, 1)
            nodes.append(helper.make_node("Add", [y, short], [f"{y}.sum"]))
            x, width = unary("Relu", f"{y}.sum"), outer
    x = unary("GlobalAveragePool", x)
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, 224, 224])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, 512, 1, 1])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    args = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for depth in (1, 2, 4):
            path = Path(folder) / f"depth{depth}.onnx"
            onnx.save(residual_network(depth), str(path))
            command = [sys.executable, "-c", CHILD.format(path=str(path))]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            seconds, kernels = printed.split()[-2:]
            figures.append({"depth": depth, "compile_s": float(seconds), "kernels": int(kernels)})
            ratio = figures[-1]["compile_s"] / figures[0]["compile_s"]
            print(
                f"depth {depth}x: {float(seconds):.2f} s, {kernels} distinct kernels, "
                f"{ratio:.2f} of depth 1",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
