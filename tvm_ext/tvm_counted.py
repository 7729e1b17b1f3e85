"""Calls that stand for operators Relax lacks, until a pass writes their kernels.

    tvm_ext.non_zero(alive)                       places of what is alive, and their number
    tvm_ext.scatter_rows(data, places, updates)   data with updates at its rows that are named

Relax's own `nonzero` has a shape that nobody knows, its `scatter_nd` no way to leave a row out.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.tvm_api import op_name, relax, static_extents, tvm

NON_ZERO, SCATTER_ROWS = "tvm_ext.non_zero", "tvm_ext.scatter_rows"
CALL = "relax.call_pure_packed"


def non_zero(alive: Any) -> Any:
    """Places int64 [n], of which the first are found, and how many, int64 [1]; of bool [n]."""
    kinds = [relax.TensorType(shape, "int64") for shape in (static_extents(alive.ty), (1,))]
    return relax.call_pure_packed(NON_ZERO, alive, ty_args=[tvm.ir.TupleType(kinds)])


def scatter_rows(data: Any, places: Any, updates: Any) -> Any:
    """data [n, ...] with the rows updates [m, ...] at places int64 [m]; those beyond are left
    out."""
    return relax.call_pure_packed(SCATTER_ROWS, data, places, updates, ty_args=[data.ty])


def counted_name(call: Any) -> str:
    """The name of such a function that is called; empty of any other call."""
    if op_name(call) != CALL or not isinstance(call.args[0], relax.ExternFunc):
        return ""
    name = str(call.args[0].global_symbol)
    return name if name in (NON_ZERO, SCATTER_ROWS) else ""
