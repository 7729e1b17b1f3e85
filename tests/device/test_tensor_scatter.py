"""`TensorScatter`, caches of a fixed length, and attention over them as decoders have it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tvm_ext

RNG = np.random.default_rng(0)
PLACES, NEW, DEPTH = 20, 3, 8


def info(name: str, array: np.ndarray) -> object:
    kind = TensorProto.INT64 if array.dtype == np.int64 else TensorProto.FLOAT
    return helper.make_tensor_value_info(name, kind, array.shape)


def check(nodes: list[object], given: dict[str, np.ndarray], results: list[str]) -> None:
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
    graph = helper.make_graph(nodes, "cache", [info(*one) for one in given.items()], made)
    opsets = [helper.make_opsetid("", 24)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    expected = ReferenceEvaluator(model).run(None, given)
    for y, e in zip(tvm_ext.compile(model)(**given), expected, strict=True):
        np.testing.assert_allclose(y, e, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("axis", [-2, 1])
@pytest.mark.parametrize(
    ("begin", "mode"),
    [([4], "linear"), ([0, 17], "linear"), ([19, 5], "circular"), (None, "linear")],
)
def test_new_places_are_written(axis: int, begin: list[int] | None, mode: str) -> None:
    """Of one text, of two from places of their own on, around the end, and from the first on."""
    batch = 2 if begin is None else len(begin)
    shapes = {"past": [batch, 4, PLACES, DEPTH], "new": [batch, 4, NEW, DEPTH]}
    if axis == 1:
        shapes = {name: [b, n, h, d] for name, (b, h, n, d) in shapes.items()}
    given = {name: RNG.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    if begin is not None:
        given["begin"] = np.array(begin, np.int64)
    node = helper.make_node("TensorScatter", [*given], ["y"], axis=axis, mode=mode)
    check([node], given, ["y"])


@pytest.mark.parametrize("new", [1, 16])
def test_a_decoder_sees_what_was_written(new: int) -> None:
    """Keys and values written behind the past, and attention to as many as there are."""
    cache, step = (1, 2, PLACES + new, DEPTH), (1, 2, new, DEPTH)
    given = {
        **{name: RNG.standard_normal(cache, np.float32) for name in ("past_k", "past_v")},
        **{name: RNG.standard_normal(step, np.float32) for name in ("k", "v")},
        "q": RNG.standard_normal((1, 4, new, DEPTH), np.float32),
        "begin": np.array([9], np.int64),
        "total": np.array([9 + new], np.int64),
    }
    nodes = [
        *(helper.make_node("TensorScatter", [f"past_{n}", n, "begin"], [f"now_{n}"]) for n in "kv"),
        helper.make_node(
            "Attention", ["q", "now_k", "now_v", "", "", "", "total"], ["y"], is_causal=1
        ),
    ]
    check(nodes, given, ["y", "now_k", "now_v"])
