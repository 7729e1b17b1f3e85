"""What a Relax function does, step by step."""

from __future__ import annotations

from typing import Any

from tvm_ext.tvm_api import IRModule, op_name, relax, structural_walk


def steps(mod: IRModule) -> list[str]:
    """The operators of `main`, in order."""
    found: list[Any] = []
    structural_walk(mod["main"].body, (relax.Call, found.append))
    return [op_name(call).removeprefix("relax.").removeprefix("nn.") for call in found]
