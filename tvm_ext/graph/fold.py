"""Constants worked out at compile time, in numpy.

    FoldLayout       permute_dims(const), reshape(const), expand_dims(const), …   →   const
                     reshape(expand_dims(x))                                      →   reshape(x)
                     reshape(x) to the shape of x                                 →   x
    FoldIndices      call_tir(f, const, const), small                             →   const

TVM's FoldConstant compiles and runs one kernel for each folded call, 28 ms each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.tir import Reference
from tvm_ext.tvm_api import (
    IRModule,
    constant,
    constant_array,
    count_uses,
    op_name,
    relax,
    tvm,
)

LARGEST_INDEX_TENSOR = 4096
"""Elements up to which a lowered call of constants is evaluated: shape arithmetic, index tables."""
LARGEST_GROWTH = 4
"""A broadcast that makes a constant more than this much larger stays an operator."""


def _shape_of(call: Any) -> tuple[int, ...] | None:
    extents = getattr(getattr(call.ty, "shape", None), "values", None)
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

RESHAPES = frozenset(name for name, fold in FOLDS.items() if fold in (_reshaped, _broadcast))
"""Operators that do nothing where they keep the shape."""


def _array(mutator: relax.PyExprMutator, expr: Any) -> np.ndarray | None:
    """The constant an expression is, or is bound to; None if it is neither."""
    bound = mutator.lookup_binding(expr) if isinstance(expr, tvm.ir.Var) else None
    array: np.ndarray | None = constant_array(expr if bound is None else bound)
    return array


def _rewritten(mod: IRModule, mutator: relax.PyExprMutator) -> IRModule:
    """The module with every Relax function rewritten, and what nothing needs any more gone."""
    for variable, function in mod.functions.items():
        if isinstance(function, relax.Function):
            mutator.builder_.update_func(variable, mutator.visit_expr(function))
    return relax.transform.DeadCodeElimination()(mutator.builder_.get())


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):
    """Replaces foldable calls by constants, and reshapes in a row by one."""

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._uses = count_uses(mod)

    def visit_call_(self, call: Any) -> Any:
        alone = len(call.args) > 0 and self._uses[call.args[0]] == 1
        call = self.visit_expr_post_order(call)
        call = self._regrouped(call) if alone else call
        fold = FOLDS.get(op_name(call))
        if op_name(call) in RESHAPES and self._is_computed(call.args[0]) and _is_same(call):
            return call.args[0]
        array = _array(self, call.args[0]) if len(call.args) else None
        if fold is None or array is None:
            return call
        folded = fold(array, call)
        return call if folded is None else constant(folded)

    def _regrouped(self, call: Any) -> Any:
        """reshape(expand_dims(x)) → reshape(x). From indices of several views in a row TVM cannot
        tell how few rows a strip takes; a view that others read too is computed once for all."""
        given = self.lookup_binding(call.args[0]) if _regroups(call) else None
        shape = _shape_of(call)
        if given is None or shape is None or not _regroups(given):
            return call
        return self.builder_.normalize(relax.op.reshape(given.args[0], shape))

    def _is_computed(self, expr: Any) -> bool:
        return isinstance(expr, relax.Var) and self.lookup_binding(expr) is not None


def _regroups(expr: Any) -> bool:
    """Whether it is a variable's elements in their order, in another shape."""
    return FOLDS.get(op_name(expr)) is _reshaped and isinstance(expr.args[0], relax.Var)


def _is_same(call: Any) -> bool:
    """Whether the result has the shape of what is given."""
    shape = _shape_of(call)
    return shape is not None and shape == _shape_of(call.args[0])


@tvm.transform.module_pass(opt_level=0, name="FoldLayout")
@dataclass(frozen=True)
class FoldLayout:
    """Folds layout operators of constants in every Relax function, and takes reshapes of computed
    tensors away that change no shape."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module with constants in their final layout."""
        return _rewritten(mod, _Folder(mod))


@relax.expr_functor.mutator
class _Evaluator(relax.PyExprMutator):
    """Replaces small lowered calls of constants by their value."""

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._mod = mod

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) != "relax.call_tir":
            return call
        shape = _shape_of(call) if isinstance(call.ty, relax.TensorType) else None
        if shape is None or np.prod(shape) > LARGEST_INDEX_TENSOR:
            return call
        fields = call.args[1].fields
        arrays = [array for field in fields if (array := _array(self, field)) is not None]
        if len(arrays) < len(fields):
            return call
        reference = Reference.of(self._mod[call.args[0]])
        if reference is None or len(reference.outputs) != 1:
            return call
        count = int(np.prod(shape))
        values = reference.points(arrays, 0, np.arange(count)).values
        return constant(values.reshape(shape))


@tvm.transform.module_pass(opt_level=0, name="FoldIndices")
@dataclass(frozen=True)
class FoldIndices:
    """Evaluates small lowered calls whose arguments are constants: what shape arithmetic leaves."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module with their values in place of the calls."""
        return _rewritten(mod, _Evaluator(mod))
