"""Operators on elements of types that TVM's importer does not read them of."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper
from onnx_cases import check_case
from onnx_models import make_model, value

import tvm_ext
from tvm_ext.errors import ModelError

RANDOM = np.random.default_rng(5)


def run(
    op: str, *given: np.ndarray, known: int = 0, outputs: int = 1, **attributes: Any
) -> list[np.ndarray]:
    """The results of a node whose last inputs, as many as `known`, are constants."""
    names = [f"x{place}" for place in range(len(given))]
    kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in given]
    results = [f"y{place}" for place in range(outputs)]
    fed = len(given) - known
    model = make_model(
        [helper.make_node(op, names, results, **attributes)],
        [
            value(name, *array.shape, dtype=kind)
            for name, array, kind in zip(names[:fed], given, kinds, strict=False)
        ],
        [value(name, dtype=kind) for name, kind in zip(results, (kinds[0], 7), strict=False)],
        dict(zip(names[fed:], given[fed:], strict=True)),
    )
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return list(tvm_ext.compile(model)(**dict(zip(names[:fed], given, strict=False))))


@pytest.mark.parametrize(
    "name",
    [
        "pow_types_int32_int32",
        "pow_types_int64_int64",
        "reduce_max_bool_inputs",
        "reduce_min_bool_inputs",
        "celu_float16",
        "celu_bfloat16",
        "mod_float_edge_cases_fmod_0_float32",
        "mod_float16_mixed_sign_fmod_0",
    ],
)
def test_cases(name: str) -> None:
    check_case(name)


@pytest.mark.parametrize("known", [0, 1])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_powers_of_integers(kind: type[np.signedinteger[Any]], known: int) -> None:
    x = np.array([[-3], [-2], [-1], [0], [1], [2], [3]], kind)
    exponents = np.array([0, 1, 2, 3, 7, 13, 19], kind)
    (y,) = run("Pow", x, exponents, known=known)
    np.testing.assert_array_equal(y, x**exponents)
    (y,) = run("Pow", x[[2, 4, 5]], np.array([-1, -2, 1000, 1001], kind)[:4], known=known)
    np.testing.assert_array_equal(y[:2], [[-1, 1, 1, -1], [1, 1, 1, 1]])
    assert y[2, :2].tolist() == [0, 0]


@pytest.mark.parametrize("exponent", [0, 1, 2, 5, 31])
def test_known_powers(exponent: int) -> None:
    x = np.array([-2, 0, 1, 2], np.int64)
    (y,) = run("Pow", x, np.array(exponent), known=1)
    np.testing.assert_array_equal(y, x**exponent)


@pytest.mark.parametrize("kind", [np.int16, np.uint16, np.uint32, np.int32])
@pytest.mark.parametrize("largest", [0, 1])
def test_the_best_of_integers(kind: type[np.integer[Any]], largest: int) -> None:
    ends = np.iinfo(kind)
    x = RANDOM.integers(ends.min, ends.max, (3, 7, 2), kind, endpoint=True)
    best, places = run(
        "TopK", x, np.array([3]), known=1, outputs=2, axis=1, largest=largest, sorted=0
    )
    order = np.sort(x, axis=1)
    np.testing.assert_array_equal(best, order[:, :-4:-1] if largest else order[:, :3])
    np.testing.assert_array_equal(np.take_along_axis(x, places, 1), best)


def test_integers_that_tvm_cannot_rank_are_refused() -> None:
    with pytest.raises(ModelError, match="TopK of uint64"):
        run("TopK", np.arange(4, dtype=np.uint64), np.array([3]), known=1, outputs=2)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize(("op", "alpha", "gamma"), [("Elu", 0.5, 1), ("Selu", 1.5, 1.25)])
def test_units_of_other_floats(op: str, alpha: float, gamma: float, kind: Any) -> None:
    x = np.array([-np.inf, -30, -1.5, -0.01, 0, 0.01, 2, np.inf]).astype(kind)
    given = {"alpha": alpha} | ({"gamma": gamma} if op == "Selu" else {})
    (y,) = run(op, x, **given)
    wide = x.astype(np.float64)
    wanted = gamma * np.where(wide > 0, wide, alpha * np.expm1(wide))
    assert y.dtype == x.dtype
    exact = float(ml_dtypes.finfo(kind).eps)
    np.testing.assert_allclose(y.astype(float), wanted, rtol=max(exact, 1e-6), atol=1e-8)


def test_remainders_of_other_signs() -> None:
    x = np.array([5.5, -5.5, 0, -0.0, 1e30, 3, np.inf, -4], np.float32)
    y = np.array([[2], [-2], [np.inf], [-np.inf], [0]], np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run("Mod", x, y, fmod=0)[0], np.mod(x, y))
        np.testing.assert_array_equal(run("Mod", x, y, fmod=1)[0], np.fmod(x, y))


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("known", [0, 1])
@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.uint64, np.int32])
def test_bits_are_moved_out(kind: type[np.integer[Any]], known: int, direction: str) -> None:
    width = 8 * np.dtype(kind).itemsize
    x = np.array([[1], [5], [np.iinfo(kind).max], [np.iinfo(kind).min]], kind)
    bits = np.array([0, 1, width - 1, width, width + 1, 100], kind)
    (y,) = run("BitShift", x, bits, known=known, direction=direction)
    wanted = (np.left_shift if direction == "LEFT" else np.right_shift)(x, bits)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("direction", ["left", "right"])
def test_no_bits_are_moved_back(direction: str) -> None:
    check_case(f"bitshift_{direction}_int32_negative_shift")
