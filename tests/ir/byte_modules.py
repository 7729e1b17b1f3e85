"""What tests of passes over bytes ask of a module: its operators, and what it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_ext.tvm_api import IRModule, op_name, relax, structural_walk, tvm


def module(body: Callable[..., Any], shape: tuple[int, ...], dtype: str = "float32") -> IRModule:
    """A function of one tensor; `body` is given what emits, and it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit, x))
        builder.emit_func_output(result)
    return builder.get()


def operators(mod: IRModule) -> list[str]:
    """The names of a module's operators and kernels, in order."""
    found: list[str] = []

    def look(call: Any) -> None:
        name = op_name(call).removeprefix("relax.")
        found.append(call.args[0].name_hint if name == "call_tir" else name)

    structural_walk(mod["main"].body, (relax.Call, look))
    return found


def run(mod: IRModule, *given: np.ndarray) -> np.ndarray:
    """Its one result."""
    machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    result: np.ndarray = machine["main"](*map(tvm.runtime.tensor, given)).numpy()
    return result
