"""Vector maths against float64: the bounds that `compute.maths` and `compute.power` state.

Arguments sweep the bit patterns of float32, so that every exponent comes up: denormal, tiny, huge.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import special

from tvm_ext import passes
from tvm_ext.compute.maths import exp_down, exp_to_half
from tvm_ext.hardware import get, resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.planner import plan_task
from tvm_ext.tvm_api import Target, relax, te, tvm

op, nn = relax.op, relax.op.nn
MACHINES = ("cpu", "cpu/x86-sse")
"""This machine, and one without fused multiply-adds, whose roundings differ."""

TINY = float(np.finfo(np.float32).tiny)
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, TINY, -TINY, 1e-45, 3e38, -3e38]
SAMPLES = 1 << 20


class Function(NamedTuple):
    """An operator, what it means, and how far off it may be."""

    build: Callable[[Any], Any]
    exact: Callable[[np.ndarray], np.ndarray]
    ulps: float = 0.0
    per_argument: float = 0.0
    """Error relative to |x|, for functions that are differences where they are small."""
    absolute: float = 0.0


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _selu(x: np.ndarray) -> np.ndarray:
    return 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))


FUNCTIONS = {
    "exp": Function(op.exp, np.exp, 2.0),
    "log": Function(op.log, np.log, 2.0),
    "tanh": Function(op.tanh, np.tanh, 6.0),
    "erf": Function(op.erf, special.erf, 8.0),
    "sigmoid": Function(op.sigmoid, special.expit, 3.0),
    "atan": Function(op.atan, np.arctan, 3.0),
    "asin": Function(op.asin, np.arcsin, 3.0),
    "acos": Function(op.acos, np.arccos, 2.0),
    "sinh": Function(op.sinh, np.sinh, 4.0),
    "cosh": Function(op.cosh, np.cosh, 4.0),
    "asinh": Function(op.asinh, np.arcsinh, 4.0),
    "acosh": Function(op.acosh, np.arccosh, 3.0),
    "atanh": Function(op.atanh, np.arctanh, 2.0),
    "rsqrt": Function(op.rsqrt, lambda x: 1 / np.sqrt(x), 2.0),
    "sqrt": Function(op.sqrt, np.sqrt, 1.0),
    "silu": Function(nn.silu, lambda x: x * special.expit(x), 0.0, 4e-7),
    "softplus": Function(nn.softplus, lambda x: np.logaddexp(0, x), 4.0),
    "selu": Function(nn.selu, _selu, 0.0, 2e-7, 3e-7),
    "gelu": Function(nn.gelu, lambda x: x * special.ndtr(x), 0.0, 4e-7),
    "gelu_tanh": Function(nn.gelu_tanh, _gelu_tanh, 0.0, 4e-7),
}


def sweep() -> np.ndarray:
    """Special values, then floats spread evenly over bit patterns, then over [-100, 100]."""
    bits = np.linspace(0, 2**32 - 1, SAMPLES // 2).astype(np.uint32)
    plain = np.linspace(-100, 100, SAMPLES // 2 - len(SPECIAL))
    parts = (np.array(SPECIAL, np.float32), bits.view(np.float32), plain.astype(np.float32))
    return np.concatenate(parts)


@cache
def kernel(build_op: Callable[..., Any], inputs: int, size: int, machine: str) -> Any:
    """The compiled kernel of an elementwise operator on vectors of `size`."""
    hardware = resolve("cpu") if machine == "cpu" else get(machine)
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType((size,), "float32")) for i in range(inputs)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(build_op(*params))
        builder.emit_func_output(result)
    with Target(hardware.target):
        lowered = tvm.transform.Sequential(passes.graph_passes(hardware))(builder.finalize())
    (task,) = passes.tasks_of(lowered).values()
    planned = plan_task(task, hardware)
    assert planned.option.source == "picker", planned.reasons
    built = build(planned.func, Target(hardware.target))
    assert isinstance(built, Built), built
    return built.main


def call(build_op: Callable[..., Any], machine: str, *inputs: np.ndarray) -> np.ndarray:
    arrays = [tvm.runtime.tensor(x) for x in (*inputs, np.zeros_like(inputs[0]))]
    kernel(build_op, len(inputs), inputs[0].size, machine)(*arrays)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return arrays[-1].numpy().astype(np.float64)


def narrowed(exact: np.ndarray) -> np.ndarray:
    """What float32 makes of exact results: infinities beyond its range."""
    with np.errstate(all="ignore"):
        return exact.astype(np.float32).astype(np.float64)


def distance(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|got - exact|; 0 where both are NaN or the same infinity, or both below the normal range."""
    want = narrowed(exact)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        below = (np.abs(want) < TINY) & (np.abs(got) <= 2 * TINY)
        away = np.abs(got - exact)
    return np.where(same | below, 0.0, np.where(np.isnan(away), np.inf, away))


def assert_within(got: np.ndarray, exact: np.ndarray, bound: np.ndarray, *inputs: Any) -> None:
    """Fails with the worst element if one is further off than its bound (NaN: 0)."""
    off = distance(got, exact) / np.fmax(bound, TINY)
    worst = int(np.argmax(off))
    where = [x[worst] for x in inputs]
    assert off[worst] <= 1, f"f{where} = {got[worst]!r}, not {exact[worst]!r}"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_is_within_its_bound(name: str, machine: str) -> None:
    function, x = FUNCTIONS[name], sweep()
    got = call(function.build, machine, x)
    with np.errstate(all="ignore"):
        exact = function.exact(x.astype(np.float64))
        bound = function.per_argument * np.abs(x.astype(np.float64)) + function.absolute
        if function.ulps:
            size = np.clip(np.abs(exact), TINY, np.finfo(np.float32).max).astype(np.float32)
            bound = function.ulps * np.spacing(size).astype(np.float64)
        assert_within(got, exact, bound, x)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("function", "bound"), [(exp_down, 2.0**-23), (exp_to_half, 2.0**-13)], ids=["all", "half"]
)
def test_exponentials_of_no_positive_number_are_within_their_bounds(
    function: Callable[[Any], Any], bound: float, machine: str
) -> None:
    x = -np.abs(sweep())

    def of_each(x: Any) -> Any:
        made = relax.BlockBuilder.current()
        return made.call_te(lambda t: te.compute(t.shape, lambda i: function(t[i])), x)

    got = call(of_each, machine, x)
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.float64))
    assert_within(got, exact, bound * exact, x)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("build_op", "exact"), [(op.sin, np.sin), (op.cos, np.cos)])
def test_waves_are_within_their_bounds(
    build_op: Callable[..., Any], exact: Callable[..., Any], machine: str
) -> None:
    x = sweep()
    x[-(SAMPLES // 4) :] = np.linspace(-1e6, 1e6, SAMPLES // 4)
    turns = np.arange(1000) * (np.pi / 2)  # where one of them is nearly zero
    x[-turns.size :] = turns
    got = call(build_op, machine, x)
    with np.errstate(all="ignore"):
        wanted = exact(x.astype(np.float64))
        size = np.clip(np.abs(wanted), TINY, 1.0).astype(np.float32)
        bound = np.where(np.abs(x) <= 1e6, 2 * np.spacing(size).astype(np.float64), 2e-7)
    far = np.abs(x) >= 2.0**28
    finite = np.isfinite(x)
    assert_within(got[~far], wanted[~far], bound[~far], x[~far])
    assert (got[far & finite] == exact(0.0)).all()
    assert np.isnan(got[~finite]).all()


@pytest.mark.parametrize("machine", MACHINES)
def test_tangents_are_within_their_bound(machine: str) -> None:
    parts = np.linspace(-30, 30, SAMPLES // 2), np.linspace(-1e6, 1e6, SAMPLES // 2)
    x = np.concatenate(parts).astype(np.float32)
    exact = np.tan(x.astype(np.float64))
    bound = 4 * np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert_within(call(op.tan, machine, x), exact, bound, x)


def assert_power(x: np.ndarray, y: np.ndarray, got: np.ndarray) -> None:
    """Checks x**y within 3e-7 * (1 + |y log|x||) of it, or as many roundings as factors."""
    with np.errstate(all="ignore"):
        wide, exponent = x.astype(np.float64), y.astype(np.float64)
        exact = np.power(wide, exponent)
        growth = np.nan_to_num(np.abs(exponent * np.log(np.abs(wide))), posinf=0.0)
        limit = np.finfo(np.float32).max
        size = np.clip(np.abs(exact), TINY, limit)
        factors = np.where(np.abs(exponent) <= 16, np.abs(exponent), 0)
        bound = np.fmax(3e-7 * (1 + growth), 6e-8 * factors) * size
        # a result this near the end of the range may round to infinity, or from it
        edge = np.isinf(got) & (np.abs(exact) + bound > limit) & (np.sign(got) == np.sign(exact))
        edge |= np.isinf(narrowed(exact)) & (np.abs(got) + bound > limit)
        assert_within(np.where(edge, exact, got), exact, bound, x, y)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 5.0, 16.0, 17.0, -1.0, -2.0, -3.0])
def test_whole_power_keeps_the_sign(exponent: float) -> None:
    x = sweep()
    x = x[(np.abs(x) < 1e18) & (np.abs(x) > 1e-18) | (np.abs(x) < TINY / 2) & (x == 0)]
    x = np.resize(x, SAMPLES)
    got = call(_constant_power(exponent), "cpu", x)
    assert_power(x, np.full_like(x, exponent), got)


@pytest.mark.parametrize(
    "exponent", [0.75, 1.5, 2.2, -0.3, -1.5, 0.5, -0.5, 0.25, -0.75, 1.75, 2.25]
)
def test_fractional_power(exponent: float) -> None:
    x = np.abs(sweep())
    x = np.where(x < TINY, np.float32(0), x)
    assert_power(x, np.full_like(x, exponent), call(_constant_power(exponent), "cpu", x))


@pytest.mark.parametrize("exponent", [float("nan"), float("inf"), float("-inf")])
def test_power_by_no_number(exponent: float) -> None:
    x = np.array([0.0, 0.5, 1.0, 2.0, -2.0, np.inf, np.nan], np.float32)
    x = np.resize(x, SAMPLES)
    assert_power(x, np.full_like(x, exponent), call(_constant_power(exponent), "cpu", x))


@cache
def _constant_power(exponent: float) -> Callable[[Any], Any]:
    return lambda x: op.power(x, relax.const(exponent, "float32"))


@pytest.mark.parametrize("machine", MACHINES)
def test_power_of_tensors(machine: str) -> None:
    """Any base with any exponent: special values with each other, then random ones."""
    values = np.array([*SPECIAL, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 2.5, -2.5], np.float32)
    rng = np.random.default_rng(0)
    base = np.exp(rng.uniform(-80, 80, SAMPLES)) * rng.choice([-1, 1], SAMPLES)
    exponent = rng.uniform(-9, 9, SAMPLES)
    exponent[::2] = np.round(exponent[::2])
    pairs = np.stack(np.meshgrid(values, values)).reshape(2, -1)
    x, y = np.concatenate([pairs, np.stack([base, exponent])], 1).astype(np.float32)
    assert_power(x, y, call(op.power, machine, x, y))
