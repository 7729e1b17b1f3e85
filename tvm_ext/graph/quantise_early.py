"""`QuantiseEarly`: what is only moved before it is quantised is quantised first.

    quantize(permute_dims(reshape(x)), s, z)   →   permute_dims(reshape(quantize(x, s, z)))

So a quantiser ends the kernel that makes the numbers, and a quarter of the memory is moved. It has
one scale and one zero point, and nobody else reads what was moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_ext.graph.legalise_quantised import is_one_number
from tvm_ext.tvm_api import IRModule, bound, call_of, count_uses, op_name, relax, rewritten, tvm

MOVES = frozenset(
    f"relax.{name}" for name in ("reshape", "permute_dims", "squeeze", "expand_dims", "flatten")
)
"""Operators whose result is all elements of one tensor, each once."""


@tvm.transform.module_pass(opt_level=0, name="QuantiseEarly")
@dataclass(frozen=True)
class QuantiseEarly:
    """Moves quantisers before such operators."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module before `MultiplyBytes`."""
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Rewriter(mod)))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._uses = count_uses(mod)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) != "relax.quantize" or not all(map(is_one_number, call.args[1:])):
            return call
        moves: list[Any] = []
        data = call.args[0]
        while isinstance(data, relax.Var) and self._uses[data] == 1:
            moved = bound(self, data)
            if op_name(moved) not in MOVES:
                break
            moves.append(moved)
            data = moved.args[0]
        if not moves:
            return call
        dtype = str(call.ty.dtype.dtype)
        result = relax.op.quantize(data, *call.args[1:], axis=-1, out_dtype=dtype)
        for moved in reversed(moves):
            result = call_of(moved, self.builder_.emit(result))
        return result
