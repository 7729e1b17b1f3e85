"""Models of which a length is open: texts, words behind a cache, what goes along the length."""

from __future__ import annotations

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

rng = np.random.default_rng(0)


def text_model() -> onnx.ModelProto:
    """Two heads of eight that look back over words of which some are hidden, 80 at most."""
    nodes = [
        helper.make_node("Shape", ["ids"], ["shape"], start=1),
        helper.make_node("Slice", ["table", "zero", "shape", "zero"], ["positions"]),
        helper.make_node("Gather", ["words", "ids"], ["taken"]),
        helper.make_node("Add", ["taken", "positions"], ["x"]),
        *heads_of("qv"),
        helper.make_node("Transpose", ["kr"], ["kt"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["qh", "kt"], ["scores"]),
        helper.make_node("Squeeze", ["shape", "zero"], ["n"]),
        helper.make_node("Range", ["none", "n", "one"], ["places"]),
        helper.make_node("Unsqueeze", ["places", "ones"], ["column"]),
        helper.make_node("Greater", ["places", "column"], ["later"]),
        helper.make_node("Where", ["later", "hidden", "shown"], ["causal"]),
        helper.make_node("Add", ["scores", "causal"], ["unmasked"]),
        helper.make_node("Add", ["unmasked", "mask"], ["masked"]),
        *attended(),
    ]
    constants: dict[str, np.ndarray] = projections()
    constants |= {"heads": np.array([0, -1, 2, 8]), "flat": np.array([0, -1, 16])}
    constants |= {"words": weights(50, 16), "table": weights(80, 16), "zero": np.array([0])}
    constants |= {"none": np.array(0), "one": np.array(1), "ones": np.array([1])}
    constants |= {"hidden": np.float32(-1e9), "shown": np.float32(0)}
    inputs = [value("ids", 1, "n", dtype=TensorProto.INT64), value("mask", 1, 1, 1, "n")]
    return make_model(nodes, inputs, ["y"], constants)


def test_texts_of_any_length() -> None:
    """Positions are a table's first rows, what is hidden is a matter of distance."""
    model = text_model()
    anywhere = tvm_ext.compile(model, shapes={"n": ("words",)})
    assert [info.shape for info in anywhere.inputs] == [(1, "words"), (1, 1, 1, "words")]
    sources = {group.kind: group.source for group in anywhere.manifest.groups}
    assert sources["attention"] == "picker"
    for words in (1, 2, 5, 16, 33, 79, 80):
        ids = rng.integers(0, 50, (1, words))
        mask = np.where(rng.random((1, 1, 1, words)) < 0.3, -1e9, 0).astype(np.float32)
        mask[..., 0] = 0
        given = {"ids": ids, "mask": mask}
        wanted = run_plainly(model, given)
        np.testing.assert_allclose(anywhere(given)[0], wanted[0], rtol=1e-4, atol=1e-5)
    ids, mask = np.zeros((1, 81), np.int64), np.zeros((1, 1, 1, 81), np.float32)
    with pytest.raises(InputError, match="words: the model has values for 80 at most"):
        anywhere(ids, mask)


def step_model() -> onnx.ModelProto:
    """A word that looks back at itself and at those kept, some of which are hidden."""
    nodes = [
        *behind_kept(),
        helper.make_node("Unsqueeze", ["mask", "axes"], ["bias"]),
        helper.make_node("Add", ["scores", "bias"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "new_values"], ["mixed"]),
        helper.make_node("Reshape", ["mixed", "flat"], ["y"]),
    ]
    constants: dict[str, np.ndarray] = projections()
    constants |= {"heads": np.array([0, 1, 2, 8]), "flat": np.array([1, 1, 16])}
    constants["axes"] = np.array([1, 2])
    kept = [value(name, 1, 2, "past", 8) for name in ("keys", "values")]
    inputs = [value("x", 1, 1, 16), *kept, value("mask", 1, "past + 1")]
    return make_model(nodes, inputs, ["y", "new_keys", "new_values"], constants)


@pytest.mark.parametrize(
    "shapes",
    [
        {"past": ("n",)},
        {"keys": (1, 2, "n", 8), "values": (1, 2, "n", 8), "mask": (1, "n+1")},
    ],
)
def test_a_word_behind_any_number_of_others(shapes: Any) -> None:
    model = step_model()
    anywhere = tvm_ext.compile(model, shapes=shapes)
    assert [info.shape for info in anywhere.inputs[1:]] == [
        *2 * [(1, 2, "n", 8)],
        (1, "n+1"),
    ]
    assert anywhere.outputs[1].shape == (1, 2, "n+1", 8)
    sources = {group.kind: group.source for group in anywhere.manifest.groups}
    assert sources["attention"] == "picker"
    for past in (1, 2, 15, 16, 40):
        given = {
            "x": rng.standard_normal((1, 1, 16)).astype(np.float32),
            "keys": rng.standard_normal((1, 2, past, 8)).astype(np.float32),
            "values": rng.standard_normal((1, 2, past, 8)).astype(np.float32),
            "mask": np.where(rng.random((1, past + 1)) < 0.3, -1e9, 0).astype(np.float32),
        }
        given["mask"][:, -1] = 0
        wanted = run_plainly(model, given)
        for result, expected in zip(anywhere(given), wanted, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=r"'mask': n\+1 is 40, but 41 with 40 for n"):
        anywhere(given | {"mask": given["mask"][:, 1:]})
    with pytest.raises(InputError, match=r"input 'mask': n\+1 is 1, but 41 with 40 for n"):
        anywhere(given | {"mask": given["mask"][:, :1]})


def test_texts_are_checked_as_a_whole() -> None:
    pytest.importorskip("onnxruntime")
    model = text_model()
    found = check_model(tvm_ext.compile(model, shapes={"n": ("words",)}), model)
    assert found is not None
    assert found.error < 1e-4


def test_what_goes_over_the_open_extent() -> None:
    """Averages, extremes and softmaxes: right, if slow."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("ReduceMax", ["x"], ["most"], axes=[1], keepdims=0),
        helper.make_node("Softmax", ["x"], ["soft"], axis=1),
        helper.make_node("LogSoftmax", ["x"], ["log"], axis=1),
    ]
    model = make_model(nodes, [value("x", 2, "n", 6)], ["mean", "most", "soft", "log"])
    anywhere = tvm_ext.compile(model, shapes={"x": (2, "n", 6)})
    for length in (1, 2, 5, 40):
        x = rng.standard_normal((2, length, 6)).astype(np.float32)
        power = np.exp(x - x.max(1, keepdims=True))
        soft = power / power.sum(1, keepdims=True)
        wanted = [x.mean(1), x.max(1), soft, np.log(soft)]
        for result, expected in zip(anywhere(x), wanted, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_products_along_the_open_extent() -> None:
    """Similarities of all words, and what they weigh."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["like"]),
        helper.make_node("MatMul", ["like", "x"], ["y"]),
    ]
    model = make_model(nodes, [value("x", 1, "n", 16)], ["like", "y"])
    anywhere = tvm_ext.compile(model, shapes={"x": (1, "n", 16)})
    for length in (1, 2, 5, 40):
        x = rng.standard_normal((1, length, 16)).astype(np.float32)
        like = x @ x.swapaxes(1, 2)
        for result, expected in zip(anywhere(x), (like, like @ x), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_pairs_that_attend_to_each_other() -> None:
    """The open extent is the batch and the length."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "x"], ["y"]),
    ]
    model = make_model(nodes, [value("x", "n", "n", 16)], ["y"])
    anywhere = tvm_ext.compile(model, shapes={"x": ("n", "n", 16)})
    for size in (1, 2, 6, 19):
        x = rng.standard_normal((size, size, 16)).astype(np.float32)
        wanted = run_plainly(model, {"x": x})
        np.testing.assert_allclose(anywhere(x)[0], wanted[0], rtol=1e-4, atol=1e-5)


def test_places_that_are_counted() -> None:
    """Sums of what comes before are kernels of TVM's, of tensors that may begin anywhere."""
    total = helper.make_node("CumSum", ["mask", "axis"], ["y"])
    inputs = [value("mask", 2, "n", dtype=TensorProto.INT64)]
    model = make_model([total], inputs, ["y"], {"axis": np.array(1)})
    anywhere = tvm_ext.compile(model, shapes={"mask": (2, "n")})
    for words in (1, 5, 40):
        mask = rng.integers(0, 2, (2, words))
        np.testing.assert_array_equal(anywhere(mask)[0], mask.cumsum(1))
