"""Operators in the terms of others: the same numbers, where they are none and far out as well."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import make_model, run_plainly, value
from simplify_case import operators, simplified

import tvm_ext

pytest.importorskip("onnxruntime")


def mish(whole: bool) -> onnx.ModelProto:
    parts = [
        helper.make_node("Softplus", ["x"], ["s"]),
        helper.make_node("Tanh", ["s"], ["t"]),
        helper.make_node("Mul", ["x", "t"], ["y"]),
    ]
    nodes = [helper.make_node("Mish", ["x"], ["y"])] if whole else parts
    return make_model(nodes, [value("x", 4, 97)], ["y"], opset=18)


@pytest.mark.parametrize("whole", [False, True])
def test_mish(whole: bool) -> None:
    x = np.concatenate(
        [np.linspace(-90, 90, 380), [np.nan, np.inf, -0.0, 1e-30, 3e38, 20, 19.99, -200]]
    )
    x = x.astype("float32").reshape(4, 97)
    left = simplified(mish(whole))
    assert not operators(left).keys() & {"Softplus", "Tanh", "Mish"}
    wide = x.astype("float64")
    exact = wide * np.tanh(np.log1p(np.exp(np.minimum(wide, 700))))
    (found,) = tvm_ext.compile(mish(whole))(x)
    np.testing.assert_allclose(found, exact, rtol=2e-6, atol=1e-36)
    (plain,) = run_plainly(left, {"x": x})
    np.testing.assert_allclose(plain, exact, rtol=2e-6, atol=1e-36)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization(p: int, axis: int) -> None:
    node = helper.make_node("LpNormalization", ["x"], ["y"], axis=axis, p=p)
    model = make_model([node], [value("x", 3, 5, 7)], ["y"])
    x = np.random.default_rng(0).standard_normal((3, 5, 7)).astype("float32")
    x[1] = 0
    (found,) = tvm_ext.compile(model)(x)
    np.testing.assert_allclose(found, run_plainly(model, {"x": x})[0], rtol=1e-6, atol=1e-7)
    assert not operators(simplified(model)).keys() & {"LpNormalization"}


@pytest.mark.parametrize(
    ("chosen", "shape", "left"),
    [
        (np.zeros((4, 1), bool), (4, 5), 0),
        (np.ones((1,), bool), (4, 5), 0),
        (np.eye(4, 5, dtype=bool), (4, 5), 1),
        (np.zeros((3, 1, 1), bool), (4, 5), 1),  # whose result is larger than either side
    ],
)
def test_a_choice_of_one_side(chosen: np.ndarray, shape: tuple[int, ...], left: int) -> None:
    nodes = [
        helper.make_node("Relu", ["a"], ["x"]),
        helper.make_node("Neg", ["a"], ["y"]),
        helper.make_node("Where", ["chosen", "x", "y"], ["z"]),
    ]
    model = make_model(nodes, [value("a", *shape)], ["z"], {"chosen": chosen})
    assert operators(simplified(model))["Where"] == left
    a = np.random.default_rng(0).standard_normal(shape, np.float32)
    (found,) = tvm_ext.compile(model)(a)
    np.testing.assert_array_equal(found, np.where(chosen, np.maximum(a, 0), -a))


@pytest.mark.parametrize("negative", [0, 1])
@pytest.mark.parametrize("positive", [0, 1])
def test_infinities_of_a_sign(negative: int, positive: int) -> None:
    node = helper.make_node(
        "IsInf", ["x"], ["y"], detect_negative=negative, detect_positive=positive
    )
    model = make_model([node], [value("x", 5)], ["y"])
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.BOOL
    x = np.array([np.inf, -np.inf, np.nan, 3, np.finfo("float32").max], "float32")
    (found,) = tvm_ext.compile(model)(x)
    assert found.tolist() == [bool(positive), bool(negative), False, False, False]


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("depth", [np.array(5), np.array([5]), np.array([5.0], "float32")], ids=str)
def test_one_hot(depth: np.ndarray, axis: int, opset: int) -> None:
    """The importer reads a depth of rank 0 alone, which exporters of TensorFlow's do not write."""
    node = helper.make_node("OneHot", ["x", "depth", "values"], ["y"], axis=axis)
    constants = {"depth": depth, "values": np.array([-1, 3], "float32")}
    indices = helper.make_tensor_value_info("x", onnx.TensorProto.INT32, [3, 7])
    model = make_model([node], [indices], ["y"], constants, opset=opset)
    x = np.random.default_rng(0).integers(-8, 8, (3, 7)).astype("int32")  # beyond: all off
    (found,) = tvm_ext.compile(model)(x)
    expected = np.where((x[..., None] % 5 == np.arange(5)) & (abs(x + 0.5) < 5)[..., None], 3, -1)
    np.testing.assert_array_equal(found, np.moveaxis(expected, -1, axis))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "NOTSET"])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((10, 13), {"strides": [2, 2]}),
        ((10, 14), {"strides": [2, 2]}),
        ((9, 14), {"strides": [2, 2], "output_padding": [1, 1]}),
        ((16, 22), {"strides": [3, 3]}),
        ((7, 9), {"dilations": [2, 1]}),
    ],
    ids=str,
)
def test_transposed_convolution_to_a_shape(
    shape: tuple[int, ...], options: dict[str, list[int]], auto_pad: str
) -> None:
    """As TensorFlow's exporter writes them."""
    options = options | {"output_shape": list(shape)}
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], auto_pad=auto_pad, **options)
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((3, 2, 3, 3)).astype("float32"),
        "b": np.array([1, -2], "float32"),
    }
    model = make_model([node], [value("x", 1, 3, 5, 7)], ["y"], constants)
    x = rng.standard_normal((1, 3, 5, 7)).astype("float32")
    (found,) = tvm_ext.compile(model)(x)
    (expected,) = run_plainly(model, {"x": x})
    assert found.shape == expected.shape == (1, 2, *shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kinds", [("float32", "int64"), ("int32", "float32")], ids=str)
def test_power_of_two_types(kinds: tuple[str, str]) -> None:
    names = [helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in kinds]
    node = helper.make_node("Pow", ["x", "e"], ["y"])
    inputs = [
        helper.make_tensor_value_info(name, kind, [5])
        for name, kind in zip("xe", names, strict=True)
    ]
    x = np.array([-2, 0, 1, 3, 7], kinds[0])
    e = np.array([3, 2, 5, 2, 3], kinds[1])
    (found,) = tvm_ext.compile(make_model([node], inputs, ["y"]))(x, e)
    np.testing.assert_allclose(found, [-8, 0, 1, 9, 343], rtol=1e-6)


@pytest.mark.parametrize(
    ("image", "block", "options"),
    [
        ((6, 8), (2, 4), {"strides": [2, 4]}),
        ((7, 9), (3, 3), {}),
        ((8, 8), (3, 3), {"strides": [2, 2], "pads": [1, 0, 1, 1]}),
        ((9, 10), (2, 3), {"strides": [3, 2], "dilations": [2, 1]}),
        ((12,), (3,), {"strides": [3]}),
    ],
    ids=str,
)
def test_columns_to_an_image(
    image: tuple[int, ...], block: tuple[int, ...], options: dict[str, list[int]]
) -> None:
    rank = len(block)
    pads = options.get("pads", [0] * 2 * rank)
    strides, dilations = (options.get(name, [1] * rank) for name in ("strides", "dilations"))
    counts = [
        (image[d] + pads[d] + pads[rank + d] - dilations[d] * (block[d] - 1) - 1) // strides[d] + 1
        for d in range(rank)
    ]
    node = helper.make_node("Col2Im", ["x", "image", "block"], ["y"], **options)
    shape = (2, 3 * int(np.prod(block)), int(np.prod(counts)))
    constants = {"image": np.array(image, np.int64), "block": np.array(block, np.int64)}
    model = make_model([node], [value("x", *shape)], ["y"], constants, opset=18)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    (found,) = tvm_ext.compile(model)(x)
    np.testing.assert_allclose(found, run_plainly(model, {"x": x})[0], rtol=1e-6, atol=1e-6)


def test_a_grid_of_doubles_samples_as_one_of_floats() -> None:
    """ONNX Runtime has no such kernel, and is given floats."""

    def model(kind: int) -> onnx.ModelProto:
        node = helper.make_node("GridSample", ["x", "grid"], ["y"], padding_mode="border")
        grid = helper.make_tensor_value_info("grid", kind, (1, 5, 6, 2))
        return make_model([node], [value("x", 1, 3, 8, 9), grid], ["y"])

    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 3, 8, 9)).astype("float32")
    grid = rng.uniform(-1.2, 1.2, (1, 5, 6, 2))
    (found,) = tvm_ext.compile(model(onnx.TensorProto.DOUBLE))(x, grid)
    floats = {"x": x, "grid": grid.astype("float32")}
    (expected,) = run_plainly(model(onnx.TensorProto.FLOAT), floats)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def softmax_in_primitives(x: str, y: str, maximum: onnx.NodeProto) -> list[onnx.NodeProto]:
    """y of x and its maximum m; the sum is taken over `total`."""
    return [
        maximum,
        helper.make_node("Sub", [x, "m"], ["d"]),
        helper.make_node("Exp", ["d"], ["e"]),
        helper.make_node("ReduceSum", ["e", "total"], ["s"]),
        helper.make_node("Div", ["e", "s"], [y]),
    ]


def powers_over_their_sum(top: list[int], total: list[int], opset: int = 17) -> onnx.ModelProto:
    """Softmax in primitives, over axes of x [3, 5, 7]; from 18 on the maximum's are an input."""
    axes = {"top": np.array(top, "int64"), "total": np.array(total, "int64")}
    maximum = (
        helper.make_node("ReduceMax", ["x", "top"], ["m"])
        if opset >= 18
        else helper.make_node("ReduceMax", ["x"], ["m"], axes=top)
    )
    nodes = softmax_in_primitives("x", "y", maximum)
    return make_model(nodes, [value("x", 3, 5, 7)], ["y"], axes, opset=opset)


@pytest.mark.parametrize(
    ("top", "total", "opset"), [([2], [-1], 17), ([1], [1], 17), ([-3], [0], 18), ([-1], [2], 18)]
)
def test_softmax_in_primitives(top: list[int], total: list[int], opset: int) -> None:
    model = powers_over_their_sum(top, total, opset)
    left = operators(simplified(model))
    assert "Softmax" in left
    assert not left.keys() & {"Exp", "ReduceMax", "ReduceSum", "Div"}
    x = 100 * np.random.default_rng(0).standard_normal((3, 5, 7)).astype("float32")
    x[0, 1:3, 2:5] = -np.inf
    (found,) = tvm_ext.compile(model)(x)
    np.testing.assert_allclose(found, run_plainly(model, {"x": x})[0], rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize(("top", "total"), [([2], [1]), ([1, 2], [1, 2])])
def test_what_is_no_softmax(top: list[int], total: list[int]) -> None:
    assert "Softmax" not in operators(simplified(powers_over_their_sum(top, total)))


def test_attention_is_found_by_a_softmax_in_primitives() -> None:
    maximum = helper.make_node("ReduceMax", ["scores"], ["m"], axes=[3])
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        *softmax_in_primitives("scores", "p", maximum),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    taken = [value("q", 1, 4, 33, 16), value("k", 1, 4, 16, 33), value("v", 1, 4, 33, 16)]
    model = make_model(nodes, taken, ["y"], {"total": np.array([3], "int64")})
    compiled = tvm_ext.compile(model)
    assert "attention" in {group.plan.rule for group in compiled.manifest.groups if group.plan}
    rng = np.random.default_rng(0)
    given = {i.name: rng.standard_normal(i.shape).astype("float32") for i in compiled.inputs}
    np.testing.assert_allclose(
        compiled(given)[0], run_plainly(model, given)[0], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("outputs", [["y"], ["y", "mean_out", "variance_out"]])
@pytest.mark.parametrize(("shape", "opset"), [((2, 6, 5, 4), 17), ((3, 5, 7), 18)])
def test_batch_norm_by_the_batch(shape: tuple[int, ...], opset: int, outputs: list[str]) -> None:
    """With `training_mode` the statistics are those of the input; the running ones move on."""
    random = np.random.default_rng(0)
    names = ("scale", "bias", "mean", "variance")
    rows = [random.uniform(0.5, 1.5, shape[1]).astype("float32") for _ in names]
    node = helper.make_node(
        "BatchNormalization", ["x", *names], outputs, epsilon=1e-3, momentum=0.8, training_mode=1
    )
    graph = helper.make_graph(
        [node],
        "norm",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [onnx.numpy_helper.from_array(row, name) for row, name in zip(rows, names, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    x = 3 * random.standard_normal(shape).astype("float32") + 1
    wanted = ReferenceEvaluator(model).run(None, {"x": x})
    for found, expected in zip(tvm_ext.compile(model)(x), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_standardised_weights_are_weights() -> None:
    """What some networks do to their weights in every run is done once."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((1, 8, 3 * 3 * 4)).astype("float32")
    ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
    rows = {"w": weights, "s": ones, "b": zeros, "m": zeros, "v": ones}
    rows["to"] = np.array([8, 4, 3, 3], np.int64)
    nodes = [
        helper.make_node("BatchNormalization", [*"wsbmv"], ["n", "p", "q"], training_mode=1),
        helper.make_node("Reshape", ["n", "to"], ["k"]),
        helper.make_node("Conv", ["x", "k"], ["y"]),
    ]
    model = make_model(nodes, [value("x", 1, 4, 9, 9)], ["y"], rows)
    assert set(operators(simplified(model))) == {"Conv"}
    x = random.standard_normal((1, 4, 9, 9)).astype("float32")
    (found,) = tvm_ext.compile(model)(x)
    np.testing.assert_allclose(found, run_plainly(model, {"x": x})[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "box", "left"),
    [
        ((2, 5, 7), [(0, 2), (1, 5), (2, 6)], {"Relu", "Slice", "Concat"}),
        ((3, 4, 5, 6), [(0, 3), (0, 4), (1, 5), (0, 6)], {"Relu", "Slice", "Concat"}),
        ((4, 6), [(1, 3)], {"Relu", "Slice", "Concat"}),
        ((2, 5, 7), [(0, 2), (0, 5)], {"Relu"}),
    ],
    ids=["inner", "one axis", "rows", "all"],
)
def test_scattering_a_box_is_putting_it_there(
    shape: tuple[int, ...], box: list[tuple[int, int]], left: set[str]
) -> None:
    counted = np.meshgrid(*[np.arange(*ends) for ends in box], indexing="ij")
    indices = np.stack(counted, -1).astype("int64")
    put = (*indices.shape[:-1], *shape[len(box) :])
    random = np.random.default_rng(0)
    x, u = (random.standard_normal(s).astype("float32") for s in (shape, put))
    model = scattering(shape, put, indices)
    assert set(operators(simplified(model))) == left
    np.testing.assert_array_equal(
        tvm_ext.compile(model)(x, u)[0], run_plainly(model, {"x": x, "u": u})[0]
    )


def scattering(
    shape: tuple[int, ...], put: tuple[int, ...], indices: np.ndarray
) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["u"], ["r"]),
        helper.make_node("ScatterND", ["x", "i", "r"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    inputs = [value("x", *shape), value("u", *put)]
    return make_model(nodes, inputs, ["y"], {"i": indices})


@pytest.mark.parametrize("rows", [[2, 1, 3], [0, 2, 4], [1, 1, 2], [-1, 0, 1]])
def test_other_indices_are_scattered(rows: list[int]) -> None:
    """Out of order, with gaps, twice the same, from the end: no box."""
    indices = np.array(rows, np.int64).reshape(-1, 1)
    model = scattering((5, 4), (3, 4), indices)
    assert "ScatterND" in operators(simplified(model))
