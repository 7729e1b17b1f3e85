"""Sequences of tensors: their readers read the tensors in them, as ONNX defines it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx_models import random_inputs, run_plainly
from simplify_case import assert_same, operators, simplified

import tvm_ext

TWO = "(float[2,8] x, float[2,8] y)"
SEQUENCES = {"SequenceConstruct", "SequenceInsert", "SequenceErase", "SplitToSequence"}
"""What is left of none of them."""

OF_A_LOOP = "a loop's"
"""Loops hand sequences on from operator set 13 on."""
CASES = {
    "join": f"{TWO} => (float[4,8] z) "
    "{ s = SequenceConstruct(x, y) z = ConcatFromSequence<axis=0>(s) }",
    "stack": f"{TWO} => (float[2,3,8] z) "
    "{ s = SequenceConstruct(x, y, x) z = ConcatFromSequence<axis=1,new_axis=1>(s) }",
    "stack behind": f"{TWO} => (float[2,8,2] z) "
    "{ s = SequenceConstruct(x, y) z = ConcatFromSequence<axis=-1,new_axis=1>(s) }",
    "insert": f"{TWO} => (float[4,8] z) {{ e = SequenceEmpty() s = SequenceInsert(e, x) "
    "i = Constant<value=int64 {0}>() t = SequenceInsert(s, y, i) "
    "z = ConcatFromSequence<axis=0>(t) }",
    "insert before the last": f"{TWO} => (float[6,8] z) {{ s = SequenceConstruct(x, y) r = Relu(x) "
    "i = Constant<value=int64 {-1}>() t = SequenceInsert(s, r, i) "
    "z = ConcatFromSequence<axis=0>(t) }",
    "erase the last": f"{TWO} => (float[2,8] z) {{ s = SequenceConstruct(x, y) "
    "t = SequenceErase(s) z = ConcatFromSequence<axis=0>(t) }",
    "erase": f"{TWO} => (float[2,8] z) {{ s = SequenceConstruct(x, y) "
    "i = Constant<value=int64 {-2}>() t = SequenceErase(s, i) z = ConcatFromSequence<axis=0>(t) }",
    "length": f"{TWO} => (float[2,8] z) {{ s = SequenceConstruct(x, y) n = SequenceLength(s) "
    "f = Cast<to=1>(n) z = Mul(x, f) }",
    "parts": "(float[2,9] x) => (float[2,1] z) { n = Constant<value=int64 {4}>() "
    "s = SplitToSequence<axis=-1>(x, n) i = Constant<value=int64 {2}>() z = SequenceAt(s, i) }",
    "parts of given extents": "(float[2,9] x) => (float[2,5] z) "
    "{ n = Constant<value=int64[2] {4,5}>() s = SplitToSequence<axis=1>(x, n) "
    "i = Constant<value=int64 {1}>() z = SequenceAt(s, i) }",
    "rows": "(float[3,8] x) => (float[8] z) { s = SplitToSequence<axis=0,keepdims=0>(x) "
    "i = Constant<value=int64 {-1}>() z = SequenceAt(s, i) }",
    "rows that stay": "(float[3,8] x) => (float[1,8] z) { s = SplitToSequence<axis=0>(x) "
    "i = Constant<value=int64 {1}>() z = SequenceAt(s, i) }",
    OF_A_LOOP: "(float[5,8] x) => (float[5,8] z) { n = Constant<value=int64 {5}>() "
    "yes = Constant<value=bool {1}>() e = SequenceEmpty() "
    "s = Loop(n, yes, e) <body = b (int64 i, bool on, seq(float[8]) before) => "
    "(bool goes_on, seq(float[8]) after) { goes_on = Identity(on) r = Gather<axis=0>(x, i) "
    "q = Relu(r) after = SequenceInsert(before, q) }> "
    "z = ConcatFromSequence<axis=0,new_axis=1>(s) }",
}


def model(text: str, opset: int = 17) -> onnx.ModelProto:
    header = f'<ir_version: 8, opset_import: ["" : {opset}]> g '
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(header + text))


@pytest.mark.parametrize(
    ("name", "opset"),
    [*((name, 17) for name in CASES), *((name, 11) for name in CASES if name != OF_A_LOOP)],
)
def test_their_tensors_are_read(name: str, opset: int) -> None:
    plain = model(CASES[name], opset)
    result = simplified(plain)
    assert not SEQUENCES & set(operators(result))
    inputs = random_inputs(plain)
    assert_same(run_plainly(result, inputs), run_plainly(plain, inputs))


def test_a_map_goes_as_its_sequence_does() -> None:
    text = """(float[4,8] x, float[4,8] y) => (float[4,8] z) {
        n = Constant<value_int=2>()
        s = SplitToSequence<axis=0>(x, n)
        u = SplitToSequence<axis=0>(y, n)
        t = SequenceMap(s, u)
            <body = b (float[2,8] a, float[2,8] c) => (float[2,8] o) { o = Mul(a, c) }>
        z = ConcatFromSequence<axis=0>(t) }"""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 4, 8), np.float32)
    (found,) = tvm_ext.compile(model(text))({"x": x, "y": y})
    assert np.array_equal(found, x * y)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("s = SequenceConstruct(x, y) z = SequenceAt(s, i)", ("SequenceConstruct", "SequenceAt")),
        (
            "e = SequenceEmpty() s = SequenceErase(e) t = SequenceInsert(s, x) "
            "z = SequenceAt(t, i)",
            ("SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceAt"),
        ),
    ],
)
def test_a_sequence_that_data_choose_from_or_that_is_wrong_stays(
    text: str, left: tuple[str, ...]
) -> None:
    given = TWO.replace(")", ", int64 i)")
    found = operators(simplified(model(f"{given} => (float[2,8] z) {{ {text} }}")))
    assert found == Counter(left)
