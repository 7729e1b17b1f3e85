"""An imported module, built by TVM as it is, computes what the model does in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from onnx_models import make_model, random_inputs, run_plainly, value
from tvm import relax

from tvm_ext.frontend.from_onnx import import_onnx

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(3)
node = helper.make_node


def padded_to_a_multiple(size: int) -> onnx.ModelProto:
    """Zeros behind the last axis up to a multiple, as PyTorch's exporter writes it: as many as the
    shape says, before them zeros of a shape that is worked out, the pairs turned round."""
    steps = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "last"], ["extent"]),
        node("Mod", ["extent", "size"], ["over"]),
        node("Sub", ["size", "over"], ["rest"]),
        node("Mod", ["rest", "size"], ["behind"]),
        node("Concat", ["zero", "behind"], ["given"], axis=0),
        node("Shape", ["given"], ["count"]),
        node("Sub", ["all", "count"], ["missing"]),
        node("ConstantOfShape", ["missing"], ["none"], value=helper.make_tensor("v", 7, [1], [0])),
        node("Concat", ["given", "none"], ["pairs"], axis=0),
        node("Reshape", ["pairs", "two"], ["table"]),
        node("Slice", ["table", "end", "begin", "zero", "back"], ["reversed"]),
        node("Transpose", ["reversed"], ["turned"], perm=[1, 0]),
        node("Reshape", ["turned", "back"], ["pads"]),
        node("Pad", ["x", "pads"], ["padded"]),
        node("Relu", ["padded"], ["y"]),
    ]
    known = {
        "last": [2],
        "size": [size],
        "zero": [0],
        "all": [6],
        "two": [-1, 2],
        "end": [-1],
        "begin": [-(2**63)],
        "back": [-1],
    }
    constants = {name: np.array(value, np.int64) for name, value in known.items()}
    return make_model(steps, [value("x", 2, 3, 9)], ["y"], constants)


@pytest.mark.parametrize(
    "model",
    [
        make_model(
            [
                node("Expand", ["x", "to"], ["a"]),
                node("Sum", ["a", "row", "row"], ["b"]),
                node("Max", ["b", "row", "zero"], ["c"]),
                node("Pow", ["c", "three"], ["y"]),
            ],
            [value("x", 3, 1), value("row", 4)],
            ["y"],
            {"to": np.array([2, 1, 4]), "zero": np.array(0, np.float32), "three": np.array(3)},
        ),
        make_model(
            [
                node("Slice", ["x"], ["a"], starts=[1], ends=[4], axes=[1]),
                node("Clip", ["a"], ["b"], min=-0.5, max=0.5),
                node("Softmax", ["b"], ["y"], axis=1),
            ],
            [value("x", 2, 5, 3)],
            ["y"],
            opset=9,
        ),
        make_model(
            [
                node("Celu", ["x"], ["a"], alpha=0.5),
                node("LayerNormalization", ["a", "s"], ["b", "average", "inverse"]),
                node("Mul", ["b", "inverse"], ["y"]),
            ],
            [value("x", 3, 6)],
            ["y", "average"],
            {"s": RNG.standard_normal(6, np.float32)},
        ),
        make_model(
            [
                node("Einsum", ["q", "k"], ["a"], equation="blhk,bthk->bhlt"),
                node("Einsum", ["a"], ["y"], equation="bhlt->thb"),
            ],
            [value("q", 2, 5, 3, 4), value("k", 2, 6, 3, 4)],
            ["y", "a"],
        ),
        make_model(
            [node("Conv", ["a/b", "0"], ["c:0"]), node("Relu", ["c:0"], ["out.1"])],
            [value("a/b", 1, 3, 6, 6)],
            ["out.1"],
            {"0": RNG.standard_normal((8, 3, 3, 3), np.float32)},
        ),
        make_model(
            [
                node("Einsum", ["q", "k"], ["a"], equation="bij,bjd->bid"),
                node("Reshape", ["a", "s"], ["y"]),
            ],
            [value("q", 4, 5, 6), value("k", 4, 6, 3)],
            ["y"],
            {"s": np.array([2, 2, 5, -1])},
        ),
        *(
            make_model(
                [node("Resize", ["x", "none", "none", "s"], ["y"], mode=mode)],
                [value("x", 1, 3, 8, 9)],
                ["y"],
                {"none": np.zeros(0, np.float32), "s": np.array([1, 3, 16, 18])},
                opset=11,
            )
            for mode in ("nearest", "linear", "cubic")
        ),
        padded_to_a_multiple(4),
    ],
    ids=[
        "operands",
        "opset 9",
        "functions",
        "einsum",
        "names",
        "einsum reshaped",
        *("empty scales " + mode for mode in ("nearest", "linear", "cubic")),
        "pads of a shape",
    ],
)
def test_an_imported_module_computes_the_same(model: onnx.ModelProto) -> None:
    imported = import_onnx(model)
    inputs = random_inputs(model)
    expected = run_plainly(model, inputs)
    machine = relax.VirtualMachine(tvm.compile(imported.mod, "llvm"), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(inputs[i.name]) for i in imported.inputs))
    outputs = [result] if len(imported.outputs) == 1 else list(result)
    for actual, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(actual.numpy(), wanted, rtol=1e-5, atol=1e-5)
