"""Random weights keep the signal alive through every layer, and depend on the seed alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import (
    LIGHT_NAMES,
    light,
    make_model,
    random_inputs,
    run_plainly,
    value,
    without_softmax,
)

from tvm_ext.frontend.load import load_onnx
from tvm_ext.frontend.randomise import randomise

pytest.importorskip("onnxruntime")

LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize("name", LIGHT_NAMES)
def test_the_signal_survives_every_layer(name: str) -> None:
    whole = randomise(light(name))
    assert load_onnx(whole) is whole
    model = without_softmax(whole)
    assert "ConstantOfShape" not in {node.op_type for node in model.graph.node}
    layers = [node.output[0] for node in model.graph.node if node.op_type in LINEAR]
    for layer in layers:
        model.graph.output.append(helper.make_tensor_value_info(layer, TensorProto.FLOAT, None))
    logits, *results = run_plainly(model, random_inputs(model))
    assert 1e-2 < logits.std() < 1e2
    for layer, result in zip(layers, results, strict=True):
        assert 1e-2 < result.std() < 1e2, layer
    assert len(np.unique(logits)) > 0.5 * logits.size


def test_the_same_seed_gives_the_same_model() -> None:
    model = light("squeezenet")
    before = model.SerializeToString(deterministic=True)
    first = randomise(model, seed=3).SerializeToString(deterministic=True)
    assert randomise(model, seed=3).SerializeToString(deterministic=True) == first
    assert randomise(model, seed=4).SerializeToString(deterministic=True) != first
    assert model.SerializeToString(deterministic=True) == before


def test_weights_of_its_own_and_numbers_are_kept() -> None:
    trained = np.arange(12, dtype=np.float32).reshape(3, 4)
    model = make_model(
        [
            helper.make_node("MatMul", ["x", "trained"], ["a"]),
            helper.make_node("MatMul", ["a", "blank"], ["b"]),
            helper.make_node("Mul", ["b", "number"], ["c"]),
            helper.make_node("Gather", ["c", "index"], ["y"], axis=1),
        ],
        [value("x", 2, 3)],
        ["y"],
        {
            "trained": trained,
            "blank": np.zeros((4, 5), np.float32),
            "number": np.array([0.125], np.float32),
            "index": np.array([1, 1]),
        },
    )
    found = constants(randomise(model))
    np.testing.assert_array_equal(found["trained"], trained)
    assert found["number"].tolist() == [0.125]
    assert found["index"].tolist() == [1, 1]
    assert len(np.unique(found["blank"])) == 20


def test_every_kind_of_parameter_has_its_range() -> None:
    width = 400
    model = make_model(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Gemm", ["a", "w", "c"], ["b"], transB=1),
            helper.make_node("BatchNormalization", ["b", "g", "s", "m", "v"], ["y"]),
        ],
        [value("x", 1000, width)],
        ["b", "y"],
        {
            "w": np.ones((width, width), np.float32),
            **{name: np.ones(width, np.float32) for name in "cgsmv"},
        },
    )
    result = randomise(model)
    found = constants(result)
    # He et al.: the gain is 2 behind a ReLU.
    assert found["w"].std() == pytest.approx(np.sqrt(2 / width), rel=0.02), (
        "He et al., after a ReLU"
    )
    assert found["c"].std() == pytest.approx(0.1, rel=0.2)
    for name in "gv":
        assert 0.5 <= found[name].min() < 0.6
        assert 1.4 < found[name].max() <= 1.5
    assert abs(found["m"].mean()) < 0.1
    linear, normed = run_plainly(result, random_inputs(result))
    assert linear.std() == pytest.approx(1.0, rel=0.1)
    assert normed.std() == pytest.approx(1.1, rel=0.2)
