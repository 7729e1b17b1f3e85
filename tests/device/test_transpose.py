"""Transposed copies in squares of vectors: what is written, and that it is the transposition."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.hardware import get, resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick
from tvm_ext.tile.plan import Attach, TilePlan
from tvm_ext.tir import prepare, write
from tvm_ext.tvm_api import PrimFunc, Target, te, tvm


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


def test_a_copy_that_computes_is_left_to_loops() -> None:
    func = scores(64, 2, 32, factor=2.0)
    plan = plan_of(func, "cpu/x86-avx512")
    assert "T.Shuffle" not in write(func, plan).script()
    q, k, found = values(func, plan)
    np.testing.assert_allclose(found, 2 * np.einsum("ihc,jhc->hij", q, k), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "heads", "inner", "step"), [(64, 2, 32, 2), (48, 1, 17, 1), (157, 4, 37, 1)]
)
def test_what_is_no_square_is_copied_in_loops(rows: int, heads: int, inner: int, step: int) -> None:
    """Rows that are not side by side, and extents that are no whole vectors."""
    func = scores(rows, heads, inner, step)
    plan = plan_of(func, "cpu/x86-avx512")
    assert "T.Shuffle" not in write(func, plan).script()
    q, k, found = values(func, plan)
    expected = np.einsum("ihc,jhc->hij", q, k[::step][: rows // step])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
