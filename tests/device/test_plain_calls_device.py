"""Kernels of functions that hold TIR's own calls: within the bounds of `compute.maths`, and right
by the reference of the function as it came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plain_calls import HOLDING, softmax
from scipy import special
from test_maths import FUNCTIONS, MACHINES, SAMPLES, SPECIAL, assert_power, assert_within, sweep

from tvm_ext.compute import maths, plain_calls
from tvm_ext.compute.maths import const
from tvm_ext.hardware import get, resolve
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick
from tvm_ext.planner import Option, Planned, Task, loose_plan, make_task, plan_task
from tvm_ext.tir import write
from tvm_ext.tvm_api import PrimFunc, Target, te, tirx, tvm
from tvm_ext.verify import check, has_reference


def machine_named(name: str) -> HardwareModel:
    return resolve("cpu") if name == "cpu" else get(name)


def kernel(planned: Planned, hardware: HardwareModel) -> Any:
    built = build(planned.func, Target(hardware.target))
    assert isinstance(built, Built), built
    return built.main


def run(func: PrimFunc, x: np.ndarray, machine: str = "cpu") -> np.ndarray:
    """The result of the picker's kernel, in float64."""
    hardware = machine_named(machine)
    planned = plan_task(make_task(func, "main"), hardware)
    assert planned.option.source == "picker", planned.reasons
    out = tvm.runtime.tensor(np.full_like(x, np.nan))
    kernel(planned, hardware)(tvm.runtime.tensor(x), out)
    with np.errstate(invalid="ignore"):
        return out.numpy().astype(np.float64)


def each(function: Any, size: int) -> PrimFunc:
    x = te.placeholder((size,), name="x")
    return te.create_prim_func([x, te.compute(x.shape, lambda i: function(x[i]), name="each")])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sigmoid", "rsqrt"])
def test_a_call_is_within_the_bound_of_its_expression(name: str, machine: str) -> None:
    """Every exponent, denormals, infinities and NaN."""
    x, function = sweep(), FUNCTIONS[name]
    got = run(each(getattr(tirx, name), x.size), x, machine)
    with np.errstate(all="ignore"):
        exact = function.exact(x.astype(np.float64))
        size = np.clip(np.abs(exact), np.finfo(np.float32).tiny, np.finfo(np.float32).max)
        bound = function.ulps * np.spacing(size.astype(np.float32)).astype(np.float64)
        assert_within(got, exact, bound, x)


@pytest.mark.parametrize("exponent", [2.0, 3.0, 7.0, 16.0, -1.0, -3.0, 0.5, -0.5])
def test_a_power_is_within_its_bound(exponent: float) -> None:
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-4, 4, SAMPLES)).astype(np.float32)
    if exponent == int(exponent):
        x *= rng.choice([-1, 1], SAMPLES).astype(np.float32)
    func = each(lambda v: tirx.pow(v, tirx.const(exponent, "float32")), x.size)
    assert_power(x, np.full_like(x, exponent), run(func, x))


def plans(task: Task, hardware: HardwareModel) -> list[Planned]:
    """The picker's plans and the loose one."""
    assert task.graph is not None
    picked = [found.plan for found in pick(task.graph, hardware, 3)]
    return [
        Planned(task, write(task.func, plan), Option("picker", plan), [])
        for plan in (*picked, loose_plan(hardware))
    ]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", HOLDING)
def test_every_plan_is_right_by_the_exact_reference(name: str, machine: str) -> None:
    hardware = machine_named(machine)
    task = make_task(HOLDING[name](), "main")
    assert has_reference(task)
    for planned in plans(task, hardware):
        assert check(planned, kernel(planned, hardware)) == "", planned.option.plan


def test_an_expression_is_checked_against_the_call_it_replaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong polynomial must not be its own reference."""
    monkeypatch.setitem(plain_calls._EXPRESSIONS, "exp", lambda x: maths.exp(x * const(1 + 1e-4)))
    hardware = resolve("cpu")
    planned = plan_task(make_task(softmax(8, 64), "main"), hardware)
    assert "the reference says" in check(planned, kernel(planned, hardware))


def rows(length: int) -> np.ndarray:
    """Rows of one length: plain, large, huge, masked in part, masked but for one, equal, denormal,
    an infinity, NaN, far apart."""
    rng = np.random.default_rng(length)
    x = rng.standard_normal((10, length)).astype(np.float32)
    x[1] *= 80
    x[2] *= 1e37
    x[3, rng.permutation(length)[: length // 2]] = -np.inf
    x[4, 1:] = -np.inf
    x[5] = 3.0
    x[6] *= 1e-42
    x[7, 2] = np.inf
    x[8, length - 1] = np.nan
    x[9, ::2] -= 87.0
    return x


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("length", [5, 37, 256, 203])
def test_softmax_of_awkward_rows(length: int, machine: str) -> None:
    x = rows(length)
    got = run(softmax(*x.shape), x, machine)
    with np.errstate(invalid="ignore"):
        want = special.softmax(x.astype(np.float64), -1)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-38)
    assert (got[3][np.isneginf(x[3])] == 0).all()


def test_softmax_of_special_values_is_what_tvm_makes_of_them() -> None:
    """The picker's kernel beside the function as TVM wrote it, each value with every other."""
    first, second = np.meshgrid(np.array(SPECIAL, np.float32), np.array(SPECIAL, np.float32))
    x = np.stack([first.ravel(), second.ravel(), np.zeros(first.size, np.float32)], 1)
    func = softmax(*x.shape)
    task, hardware = make_task(func, "main"), resolve("cpu")
    plain = Planned(task, task.original, Option("none", None), [])
    out = tvm.runtime.tensor(np.zeros_like(x))
    kernel(plain, hardware)(tvm.runtime.tensor(x), out)
    np.testing.assert_allclose(run(func, x), out.numpy(), rtol=2e-6, atol=2e-38)
