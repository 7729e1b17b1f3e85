"""`AddBytes`: what a sum takes from quantised tensors it reads as bytes, and takes back itself.

    add(dequantize(q, s, z), y)             →  call_tir(dequantize_add, q, s, z, y)
    dequantize(quantize(x, s, z), s', z')   →  dequantize(quantize(x, s, z), s, z)   equal numbers

A kernel that ends with `q`, whose only reader is the sum, would otherwise be fused with what takes
it back and hand on floats, four times the memory. With one operand for both numbers a kernel that
quantises and takes back only rounds (`tvm_rounding`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_ext.graph.keep_bytes import is_same_number
from tvm_ext.graph.legalise_norm import known_extents
from tvm_ext.graph.legalise_quantised import BYTES, as_integer, dequantised, is_one_number
from tvm_ext.tvm_api import Call, IRModule, bound, op_name, relax, rewritten, te, topi, tvm

SUMS = {"relax.add": topi.add, "relax.subtract": topi.subtract}


@tvm.transform.module_pass(opt_level=0, name="AddBytes")
@dataclass(frozen=True)
class AddBytes:
    """Moves dequantising into sums."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module before `Legalise`."""
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Rewriter(mod)))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) == "relax.dequantize":
            return self._by_one_number(call)
        return self._sum(call) if op_name(call) in SUMS else call

    def _by_one_number(self, call: Any) -> Any:
        quantised = bound(self, call.args[0])
        if op_name(quantised) != "relax.quantize":
            return call
        pairs = list(zip(quantised.args[1:], call.args[1:], strict=True))
        if not all(is_same_number(one, other) for one, other in pairs):
            return call
        return Call(call.op, [call.args[0], *quantised.args[1:]], call.attrs)

    def _sum(self, call: Any) -> Any:
        made = [bound(self, operand) for operand in call.args]
        taken = [_is_plain(one) for one in made]
        if not any(taken):
            return call
        given: list[Any] = []
        for operand, one, own in zip(call.args, made, taken, strict=True):
            given += [one.args[0], one.args[1], as_integer(one.args[2])] if own else [operand]
        combine, name = SUMS[op_name(call)], op_name(call).removeprefix("relax.")

        def body(*tensors: te.Tensor) -> te.Tensor:
            left = iter(tensors)
            sides = [
                dequantised(next(left), next(left), next(left), 0) if own else next(left)
                for own in taken
            ]
            return combine(*sides)

        return self.builder_.call_te(body, *given, primfunc_name_hint=f"dequantize_{name}")


def _is_plain(made: Any) -> bool:
    """Whether an operand is made of bytes of a known shape, by one scale and one zero point."""
    if op_name(made) != "relax.dequantize" or str(made.args[0].ty.dtype.dtype) not in BYTES:
        return False
    extents = known_extents(made)
    return extents is not None and None not in extents and all(map(is_one_number, made.args[1:]))
