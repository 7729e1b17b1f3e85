"""Recurrent layers unrolled compute what ONNX Runtime computes, and what cannot be is refused."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import make_model, random_inputs, run_plainly, value

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.frontend.from_onnx import import_onnx
from tvm_ext.runtime.executor import Compiled

pytest.importorskip("onnxruntime")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, INPUTS, HIDDEN = 5, 2, 7, 6
MANY = 12
"""Steps that are worth a loop."""


def recurrent(
    op: str,
    *,
    steps: int = STEPS,
    bias: bool = True,
    start: bool = False,
    peepholes: bool = False,
    lengths: tuple[int, ...] = (),
    as_input: bool = False,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one layer; all its outputs are the model's."""
    rng = np.random.default_rng(0)
    ways = 2 if attributes.get("direction") == "bidirectional" else 1
    first = bool(attributes.get("layout"))
    size = GATES[op] * HIDDEN

    def weight(*shape: int) -> np.ndarray:
        return (rng.standard_normal((ways, *shape)) / 2).astype(np.float32)

    constants = {"w": weight(size, INPUTS), "r": weight(size, HIDDEN)}
    names = ["x", "w", "r", *[""] * 5]
    if bias:
        names[3], constants["b"] = "b", weight(2 * size)
    if lengths:
        names[4], constants["n"] = "n", np.array(lengths, np.int32)
    state = (BATCH, ways, HIDDEN) if first else (ways, BATCH, HIDDEN)
    inputs = [value("x", *((BATCH, steps) if first else (steps, BATCH)), INPUTS)]
    for place, name in ((5, "h"), (6, "c")) if start else ():
        if name == "h" or op == "LSTM":
            names[place] = name
            inputs.append(value(name, *state))
    if peepholes:
        names[7], constants["p"] = "p", weight(3 * HIDDEN)
    if as_input:
        inputs.append(value("n", BATCH, dtype=onnx.TensorProto.INT32))
        constants.pop("n")
    while not names[-1]:
        names.pop()
    outputs = ["y", "last", "cell"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, names, outputs, "layer", hidden_size=HIDDEN, **attributes)
    return make_model([node], inputs, outputs, constants)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "start": {"start": True},
    "reverse": {"direction": "reverse", "start": True},
    "both ways": {"direction": "bidirectional", "start": True},
    "one step": {"steps": 1, "start": True},
    "clipped": {"clip": 0.3},
    "full lengths": {"lengths": (STEPS, STEPS)},
    "lengths": {"lengths": (2, 4), "start": True},
    "lengths, reverse": {"lengths": (4, 1), "direction": "reverse", "start": True},
    "lengths, both ways": {"lengths": (3, 5), "direction": "bidirectional"},
}
OF_ONE: dict[str, tuple[str, dict[str, Any]]] = {
    "peepholes": ("LSTM", {"peepholes": True, "start": True}),
    "peepholes, both ways": ("LSTM", {"peepholes": True, "direction": "bidirectional"}),
    "other activations, both ways": (
        "RNN",
        {"activations": ["Relu", "Tanh"], "direction": "bidirectional"},
    ),
    "coupled": ("LSTM", {"input_forget": 1}),
    "other activations": ("LSTM", {"activations": ["Sigmoid", "Softsign", "Relu"]}),
    "reset after": ("GRU", {"linear_before_reset": 1, "start": True}),
    "reset after, both ways": (
        "GRU",
        {"linear_before_reset": 1, "direction": "bidirectional"},
    ),
    "relu": ("RNN", {"activations": ["Relu"]}),
}


def assert_right(model: onnx.ModelProto) -> Compiled:
    inputs = random_inputs(model)
    expected = run_plainly(model, inputs)
    compiled = tvm_ext.compile(model)
    for ours, theirs in zip(compiled(inputs), expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())
    return compiled


def has_loops(compiled: Compiled) -> bool:
    return any(group.source == "loop" for group in compiled.manifest.groups)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("name", CASES)
def test_layers(op: str, name: str) -> None:
    assert_right(recurrent(op, **CASES[name]))


@pytest.mark.parametrize(
    ("op", "name"),
    list(zip(cycle(["GRU", "LSTM"]), sorted(CASES.keys() - {"one step"}), strict=False)),
)
def test_layers_of_more_steps_are_loops(op: str, name: str) -> None:
    """Where lengths are constants steps are not alike."""
    compiled = assert_right(recurrent(op, steps=MANY, **CASES[name]))
    assert has_loops(compiled) or "lengths" in name


@pytest.mark.parametrize("name", OF_ONE)
def test_options_of_one_operator(name: str) -> None:
    op, options = OF_ONE[name]
    assert_right(recurrent(op, **options))


@pytest.mark.parametrize("op", GATES)
def test_directions_one_after_another(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the weights of both are too large to be side by side."""
    monkeypatch.setattr("tvm_ext.frontend.unroll.JOINT_BYTES", 0)
    assert_right(recurrent(op, direction="bidirectional", start=True))


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("op", GATES)
def test_lengths_that_a_run_says(op: str, joint: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not joint:
        monkeypatch.setattr("tvm_ext.frontend.unroll.JOINT_BYTES", 0)
    options: dict[str, Any] = {"direction": "bidirectional", "start": True}
    model = recurrent(op, steps=MANY, lengths=(1, 1), as_input=True, **options)
    compiled = tvm_ext.compile(model)
    assert has_loops(compiled)
    inputs = random_inputs(model)
    for lengths in ((1, MANY), (MANY, 3), (2, 2)):
        inputs["n"] = np.array(lengths, np.int32)
        for ours, theirs in zip(compiled(inputs), run_plainly(model, inputs), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())


@pytest.mark.parametrize("op", GATES)
def test_batches_first(op: str) -> None:
    """ONNX Runtime has no such layers: one is compared with that of turned inputs."""
    options: dict[str, Any] = {"direction": "bidirectional", "start": True}
    plain, turned = (recurrent(op, layout=layout, **options) for layout in (0, 1))
    inputs = random_inputs(plain)
    first = {name: array.swapaxes(0, 1).copy() for name, array in inputs.items()}
    y, *last = tvm_ext.compile(turned)(first)
    expected = tvm_ext.compile(plain)(inputs)
    np.testing.assert_array_equal(y, expected[0].transpose(2, 0, 1, 3))
    for ours, theirs in zip(last, expected[1:], strict=True):
        np.testing.assert_array_equal(ours, theirs.swapaxes(0, 1))


def test_layers_on_each_other() -> None:
    """As PyTorch exports them: directions are merged by a transposition and a reshape."""
    rng = np.random.default_rng(1)
    constants, nodes, given = {}, [], "x"
    for layer, inputs in enumerate((INPUTS, 2 * HIDDEN)):
        for name, columns in (("w", inputs), ("r", HIDDEN)):
            array = rng.standard_normal((2, 4 * HIDDEN, columns)) / 2
            constants[f"{name}{layer}"] = array.astype(np.float32)
        operands = [given, f"w{layer}", f"r{layer}"]
        nodes += [
            helper.make_node(
                "LSTM", operands, [f"y{layer}"], hidden_size=HIDDEN, direction="bidirectional"
            ),
            helper.make_node("Transpose", [f"y{layer}"], [f"t{layer}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"t{layer}", "shape"], [f"z{layer}"]),
        ]
        given = f"z{layer}"
    constants["shape"] = np.array([0, 0, -1], np.int64)
    assert_right(make_model(nodes, [value("x", STEPS, BATCH, INPUTS)], ["z1"], constants))


def test_steps_share_their_kernels() -> None:
    short, long = (tvm_ext.compile(recurrent("GRU", steps=steps)).manifest for steps in (9, 33))
    assert abs(len(short.groups) - len(long.groups)) <= 1
    assert sum(g.flops * g.calls for g in long.groups) > 3 * sum(
        g.flops * g.calls for g in short.groups
    )


@pytest.mark.parametrize(
    "options",
    [
        {"activations": ["Affine", "Tanh", "Tanh"], "activation_alpha": [2.0]},
        {"steps": 5000},
    ],
)
def test_what_cannot_be_unrolled_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"LSTM.*layer"):
        import_onnx(recurrent("LSTM", **options))
