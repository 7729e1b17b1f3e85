"""Products in bfloat16 on this machine, beside numpy; where they are no faster, all is float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from half_models import HALF, HOST, kernel, model_of, rounded
from onnx import TensorProto, helper

import tvm_ext
from tvm_ext.cli.compile import main as compile_main
from tvm_ext.cli.tune import make_parser as tune_parser
from tvm_ext.cli.tune import replay_command
from tvm_ext.compute.conv import ConvGeometry, pack_weight
from tvm_ext.compute.dense import pack_matrix
from tvm_ext.compute.half_products import conv_pairs, dense_pairs, halves, in_pairs
from tvm_ext.errors import TargetError
from tvm_ext.graph.legalise_conv import direct_program
from tvm_ext.graph.multiply_halves import multiplies_halves, ways_of_pairs
from tvm_ext.measure.build import build
from tvm_ext.tir import Reference
from tvm_ext.tvm_api import Target, te, tirx, tvm
from tvm_ext.tvm_pairs import rounded_by_integers
from tvm_ext.verify import arguments_of

RANDOM = np.random.default_rng(23)
IN_HALVES = multiplies_halves(HOST)


def convolved(
    x: np.ndarray, weight: np.ndarray, stride: int, dilation: int, groups: int
) -> np.ndarray:
    """By square windows, padded by half of one, in float64."""
    size, side = weight.shape[-1], weight.shape[-1] // 2
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (side, side), (side, side)))
    span = ((size - 1) * dilation + 1,) * 2
    views = np.lib.stride_tricks.sliding_window_view(wide, span, axis=(2, 3))
    views = views[:, :, ::stride, ::stride, ::dilation, ::dilation]
    grouped = views.reshape(len(x), groups, -1, *views.shape[2:])
    taps = weight.reshape(groups, -1, *weight.shape[1:]).astype(np.float64)
    result = np.einsum("ngchwij,gocij->ngohw", grouped, taps, optimize=True)
    return result.reshape(len(x), -1, *result.shape[3:])


def agrees(y: np.ndarray, floats: np.ndarray, of_rounded: np.ndarray, in_halves: bool) -> None:
    """Whether a result is that of rounded factors if it was to be, and near that of floats."""
    scale = np.abs(floats).max()
    expected = of_rounded if in_halves else floats
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5 * scale)
    np.testing.assert_allclose(y, floats, rtol=0, atol=2e-2 * scale)


@pytest.mark.parametrize(
    ("rows", "inner", "columns"),
    [
        (1, 2, 1),
        (1, 64, 96),
        (7, 5, 13),
        (3, 64, 33),
        (13, 131, 48),
        (97, 256, 100),
        (128, 768, 17),
    ],
)
def test_products_are_those_of_rounded_factors(rows: int, inner: int, columns: int) -> None:
    weight = RANDOM.normal(size=(inner, columns)).astype(np.float32)
    x = RANDOM.normal(size=(rows, inner)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    compiled = tvm_ext.compile(model_of(nodes, {"w": weight}, x.shape), precision="bfloat16")
    assert compiled.manifest.precision == ("bfloat16" if IN_HALVES else "float32")
    assert all(group.source == "picker" for group in compiled.manifest.groups)
    (y,) = compiled(x)
    wide = np.float64
    agrees(y, x.astype(wide) @ weight, rounded(x).astype(wide) @ rounded(weight), IN_HALVES)


@pytest.mark.parametrize(
    ("channels", "outputs", "size", "kernel", "stride", "dilation", "groups"),
    [
        (16, 24, 12, 1, 1, 1, 1),
        (6, 5, 9, 3, 2, 1, 1),
        (10, 32, 11, 5, 1, 2, 1),
        (7, 16, 8, 1, 1, 1, 1),
        (16, 16, 7, 3, 1, 1, 4),
        (16, 64, 7, 3, 1, 1, 2),
        (24, 36, 9, 3, 2, 1, 3),
        (9, 9, 7, 3, 1, 1, 3),
        (3, 16, 13, 3, 2, 1, 1),
        (3, 32, 40, 7, 2, 1, 1),
        (5, 32, 37, 11, 4, 1, 1),
    ],
)
def test_convolutions_are_those_of_rounded_factors(
    channels: int, outputs: int, size: int, kernel: int, stride: int, dilation: int, groups: int
) -> None:
    shape = (outputs, channels // groups, kernel, kernel)
    weight, bias = (RANDOM.normal(size=one).astype(np.float32) for one in (shape, outputs))
    x = RANDOM.normal(size=(2, channels, size, size)).astype(np.float32)
    node = helper.make_node(
        "Conv",
        ["x", "w", "b"],
        ["y"],
        strides=[stride] * 2,
        dilations=[dilation] * 2,
        pads=[kernel // 2] * 4,
        group=groups,
    )

    model = model_of([node], {"w": weight, "b": bias}, x.shape)
    asked = tvm_ext.compile(model, precision="bfloat16")
    floats, of_rounded = (
        convolved(data, taps, stride, dilation, groups) + bias[:, None, None]
        for data, taps in ((x, weight), (rounded(x), rounded(weight)))
    )
    agrees(asked(x)[0], floats, of_rounded, asked.manifest.precision == "bfloat16")


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "stride", "dilation"),
    [(16, 12, 4, 2, 1), (6, 32, 3, 2, 2), (8, 5, 2, 3, 1), (7, 8, 3, 2, 1), (16, 16, 3, 1, 1)],
)
def test_transposed_convolutions_are_those_of_rounded_factors(
    channels: int, outputs: int, kernel: int, stride: int, dilation: int
) -> None:
    weight = RANDOM.normal(size=(channels, outputs, kernel, kernel)).astype(np.float32)
    x = RANDOM.normal(size=(1, channels, 9, 7)).astype(np.float32)
    options = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": [1] * 4}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **options)

    def compiled(weight: np.ndarray, precision: Any) -> tvm_ext.Compiled:
        return tvm_ext.compile(model_of([node], {"w": weight}, x.shape), precision=precision)

    asked, exact = compiled(weight, "bfloat16"), compiled(rounded(weight), "float32")
    (y,), (floats,), (of_rounded,) = asked(x), compiled(weight, None)(x), exact(rounded(x))
    agrees(y, floats, of_rounded, asked.manifest.precision == "bfloat16")


def test_what_lies_between_products_is_rounded_for_them_alone() -> None:
    """An addition of what a product reads gets all digits of it."""
    weights = {f"w{i}": RANDOM.normal(size=(48, 48)).astype(np.float32) / 7 for i in range(2)}
    x = RANDOM.normal(size=(5, 48)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Tanh", ["a"], ["t"]),
        helper.make_node("MatMul", ["t", "w1"], ["b"]),
        helper.make_node("Add", ["b", "t"], ["y"]),
    ]

    def run(round_off: Any) -> np.ndarray:
        t = np.tanh(round_off(x).astype(np.float64) @ round_off(weights["w0"]))
        return round_off(t.astype(np.float32)).astype(np.float64) @ round_off(weights["w1"]) + t

    (y,) = tvm_ext.compile(model_of(nodes, weights, x.shape), precision="bfloat16")(x)
    # a sum that differs in its last bit may be rounded to the next bfloat16
    np.testing.assert_allclose(y, run(rounded if IN_HALVES else np.asarray), atol=4e-3)


def test_an_open_batch_is_multiplied_in_halves_too() -> None:
    filters = RANDOM.normal(size=(16, 3, 3, 3)).astype(np.float32)
    weight = RANDOM.normal(size=(16 * 49, 24)).astype(np.float32) / 28
    nodes = [
        helper.make_node("Conv", ["x", "f"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Flatten", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    model = model_of(nodes, {"f": filters, "w": weight}, ("n", 3, 7, 7))
    shapes = {"x": ("n", 3, 7, 7)}
    asked = tvm_ext.compile(model, shapes=shapes, precision="bfloat16")
    plain = tvm_ext.compile(model, shapes=shapes, precision="float32")
    assert asked.manifest.precision == ("bfloat16" if IN_HALVES else "float32")
    for images in (1, 5):
        x = RANDOM.normal(size=(images, 3, 7, 7)).astype(np.float32)
        (y,), (floats,) = asked(x), plain(x)
        np.testing.assert_allclose(y, floats, rtol=0, atol=2e-2 * np.abs(floats).max())


def test_a_model_in_bfloat16_multiplies_it() -> None:
    weight = RANDOM.normal(size=(64, 32)).astype(HALF)
    x = RANDOM.normal(size=(9, 64)).astype(HALF)
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {}, x.shape, TensorProto.BFLOAT16
    )
    bits = weight.view(np.uint16).tobytes()
    model.graph.initializer.append(
        helper.make_tensor("w", TensorProto.BFLOAT16, weight.shape, bits, raw=True)
    )
    compiled = tvm_ext.compile(model)
    assert compiled.manifest.precision == ("bfloat16" if IN_HALVES else "float32")
    assert tvm_ext.compile(model, precision="float32").manifest.precision == "float32"
    (y,) = compiled(x)
    expected = x.astype(np.float64) @ weight.astype(np.float64)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=2**-8, atol=1e-5)


SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 3.39e38, 1.00390625, 1.01171875, -1.00390625],
    np.float32,
)
"""With numbers half way between two, of which one is even."""
ALL_ONES = np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
"""Two that are none."""


@pytest.mark.parametrize("size", [1, 16, 1000])
@pytest.mark.parametrize("by_integers", [False, True])
def test_rounding_is_to_the_nearest_and_to_even(size: int, by_integers: bool) -> None:
    given = RANDOM.normal(size=size).astype(np.float32)
    special = np.concatenate([SPECIAL, ALL_ONES])[:size]
    given[: len(special)] = special
    x = te.placeholder((size,), "float32", name="x")
    if by_integers:
        y = te.compute((size,), lambda i: rounded_by_integers(x(i)), name="y")
    else:
        y = halves(x)
    result = tvm.runtime.tensor(np.zeros(size, np.uint16))
    kernel(te.create_prim_func([x, y]))(tvm.runtime.tensor(given), result)
    found, expected = result.numpy().view(HALF), given.astype(HALF)
    assert np.isnan(found[np.isnan(expected)]).all()
    known = ~np.isnan(expected)
    assert (found.view(np.uint16)[known] == expected.view(np.uint16)[known]).all()


@pytest.mark.parametrize(
    ("channels", "kernel_size", "stride"), [(3, (7, 7), 2), (4, (3,), 1), (9, (2, 5), 3)]
)
def test_channels_may_be_part_of_a_rows_taps(
    channels: int, kernel_size: tuple[int, ...], stride: int
) -> None:
    rank, lanes = len(kernel_size), HOST.lanes(4)
    pads = tuple(size // 2 for size in kernel_size)
    geometry = ConvGeometry(
        kernel_size, (stride,) * rank, pads, pads, (1,) * rank, 1, channels, 2 * lanes
    )
    x = rounded(RANDOM.normal(size=(2, *(17,) * rank, channels)).astype(np.float32))
    weight = rounded(RANDOM.normal(size=(2 * lanes, *kernel_size, channels)).astype(np.float32))

    def run(program: Any, *given: np.ndarray) -> np.ndarray:
        shape = (2, *geometry.out_size((17,) * rank), 2 * lanes)
        result = tvm.runtime.tensor(np.full(shape, np.nan, np.float32))
        kernel(program)(*(tvm.runtime.tensor(np.ascontiguousarray(one)) for one in given), result)
        return np.array(result.numpy())

    data = te.placeholder(x.shape, "float32", name="data")
    program = direct_program(data, geometry, lanes)
    expected = run(program, x, pack_weight(weight, geometry, lanes))
    ways = list(ways_of_pairs(geometry, x.shape, planes=False))
    assert [way.folded for way in ways] == [False, True]
    for way in ways:
        filters = in_pairs(weight).reshape(2 * lanes, *way.geometry.kernel, -1)
        words = te.placeholder(way.shape, "uint32", name="data")
        program = direct_program(words, way.geometry, lanes, convolve=conv_pairs)
        packed = pack_weight(filters, way.geometry, lanes)
        found = run(program, in_pairs(x).reshape(way.shape), packed)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(("rows", "terms", "columns"), [(1, 1, 1), (5, 9, 3), (6, 32, 16)])
def test_pairs_are_multiplied_on_every_machine(rows: int, terms: int, columns: int) -> None:
    """By other instructions where there is none, and in scalars."""
    weight = RANDOM.normal(size=(2 * terms, columns)).astype(np.float32)
    given = RANDOM.normal(size=(rows, 2 * terms)).astype(np.float32)
    packed = np.ascontiguousarray(pack_matrix(in_pairs(weight.T).T, HOST.lanes(4)))
    x = te.placeholder((rows, terms), "uint32", name="x")
    w = te.placeholder(packed.shape, "uint32", name="w")
    func = te.create_prim_func([x, w, dense_pairs(x, w, columns)])
    expected = rounded(given).astype(np.float64) @ rounded(weight)
    words = in_pairs(given)
    plain = build(func, Target(HOST.target))
    for main in (kernel(func), plain.main):
        result = tvm.runtime.tensor(np.zeros((rows, columns), np.float32))
        main(*map(tvm.runtime.tensor, (words, packed)), result)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-5)
    points = Reference.of(func).points([words, packed], 0, np.arange(rows * columns))
    np.testing.assert_allclose(points.values, expected.reshape(-1), rtol=1e-6, atol=1e-6)
    assert (points.bounds < 1e-3).all()
    assert [argument.halves for argument in arguments_of(func, 1)] == [True, True, False]


def test_a_rounded_number_near_zero_may_have_either_sign() -> None:
    """The bits of a tiny number say nothing where it is made with an error."""
    x = te.placeholder((4,), "float32", name="x")
    less = te.compute((4,), lambda i: tirx.exp(x[i]) - tirx.exp(x[3]), name="less")
    func = te.create_prim_func([x, halves(less)])
    points = Reference.of(func).points([np.array([1, 2, 3, 1], np.float32)], 0, np.arange(4))
    assert np.isinf(points.bounds[[0, 3]]).all()
    assert (points.bounds[[1, 2]] <= 1).all()


def test_the_command_says_what_is_multiplied(tmp_path: Path, capsys: Any) -> None:
    weight = RANDOM.normal(size=(32, 32)).astype(np.float32)
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight}, (4, 32))
    onnx.save(model, tmp_path / "m.onnx")
    command = [str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.so"), "--precision", "bfloat16"]
    assert compile_main(command) == 0
    said = capsys.readouterr().out
    assert ("multiply bfloat16, sums are float32" in said) == IN_HALVES
    assert ("nothing multiplies bfloat16" in said) == (not IN_HALVES)
    assert compile_main([*command, "--target", "cpu/x86-avx2"]) == 0
    assert "not faster than float32 on cpu/x86-avx2" in capsys.readouterr().out


def test_an_unknown_precision_is_refused() -> None:
    model = model_of([helper.make_node("Neg", ["x"], ["y"])], {}, (4,))
    with pytest.raises(TargetError, match="give float32 or bfloat16"):
        tvm_ext.compile(model, precision="float16")


def test_kernels_of_halves_are_tuned_and_replayed(tmp_path: Path) -> None:
    weight = RANDOM.normal(size=(64, 64)).astype(np.float32)
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight}, (32, 64))
    asked = {"precision": "bfloat16", "log": tmp_path / "log"}
    tuned = tvm_ext.tune(model, trials=6, **asked)
    again = tvm_ext.replay(model, strict=True, **asked)
    assert again.manifest.code_hash == tuned.manifest.code_hash
    assert again.manifest.precision == tuned.manifest.precision
    typed = ["m.onnx", "--precision", "bfloat16"]
    args = tune_parser().parse_args(typed)
    assert "--precision bfloat16" in replay_command(args, "m.onnx", Path("m.so"), tuned.manifest)
