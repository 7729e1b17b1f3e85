"""Functions as far as a pass of the pipeline takes them, and the kernels that they call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm_ext import passes
from tvm_ext.costs import predicted_us
from tvm_ext.hardware import get
from tvm_ext.tvm_api import IRModule, PrimFunc, Target, op_name, relax, structural_walk

HARDWARE = get("cpu/x86-avx2")


def before(
    name: str, build: Callable[..., Any], shape: tuple[int, ...], params: Sequence[str]
) -> IRModule:
    """A function of tensors of one shape before the pass of that name; `build`, given `emit` and
    the tensors, may return several results."""
    builder = relax.BlockBuilder()
    given = [relax.Var(param, relax.TensorType(shape, "float32")) for param in params]
    with builder.function("main", given):
        with builder.dataflow():
            found = build(builder.emit, *given)
            result = builder.emit_output(relax.Tuple(found) if isinstance(found, list) else found)
        builder.emit_func_output(result)
    mod = builder.finalize()
    with Target(HARDWARE.target):
        for step in passes.graph_passes(HARDWARE):
            if step.info.name == name:
                return mod
            mod = step(mod)
    raise AssertionError(f"no pass is called {name}")


def called(
    build: Callable[..., Any], shape: tuple[int, ...], *, operators: bool = False
) -> IRModule:
    """A function of two tensors; `build` is given what emits the call of a kernel, or that of an
    operator, and returns several results."""
    builder = relax.BlockBuilder()
    given = [relax.Var(name, relax.TensorType(shape, "float32")) for name in "xy"]
    with builder.function("main", given):
        with builder.dataflow():
            emit = builder.emit if operators else builder.emit_te
            result = builder.emit_output(relax.Tuple(build(emit, *given)))
        builder.emit_func_output(result)
    return builder.finalize()


def by_model(func: PrimFunc, rule: str = "") -> float:
    """What the picker's model says of a kernel."""
    return predicted_us(func, HARDWARE, rule)


def kernels(mod: IRModule) -> list[str]:
    """The kernels that `main` calls, in order."""
    found: list[Any] = []
    structural_walk(mod["main"].body, (relax.Call, found.append))
    calls = [call for call in found if op_name(call) == "relax.call_tir"]
    return [str(call.args[0].name_hint) for call in calls]
