"""Equal tensor programs are made once, and different ones are not taken for equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_ext.graph.legalise import Legalise
from tvm_ext.graph.programs import Programs
from tvm_ext.hardware import get
from tvm_ext.tvm_api import IRModule, PrimFunc, constant, op_name, relax, structural_walk, topi

HARDWARE = get("cpu/x86-avx2")
op = relax.op
SHAPE = (4, 16)


def legalised(*steps: Callable[[Any, Any], Any]) -> IRModule:
    """A function of x and y with all steps as results."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType(SHAPE, "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            made = [builder.emit(step(x, y)) for step in steps]
            result = builder.emit_output(relax.Tuple(made))
        builder.emit_func_output(result)
    return Legalise(HARDWARE)(builder.finalize())


def calls(mod: IRModule) -> list[tuple[str, list[str]]]:
    """The kernels `main` calls, with the names of the variables they take."""
    found: list[Any] = []
    structural_walk(mod["main"].body, (relax.Call, found.append))
    return [
        (
            str(call.args[0].name_hint),
            [str(getattr(one, "name", "constant")) for one in call.args[1].fields],
        )
        for call in found
        if op_name(call) == "relax.call_tir"
    ]


def functions(mod: IRModule) -> int:
    return sum(isinstance(func, PrimFunc) for func in mod.functions.values())


def test_the_same_operator_of_other_tensors() -> None:
    mod = legalised(
        op.add, lambda x, y: op.add(y, x), lambda x, y: op.exp(y), lambda x, _: op.exp(x)
    )
    assert [taken for _, taken in calls(mod)] == [["x", "y"], ["y", "x"], ["y"], ["x"]]
    assert functions(mod) == 2


def test_one_tensor_twice() -> None:
    mod = legalised(lambda x, _: op.multiply(x, x), op.multiply, lambda _, y: op.multiply(y, y))
    results = [taken for _, taken in calls(mod)]
    assert results[1] == ["x", "y"]
    assert {len(set(taken)) for taken in (results[0], results[2])} == {1}


def test_scalars_are_part_of_a_program_and_matrices_are_not() -> None:
    def scaled(factor: float) -> Callable[[Any, Any], Any]:
        return lambda x, _: op.multiply(x, relax.const(factor, "float32"))

    def raised(exponent: float) -> Callable[[Any, Any], Any]:
        return lambda x, _: op.power(x, relax.const(exponent, "float32"))

    assert functions(legalised(scaled(2.0), scaled(3.0), scaled(2.0))) == 2
    assert functions(legalised(raised(2.0), raised(3.0))) == 2
    weights = [np.full((16, 8), value, np.float32) for value in (1, 2)]
    mod = legalised(*[lambda x, _, w=w: op.matmul(x, constant(w)) for w in weights])
    assert functions(mod) == 1
    packed: list[Any] = []
    structural_walk(mod["main"].body, (relax.Call, lambda call: packed.extend(_matrices(call))))
    assert sorted(float(array.max()) for array in packed) == [1.0, 2.0]


def test_columns_that_are_padded_alike() -> None:
    """33 to 40 columns are packed into the same blocks."""
    widths = (33, 40, 37)
    weights = [np.ones((16, width), np.float32) for width in widths]
    mod = legalised(*[lambda x, _, w=w: op.matmul(x, constant(w)) for w in weights])
    fields = mod["main"].ret_ty.fields
    assert [int(field.shape.values[1]) for field in fields] == list(widths)
    assert functions(mod) == 3


def _matrices(call: Any) -> list[np.ndarray]:
    if op_name(call) != "relax.call_tir":
        return []
    return [one.value.numpy() for one in call.args[1].fields if not isinstance(one, relax.Var)]


def test_operators_with_attributes_are_made_anew() -> None:
    mod = legalised(
        lambda x, _: op.clip(x, 0, 1), lambda x, _: op.clip(x, 0, 2), lambda x, _: op.clip(x, 0, 1)
    )
    assert functions(mod) == 2


def test_what_a_program_follows_from_is_its_key() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    programs = Programs(builder, {})
    bodies = []

    def transposed(axes: tuple[int, int], key: Any) -> Any:
        def body(tensor: Any) -> Any:
            bodies.append(axes)
            return topi.transpose(tensor, axes)

        return programs.call_te(body, x, key=key)

    for axes in ((1, 0), (1, 0), (0, 1)):
        transposed(axes, axes)
    assert bodies == [(1, 0), (0, 1)]
    transposed((0, 1), None)
    assert bodies == [(1, 0), (0, 1), (0, 1)]
