"""`Attention` of ONNX's own domain, as exporters write it from operator set 23 on, against its
definition in onnx: caches, lengths, inputs that are left out, rows that a mask hides whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tvm_ext

RNG = np.random.default_rng(0)
KINDS = {"float32": TensorProto.FLOAT, "bool": TensorProto.BOOL, "int64": TensorProto.INT64}
HEADS, NEW, PAST, DEPTH = 4, 17, 6, 8
PLACES = ("q", "k", "v", "mask", "past_k", "past_v", "lengths")


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def hidden(words: int) -> np.ndarray:
    """A mask of which the third query sees nothing."""
    seen = RNG.random((1, 1, NEW, words)) < 0.7
    seen[..., 2, :] = False
    return seen


def operands(shared: int = HEADS) -> dict[str, np.ndarray]:
    return {"q": floats(1, HEADS, NEW, DEPTH)} | {
        name: floats(1, shared, NEW, DEPTH) for name in "kv"
    }


CASES: dict[str, tuple[dict[str, np.ndarray], dict[str, Any], int]] = {
    "plain": (operands(), {}, 1),
    "mask": (operands() | {"mask": hidden(NEW)}, {}, 1),
    "added": (operands() | {"mask": floats(NEW, NEW)}, {"softcap": 2.0}, 1),
    "added, and all hidden": (
        operands() | {"mask": np.where(hidden(NEW), 0, -np.inf).astype(np.float32)},
        {},
        1,
    ),
    "causal, heads that share keys": (operands(2), {"is_causal": 1}, 1),
    "cache": (
        operands() | {f"past_{name}": floats(1, HEADS, PAST, DEPTH) for name in "kv"},
        {"is_causal": 1},
        3,
    ),
    "cache and mask": (
        operands(2)
        | {f"past_{name}": floats(1, 2, PAST, DEPTH) for name in "kv"}
        | {"mask": hidden(NEW + PAST)},
        {"scale": 0.5},
        3,
    ),
    "lengths": (operands() | {"lengths": np.array([9])}, {}, 1),
    "no words": (operands() | {"lengths": np.array([0])}, {}, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_the_definition(name: str) -> None:
    given, attributes, outputs = CASES[name]
    inputs = [place if place in given else "" for place in PLACES]
    while not inputs[-1]:
        inputs.pop()
    results = ["y", "now_k", "now_v"][:outputs]
    node = helper.make_node("Attention", inputs, results, **attributes)
    infos = [
        helper.make_tensor_value_info(place, KINDS[array.dtype.name], array.shape)
        for place, array in given.items()
    ]
    made = [helper.make_tensor_value_info(result, TensorProto.FLOAT, None) for result in results]
    model = helper.make_model(
        helper.make_graph([node], "attention", infos, made),
        opset_imports=[helper.make_opsetid("", 24)],
        ir_version=10,
    )
    expected = ReferenceEvaluator(model).run(None, given)
    found = tvm_ext.compile(model)(**given)
    for y, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(y, e, rtol=2e-5, atol=2e-6)


def test_the_order_of_words_may_have_any_length() -> None:
    """What hides the words to come is worked out of a length that is left open, and hides no word
    whole: the guard against that is gone."""
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)
    shape = [1, HEADS, "n", DEPTH]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "qkv"]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "attention", infos, [y]),
        opset_imports=[helper.make_opsetid("", 23)],
        ir_version=10,
    )
    compiled = tvm_ext.compile(model, shapes=dict.fromkeys("qkv", shape))
    assert any(group.name.startswith("attention") for group in compiled.manifest.groups)
    for words in (1, 9, 70):
        given = {name: floats(1, HEADS, words, DEPTH) for name in "qkv"}
        (expected,) = ReferenceEvaluator(model).run(None, given)
        (found,) = compiled(**given)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
