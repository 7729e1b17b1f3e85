"""Models with an extent that every run chooses: batches of any size from one artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from attention_nodes import attended, heads_of, projections, weights
from onnx import TensorProto, helper
from onnx_models import make_model, run_plainly, value
from tiny import tiny_model

import tvm_ext
from tvm_ext.check import check_model
from tvm_ext.errors import InputError, ModelError, ShapeError
from tvm_ext.tvm_api import relax, tirx

rng = np.random.default_rng(0)
BATCHES = [1, 2, 5, 9]


def open_model() -> onnx.ModelProto:
    model = tiny_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    for output in model.graph.output:
        output.type.tensor_type.shape.dim[0].dim_param = "batch"
    return model


def attention_model() -> onnx.ModelProto:
    """Two heads of eight over twelve words, of sentences with masks."""
    heads = np.array([0, 12, 2, 8])
    nodes = [
        *heads_of("qv"),
        helper.make_node("Transpose", ["kr"], ["kt"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["qh", "kt"], ["scores"]),
        helper.make_node("Add", ["scores", "mask"], ["masked"]),
        *attended(),
    ]
    constants: dict[str, np.ndarray] = projections()
    constants |= {"heads": heads, "flat": np.array([0, 12, 16])}
    inputs = [value("x", "n", 12, 16), value("mask", "n", 1, 1, 12)]
    return make_model(nodes, inputs, ["y"], constants)


def test_a_convolutional_network_takes_any_batch(tmp_path: Path) -> None:
    """What a run gives for an image does not depend on the others."""
    model = open_model()
    anywhere = tvm_ext.compile(model, shapes={"x": ("n", 3, 18, 17)})
    assert anywhere.inputs[0].shape == ("n", 3, 18, 17)
    assert [info.shape for info in anywhere.outputs] == [("n", 10), ("n", 24)]
    assert all(group.verified for group in anywhere.manifest.groups)
    assert {group.source for group in anywhere.manifest.groups} == {"picker"}
    one = tvm_ext.compile(model, shapes={"x": (1, 3, 18, 17)})
    work = [{g.kind: (g.flops, g.calls) for g in made.manifest.groups} for made in (anywhere, one)]
    assert work[0] == work[1], "figures are of a batch of one"
    loaded = tvm_ext.load(anywhere.save(tmp_path / "model.so"))
    for batch in BATCHES:
        x = rng.standard_normal((batch, 3, 18, 17)).astype(np.float32)
        wanted = [
            np.concatenate(parts)
            for parts in zip(*(one(x[i : i + 1]) for i in range(batch)), strict=True)
        ]
        for compiled in (anywhere, loaded):
            for result, expected in zip(compiled(x), wanted, strict=True):
                np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_sentences_with_masks() -> None:
    model = attention_model()
    anywhere = tvm_ext.compile(model, shapes={"n": ("sentences",)})
    assert [info.shape[0] for info in anywhere.inputs] == ["sentences"] * 2
    for batch in BATCHES:
        x = rng.standard_normal((batch, 12, 16)).astype(np.float32)
        mask = np.where(rng.random((batch, 1, 1, 12)) < 0.3, -1e9, 0).astype(np.float32)
        given = {"x": x, "mask": mask}
        wanted = run_plainly(model, given)
        np.testing.assert_allclose(anywhere(given)[0], wanted[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="sentences is 3, but 2 in input 'x'"):
        anywhere({"x": x[:2], "mask": np.zeros((3, 1, 1, 12), np.float32)})
    with pytest.raises(InputError, match="shape"):
        anywhere({"x": x[:2, :11], "mask": mask[:2]})


def test_a_loop_over_time() -> None:
    """The batch is no outermost axis of the states of an LSTM."""
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=8)
    constants = {"w": weights(1, 32, 5), "r": weights(1, 32, 8)}
    model = make_model([node], [value("x", 6, "n", 5)], ["y"], constants)
    anywhere = tvm_ext.compile(model, shapes={"x": (6, "n", 5)})
    assert anywhere.outputs[0].shape == (6, 1, "n", 8)
    for batch in BATCHES:
        x = rng.standard_normal((6, batch, 5)).astype(np.float32)
        (wanted,) = run_plainly(model, {"x": x})
        np.testing.assert_allclose(anywhere(x)[0], wanted, rtol=1e-4, atol=1e-5)


def test_the_whole_model_is_compared() -> None:
    pytest.importorskip("onnxruntime")
    model = open_model()
    found = check_model(tvm_ext.compile(model, shapes={"x": ("n", 3, 18, 17)}), model)
    assert found is not None
    assert found.error < 1e-4


def test_a_batch_that_a_node_fixes() -> None:
    reshape = helper.make_node("Reshape", ["x", "shape"], ["y"])
    model = make_model([reshape], [value("x", "n", 6)], ["y"], {"shape": np.array([1, 6])})
    with pytest.raises(ModelError, match=r"^with 74 for n: Reshape"):
        tvm_ext.compile(model, shapes={"x": ("n", 6)})


def test_a_sum_over_the_batch_is_right_if_slow() -> None:
    total = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    model = make_model([total], [value("x", "n", 6)], ["y"], {"axes": np.array([0])})
    anywhere = tvm_ext.compile(model, shapes={"x": ("n", 6)})
    assert anywhere.manifest.groups[0].source == "loose"
    for batch in BATCHES:
        x = rng.standard_normal((batch, 6)).astype(np.float32)
        np.testing.assert_allclose(anywhere(x)[0], x.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "taken", "refused", "limit"),
    [(100, (100, 300), 99, "100 or more"), (512, (1, 512), 513, "512 at most")],
)
def test_what_is_cut_to_a_length_is_seen(
    rows: int, taken: tuple[int, ...], refused: int, limit: str
) -> None:
    """Both numbers that stand for the extent are larger, or smaller: the model would always give
    those rows, or all there are."""
    bounds = {"zero": np.array([0]), "most": np.array([rows])}
    cut = helper.make_node("Slice", ["x", "zero", "most", "zero"], ["y"])
    model = make_model([cut], [value("x", "n", 6)], ["y"], bounds)
    anywhere = tvm_ext.compile(model, shapes={"x": ("n", 6)})
    for n in taken:
        x = rng.standard_normal((n, 6)).astype(np.float32)
        np.testing.assert_array_equal(anywhere(x)[0], x[:rows])
    with pytest.raises(InputError, match=f"^input 'x': n is {refused}; n is {limit}; give"):
        anywhere(np.zeros((refused, 6), np.float32))


@pytest.mark.parametrize("rows", [100, 300])
def test_kernels_are_not_run_with_fewer_rows_than_they_read(rows: int) -> None:
    """Of one row the others would lie megabytes behind its end, where there may be nothing."""
    columns = (3 << 20) // rows
    bounds = {"zero": np.array([0]), "most": np.array([rows])}
    cut = helper.make_node("Slice", ["x", "zero", "most", "zero"], ["c"])
    clip = helper.make_node("Relu", ["c"], ["y"])
    model = make_model([cut, clip], [value("x", "n", columns)], ["y"], bounds)
    anywhere = tvm_ext.compile(model, shapes={"x": ("n", columns)})
    assert anywhere.manifest.fewest == {"n": rows}
    assert all(group.verified for group in anywhere.manifest.groups)
    x = rng.standard_normal((rows + 1, columns)).astype(np.float32)
    np.testing.assert_array_equal(anywhere(x)[0], np.maximum(x[:rows], 0))


def test_the_least_extent_leaves_elements() -> None:
    bounds = {"zero": np.array([0]), "three": np.array([3]), "end": np.array([1 << 40])}
    cut = helper.make_node("Slice", ["x", "three", "end", "zero"], ["y"])
    model = make_model([cut], [value("x", "n", 6)], ["y"], bounds)
    anywhere = tvm_ext.compile(model, shapes={"x": ("n", 6)})
    assert anywhere.manifest.fewest == {"n": 4}
    for batch in (4, 7):
        x = rng.standard_normal((batch, 6)).astype(np.float32)
        np.testing.assert_array_equal(anywhere(x)[0], x[3:])
    for rows in (3, 0):
        with pytest.raises(InputError, match=f"input 'x': n is {rows}; n is 4 or more; give more"):
            anywhere(x[:rows])
    assert anywhere.profile(runs=1).latency_us > 0
    with pytest.raises(InputError, match="profile: 0 runs tell no time; give 1 or more"):
        anywhere.profile(runs=0)


@pytest.mark.parametrize("least", [9, 70])
def test_a_model_of_many_is_compared_at_as_many(least: int) -> None:
    """ONNX Runtime refuses a window that does not fit."""
    pytest.importorskip("onnxruntime")
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    model = make_model([node], [value("x", 1, 4, "n")], ["y"], {"w": weights(4, 4, least)})
    anywhere = tvm_ext.compile(model, shapes={"n": "n"}, verify=False)
    assert anywhere.manifest.fewest == {"n": least}
    found = check_model(anywhere, model)
    assert found is not None
    assert found.error < 1e-4


def test_one_number_or_name_for_a_dimension() -> None:
    model = open_model()
    assert tvm_ext.compile(model, shapes={"batch": 2}, verify=False).inputs[0].shape[0] == 2
    anywhere = tvm_ext.compile(model, shapes={"batch": "batch"}, verify=False)
    assert anywhere.inputs[0].shape[0] == "batch"


def test_what_data_say_the_number_of_is_refused() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("NonZero", ["t"], ["y"])]
    model = make_model(nodes, [value("x", "n")], ["y"])
    with pytest.raises(ShapeError, match="n cannot be left open"):
        tvm_ext.compile(model, shapes={"x": ("n",)})


@pytest.mark.parametrize("words", [461, 462, 31])
def test_a_known_length_like_what_stands_for_the_batch(words: int) -> None:
    """Attention over as many words as the batch is taken to have, or nearly."""
    model = attention_model()
    for initializer in model.graph.initializer:
        if initializer.name in ("heads", "flat"):
            array = onnx.numpy_helper.to_array(initializer).copy()
            array[1] = words
            initializer.CopyFrom(onnx.numpy_helper.from_array(array, initializer.name))
    shapes: Any = {"x": ("n", words, 16), "mask": ("n", 1, 1, words)}
    for one, place in zip(model.graph.input, (1, 3), strict=True):
        one.type.tensor_type.shape.dim[place].dim_value = words
    anywhere = tvm_ext.compile(model, shapes=shapes, verify=False)
    x = rng.standard_normal((2, words, 16)).astype(np.float32)
    given = {"x": x, "mask": np.zeros((2, 1, 1, words), np.float32)}
    wanted = run_plainly(model, given)
    np.testing.assert_allclose(anywhere(given)[0], wanted[0], rtol=1e-4, atol=1e-5)


def test_names_that_are_no_extents() -> None:
    with pytest.raises(ShapeError, match="'batch size' is no extent"):
        tvm_ext.compile(open_model(), shapes={"x": ("batch size", 3, 18, 17)})


def test_what_cannot_be_left_open() -> None:
    with pytest.raises(ShapeError, match="n, a, h, w are left open, 3 can be"):
        tvm_ext.compile(open_model(), shapes={"x": ("n", "a", "h", "w")})
    with pytest.raises(ShapeError, match="fixes it to 1"):
        tvm_ext.compile(tiny_model(), shapes={"x": ("n", 3, 18, 17)})


def softmax_module(*shape: Any) -> Any:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.softmax(x, -1))
        builder.emit_func_output(result)
    return builder.finalize()


def test_a_relax_module_says_itself_what_is_open() -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    others = [tirx.Var(name, "int64") for name in "kl"]
    with pytest.raises(ShapeError, match="n, m, k, l are left open, 3 can be; bind others"):
        tvm_ext.compile(softmax_module(n, m, *others, 24))
    anywhere = tvm_ext.compile(softmax_module(n, 24))
    assert anywhere.inputs[0].shape == ("n", 24)
    for batch in BATCHES:
        given = rng.standard_normal((batch, 24)).astype(np.float32)
        (result,) = anywhere(given)
        np.testing.assert_allclose(result.sum(-1), 1, rtol=1e-5)


def test_tiles_are_tuned(tmp_path: Path) -> None:
    """A log of tiles is found again when the model is compiled."""
    node = helper.make_node("Gemm", ["x", "w"], ["y"])
    model = make_model([node], [value("x", "n", 32)], ["y"], {"w": weights(32, 48)})
    shapes: Any = {"x": ("n", 32)}
    tvm_ext.tune(model, shapes=shapes, trials=6, log=tmp_path / "log.jsonl")
    replayed = tvm_ext.replay(model, tmp_path / "log.jsonl", shapes=shapes)
    assert replayed.manifest.groups[0].source == "log"
    x = rng.standard_normal((7, 32)).astype(np.float32)
    assert replayed(x)[0].shape == (7, 48)


def test_integers_stay_integers() -> None:
    gather = helper.make_node("Gather", ["table", "ids"], ["y"])
    inputs = [value("ids", "n", 4, dtype=TensorProto.INT64)]
    table = weights(20, 8)
    model = make_model([gather], inputs, ["y"], {"table": table})
    anywhere = tvm_ext.compile(model, shapes={"ids": ("n", 4)})
    for batch in BATCHES:
        ids = rng.integers(0, 20, (batch, 4))
        np.testing.assert_array_equal(anywhere(ids)[0], table[ids])


def test_the_number_of_an_image_in_its_batch() -> None:
    """Exporters fold it to a constant as long as the batch."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Range", ["zero", "batch", "one"], ["numbers"]),
        helper.make_node("Cast", ["numbers"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "ones"], ["column"]),
        helper.make_node("Mul", ["column", "x"], ["y"]),
    ]
    constants = {"zero": np.array(0), "one": np.array(1), "ones": np.array([1])}
    model = make_model(nodes, [value("x", "n", 6)], ["y"], constants)
    anywhere = tvm_ext.compile(model, shapes={"x": ("n", 6)})
    for batch in BATCHES:
        x = rng.standard_normal((batch, 6)).astype(np.float32)
        wanted = np.arange(batch, dtype=np.float32)[:, None] * x
        np.testing.assert_allclose(anywhere(x)[0], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("of_sizes", ["Reciprocal", "Sqrt"])
def test_a_number_that_the_extent_makes(of_sizes: str) -> None:
    """One by it is what averages have; a root of it is none of the forms."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["sizes"], to=TensorProto.FLOAT),
        helper.make_node(of_sizes, ["sizes"], ["shares"]),
        helper.make_node("Gather", ["shares", "zero"], ["share"]),
        helper.make_node("Mul", ["x", "share"], ["y"]),
    ]
    model = make_model(nodes, [value("x", "n", 6)], ["y"], {"zero": np.array(0)})
    if of_sizes == "Sqrt":
        with pytest.raises(ShapeError, match="cannot be left open"):
            tvm_ext.compile(model, shapes={"x": ("n", 6)})
        return
    anywhere = tvm_ext.compile(model, shapes={"x": ("n", 6)})
    for batch in BATCHES:
        x = rng.standard_normal((batch, 6)).astype(np.float32)
        np.testing.assert_allclose(anywhere(x)[0], x / batch, rtol=1e-6)


def test_concatenations_of_open_batches_are_places() -> None:
    """Also where a kernel is given nothing but slices, whose flat memory tells no batch, and where
    an operand is an input that has to be copied."""
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["a", "x"], ["b"], axis=1),
        helper.make_node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["b", "r", "p"], ["d"], axis=1),
        helper.make_node("Conv", ["d", "w2"], ["y"]),
    ]
    constants = {"w0": weights(32, 16, 3, 3), "w1": weights(32, 48, 3, 3)}
    constants["w2"] = weights(16, 112, 1, 1)
    model = make_model(nodes, [value("x", "n", 16, 12, 12)], ["y"], constants)
    anywhere = tvm_ext.compile(model, shapes={"x": ("n", 16, 12, 12)})
    names = [group.name for group in anywhere.manifest.groups]
    assert not any(name.startswith("concatenate") for name in names)
    assert any(name.endswith("_sliced") for name in names)
    assert all(group.verified for group in anywhere.manifest.groups)
    for batch in BATCHES:
        x = rng.standard_normal((batch, 16, 12, 12)).astype(np.float32)
        (wanted,) = run_plainly(model, {"x": x})
        bound = 1e-4 * np.abs(wanted).max()
        np.testing.assert_allclose(anywhere(x)[0], wanted, rtol=1e-4, atol=bound)


def test_a_model_that_says_nothing_but_how_many_there_are() -> None:
    """Its functions compute nothing of the data."""
    size = helper.make_node("Size", ["x"], ["y"])
    anywhere = tvm_ext.compile(
        make_model([size], [value("x", "n", 6)], ["y"]), shapes={"x": ("n", 6)}
    )
    for batch in BATCHES:
        assert anywhere(np.zeros((batch, 6), np.float32))[0] == 6 * batch


@pytest.mark.parametrize("axis", [-1, 1])
def test_the_first_of_rows_in_order(axis: int) -> None:
    """Their kernel is written loop by loop, with the cycles it takes, which are rounded."""
    largest = helper.make_node("TopK", ["x", "two"], ["y", "places"], axis=axis)
    model = make_model([largest], [value("x", "n", 7, 5)], ["y", "places"], {"two": np.array([2])})
    anywhere = tvm_ext.compile(model, shapes={"x": ("n", 7, 5)})
    for batch in [*BATCHES, 3000]:
        x = rng.standard_normal((batch, 7, 5)).astype(np.float32)
        y, places = anywhere(x)
        order = np.argsort(-x, axis, kind="stable").take([0, 1], axis)
        np.testing.assert_array_equal(places, order)
        np.testing.assert_array_equal(y, np.take_along_axis(x, order, axis))


def test_planes_that_are_enlarged() -> None:
    scales = {"scales": np.array([1, 1, 2, 2], np.float32)}
    resize = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    model = make_model([resize], [value("x", "n", 3, 14, 14)], ["y"], scales)
    anywhere = tvm_ext.compile(model, shapes={"x": ("n", 3, 14, 14)})
    for batch in BATCHES:
        x = rng.standard_normal((batch, 3, 14, 14)).astype(np.float32)
        one = tvm_ext.compile(model, shapes={"x": (batch, 3, 14, 14)})
        np.testing.assert_allclose(anywhere(x)[0], one(x)[0], rtol=1e-5, atol=1e-6)


def test_what_sorts_integers_is_refused_by_name() -> None:
    """TVM's kernels for them promise less of where tensors lie."""
    largest = helper.make_node("TopK", ["x", "two"], ["y", "places"], axis=1)
    given = value("x", "n", 6, dtype=TensorProto.INT64)
    model = make_model([largest], [given], ["y", "places"], {"two": np.array([2])})
    with pytest.raises(ShapeError, match="cannot be left open"):
        tvm_ext.compile(model, shapes={"x": ("n", 6)})
