"""`FoldLayout`: data movement of constants done in numpy, once, at compile time.

    permute_dims(const), reshape(const), expand_dims(const), …   →   const

TVM's FoldConstant compiles and runs one kernel for each folded call, 28 ms each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.tvm_api import IRModule, constant_array, relax, tvm

LARGEST_GROWTH = 4
"""A broadcast that makes a constant more than this much larger stays an operator."""


def _shape_of(call: Any) -> tuple[int, ...] | None:
    extents = getattr(call.ty.shape, "values", None)
    try:
        return tuple(int(extent) for extent in extents) if extents is not None else None
    except TypeError:
        return None


def _permuted(array: np.ndarray, call: Any) -> np.ndarray:
    axes = call.attrs.axes
    return np.transpose(array, [int(axis) for axis in axes] if axes is not None else None)


def _reshaped(array: np.ndarray, call: Any) -> np.ndarray | None:
    shape = _shape_of(call)
    return None if shape is None else array.reshape(shape)


def _broadcast(array: np.ndarray, call: Any) -> np.ndarray | None:
    shape = _shape_of(call)
    if shape is None or np.prod(shape) > LARGEST_GROWTH * max(array.size, 1024):
        return None
    return np.broadcast_to(array, shape)


def _cast(array: np.ndarray, call: Any) -> np.ndarray | None:
    dtype = str(call.ty.dtype.dtype)
    return None if dtype.startswith(("bfloat", "float8")) else array.astype(dtype)


FOLDS: dict[str, Callable[[np.ndarray, Any], np.ndarray | None]] = {
    "relax.permute_dims": _permuted,
    "relax.reshape": _reshaped,
    "relax.squeeze": _reshaped,
    "relax.expand_dims": _reshaped,
    "relax.flatten": _reshaped,
    "relax.broadcast_to": _broadcast,
    "relax.astype": _cast,
}


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):
    """Replaces foldable calls by constants."""

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        fold = FOLDS.get(str(getattr(call.op, "name", "")))
        source = call.args[0] if len(call.args) else None
        bound = self.lookup_binding(source) if isinstance(source, tvm.ir.Var) else None
        array = constant_array(source if bound is None else bound)
        if fold is None or array is None:
            return call
        folded = fold(array, call)
        return call if folded is None else relax.const(np.ascontiguousarray(folded))


@tvm.transform.module_pass(opt_level=0, name="FoldLayout")
@dataclass(frozen=True)
class FoldLayout:
    """Folds layout operators of constants in every Relax function."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module with constants in their final layout."""
        folder = _Folder(mod)
        for variable, function in mod.functions.items():
            if isinstance(function, relax.Function):
                folder.builder_.update_func(variable, folder.visit_expr(function))
        return relax.transform.DeadCodeElimination()(folder.builder_.get())
