"""`KeepBytes`: what is moved or chosen between quantisers is moved or chosen as bytes.

    quantize(max_pool2d(dequantize(q, s, z)), s, z)   →   max_pool2d(q)
    quantize(concat(dequantize(q, s, z), x), s, z)    →   concat(q, quantize(x, s, z))

Larger bytes are larger numbers, so a maximum is that of bytes; a quarter of the memory is read and
written. Scales and zero points are known and the same on both sides, as quantisers leave them
around such operators. What is concatenated for one quantiser alone is quantised first, whatever it
is: where it was made, if it was not bytes by the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.graph.legalise_quantised import is_one_number
from tvm_ext.graph.quantise_early import MOVES
from tvm_ext.tvm_api import (
    Call,
    IRModule,
    bound,
    call_of,
    constant_array,
    count_uses,
    op_name,
    relax,
    rewritten,
    tvm,
)

CHOICES = MOVES | {
    f"relax.{name}" for name in ("strided_slice", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
}
"""Operators of one tensor each of whose results is one of its elements, whatever they stand for."""
CONCAT = "relax.concat"


@tvm.transform.module_pass(opt_level=0, name="KeepBytes")
@dataclass(frozen=True)
class KeepBytes:
    """Takes pairs of quantisers around such operators away."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module before `Legalise`."""
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Rewriter(mod)))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._uses = count_uses(mod)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) != "relax.quantize":
            return call
        moved = bound(self, call.args[0])
        if op_name(moved) in CHOICES:
            given = self._bytes(moved.args[0], call)
            return call if given is None else call_of(moved, given)
        if op_name(moved) == CONCAT and isinstance(moved.args[0], relax.Tuple):
            return self._concatenated(call, moved)
        return call

    def _concatenated(self, call: Any, concat: Any) -> Any:
        """A concatenation of bytes, if all of it is some or can be made so here."""
        given = list(concat.args[0].fields)
        parts = [self._bytes(part, call) for part in given]
        if None in parts:
            if self._uses[call.args[0]] > 1 or not all(map(is_one_number, call.args[1:])):
                return call
            parts = [
                self.builder_.emit(call_of(call, data)) if part is None else part
                for data, part in zip(given, parts, strict=True)
            ]
        return Call(concat.op, [relax.Tuple(parts)], concat.attrs)

    def _bytes(self, data: Any, quantised: Any) -> Any:
        """The bytes that some data is, if they are those that it is quantised to."""
        made = bound(self, data)
        if op_name(made) != "relax.dequantize":
            return None
        given, *own = made.args
        same = str(given.ty.dtype.dtype) == str(quantised.ty.dtype.dtype) and all(
            is_same_number(one, other) for one, other in zip(own, quantised.args[1:], strict=True)
        )
        return given if same else None


def is_same_number(one: Any, other: Any) -> bool:
    """Whether two expressions are one known number, of one type."""
    a, b = constant_array(one), constant_array(other)
    if a is None or b is None or a.size != 1 or a.dtype != b.dtype:
        return False
    return bool(np.array_equal(a.reshape(-1), b.reshape(-1)))
