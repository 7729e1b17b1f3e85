"""`FuseAttention`: a softmax between two products as one operator, which one kernel computes.

    matmul(softmax(matmul(q, kᵀ) · s + m), v)   →   permute(nn.attention(q, k, v, m, scale=s))

`nn.attention` takes positions before heads, as projections write them, so the transpositions around
the products are composed with those it needs, and mostly cancel. Scales of q and k are taken into
its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.graph.attention_scores import ScoresReader, axes_of
from tvm_ext.graph.join_projections import joined
from tvm_ext.graph.legalise_attention import attention_call
from tvm_ext.graph.legalise_norm import ints, static_shape
from tvm_ext.graph.open_extent import follows
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import (
    Call,
    IRModule,
    bound,
    constant_array,
    count_uses,
    op_name,
    relax,
    rewritten,
    tirx,
    tvm,
)

POSITIONS_FIRST = (0, 2, 1, 3)
"""b, h, i, d  →  b, i, h, d, and back."""
KEPT = 0.5
"""Part of a core's own cache that the scores of a vector of queries may take, and their powers."""


@tvm.transform.module_pass(opt_level=0, name="FuseAttention")
@dataclass(frozen=True)
class FuseAttention:
    """Finds attention of static shapes in every function for a CPU, where there is at least a
    vector of queries and a core's own cache holds their scores.

    hardware  the machine: its vector width and caches
    extents   stand for some that are not known, if given: lengths that follow one are left open
    """

    hardware: HardwareModel
    extents: tuple[int, ...] = ()

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module; the operators that were replaced are dead and gone."""
        mod = rewritten(mod, _Fuser(mod, self.hardware, self.extents))
        return relax.transform.DeadCodeElimination()(mod)


@relax.expr_functor.mutator
class _Fuser(relax.PyExprMutator):
    def __init__(self, mod: IRModule, hardware: HardwareModel, extents: tuple[int, ...]) -> None:
        super().__init__(mod)
        self._hardware = hardware
        self._extents = extents
        self._reader = ScoresReader(self)
        self._uses = count_uses(mod)

    def visit_call_(self, call: Any) -> Any:
        is_product = op_name(call) == "relax.matmul"
        once = [is_product and self._uses[arg] == 1 for arg in call.args]
        call = self.visit_expr_post_order(call)
        if op_name(call) == "relax.permute_dims" and call.args[0].ty.ndim > 0:
            return self._permuted(call.args[0], axes_of(call))
        fused = self._attention(*call.args) if any(once[:1]) else None
        if fused is None and any(once[1:]):
            fused = self._turned(*call.args)
        return call if fused is None else fused

    def _bound(self, expr: Any) -> Any:
        """What an expression is bound to."""
        return bound(self, expr)

    def _turned(self, values: Any, given: Any) -> Any:
        """matmul(v, permute(p))  →  permute(matmul(p, permute(v))), as one operator where `p` is a
        softmax of scores; None for another product. So does Stable Diffusion's autoencoder."""
        made, rank = self._bound(given), len(static_shape(given) or ())
        swap = (*range(rank - 2), rank - 1, rank - 2)
        if rank < 3 or op_name(made) != "relax.permute_dims" or axes_of(made) != swap:
            return None
        if self._uses[made.args[0]] != 1 or len(static_shape(values) or ()) != rank:
            return None
        columns = self.builder_.normalize(self._permuted(values, swap))
        fused = self._attention(made.args[0], self.builder_.emit(columns))
        if fused is None:
            return None
        return self._permuted(self.builder_.emit(fused), swap)

    def _attention(self, probabilities: Any, values: Any) -> Any:
        """The product with the values, with all before it, as one operator; None for another."""
        softmax, guard = self._probabilities(probabilities)
        known = op_name(softmax) == "relax.nn.softmax" and softmax.ty.shape is not None
        scores = self._reader.scores(softmax) if known else None
        if scores is None or not self._is_worth(scores.q, scores.kt, values):
            return None
        guarded = guard is not None
        if guarded and not any(guard.same_as(one) for one in (probabilities, *scores.biases)):
            return None
        rows = tuple(range(len(values.ty.shape)))
        columns = (*rows[:-2], rows[-1], rows[-2])
        q, k = self._reader.scaled(scores.q, rows), self._reader.scaled(scores.kt, columns)
        keys, values = self._unrepeated(k.source, values)
        operands = [
            self._by_positions(source, axes)
            for source, axes in ((q.source, q.axes), (keys, k.axes), (values, rows))
        ]
        lengths = scores.q.ty.shape[-2], scores.kt.ty.shape[-1]
        is_open = any(map(self._followed, lengths))
        if not is_open:  # whose kernel takes in no slices
            operands = joined(self, operands, lambda var: self._uses[var] == 1)
        for factor in scores.factors:
            turned = relax.op.permute_dims(self._with_heads(factor, len(rows)), POSITIONS_FIRST)
            each = self.builder_.emit(turned)
            operands[0] = self.builder_.emit(relax.op.multiply(operands[0], each))
        bias = self._sum(scores.biases, len(rows))
        scale = scores.scale * q.scale * k.scale
        if guarded or is_open:  # of which Relax's operator knows nothing
            lanes, heads_first = self._hardware.lanes(4), [False] * len(operands)
            if is_open:
                operands, heads_first = self._as_they_lie(operands)
            made = attention_call(
                self.builder_,
                operands,
                bias,
                scale,
                lanes,
                guarded=guarded,
                is_open=is_open,
                heads_first=heads_first,
            )
        else:
            made = relax.op.nn.attention(*operands, bias, tirx.FloatImm("float32", scale))
        fused = self.builder_.emit(made)
        if len(rows) == 3:
            return relax.op.squeeze(fused, [2])
        return relax.op.permute_dims(fused, POSITIONS_FIRST)

    def _sum(self, biases: Sequence[Any], rank: int) -> Any:
        """What is added to scores, with four axes; None for nothing."""
        total = None
        for term in biases:
            known = constant_array(self._bound(term))
            if known is not None and not known.any():
                continue  # a mask that masks nothing
            one = self._with_heads(term, rank)
            total = one if total is None else self.builder_.emit(relax.op.add(total, one))
        return total

    def _as_they_lie(self, operands: Sequence[Any]) -> tuple[list[Any], list[bool]]:
        """Operands of positions before heads, before they were turned so where they were; and for
        each whether its heads come first."""
        made = [self._bound(operand) for operand in operands]
        turned = [
            op_name(one) == "relax.permute_dims" and axes_of(one) == POSITIONS_FIRST for one in made
        ]
        pairs = zip(operands, made, turned, strict=True)
        return [one.args[0] if first else operand for operand, one, first in pairs], turned

    def _probabilities(self, expr: Any) -> tuple[Any, Any]:
        """What an expression is bound to, without the guard around a softmax that may be masked as
        a whole, and what guards it: the expression itself, which PyTorch makes
        `where(isnan(p), 0, p)`, a mask, which ONNX's own definition asks with
        `where(max(mask) == -inf, 0, p)`, or None."""
        bound = self._bound(expr)
        if op_name(bound) != "relax.where":
            return bound, None
        asked, zero, given = bound.args
        asked, known = self._bound(asked), constant_array(self._bound(zero))
        if known is None or known.any():
            return bound, None
        if op_name(asked) == "relax.isnan" and asked.args[0].same_as(given):
            return self._bound(given), expr
        mask = self._hides_all(asked)
        return (bound, None) if mask is None else (self._bound(given), mask)

    def _hides_all(self, asked: Any) -> Any:
        """What an expression asks for rows in which nothing is above minus infinity: added to
        scores they leave no weights. None for another question."""
        if op_name(asked) != "relax.equal":
            return None
        top, least = (self._bound(side) for side in asked.args)
        known = constant_array(least)
        if op_name(top) != "relax.max" or known is None or not np.isneginf(known).all():
            return None
        (mask,), axes, rank = top.args, ints(top.attrs.axis or []), top.args[0].ty.ndim
        along_keys = [axis % rank for axis in axes] == [rank - 1] and bool(top.attrs.keepdims)
        return mask if along_keys else None

    def _unrepeated(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Keys and values before each head of theirs was repeated for several heads of queries."""
        found = [self._repeats(one) for one in (keys, values)]
        if any(one is None for one in found):
            return keys, values
        heads = [static_shape(one) for one in found]
        same = heads[0] and heads[1] and heads[0][1] == heads[1][1]
        return (found[0], found[1]) if same else (keys, values)

    def _repeats(self, expr: Any) -> Any:
        """x of `reshape(broadcast_to(expand_dims(x, 2)))`, [b, g, n, d] → [b, g, times, n, d] → [b,
        g * times, n, d]; None for anything else."""
        merged = self._bound(expr)
        if op_name(merged) != "relax.reshape":
            return None
        repeated = self._bound(merged.args[0])
        if op_name(repeated) != "relax.broadcast_to":
            return None
        grown = self._bound(repeated.args[0])
        if op_name(grown) not in ("relax.expand_dims", "relax.reshape"):
            return None
        shapes = [static_shape(one) for one in (merged, repeated, grown, grown.args[0])]
        if any(shape is None for shape in shapes):
            return None
        after, wide, narrow, before = ([int(e) for e in shape or ()] for shape in shapes)
        if len(before) != 4 or len(wide) != 5:
            return None
        b, g, n, d = before
        fits = narrow == [b, g, 1, n, d] and after == [b, g * wide[2], n, d]
        return grown.args[0] if fits and wide == [b, g, wide[2], n, d] else None

    def _is_worth(self, q: Any, kt: Any, v: Any) -> bool:
        """Whether it is attention without broadcasting that one kernel can compute well."""
        left, right, last = (static_shape(one) for one in (q, kt, v))
        if not (left and right and last) or not len(left) == len(right) == len(last) in (3, 4):
            return False
        keys, lanes = right[-1], self._hardware.lanes(4)
        lengths = {extent for length in (left[-2], keys) for extent in self._followed(length)}
        heads = {extent for count in left[1:-2] for extent in self._followed(count)}
        if lengths and (heads or lengths & self._followed(left[0])):
            return False  # no plan is for an open number of heads of an open length
        return (
            self._hardware.kind != "cuda"
            and left[:-2] == right[:-2] == last[:-2]
            and (left[-2] >= lanes or bool(self._followed(keys)))
            and 2 * 4 * keys * lanes <= self._hardware.own_cache_bytes * KEPT
        )

    def _followed(self, length: Any) -> set[int]:
        """The extents that are not known which a length follows: it is some of one, or a few
        more."""
        return {extent for extent in self._extents if follows(int(length), extent)}

    def _permuted(self, source: Any, axes: tuple[int, ...]) -> Any:
        """The permutation of a permutation as one, or as none."""
        while op_name(bound := self._bound(source)) == "relax.permute_dims":
            before = axes_of(bound)
            source, axes = bound.args[0], tuple(before[axis] for axis in axes)
        if axes == tuple(range(len(axes))):
            return source
        return relax.op.permute_dims(source, axes)

    def _by_positions(self, source: Any, axes: tuple[int, ...]) -> Any:
        """`permute(source, axes)`, [b, h, n, d] or [g, n, d], as [b, n, h, d]."""
        if len(axes) == 4:
            made = self._permuted(source, tuple(axes[place] for place in POSITIONS_FIRST))
        else:
            made = relax.op.expand_dims(self.builder_.normalize(self._permuted(source, axes)), [2])
        return self.builder_.emit(made) if isinstance(made, Call) else made

    def _with_heads(self, bias: Any, rank: int) -> Any:
        """What is broadcast to scores, with four axes; heads are one where scores have three."""
        own = [int(extent) for extent in bias.ty.shape]
        own = [1] * (rank - len(own)) + own
        full = own if rank == 4 else [own[0], 1, *own[1:]]
        return self.builder_.emit(relax.op.reshape(bias, full))
