"""Calls of special functions made expressions: which go, which stay, and what does not change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from funcs import FUNCS
from plain_calls import HOLDING, each, power_of, softmax

from tvm_ext.compute.plain_calls import with_vector_maths
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker import pick
from tvm_ext.planner import Option, choose, make_task, plan_task
from tvm_ext.tir import Prepared, prepare, signature, write
from tvm_ext.tvm_api import Call, PrimFunc, ir, structural_walk, tirx

VECTOR = {"reinterpret", "floor", "sqrt", "shift_left", "shift_right", "bitwise_and", "fabs"}
"""What our expressions call: operations of whole vectors."""


def calls(func: PrimFunc) -> set[str]:
    """Names of the operations a function calls, without those of whole vectors."""
    found: set[str] = set()

    def note(call: Any) -> None:
        if isinstance(call.op, ir.Op):
            found.add(call.op.name.rpartition(".")[2])

    structural_walk(func.body, (Call, note))
    return found - VECTOR


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sigmoid", "rsqrt"])
def test_a_call_becomes_an_expression(name: str) -> None:
    func = each(getattr(tirx, name))
    assert calls(func) == {name}
    assert not calls(with_vector_maths(func))


@pytest.mark.parametrize("exponent", [-0.5, 2.0, 3.0, 16.0, -1.0, -16.0])
def test_a_power_that_is_a_product_or_a_reciprocal_root_becomes_one(exponent: float) -> None:
    assert not calls(with_vector_maths(power_of(exponent)))


@pytest.mark.parametrize(
    "exponent", [0.0, 0.5, 1.0, 0.75, 17.0, -2.5, 1e30, float("inf"), float("nan")]
)
def test_any_other_power_stays(exponent: float) -> None:
    """Its error would grow beyond what a reference allows for, or LLVM knows it already."""
    func = power_of(exponent)
    assert with_vector_maths(func).same_as(func)


def test_a_power_of_two_tensors_stays_and_its_operands_do_not() -> None:
    func = with_vector_maths(each(lambda x: tirx.pow(tirx.exp(x), tirx.tanh(x))))
    assert calls(func) == {"pow"}


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_types_stay(dtype: str) -> None:
    func = each(lambda x: tirx.exp(x) + tirx.pow(x, tirx.const(3.0, dtype)), dtype)
    assert with_vector_maths(func).same_as(func)


def test_functions_without_an_expression_and_integers_stay() -> None:
    for func in (
        each(lambda x: tirx.log2(x) + tirx.sqrt(x) + tirx.exp2(x) + tirx.floor(x)),
        each(lambda x: tirx.popcount(x) + x, "int32"),
        FUNCS["gather"](),
        FUNCS["conv"](),
    ):
        assert with_vector_maths(func).same_as(func)


def test_a_cast_is_followed() -> None:
    """Half the work in float32, half in float64: only the former is ours."""
    func = each(lambda x: tirx.exp(tirx.exp(x).astype("float64")).astype("float32"))
    text = with_vector_maths(func).script()
    assert text.count("T.exp(") == 1
    assert 'T.exp(T.Cast("float64"' in text


def test_calls_inside_calls_all_go() -> None:
    func = each(lambda x: tirx.exp(tirx.tanh(tirx.log(tirx.exp(x)) + tirx.rsqrt(x))))
    assert not calls(with_vector_maths(func))


def test_equal_calls_bind_names_of_their_own() -> None:
    """Inlining copies expressions: a name bound twice must not come to mean two things."""
    value: list[Any] = []

    def body(x: Any) -> Any:
        value[:] = [tirx.exp(x)]
        return value[0] * value[0]

    bound: list[Any] = []
    structural_walk(
        with_vector_maths(each(body)).body, (tirx.Let, lambda let: bound.append(let.var))
    )
    assert len(bound) > 2
    assert not any(a.same_as(b) for i, a in enumerate(bound) for b in bound[:i])


def test_nothing_is_left_to_replace_afterwards() -> None:
    once = with_vector_maths(softmax(12, 48))
    assert with_vector_maths(once).same_as(once)


def shape_of(prepared: Prepared | None) -> Any:
    """All of a function's graph but how much arithmetic a stage does."""
    assert prepared is not None
    nodes = (msgspec.structs.replace(n, flops_per_point=0.0) for n in prepared.graph.nodes)
    return prepared.graph.tensors, tuple(nodes)


@pytest.mark.parametrize("name", HOLDING)
def test_stages_keep_their_numbers(name: str) -> None:
    """A plan is made for the graph of the function as it came."""
    func = HOLDING[name]()
    after = with_vector_maths(func)
    assert not after.same_as(func)
    assert shape_of(prepare(func)) == shape_of(prepare(after))


@pytest.mark.parametrize("name", HOLDING)
def test_a_task_is_known_by_the_function_as_it_came(name: str) -> None:
    func = HOLDING[name]()
    task, prepared = make_task(func, "main"), prepare(func)
    assert task.original.same_as(func)
    assert task.signature == signature(func)
    assert prepared is not None
    assert task.graph is not None
    assert task.flops == prepared.graph.flops, "a special function counts ten"
    assert task.reference is not None
    assert calls(task.func) <= {"pow", "if_then_else"}


@pytest.mark.parametrize(
    "name", [name for name in FUNCS if not name.startswith(("softmax", "norm"))]
)
def test_a_task_without_calls_is_written_from_the_function_itself(name: str) -> None:
    func = FUNCS[name]()
    assert make_task(func, "main").func.same_as(func)


@pytest.mark.parametrize("name", HOLDING)
def test_no_kernel_of_ours_calls_and_the_fallback_does(name: str, hardware: HardwareModel) -> None:
    """The planner's kernel, those the tuner writes, and the last resort: as TVM wrote it."""
    task = make_task(HOLDING[name](), "main")
    assert task.graph is not None
    planned = plan_task(task, hardware)
    assert planned.option.source == "picker", planned.reasons
    assert calls(planned.func) <= {"pow", "if_then_else"}
    for found in pick(task.graph, hardware, 4):
        assert calls(write(task.func, found.plan)) <= {"pow", "if_then_else"}
    assert choose(task, [Option("none", None)], []).func.same_as(task.original)


def test_the_kernel_is_the_same_each_time(hardware: HardwareModel) -> None:
    hashes = {plan_task(make_task(softmax(12, 48), name), hardware).tir_hash for name in ("a", "b")}
    assert len(hashes) == 1
