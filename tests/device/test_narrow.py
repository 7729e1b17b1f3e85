"""Numbers of eight bits and less: casts, quantising and dequantising, as ONNX and ml_dtypes say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_cases import check_case

import tvm_ext
from tvm_ext.errors import ModelError

FLOAT8 = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
INTEGERS = ("INT2", "UINT2", "INT4", "UINT4")


def _kind(name: str) -> int:
    return int(getattr(TensorProto, name))


def _dtype(name: str) -> np.dtype:
    return helper.tensor_dtype_to_np_dtype(_kind(name))


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[str, Sequence[int]]],
    outputs: Mapping[str, str],
    constants: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "narrow",
        [helper.make_tensor_value_info(n, _kind(k), s) for n, (k, s) in inputs.items()],
        [helper.make_tensor_value_info(n, _kind(k), None) for n, k in outputs.items()],
        list(constants),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


def _numbers() -> np.ndarray:
    """Floats of all sizes, halves between those of few bits, and what is no number."""
    rng = np.random.default_rng(0)
    powers = 2.0 ** rng.integers(-22, 20, 2000)
    exact = rng.integers(-64, 64, 2000) / 32 * powers
    any_size = rng.standard_normal(2000) * 10.0 ** rng.integers(-40, 39, 2000)
    odd = [0.0, -0.0, np.nan, np.inf, -np.inf, 448, 464, 465, 240, 248, 57344, 61440, 65535, 7]
    return np.concatenate([exact, any_size, odd]).astype(np.float32)


def _same(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(
        np.signbit(actual[actual == 0]), np.signbit(expected[actual == 0])
    )


def test_casts_to_floats_of_eight_bits_and_back() -> None:
    """All of them, with and without saturation; as outputs in their own bits, and read again."""
    x, names = _numbers(), [(name, saturate) for name in FLOAT8 for saturate in (0, 1)]
    nodes, outputs = [], {}
    for name, saturate in names:
        own = f"{name}_{saturate}"
        cast = helper.make_node("Cast", ["x"], [own], to=_kind(name), saturate=saturate)
        back = helper.make_node("Cast", [own], [f"{own}_back"], to=TensorProto.FLOAT)
        nodes += [cast, back]
        outputs |= {own: name, f"{own}_back": "FLOAT"}
    results = iter(tvm_ext.compile(_model(nodes, {"x": ("FLOAT", x.shape)}, outputs))(x=x))
    for name, saturate in names:
        info = ml_dtypes.finfo(_dtype(name))
        expected = (np.clip(x, info.min, info.max) if saturate else x).astype(_dtype(name))
        actual = next(results)
        assert actual.dtype == expected.dtype
        _same(actual.astype(np.float32), expected.astype(np.float32))
        _same(next(results), expected.astype(np.float32))


def test_every_byte_is_read() -> None:
    """Inputs of eight bits, moved about and cast; what goes out again is the same bytes."""
    octets = np.arange(256, dtype=np.uint8)
    names = [*FLOAT8, "FLOAT8E8M0"]
    nodes, inputs, outputs = [], {}, {}
    for name in names:
        nodes.append(helper.make_node("Reshape", [name, "shape"], [f"{name}_there"]))
        nodes.append(
            helper.make_node("Cast", [f"{name}_there"], [f"{name}_wide"], to=TensorProto.FLOAT)
        )
        inputs[name] = (name, octets.shape)
        outputs |= {f"{name}_there": name, f"{name}_wide": "FLOAT"}
    shape = numpy_helper.from_array(np.array([8, 32]), "shape")
    feeds = {name: octets.view(_dtype(name)) for name in names}
    results = iter(tvm_ext.compile(_model(nodes, inputs, outputs, [shape]))(**feeds))
    for given in feeds.values():
        there, wide = next(results).reshape(-1), next(results).reshape(-1)
        expected = given.astype(np.float32)
        np.testing.assert_array_equal(wide, expected)
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(there.view(np.uint8)[number], octets[number])
        assert np.isnan(there.astype(np.float32)[~number]).all()


def test_powers_of_two() -> None:
    """Rounded up, down and to the nearest; those beyond are the last ones, or none."""
    x = np.array([0, 2.0**-126, 1, 1.4, 1.5, 1.6, 3, 2.0**127, 3e38, np.inf, np.nan], np.float32)
    modes = [(mode, saturate) for mode in ("up", "down", "nearest") for saturate in (0, 1)]
    nodes = [
        helper.make_node(
            "Cast", ["x"], [f"{m}{s}"], to=TensorProto.FLOAT8E8M0, saturate=s, round_mode=m
        )
        for m, s in modes
    ]
    outputs = {f"{mode}{saturate}": "FLOAT8E8M0" for mode, saturate in modes}
    results = tvm_ext.compile(_model(nodes, {"x": ("FLOAT", x.shape)}, outputs))(x=x)
    least, most, none = 2.0**-127, 2.0**127, np.nan
    inside = {"up": [1, 2, 2, 2, 4], "down": [1, 1, 1, 1, 2], "nearest": [1, 1, 2, 2, 4]}
    for (mode, saturate), result in zip(modes, results, strict=True):
        small = [least if saturate else none, 2 * least]
        beyond = [most, most] if saturate else [most if mode == "down" else none, none]
        expected = [*small, *inside[mode], most, *beyond, none]
        np.testing.assert_array_equal(result.astype(np.float32), np.array(expected, np.float32))


def test_casts_to_integers_of_few_bits() -> None:
    """Of floats and of integers, whose higher bits are left out."""
    x = np.array([-3.7, -2.5, -1, -0.4, 0, 0.6, 1, 1.9, 2.5, 3, 7.9, 9, 14], np.float32)
    whole = np.array([-300, -9, -8, -1, 0, 1, 2, 3, 7, 8, 15, 16, 255], np.int32)
    nodes, outputs = [], {}
    for source in ("x", "whole"):
        for name in INTEGERS:
            few = f"{source}_{name}"
            nodes.append(helper.make_node("Cast", [source], [few], to=_kind(name)))
            nodes.append(helper.make_node("Cast", [few], [f"{few}_wide"], to=TensorProto.INT32))
            outputs[f"{few}_wide"] = "INT32"
    inputs = {"x": ("FLOAT", x.shape), "whole": ("INT32", whole.shape)}
    results = iter(tvm_ext.compile(_model(nodes, inputs, outputs))(x=x, whole=whole))
    for source in (x, whole):
        for name in INTEGERS:
            expected = source.astype(np.int32).astype(_dtype(name)).astype(np.int32)
            np.testing.assert_array_equal(next(results), expected)


PAIRS = [(n, 0, 1) for n in (*FLOAT8, *INTEGERS, "FLOAT4E2M1")]
PAIRS += [
    (n, b, 1) for n in ("INT8", "UINT8", "INT4", "FLOAT8E4M3FN", "FLOAT4E2M1") for b in (2, 3)
]
PAIRS += [("INT16", 3, 2), ("UINT4", 4, 0), ("FLOAT8E5M2", 5, 2)]


def test_quantised_and_dequantised() -> None:
    """By a scale, by scales of an axis and of blocks, the last of them shorter, with zero points
    where the type has them; weights that are constants as activations."""
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((5, 7, 4)) * 3).astype(np.float32)
    x[0, 0] = [1e4, -1e4, 1e3, -1e3]
    nodes, outputs, constants = [], {}, []
    for name, block, axis in PAIRS:
        key = f"{name}_{block}_{axis}"
        extents = [*x.shape] if block else [x.shape[axis]]
        if block:
            extents[axis] = -(-extents[axis] // block)
        scale = rng.uniform(0.01, 0.9, extents).astype(np.float32)
        operands = [f"{key}_scale"]
        constants.append(numpy_helper.from_array(scale, operands[0]))
        if not name.startswith("FLOAT"):
            info = ml_dtypes.iinfo(_dtype(name))
            point = rng.integers(max(info.min, -50), min(info.max, 50), extents, endpoint=True)
            operands.append(f"{key}_point")
            constants.append(numpy_helper.from_array(point.astype(_dtype(name)), operands[1]))
        how: dict[str, Any] = {"axis": axis, "block_size": block}
        given = how if len(operands) > 1 else how | {"output_dtype": _kind(name)}
        for source in ("x", "w"):
            steps, result = f"{key}_{source}_steps", f"{key}_{source}"
            nodes.append(helper.make_node("QuantizeLinear", [source, *operands], [steps], **given))
            nodes.append(helper.make_node("DequantizeLinear", [steps, *operands], [result], **how))
            outputs[result] = "FLOAT"
    constants.append(numpy_helper.from_array(x, "w"))
    model = _model(nodes, {"x": ("FLOAT", x.shape)}, outputs, constants)
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    for name, ours, theirs in zip(outputs, tvm_ext.compile(model)(x=x), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-6, 1e-6, err_msg=name)


def test_constants_of_few_bits() -> None:
    """Are unpacked: cast, dequantised by blocks and along an axis, and moved before."""
    rng = np.random.default_rng(2)
    few = rng.integers(-8, 8, (3, 5)).astype(ml_dtypes.int4)
    scale = rng.uniform(0.1, 1, (3, 2)).astype(np.float16)
    constants = [
        numpy_helper.from_array(few, "few"),
        numpy_helper.from_array(rng.integers(0, 4, (5,)).astype(ml_dtypes.uint2), "two"),
        numpy_helper.from_array(rng.standard_normal(5).astype(ml_dtypes.float4_e2m1fn), "four"),
        numpy_helper.from_array(rng.standard_normal(5).astype(ml_dtypes.float8_e5m2), "eight"),
        numpy_helper.from_array(scale, "scale"),
        numpy_helper.from_array(np.float32(0.5), "half"),
    ]
    nodes = [
        helper.make_node("Cast", ["few"], ["few_wide"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "few_wide"], ["a"]),
        helper.make_node("DequantizeLinear", ["few", "scale"], ["blocks"], axis=1, block_size=3),
        helper.make_node("Cast", ["blocks"], ["blocks_wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["a", "blocks_wide"], ["b"]),
        helper.make_node("DequantizeLinear", ["two", "half"], ["two_wide"]),
        helper.make_node("DequantizeLinear", ["four", "half"], ["four_wide"]),
        helper.make_node("Identity", ["eight"], ["moved"]),
        helper.make_node("DequantizeLinear", ["moved", "half"], ["eight_wide"]),
        helper.make_node("Sum", ["b", "two_wide", "four_wide", "eight_wide"], ["y"]),
    ]
    model = _model(nodes, {"x": ("FLOAT", (3, 5))}, {"y": "FLOAT"}, constants)
    x = rng.standard_normal((3, 5)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    (result,) = tvm_ext.compile(model)(x=x)
    np.testing.assert_allclose(result, expected, 1e-5, 1e-6)


def test_bits_are_read_as_other_types() -> None:
    """Bytes as floats and back; integers of few bits with a sign and without."""
    octets = np.arange(256, dtype=np.uint8)
    octets[[0x7F, 0xFF]] = 0  # no numbers, of which only that is kept
    few = np.arange(-8, 8).astype(np.int32)
    kinds = {"floats": "FLOAT8E4M3FN", "few": "INT4", "other": "UINT4"}
    nodes = [
        helper.make_node("BitCast", ["x"], ["floats"], to=_kind(kinds["floats"])),
        helper.make_node("Cast", ["floats"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("BitCast", ["floats"], ["back"], to=TensorProto.UINT8),
        helper.make_node("Cast", ["n"], ["few"], to=_kind(kinds["few"])),
        helper.make_node("BitCast", ["few"], ["other"], to=_kind(kinds["other"])),
        helper.make_node("Cast", ["other"], ["without"], to=TensorProto.INT32),
    ]
    inputs = {"x": ("UINT8", octets.shape), "n": ("INT32", few.shape)}
    outputs = {"wide": "FLOAT", "back": "UINT8", "without": "INT32"}
    model = _model(nodes, inputs, outputs)
    model.opset_import[0].version = 26
    wide, back, without = tvm_ext.compile(model)(x=octets, n=few)
    np.testing.assert_array_equal(wide, octets.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    np.testing.assert_array_equal(back, octets)
    np.testing.assert_array_equal(without, few % 16)


@pytest.mark.parametrize("case", ["cast_INT4_to_FLOAT", "cast_FLOAT_to_UINT2"])
def test_inputs_and_outputs_of_less_than_a_byte_are_refused(case: str) -> None:
    """In one line, which names them."""
    with pytest.raises(ModelError, match=r"'(in|out)put' is of U?INT\d, \d bits a number"):
        check_case(case)


@pytest.mark.parametrize(
    "case",
    [
        "cast_FLOAT16_to_FLOAT8E4M3FNUZ",
        "castlike_no_saturate_FLOAT_to_FLOAT8E5M2_expanded",
        "dequantizelinear_e4m3fn_float16",
        "quantizelinear_blocked_asymmetric",
        "bitcast_bool_to_uint8",
        "bitcast_float64_to_int64",
    ],
)
def test_cases_of_onnx(case: str) -> None:
    """Halves, casts like others, halves as scales, blocks, bits of wider types."""
    check_case(case)
