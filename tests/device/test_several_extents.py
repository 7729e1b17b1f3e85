"""Models of which several extents are open at once: texts and words, words kept and new ones."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from attention_nodes import attended, behind_kept, heads_of, projections, weights
from onnx import TensorProto, helper
from onnx_models import make_model, run_plainly, value

import tvm_ext
from tvm_ext.check import check_model
from tvm_ext.errors import InputError
from tvm_ext.runtime.executor import Compiled
from tvm_ext.tvm_api import relax, tirx

rng = np.random.default_rng(0)
TEXTS = {"texts": ("texts",), "words": ("words",)}


@cache
def text_model() -> onnx.ModelProto:
    """Two heads of eight that look back over words of which some are hidden: exporters write the
    mask for every text, and take places from the shape."""
    nodes = [
        helper.make_node("Shape", ["ids"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["n"]),
        helper.make_node("Range", ["none", "n", "step"], ["places"]),
        helper.make_node("Expand", ["places", "shape"], ["all_places"]),
        helper.make_node("Gather", ["words", "ids"], ["taken"]),
        helper.make_node("Gather", ["table", "all_places"], ["positions"]),
        helper.make_node("Add", ["taken", "positions"], ["x"]),
        *heads_of("qv"),
        helper.make_node("Transpose", ["kr"], ["kt"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["qh", "kt"], ["scores"]),
        helper.make_node("Unsqueeze", ["places", "one"], ["column"]),
        helper.make_node("LessOrEqual", ["places", "column"], ["before"]),
        helper.make_node("Cast", ["mask"], ["shown"], to=TensorProto.BOOL),
        helper.make_node("Unsqueeze", ["shown", "inner"], ["shown_keys"]),
        helper.make_node("And", ["before", "shown_keys"], ["seen"]),
        helper.make_node("Where", ["seen", "zero", "hidden"], ["bias"]),
        helper.make_node("Add", ["scores", "bias"], ["masked"]),
        *attended(),
    ]
    constants: dict[str, np.ndarray] = projections()
    constants |= {"heads": np.array([0, -1, 2, 8]), "flat": np.array([0, -1, 16])}
    constants |= {"words": weights(50, 16), "table": weights(600, 16), "first": np.array(1)}
    constants |= {"none": np.array(0), "step": np.array(1), "one": np.array([1])}
    constants |= {"inner": np.array([1, 2]), "zero": np.float32(0), "hidden": np.float32(-1e9)}
    inputs = [value(name, "texts", "words", dtype=TensorProto.INT64) for name in ("ids", "mask")]
    return make_model(nodes, inputs, ["y"], constants)


@cache
def texts() -> Compiled:
    return tvm_ext.compile(text_model(), shapes=TEXTS)


def given(count: int, words: int) -> dict[str, np.ndarray]:
    mask = np.ones((count, words), np.int64)
    mask[count // 2, 1 + words // 2 :] = 0
    return {"ids": rng.integers(0, 50, (count, words)), "mask": mask}


def test_any_number_of_texts_of_any_length() -> None:
    anywhere = texts()
    assert [info.shape for info in anywhere.inputs] == [("texts", "words")] * 2
    assert anywhere.outputs[0].shape == ("texts", "words", 16)
    sources = {group.kind: group.source for group in anywhere.manifest.groups}
    assert sources["attention"] == "picker"
    assert "none" not in sources.values(), sources
    for count, words in product((1, 2, 7), (1, 2, 15, 33, 130)):
        inputs = given(count, words)
        wanted = run_plainly(text_model(), inputs)
        np.testing.assert_allclose(anywhere(inputs)[0], wanted[0], rtol=1e-4, atol=1e-5)


def test_its_memory_takes_turns_and_fits_the_largest() -> None:
    """Small runs between large ones find nothing of them."""
    anywhere = texts()
    inputs = [given(count, words) for count, words in ((7, 130), (1, 3), (3, 64), (1, 3))]
    before = [anywhere(each)[0] for each in inputs]
    for each, result in zip(reversed(inputs), reversed(before), strict=True):
        np.testing.assert_array_equal(anywhere(each)[0], result)


def test_what_is_given_is_checked_by_name() -> None:
    inputs = given(3, 5)
    with pytest.raises(InputError, match="input 'mask': words is 4, but 5 in input 'ids'"):
        texts()(inputs | {"mask": inputs["mask"][:, :4]})
    with pytest.raises(InputError, match="words: the model has values for 600 at most"):
        texts()(given(1, 601))
    with pytest.raises(InputError, match="words: the model has values for 600 at most"):
        texts().profile(given(1, 601), runs=1)


def test_it_is_checked_as_a_whole_and_replayed(tmp_path: Any) -> None:
    pytest.importorskip("onnxruntime")
    found = check_model(texts(), text_model(), whole=True)
    assert found is not None
    saved = texts().save(tmp_path / "texts.so")
    again = tvm_ext.load(saved)
    inputs = given(2, 9)
    np.testing.assert_array_equal(again(inputs)[0], texts()(inputs)[0])
    assert again.profile(runs=1).latency_us > 0


def side_by_side() -> onnx.ModelProto:
    """Rows of two inputs, windows of 25 over them, and a third input as long as both."""
    nodes = [
        helper.make_node("Concat", ["x", "z"], ["t"], axis=2),
        helper.make_node("Add", ["t", "w"], ["u"]),
        helper.make_node("Conv", ["u", "taps"], ["y"]),
    ]
    inputs = [value("x", 1, 4, "a"), value("z", 1, 4, "b"), value("w", 1, 4, "c")]
    return make_model(nodes, inputs, ["y"], {"taps": weights(4, 4, 25)})


def test_sums_are_checked_and_large_enough() -> None:
    shapes: Any = {"x": (1, 4, "p"), "z": (1, 4, "n"), "w": (1, 4, "p+n")}
    anywhere = tvm_ext.compile(side_by_side(), shapes=shapes, verify=False)
    assert anywhere.manifest.fewest == {"n+p": 25}

    def run(*lengths: int) -> Any:
        return anywhere(*(np.zeros((1, 4, length), np.float32) for length in lengths))[0]

    assert run(12, 14, 26).shape == (1, 4, 2)
    with pytest.raises(
        InputError, match=r"input 'w': p\+n is 27, but 26 with 12 for p and 14 for n"
    ):
        run(12, 14, 27)
    with pytest.raises(InputError, match=r"inputs: n\+p is 24; n\+p is 25 or more; give more"):
        run(10, 14, 24)
    assert anywhere.profile(runs=1).latency_us > 0


def test_products_are_checked() -> None:
    nodes = [helper.make_node(op, [a], [b]) for op, a, b in (("Relu", "w", "y"), ("Exp", "x", "e"))]
    nodes.append(helper.make_node("Exp", ["z"], ["f"]))
    model = make_model(nodes, [value(name, name, 4) for name in "xzw"], ["y", "e", "f"])
    anywhere = tvm_ext.compile(model, shapes={"x": "b", "z": "n", "w": "b*n"}, verify=False)
    assert anywhere.inputs[2].shape == ("b*n", 4)
    x, z, w = (np.ones((rows, 4), np.float32) for rows in (3, 2, 6))
    np.testing.assert_array_equal(anywhere(x, z, w)[0], w)
    with pytest.raises(InputError, match=r"input 'w': b\*n is 5, but 6 with 3 for b and 2 for n"):
        anywhere(x, z, w[:5])


def step_model() -> onnx.ModelProto:
    """New words that look back at those kept and, in turn, at each other."""
    nodes = [
        *behind_kept(),
        helper.make_node("Shape", ["mask"], ["all"], start=1),
        helper.make_node("Shape", ["keys"], ["kept"], start=2, end=3),
        helper.make_node("Squeeze", ["all", "none"], ["last"]),
        helper.make_node("Squeeze", ["kept", "none"], ["begin"]),
        helper.make_node("Range", ["zero", "last", "step"], ["key_places"]),
        helper.make_node("Range", ["begin", "last", "step"], ["query_places"]),
        helper.make_node("Unsqueeze", ["query_places", "one"], ["column"]),
        helper.make_node("LessOrEqual", ["key_places", "column"], ["before"]),
        helper.make_node("Where", ["before", "shown", "hidden"], ["causal"]),
        helper.make_node("Add", ["scores", "causal"], ["later"]),
        helper.make_node("Unsqueeze", ["mask", "axes"], ["bias"]),
        helper.make_node("Add", ["later", "bias"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "new_values"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "flat"], ["y"]),
    ]
    constants: dict[str, np.ndarray] = projections()
    constants |= {"heads": np.array([0, -1, 2, 8]), "flat": np.array([0, -1, 16])}
    constants |= {"axes": np.array([1, 2]), "none": np.array([0]), "zero": np.array(0)}
    constants |= {"step": np.array(1), "one": np.array([1])}
    constants |= {"hidden": np.float32(-1e9), "shown": np.float32(0)}
    kept = [value(name, "texts", 2, "past", 8) for name in ("keys", "values")]
    inputs = [value("x", "texts", "new", 16), *kept, value("mask", "texts", "past + new")]
    return make_model(nodes, inputs, ["y", "new_keys", "new_values"], constants)


def test_new_words_behind_others() -> None:
    model = step_model()
    shapes: Any = {name: (name,) for name in ("texts", "new", "past")}
    anywhere = tvm_ext.compile(model, shapes=shapes)
    assert anywhere.inputs[3].shape == ("texts", "new+past")
    assert anywhere.outputs[1].shape == ("texts", 2, "new+past", 8)
    assert anywhere.manifest.fewest == {"past": 0}, "nothing but what is given is empty then"
    sizes = ((1, 1, 1), (1, 40, 1), (3, 5, 2), (2, 16, 17), (1, 0, 1), (3, 0, 9), (4, 130, 1))
    for count, past, new in sizes:
        inputs = {
            "x": rng.standard_normal((count, new, 16)).astype(np.float32),
            "keys": rng.standard_normal((count, 2, past, 8)).astype(np.float32),
            "values": rng.standard_normal((count, 2, past, 8)).astype(np.float32),
            "mask": np.where(rng.random((count, past + new)) < 0.3, -1e9, 0).astype(np.float32),
        }
        inputs["mask"][:, 0] = 0
        wanted = run_plainly(model, inputs)
        for result, expected in zip(anywhere(inputs), wanted, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=r"'mask': new\+past is 130, but 131 with 1 for new"):
        anywhere(inputs | {"mask": inputs["mask"][:, 1:]})


def test_a_relax_module_of_two() -> None:
    n, m = (tirx.Var(name, "int64") for name in "nm")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((n, m, 24), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            summed = builder.emit(relax.op.sum(relax.op.exp(x), [1], keepdims=True))
            result = builder.emit_output(relax.op.divide(x, summed))
        builder.emit_func_output(result)
    anywhere = tvm_ext.compile(builder.finalize())
    assert anywhere.inputs[0].shape == ("n", "m", 24)
    for shape in product((1, 3, 31), (1, 2, 65)):
        array = rng.standard_normal((*shape, 24)).astype(np.float32)
        wanted = array / np.exp(array).sum(1, keepdims=True)
        np.testing.assert_allclose(anywhere(array)[0], wanted, rtol=1e-5, atol=1e-6)


def test_experts_of_each_word() -> None:
    """The router of a mixture: the best two of eight, and their shares."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["all_shares"], axis=-1),
        helper.make_node("TopK", ["all_shares", "two"], ["best", "experts"], axis=-1),
        helper.make_node("ReduceSum", ["best", "last"], ["total"]),
        helper.make_node("Div", ["best", "total"], ["shares"]),
    ]
    w = weights(16, 8)
    constants = {"w": w, "two": np.array([2]), "last": np.array([-1])}
    model = make_model(nodes, [value("x", "texts", "words", 16)], ["shares", "experts"], constants)
    anywhere = tvm_ext.compile(model, shapes=TEXTS)
    for count, length in [(1, 1), (3, 5), (40, 64)]:
        x = rng.standard_normal((count, length, 16)).astype(np.float32)
        shares, experts = anywhere(x)
        scores = (x @ w).astype(np.float64)
        order = np.argsort(-scores, -1)[..., :2]
        best = np.exp(np.take_along_axis(scores, order, -1))
        np.testing.assert_array_equal(experts, order)
        np.testing.assert_allclose(shares, best / best.sum(-1, keepdims=True), rtol=1e-4)


CACHES = ("keys", "values")
BEHIND = {"x": (1, "new", 4), "past": (1, "kept", 4)}


@cache
def positions(made: str) -> onnx.ModelProto:
    """What stands at the places of new words, behind those that are kept: rows of a table, by a
    slice or one by one, or cosines."""
    nodes = [
        helper.make_node("Shape", ["x"], ["new"], start=1, end=2),
        helper.make_node("Shape", ["past"], ["kept"], start=1, end=2),
        helper.make_node("Add", ["kept", "new"], ["all"]),
        helper.make_node("Squeeze", ["kept"], ["first"]),
        helper.make_node("Squeeze", ["all"], ["end"]),
        helper.make_node("Range", ["first", "end", "step"], ["places"]),
        helper.make_node("Cast", ["places"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["numbers", "one"], ["column"]),
        helper.make_node("Mul", ["column", "speeds"], ["angles"]),
        {
            "slice": helper.make_node("Slice", ["table", "kept", "all", "none"], ["rows"]),
            "gather": helper.make_node("Gather", ["table", "places"], ["rows"]),
            "cosines": helper.make_node("Cos", ["angles"], ["rows"]),
        }[made],
        helper.make_node("Mul", ["x", "rows"], ["y"]),
    ]
    constants = {"table": weights(600, 4), "none": np.array([0]), "step": np.array(1)}
    constants |= {"one": np.array([1]), "speeds": np.array([1, 0.3, 0.1, 0.03], np.float32)}
    inputs = [value("x", 1, "new", 4), value("past", 1, "kept", 4)]
    return make_model(nodes, inputs, ["y"], constants)


@pytest.mark.parametrize("order", [("x", "past"), ("past", "x")])
@pytest.mark.parametrize("made", ["slice", "gather", "cosines"])
def test_positions_behind_others(made: str, order: tuple[str, str]) -> None:
    model = positions(made)
    anywhere = tvm_ext.compile(model, shapes={name: BEHIND[name] for name in order})
    table = onnx.numpy_helper.to_array(model.graph.initializer[0])
    speeds = onnx.numpy_helper.to_array(model.graph.initializer[-1])
    for new, kept in [(1, 1), (5, 7), (1, 599), (64, 200)]:
        x = rng.standard_normal((1, new, 4)).astype(np.float32)
        past = np.zeros((1, kept, 4), np.float32)
        (y,) = anywhere({"x": x, "past": past})
        places = np.arange(kept, kept + new)
        rows = np.cos(places[:, None] * speeds) if made == "cosines" else table[places]
        np.testing.assert_allclose(y, x * rows, rtol=1e-4, atol=1e-4)
    if made != "cosines":
        more = r"the model has values for 600 at most|kept\+new is 601; kept\+new is 600 at most"
        with pytest.raises(InputError, match=more):
            anywhere({"x": x, "past": np.zeros((1, 537, 4), np.float32)})


@pytest.mark.parametrize("made", ["slice", "gather"])
def test_the_position_of_one_word_behind_others(made: str) -> None:
    model = positions(made)
    anywhere = tvm_ext.compile(model, shapes=BEHIND | {"x": (1, 1, 4)})
    table = onnx.numpy_helper.to_array(model.graph.initializer[0])
    x = rng.standard_normal((1, 1, 4)).astype(np.float32)
    for kept in (1, 7, 599):
        (y,) = anywhere({"x": x, "past": np.zeros((1, kept, 4), np.float32)})
        np.testing.assert_allclose(y, x * table[kept], rtol=1e-6)
    with pytest.raises(InputError, match="kept and what follows: the model has values for 600"):
        anywhere({"x": x, "past": np.zeros((1, 600, 4), np.float32)})
