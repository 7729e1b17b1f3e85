"""Cases of onnx's own suite for single operators, compiled here and compared with what it says.

`check_case("resize_downsample_scales_cubic")` runs that case with all inputs but the first as
constants, as models have them: sizes, axes, weights. `fed` names further inputs that stay inputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import tvm_ext


@cache
def _cases() -> dict[str, Any]:
    from onnx.backend.test.case.node import collect_testcases

    with np.errstate(all="ignore"):
        return {case.name.removeprefix("test_"): case for case in collect_testcases(None)}


def check_case(name: str, fed: Iterable[str] = (), rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Compiles case `name` and compares all of its outputs, types and extents included."""
    case = _cases()[name]
    inputs, outputs = case.data_sets[0]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    given = {entry.name: value for entry, value in zip(model.graph.input, inputs, strict=True)}
    stay = {next(iter(given), ""), *fed}
    feeds = {key: _array(value) for key, value in given.items() if key in stay}
    for entry in [entry for entry in model.graph.input if entry.name not in stay]:
        model.graph.input.remove(entry)
        model.graph.initializer.append(_tensor(entry, given[entry.name]))
    static = {key: value.shape for key, value in feeds.items()}
    results = tvm_ext.compile(model, shapes=static)(**feeds)
    assert len(results) == len(outputs)
    for ours, expected in zip(results, map(_array, outputs), strict=True):
        assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(ours.astype(float), expected.astype(float), rtol, atol)


def _array(value: Any) -> np.ndarray:
    is_tensor = isinstance(value, onnx.TensorProto)
    return numpy_helper.to_array(value) if is_tensor else np.asarray(value)


def _tensor(entry: onnx.ValueInfoProto, value: Any) -> onnx.TensorProto:
    if isinstance(value, onnx.TensorProto):
        tensor = onnx.TensorProto()
        tensor.CopyFrom(value)
        tensor.name = entry.name
        return tensor
    kind = entry.type.tensor_type.elem_type
    return helper.make_tensor(entry.name, kind, value.shape, value.tobytes(), raw=True)
