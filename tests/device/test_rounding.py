"""Quantising, and taking back at once: the same numbers by fewer instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvm_ext.hardware import resolve
from tvm_ext.tvm_api import IRModule, PrimFunc, Schedule, structural_walk, target_of, te, tirx, tvm
from tvm_ext.tvm_lowering import TIR_PIPELINE
from tvm_ext.tvm_rounding import LIMITS, LRINT, round_once

HOST = resolve("cpu")
COUNT = 256


def quantiser(dtype: str, *, back: bool, cut: bool = True, other: bool = False) -> PrimFunc:
    """x and a zero point to bytes, or `back` to whole numbers; not `cut` to what there is first, or
    taken back by an`other` number."""
    x = te.placeholder((COUNT,), "float32", "x")
    point = te.placeholder((2,), "int32", "point")
    least, most = LIMITS[dtype]

    def element(i: Any) -> Any:
        shift = point[0].astype("float32")
        inside = te.max(te.min(x[i], most - shift), least - shift) if cut else x[i]
        octet = (te.round(inside).astype("int32") + point[0]).astype(dtype)
        own = point[1] if other else point[0]
        return octet.astype("float32") - own.astype("float32") if back else octet

    y = te.compute((COUNT,), element, name="y")
    return te.create_prim_func([x, point, y])


def vectors(func: PrimFunc, lanes: int) -> PrimFunc:
    schedule = Schedule(func)
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    if lanes > 1:
        _, inner = schedule.split(loop, [None, lanes])
        schedule.vectorize(inner)
    return schedule.mod["main"].with_attr({"global_symbol": "main"})


@pytest.mark.parametrize("lanes", [1, 8, 16, 64])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("dtype", LIMITS)
def test_the_numbers_are_the_same(dtype: str, back: bool, lanes: int) -> None:
    """Halves go to even numbers, and what is out of range to its ends."""
    target = target_of(HOST.target)
    func = vectors(quantiser(dtype, back=back), lanes)
    with target:
        kernel = tvm.compile(IRModule({"main": func}), target=target, tir_pipeline=TIR_PIPELINE)
    x = np.linspace(-300, 300, COUNT).round(1).astype(np.float32)
    x[:4] = 0.5, 1.5, 3e9, -3e9
    point, (least, most) = 7, LIMITS[dtype]
    expected = np.clip(np.rint(x.astype(np.float64)) + point, least, most)
    result = np.zeros(COUNT, np.float32 if back else dtype)
    given = [tvm.runtime.tensor(one) for one in (x, np.array([point, 0], np.int32), result)]
    kernel.jit()["main"](*given)
    np.testing.assert_array_equal(given[-1].numpy(), expected - point if back else expected)


def lowered(func: PrimFunc) -> PrimFunc:
    """In the form in which code generation takes it."""
    target = target_of(HOST.target)
    lower, _, _ = tirx.get_tir_pipeline(TIR_PIPELINE)
    bound = tirx.transform.BindTarget(tvm.target.Target(target, host=target))
    return round_once(lower(bound(IRModule({"main": func}))))["main"]


def bytes_made(func: PrimFunc) -> int:
    """Casts to bytes."""
    found: list[Any] = []

    def look(cast: Any) -> None:
        if str(cast.ty.dtype).partition("x")[0] in LIMITS:
            found.append(cast)

    structural_walk(func.body, [(tirx.Cast, look)])
    return len(found)


@pytest.mark.parametrize("lanes", [1, 16])
def test_what_is_taken_back_is_no_byte(lanes: int) -> None:
    func = lowered(vectors(quantiser("uint8", back=True), lanes))
    assert not bytes_made(func)
    assert LRINT not in func.script()


@pytest.mark.parametrize("wrong", [{"cut": False}, {"other": True}])
def test_other_numbers_are_left_as_they_are(wrong: dict[str, bool]) -> None:
    """What may wrap around, and another zero point."""
    func = lowered(vectors(quantiser("uint8", back=True, **wrong), 16))
    assert bytes_made(func) == 1
    assert LRINT in func.script()
