"""Operators that move elements, or say what lies where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_cases import check_case
from onnx_models import make_model, value

import tvm_ext


@pytest.mark.parametrize(
    "name",
    [
        "eyelike_populate_off_main_diagonal",
        "eyelike_with_dtype",
        "reversesequence_batch",
        "reversesequence_bfloat16",
        "reversesequence_time",
        "spacetodepth_crd_mode_example",
    ],
)
def test_cases(name: str) -> None:
    check_case(name)


@pytest.mark.parametrize("times", [0, 1])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("shape", [(5, 3), (4, 1, 7), (1, 6, 2, 3)])
def test_beginnings_of_sequences_are_reversed(
    shape: tuple[int, ...], known: bool, times: int
) -> None:
    x = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    batch = shape[1 - times]
    lengths = np.array([1, shape[times], 2, 3])[np.arange(batch) % 4].clip(1, shape[times])
    node = helper.make_node(
        "ReverseSequence", ["x", "n"], ["y"], time_axis=times, batch_axis=1 - times
    )
    inputs = [value("x", *shape, dtype=TensorProto.INT16)]
    fed: dict[str, Any] = {"x": x}
    if not known:
        inputs.append(value("n", batch, dtype=TensorProto.INT64))
        fed["n"] = lengths
    output = value("y", *shape, dtype=TensorProto.INT16)
    model = make_model([node], inputs, [output], {"n": lengths} if known else {})
    (y,) = tvm_ext.compile(model)(**fed)
    wanted = x.copy()
    for place, length in enumerate(lengths):
        at = (slice(length), place) if times == 0 else (place, slice(length))
        wanted[at] = np.flip(wanted[at], 0)
    np.testing.assert_array_equal(y, wanted)
