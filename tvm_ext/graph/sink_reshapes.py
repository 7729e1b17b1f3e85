"""`SinkReshapes`: reshapes go behind what works element by element, so that it meets its product.

    y = gelu(reshape(matmul(x, W) + b))              two kernels: a reshape ends an epilogue
        →
    y = reshape(gelu(matmul(x, W) + b))              one, and a view

Models flatten what they multiply and unflatten the result (GPT-2, and whatever its framework calls
a linear layer). Two reshapes that meet become one, or none. A product by a matrix lets a reshape
of its rows pass as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm_ext.graph.layout_rules import RULES, elementwise, with_attrs
from tvm_ext.tvm_api import (
    Call,
    IRModule,
    bound,
    op_name,
    relax,
    rewritten,
    static_extents,
    tvm,
)

Shape = tuple[int, ...]


@tvm.transform.module_pass(opt_level=0, name="SinkReshapes")
@dataclass(frozen=True)
class SinkReshapes:
    """Moves reshapes of computed tensors towards the results; a result itself is not made one."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module; reshapes that nothing uses are dead."""
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Sinker(mod)))


@relax.expr_functor.mutator
class _Sinker(relax.PyExprMutator):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._inside = False
        self._var: Any = None
        self._depths: dict[Any, int] = {}
        self._reshaped_later: set[Any] = set()
        """Tensors that are reshaped, or of which something is made element by element that is."""
        for function in mod.functions.values():
            for block in reversed(getattr(getattr(function, "body", None), "blocks", ())):
                for binding in reversed(block.bindings):
                    self._read(binding)

    def _read(self, binding: Any) -> None:
        """Notes what a binding reads; those of its result's readers have been."""
        value = getattr(binding, "value", None)
        name = op_name(value)
        on = RULES.get(name) is elementwise and binding.var in self._reshaped_later
        if isinstance(value, Call) and (on or name == "relax.reshape"):
            self._reshaped_later.update(arg for arg in value.args if isinstance(arg, relax.Var))

    def visit_var_binding_(self, binding: Any) -> None:
        self._inside = isinstance(binding.var, relax.DataflowVar)
        self._var = binding.var
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        name, shape = op_name(call), static_extents(getattr(call, "ty", None))
        for arg in call.args:
            self._depth(arg)
        if not self._inside or shape is None:
            return call
        if name == "relax.reshape":
            return self._reshaped(call.args[0], shape)
        # where two reshapes do not meet nothing is gained, and a classifier would lose its bias
        if name == "relax.matmul" and self._var in self._reshaped_later:
            return self._behind_product(call, shape)
        if RULES.get(name) is elementwise:
            return self._behind_map(call, shape)
        return call

    def _behind_map(self, call: Call, shape: Shape) -> Any:
        """f(reshape(a), b)  →  reshape(f(a, b as a lies)), if `a` was computed last"""
        whole = [arg for arg in call.args if static_extents(arg.ty) == shape]
        source = self._source(max(whole, key=self._depth)) if whole else None
        before = static_extents(source.ty) if source is not None else None
        if before is None:
            return call
        given = [static_extents(arg.ty) for arg in call.args]
        wanted = [None if own is None else as_before(own, shape, before) for own in given]
        if None in wanted:
            return call
        args = [
            self.builder_.emit(self._reshaped(arg, want)) if want != own else arg
            for arg, own, want in zip(call.args, given, wanted, strict=True)
            if want is not None
        ]
        return self._reshaped(self.builder_.emit(with_attrs(call, args)), shape)

    def _behind_product(self, call: Call, shape: Shape) -> Any:
        """matmul(reshape(a), W)  →  reshape(matmul(a, W)), if `a` has one axis of rows."""
        source = self._source(call.args[0])
        rows, matrix = (static_extents(arg.ty) for arg in call.args)
        before = static_extents(source.ty) if source is not None else None
        if before is None or rows is None or matrix is None or len(matrix) != 2:
            return call
        if len(before) < 2 or before[-1] != rows[-1] or prod(before[:-2]) != 1:
            return call
        product = self.builder_.emit(with_attrs(call, [source, call.args[1]]))
        return self._reshaped(product, shape)

    def _depth(self, expr: Any) -> int:
        """The longest way to a tensor. Of a residual and what is added to it the latter's is
        longer, and the addition should be part of its product's kernel."""
        made = bound(self, expr)
        if isinstance(made, relax.TupleGetItem):
            return self._depth(made.tuple_value)
        if not isinstance(made, Call | relax.Tuple):
            return 0
        if expr not in self._depths:
            parts = made.fields if isinstance(made, relax.Tuple) else made.args
            self._depths[expr] = 1 + max(map(self._depth, parts), default=0)
        return self._depths[expr]

    def _source(self, expr: Any) -> Any:
        """What a computed tensor is a reshape of; None if it is none."""
        made = self._made(expr)
        if op_name(made) != "relax.reshape" or self._made(made.args[0]) is None:
            return None
        return made.args[0]

    def _made(self, expr: Any) -> Any:
        """The call that a variable is bound to."""
        made = bound(self, expr)
        return made if isinstance(made, Call) else None

    def _reshaped(self, expr: Any, shape: Shape) -> Any:
        """The tensor in another shape, by no more than one reshape."""
        made = self._made(expr)
        if op_name(made) == "relax.reshape":
            expr = made.args[0]
        return expr if static_extents(expr.ty) == shape else relax.op.reshape(expr, shape)


def as_before(own: Shape, shape: Sequence[int], before: Sequence[int]) -> Shape | None:
    """The shape in which an operand that is broadcast to `shape` is broadcast to the same elements
    of a tensor of the shape `before`; None if there is none."""
    if own == tuple(shape):
        return tuple(before)
    kept = own
    while kept and kept[0] == 1:
        kept = kept[1:]
    rank = len(kept)
    fits = rank <= min(len(shape), len(before))
    same = tuple(shape[len(shape) - rank :]) == tuple(before[len(before) - rank :])
    if not kept:
        return own if len(own) <= len(before) else ()
    return kept if fits and same else None
