"""Vectors whose elements lie apart, and vectors of which only some are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from guard_pages import between_pages

from tvm_ext.hardware import resolve
from tvm_ext.hardware.catalog import get
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import IRModule, PrimFunc, Schedule, target_of, te, tirx, tvm
from tvm_ext.tvm_lowering import TIR_PIPELINE
from tvm_ext.tvm_masks import load_masked
from tvm_ext.tvm_strides import pick_strided

RANDOM = np.random.default_rng(5)
HOST = resolve("cpu")
Value = Callable[[Any], Any]


def vectors(lanes: int, count: int, value: Value, *given: Any) -> PrimFunc:
    """y[i] = value(i), in vectors."""
    y = te.compute((count,), value, name="y")
    schedule = Schedule(te.create_prim_func([*given, y]))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    _, inner = schedule.split(loop, [None, lanes])
    schedule.vectorize(inner)
    return schedule.mod["main"].with_attr({"global_symbol": "main"})


def compiled(func: PrimFunc, hardware: HardwareModel = HOST) -> Any:
    target = target_of(hardware.target)
    with target:
        return tvm.compile(IRModule({"main": func}), target=target, tir_pipeline=TIR_PIPELINE)


def check(func: PrimFunc, expected: np.ndarray, *given: np.ndarray) -> None:
    """Results are those expected, and nothing beside the tensors is read."""
    main = compiled(func).jit()["main"]
    for at_end in (False, True):
        y = np.full_like(expected, 77)
        main(
            *(tvm_ffi.from_dlpack(between_pages(one, at_end)) for one in given),
            tvm_ffi.from_dlpack(y),
        )
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int8", "uint8"])
@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("stride", [2, 3, 4, 5, 8, -1, -2, -3])
def test_elements_apart_are_picked(stride: int, lanes: int, dtype: str) -> None:
    count = 3 * lanes
    size = (count - 1) * abs(stride) + 1
    begin = 0 if stride > 0 else size - 1
    x = te.placeholder((size,), dtype, "x")
    func = vectors(lanes, count, lambda i: x[i * stride + begin], x)
    values = RANDOM.integers(-100, 100, size).astype(dtype)
    check(func, values[::stride], values)


@pytest.mark.parametrize("machine", ["cpu/x86-sse", "cpu/x86-avx2", "cpu/x86-avx512"])
@pytest.mark.parametrize("stride", [2, -1])
def test_whole_vectors_are_loaded(stride: int, machine: str) -> None:
    hardware = get(machine)
    lanes, begin = hardware.lanes(4), 0 if stride > 0 else 300
    x = te.placeholder((512,), "float32", "x")
    code = compiled(vectors(lanes, 96, lambda i: x[i * stride + begin], x), hardware)
    assert "insertps" not in code.mod.inspect_source("asm")


@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("times", [2, 3, 4])
def test_elements_that_repeat_are_loaded_once(times: int, lanes: int) -> None:
    """An image enlarged along its rows: where vectors begin with another element, as of thirds, and
    where they do not."""
    x = te.placeholder((3 * lanes,), "float32", "x")
    count = 3 * lanes * times
    func = vectors(lanes, count, lambda i: x[tirx.floordiv(i, times)], x)
    values = RANDOM.standard_normal(3 * lanes).astype("float32")
    check(func, np.repeat(values, times), values)


def grouped_sum(lanes: int, size: int, steps: int) -> PrimFunc:
    """y[i] = the sum of what every group of `size` results has `steps` of in x."""
    count = 3 * lanes
    x = te.placeholder((count // size * steps,), "float32", "x")
    k = te.reduce_axis((0, steps), "k")
    y = te.compute((count,), lambda i: te.sum(x[i // size * steps + k], axis=k), name="y")
    schedule = Schedule(te.create_prim_func([x, y]))
    block = schedule.get_sblock("y")
    outer, inner = schedule.split(schedule.get_loops(block)[0], [None, lanes])
    step = schedule.get_loops(block)[-1]
    schedule.reorder(outer, step, inner)
    schedule.unroll(step)
    schedule.vectorize(inner)
    return schedule.mod["main"].with_attr({"global_symbol": "main"})


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize(("size", "steps"), [(2, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8)])
def test_elements_of_groups_are_picked(size: int, steps: int, lanes: int) -> None:
    if size > lanes:
        return
    values = RANDOM.integers(-9, 9, (3 * lanes // size, steps)).astype("float32")
    expected = np.repeat(values.sum(1), size)
    check(grouped_sum(lanes, size, steps), expected, values.reshape(-1))


@pytest.mark.parametrize("machine", ["cpu/x86-sse", "cpu/x86-avx2", "cpu/x86-avx512"])
def test_what_one_step_loads_the_others_pick_from(machine: str) -> None:
    """Alone each step would load two parts of vectors, which end where its last element is."""
    hardware = get(machine)
    size = hardware.lanes(4) // 2
    code = compiled(grouped_sum(2 * size, size, size), hardware).mod.inspect_source("asm")
    assert "insertps" not in code
    loads = re.findall(r"movups\s+-?\d*\(%r\w+\), %[xyz]mm\d+", code.partition("main_compute_:")[2])
    assert len(loads) == 3


def padded(x: Any, before: int, fill: float) -> Value:
    size = int(x.shape[0])

    def element(i: Any) -> Any:
        inside = tirx.all(before <= i, i < size + before)
        return tirx.if_then_else(inside, x[i - before], tirx.const(fill, x.dtype))

    return element


@pytest.mark.parametrize("dtype", ["float32", "int32", "float64", "int8"])
@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 3), (5, 20), (40, 1)])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_padding_is_not_read(lanes: int, before: int, after: int, dtype: str) -> None:
    x = te.placeholder((37,), dtype, "x")
    func = vectors(lanes, 37 + before + after, padded(x, before, 3), x)
    values = RANDOM.integers(-100, 100, 37).astype(dtype)
    check(func, np.pad(values, (before, after), constant_values=3), values)


@pytest.mark.parametrize("lanes", [4, 16])
def test_parts_are_joined(lanes: int) -> None:
    """Nested choices, arithmetic on what was chosen, and a number read for all lanes."""
    sizes = (13, 29, 10)
    names = [
        te.placeholder((size,), "float32", name) for size, name in zip(sizes, "abc", strict=True)
    ]
    a, b, c = names

    def element(i: Any) -> Any:
        rest = tirx.if_then_else(i < 42, b[i - 13] * 2.0, c[i - 42] - 1.0)
        return tirx.max(tirx.if_then_else(i < 13, a[i] + 1.0, rest), tirx.const(-0.5, "float32"))

    values = [RANDOM.standard_normal(size).astype("float32") for size in sizes]
    joined = np.concatenate([values[0] + 1, values[1] * 2, values[2] - 1])
    check(
        vectors(lanes, sum(sizes), element, *names), np.maximum(joined, np.float32(-0.5)), *values
    )


def test_what_is_read_for_all_lanes_is_not_read_where_none_wants_it() -> None:
    """The last element of a row, but for the first vector, for which there is none."""
    x = te.placeholder((2,), "float32", "x")
    func = vectors(
        16, 48, lambda i: tirx.if_then_else(i < 20, 0.0, x[tirx.floordiv(i, 16) - 1] + 1.0), x
    )
    expected = np.repeat(np.float32([0, 5, 7]), [20, 12, 16])
    check(func, expected, np.float32([4, 6]))


@pytest.mark.parametrize(
    ("machine", "instruction"),
    [("cpu/x86-avx2", "vmaskmovps"), ("cpu/x86-avx512", "{%k"), ("cpu/x86-sse", "")],
)
def test_machines_with_masks_load_under_one(machine: str, instruction: str) -> None:
    hardware = get(machine)
    x = te.placeholder((100,), "float32", "x")
    func = vectors(hardware.lanes(4), 112, padded(x, 3, 0.0), x)
    code = compiled(func, hardware).mod.inspect_source("asm")
    assert (instruction in code) if instruction else ("maskmov" not in code)


@pytest.mark.parametrize("lowering", [pick_strided, load_masked])
def test_places_may_be_wide(lowering: Any) -> None:
    """Places of 64 bits, as in tensors that 32 do not count."""
    place = tirx.Var("place", "int64")
    x, y = (tirx.decl_buffer((1 << 33,), "float32", name) for name in "xy")
    lane = tirx.Var("lane", "int64")
    count, one = tirx.const(16, "int64"), tirx.const(1, "int64")
    if lowering is pick_strided:
        ramp = tirx.Ramp(place, tirx.const(2, "int64"), 16)
        body = tirx.BufferStore(y, tirx.BufferLoad(x, [ramp]), [tirx.Ramp(place, one, 16)])
    else:
        chosen = tirx.if_then_else(place + lane > 3, x[place + lane], tirx.const(0.0, "float32"))
        store = tirx.BufferStore(y, chosen, [place + lane])
        body = tirx.For(lane, tirx.const(0, "int64"), count, tirx.ForKind.SERIAL, store)
    target = target_of(get("cpu/x86-avx512").target)
    func = tirx.PrimFunc([place, x, y], body).with_attr("target", target)
    changed = lowering(IRModule({"main": func}))["main"].script()
    assert ("Shuffle" if lowering is pick_strided else "masked_load") in changed
