"""`SliceInPlace`: what lies in one piece in a tensor is read where it lies.

    a = take(x, 0); b = take(x, 1); ...; f(a); g(b)
        →
    a = view(x, 0); b = view(x, 48); ...; f(a); g(b)

The steps of a sequence, taken apart one by one, would each be copied: a kernel for each step, and
where the place is no operand (of slices) one to compile for each. A few slices are left to what
reads them, which takes them in element by element and may be one kernel with what makes them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm_ext.graph.lower_split import MOST_PARTS, Part, part_of, parts_of
from tvm_ext.tvm_api import (
    IRModule,
    bound,
    constant_array,
    element_bytes,
    op_name,
    relax,
    rewritten,
    static_extents,
    tvm,
)

VIEW = "relax.memory.view"


@tvm.transform.module_pass(opt_level=0, name="SliceInPlace")
@dataclass(frozen=True)
class SliceInPlace:
    """Rewrites gathers of one known place, slices and parts of splits where the tensor is taken
    apart along the outermost axis.

    most_parts  of a tensor that are left to what reads them
    """

    most_parts: int = MOST_PARTS

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module before `Legalise`, with views."""
        viewed = rewritten(mod, _Viewer(mod, self.most_parts))
        return relax.transform.DeadCodeElimination()(viewed)


@relax.expr_functor.mutator
class _Viewer(relax.PyExprMutator):
    def __init__(self, mod: IRModule, most_parts: int) -> None:
        super().__init__(mod)
        self._most = most_parts
        self._inside = False
        self._parts: Counter[Any] = Counter()
        """Of tensors that are taken apart."""
        for function in mod.functions.values():
            if isinstance(function, relax.Function):
                relax.analysis.post_order_visit(function, self._count)

    def _count(self, node: Any) -> None:
        name = op_name(node)
        if name in ("relax.take", "relax.strided_slice", "relax.split"):
            self._parts[node.args[0]] += len(node.ty.fields) if name == "relax.split" else 1

    def visit_var_binding_(self, binding: Any) -> None:
        self._inside = isinstance(binding.var, relax.DataflowVar)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:
        many = bool(call.args) and self._parts[call.args[0]] > self._most
        call = self.visit_expr_post_order(call)
        if op_name(call) == "relax.reshape" and self._inside:
            return self._reshaped(call)
        part = None
        if many and self._inside:
            taken = op_name(call) == "relax.take" and call.attrs.axis is not None
            part = self._taken(call) if taken else part_of(call)
        return self._viewed(call, part)

    def visit_tuple_getitem_(self, item: Any) -> Any:
        item = self.visit_expr_post_order(item)
        parts = parts_of(bound(self, item.tuple_value))
        many = len(parts) > self._most and self._inside
        return self._viewed(item, parts[item.index] if many else None)

    def _taken(self, call: Any) -> Part | None:
        """The place of a gather of one."""
        whole, index = call.args[0], constant_array(bound(self, call.args[1]))
        shape = static_extents(whole.ty)
        if index is None or index.size != 1 or not shape:
            return None
        axis, place = int(call.attrs.axis) % len(shape), int(index.reshape(-1)[0])
        place += shape[axis] if place < 0 else 0
        return Part(whole, axis, place, place + 1) if 0 <= place < shape[axis] else None

    def _reshaped(self, call: Any) -> Any:
        """reshape(view(x, 48))  →  view(x, 48)"""
        view, shape = bound(self, call.args[0]), static_extents(call.ty)
        if op_name(view) != VIEW or shape is None:
            return call
        whole, _, *others = view.args
        return relax.op.memory.view(whole, relax.ShapeExpr(shape), *others)

    def _viewed(self, expr: Any, part: Part | None) -> Any:
        """The part of a tensor where it lies; the expression itself if that is not one piece."""
        if part is None:
            return expr
        whole, axis, begin, _ = part
        before, after = static_extents(whole.ty), static_extents(expr.ty)
        if not isinstance(whole, relax.Var) or before is None or after is None:
            return expr
        begin_bytes = begin * prod(before[axis + 1 :]) * element_bytes(whole.ty.dtype)
        if prod(before[:axis]) != 1:
            return expr
        dtype = str(whole.ty.dtype.dtype)
        return relax.op.memory.view(whole, relax.ShapeExpr(after), dtype, begin_bytes)
