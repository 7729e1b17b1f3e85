"""Transposed copies in squares of vectors: what is written, and that it is the transposition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi
from guard_pages import between_pages

from tvm_ext.hardware import get, resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick
from tvm_ext.planner import make_task, plan_task
from tvm_ext.tile.plan import Attach, TilePlan
from tvm_ext.tir import prepare, write
from tvm_ext.tvm_api import PrimFunc, Target, te, tirx, tvm
from tvm_ext.verify import check


def scores(rows: int, heads: int, inner: int, step: int = 1, factor: float = 1.0) -> PrimFunc:
    """q times k transposed, both [rows, heads, inner]: [heads, rows, rows / step]. With a factor
    other than 1, k is scaled on the way: no plain copy."""
    q = te.placeholder((rows, heads, inner), "float32", "q")
    k = te.placeholder((rows, heads, inner), "float32", "k")
    columns = rows // step

    def turn(h: te.Var, c: te.Var, j: te.Var) -> te.Tensor:
        element = k[j * step, h, c]
        return element if factor == 1.0 else element * factor

    turned = te.compute((heads, inner, columns), turn, name="turned")
    c = te.reduce_axis((0, inner), name="c")
    y = te.compute(
        (heads, rows, columns),
        lambda h, i, j: te.sum(q[i, h, c] * turned[h, c, j], axis=[c]),
        name="scores",
    )
    return te.create_prim_func([q, k, y])


def plan_of(func: PrimFunc, machine: str) -> TilePlan:
    """The picker's plan with the transposition inside the core tile."""
    prepared = prepare(func)
    assert prepared is not None
    for candidate in pick(prepared.graph, get(machine), 40):
        if Attach(0, "core") in candidate.plan.attach:
            return candidate.plan
    raise AssertionError("no plan copies inside the core tile")


def values(func: PrimFunc, plan: TilePlan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    kernel = build(write(func, plan), Target(resolve("cpu").target))
    assert isinstance(kernel, Built), kernel
    source = np.random.default_rng(0)
    q, k = (
        source.standard_normal(tuple(int(e) for e in buffer.shape)).astype("float32")
        for buffer in func.params[:2]
    )
    out = tvm.runtime.empty([int(extent) for extent in func.params[2].shape], "float32")
    kernel.main(tvm.runtime.tensor(q), tvm.runtime.tensor(k), out)
    return q, k, out.numpy()


@pytest.mark.parametrize(
    ("machine", "size"), [("cpu/x86-avx512", 16), ("cpu/x86-avx2", 8), ("cpu/x86-sse", 4)]
)
def test_squares_are_exchanged_in_registers(machine: str, size: int) -> None:
    func = scores(64, 3, 32)
    plan = plan_of(func, machine)
    assert plan.lanes == size
    script = write(func, plan).script()
    assert script.count("T.Shuffle") == size * (size.bit_length() - 1)
    q, k, found = values(func, plan)
    np.testing.assert_allclose(found, np.einsum("ihc,jhc->hij", q, k), rtol=1e-4, atol=1e-4)


def test_what_is_computed_on_the_way_is_computed_on_turned_rows() -> None:
    func = scores(64, 2, 32, factor=2.0)
    plan = plan_of(func, "cpu/x86-avx512")
    assert "T.Shuffle" in write(func, plan).script()
    q, k, found = values(func, plan)
    np.testing.assert_allclose(found, 2 * np.einsum("ihc,jhc->hij", q, k), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "heads", "inner", "step", "square"),
    [(64, 2, 32, 2, True), (48, 1, 17, 1, False), (157, 4, 37, 1, False)],
)
def test_rows_may_lie_anywhere_but_come_in_whole_vectors(
    rows: int, heads: int, inner: int, step: int, square: bool
) -> None:
    func = scores(rows, heads, inner, step)
    plan = plan_of(func, "cpu/x86-avx512")
    assert ("T.Shuffle" in write(func, plan).script()) == square
    q, k, found = values(func, plan)
    expected = np.einsum("ihc,jhc->hij", q, k[::step][: rows // step])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_what_is_read_twice_is_turned_once() -> None:
    x = te.placeholder((16, 4, 32), "float32", "x")
    y = te.compute((32, 4, 16), lambda c, h, w: x[w, h, c] * te.max(x[w, h, c], 0.0), name="y")
    planned = plan_task(make_task(te.create_prim_func([x, y]), "y"), get("cpu/x86-avx512"))
    assert planned.func.script().count("T.Shuffle") == 16 * 4


def test_one_number_for_all_is_not_turned() -> None:
    """As the scale that an image is quantised by."""
    x = te.placeholder((16, 4, 32), "float32", "x")
    scale = te.placeholder((), "float32", "scale")
    y = te.compute((32, 4, 16), lambda c, h, w: x[w, h, c] * scale[()], name="y")
    func = te.create_prim_func([x, scale, y])
    planned = plan_task(make_task(func, "y"), get("cpu/x86-avx512"))
    assert planned.func.script().count("T.Shuffle") == 16 * 4


def turned(channels: int, height: int, width: int, columns: str) -> PrimFunc:
    """An image with channels last, as planes: `copy`, with a bias and another image added
    (`sum`), or with a second transposed image (`both`)."""
    x = te.placeholder((height, width, channels), "float32", "x")
    bias = te.placeholder((channels,), "float32", "bias")
    other = te.placeholder((channels, height, width), "float32", "other")
    second = te.placeholder((height, width, channels), "float32", "second")

    def element(c: te.Var, h: te.Var, w: te.Var) -> Any:
        if columns == "copy":
            return x[h, w, c]
        if columns == "sum":
            return te.max(x[h, w, c] + bias[c] + other[c, h, w], 0.0)
        return x[h, w, c] * second[h, w, c]

    y = te.compute((channels, height, width), element, name="y")
    given = {"copy": [x], "sum": [x, bias, other], "both": [x, second]}
    return te.create_prim_func([*given[columns], y])


@pytest.mark.parametrize("columns", ["copy", "sum", "both"])
@pytest.mark.parametrize(
    ("channels", "height", "width"),
    [(32, 16, 32), (48, 7, 56), (33, 5, 29), (16, 1, 16), (61, 61, 61), (3, 20, 20), (20, 9, 7)],
)
def test_planes_are_written_by_squares(
    channels: int, height: int, width: int, columns: str
) -> None:
    """Whole squares, last ones moved back, and images too narrow for any."""
    func = turned(channels, height, width, columns)
    planned = plan_task(make_task(func, "turned"), resolve("cpu"), alone=True)
    assert planned.option.source == "picker", planned.reasons
    lanes = resolve("cpu").lanes(4)
    if min(channels, width) >= lanes:
        assert "T.Shuffle" in planned.func.script()
    kernel = build(planned.func, Target(resolve("cpu").target))
    assert isinstance(kernel, Built), kernel
    assert not check(planned, kernel.main)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("pad", [(1, 0), (0, 1)])
def test_padding_is_not_read(pad: tuple[int, int], at_end: bool) -> None:
    """The first and the last image are padding, chosen after what is loaded: squares of it would
    lie beside the tensor, where some other program's page may be, or none."""
    before, after = pad
    images, channels, height, width = 2, 32, 4, 32
    x = te.placeholder((images, channels, height, width), "float32", "x")

    def element(n: te.Var, h: te.Var, w: te.Var, c: te.Var) -> Any:
        inside = tirx.all(n >= before, n < images + before)
        return tirx.if_then_else(inside, x[n - before, c, h, w], tirx.const(0.0, "float32"))

    shape = (images + before + after, height, width, channels)
    func = te.create_prim_func([x, te.compute(shape, element, name="y")])
    planned = plan_task(make_task(func, "padded"), resolve("cpu"), alone=True)
    assert "T.Shuffle" in planned.func.script()
    kernel = build(planned.func, Target(resolve("cpu").target))
    assert isinstance(kernel, Built), kernel
    values = np.random.default_rng(0).standard_normal((images, channels, height, width))
    given = between_pages(values.astype("float32"), at_end)
    out = tvm.runtime.empty(shape, "float32")
    kernel.main(tvm_ffi.from_dlpack(given), out)
    padded = np.pad(given, (pad, (0, 0), (0, 0), (0, 0)))
    np.testing.assert_array_equal(out.numpy(), padded.transpose(0, 2, 3, 1))
