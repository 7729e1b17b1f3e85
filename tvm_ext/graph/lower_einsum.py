"""`LowerEinsum`: a sum of products of two tensors becomes a matrix product, which has kernels.

    einsum("bhlk,bhtk->bhlt", q, k)  →  matmul(q, permute_dims(k, [0, 1, 3, 2]))

Letters of both operands and the result are the product's batch, those of both operands alone are
summed over, and the others count its rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from tvm_ext.tvm_api import IRModule, op_name, relax, rewritten, static_extents, tvm


class Contraction(NamedTuple):
    """What the letters of an einsum of two operands stand for, each group in the order in which
    matmul has it."""

    batch: str
    left: str
    right: str
    summed: str


def explicit(subscripts: str) -> tuple[list[str], str]:
    """The letters of the operands and those of the result, which may go without saying: those that
    occur once, sorted."""
    operands, arrow, out = subscripts.replace(" ", "").partition("->")
    if not arrow:
        letters = operands.replace(",", "")
        out = "".join(sorted(letter for letter in letters if letters.count(letter) == 1))
    return operands.split(","), out


def contraction(operands: Sequence[str], out: str) -> Contraction | None:
    """The einsum as a matrix product; None for any other."""
    if len(operands) != 2 or not "".join((*operands, out)).isalpha():
        return None
    a, b = operands
    if any(len(set(part)) < len(part) for part in (a, b, out)) or not set(out) <= {*a, *b}:
        return None
    found = Contraction(
        batch="".join(letter for letter in out if letter in a and letter in b),
        left="".join(letter for letter in out if letter in a and letter not in b),
        right="".join(letter for letter in out if letter in b and letter not in a),
        summed="".join(letter for letter in a if letter in b and letter not in out),
    )
    every = {*found.batch, *found.left, *found.right, *found.summed}
    return found if found.summed and every == {*a, *b} else None


@tvm.transform.module_pass(opt_level=0, name="LowerEinsum")
@dataclass(frozen=True)
class LowerEinsum:
    """Rewrites einsum of two operands of static shape that sums over a letter of both, and over no
    letter of one alone; other forms stay."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module with matmul in place of such einsums."""
        return rewritten(mod, _Rewriter(mod))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) != "relax.einsum" or not isinstance(call.args[0], relax.Tuple):
            return call
        operands = list(call.args[0].fields)
        shapes = [static_extents(operand.ty) for operand in operands]
        names, result = explicit(str(call.attrs.subscripts))
        form = None if None in shapes else contraction(names, result)
        if form is None:
            return call
        extents = {
            letter: extent
            for name, shape in zip(names, shapes, strict=True)
            for letter, extent in zip(name, shape or (), strict=True)
        }
        # The result's last letter is the right side's: then it comes out as it is wanted.
        if form.left and result.endswith(form.left[-1]):
            form = form._replace(left=form.right, right=form.left)
            operands.reverse()
            names.reverse()
        batch = [extents[letter] for letter in form.batch]

        def side(place: int, *groups: str) -> Any:
            ordered = self._permuted(operands[place], names[place], form.batch + "".join(groups))
            sizes = [prod(extents[letter] for letter in group) for group in groups]
            return self._reshaped(ordered, [*batch, *sizes])

        product = self.builder_.emit(
            relax.op.matmul(side(0, form.left, form.summed), side(1, form.summed, form.right))
        )
        letters = form.batch + form.left + form.right
        apart = self._reshaped(product, [extents[letter] for letter in letters])
        return self._permuted(apart, letters, result)

    def _permuted(self, tensor: Any, held: str, wanted: str) -> Any:
        if held == wanted:
            return tensor
        axes = [held.index(letter) for letter in wanted]
        return self.builder_.emit(relax.op.permute_dims(tensor, axes))

    def _reshaped(self, tensor: Any, shape: Sequence[int]) -> Any:
        if static_extents(tensor.ty) == tuple(shape):
            return tensor
        return self.builder_.emit(relax.op.reshape(tensor, list(shape)))
