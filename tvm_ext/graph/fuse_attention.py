"""`FuseAttention`: a softmax between two products as one operator, which one kernel computes.

    matmul(softmax(matmul(q, kᵀ) · s + m), v)   →   permute(nn.attention(q, k, v, m, scale=s))

`nn.attention` takes positions before heads, as projections write them, so the transpositions around
the products are composed with those it needs, and mostly cancel. Scales of q and k are taken into
its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.graph.join_projections import joined
from tvm_ext.graph.legalise_attention import attention_call
from tvm_ext.graph.legalise_norm import ints, static_shape
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import (
    Call,
    IRModule,
    bound,
    constant_array,
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
    """

    hardware: HardwareModel

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module; the operators that were replaced are dead and gone."""
        mod = rewritten(mod, _Fuser(mod, self.hardware))
        return relax.transform.DeadCodeElimination()(mod)


class _Scores(NamedTuple):
    """What a softmax takes: `matmul(q, kt) * scale + sum(biases)`."""

    q: Any
    kt: Any
    scale: float
    biases: tuple[Any, ...]


class _Scaled(NamedTuple):
    """`permute(source, axes) * scale`."""

    source: Any
    axes: tuple[int, ...]
    scale: float


@relax.expr_functor.mutator
class _Fuser(relax.PyExprMutator):
    def __init__(self, mod: IRModule, hardware: HardwareModel) -> None:
        super().__init__(mod)
        self._hardware = hardware
        self._uses: Counter[Any] = Counter()
        for function in mod.functions.values():
            if isinstance(function, relax.Function):
                relax.analysis.post_order_visit(function, self._count)

    def _count(self, node: Any) -> None:
        if isinstance(node, Call | relax.Tuple):
            fields = node.args if isinstance(node, Call) else node.fields
            self._uses.update(one for one in fields if isinstance(one, relax.Var))

    def visit_call_(self, call: Any) -> Any:
        once = op_name(call) == "relax.matmul" and self._uses[call.args[0]] == 1
        call = self.visit_expr_post_order(call)
        if op_name(call) == "relax.permute_dims":
            return self._permuted(call.args[0], _axes(call))
        fused = self._attention(call) if once else None
        return call if fused is None else fused

    def _bound(self, expr: Any) -> Any:
        """What an expression is bound to."""
        return bound(self, expr)

    def _attention(self, call: Any) -> Any:
        """The product with the values, with all before it, as one operator; None for another."""
        softmax, guarded = self._probabilities(call.args[0])
        scores = self._scores(softmax) if op_name(softmax) == "relax.nn.softmax" else None
        if scores is None or not self._is_worth(scores.q, scores.kt, call.args[1]):
            return None
        rows = tuple(range(len(call.ty.shape)))
        columns = (*rows[:-2], rows[-1], rows[-2])
        q, k = self._scaled(scores.q, rows), self._scaled(scores.kt, columns)
        keys, values = self._unrepeated(k.source, call.args[1])
        operands = [
            self._by_positions(source, axes)
            for source, axes in ((q.source, q.axes), (keys, k.axes), (values, rows))
        ]
        operands = joined(self, operands, lambda var: self._uses[var] == 1)
        bias = None
        for term in scores.biases:
            known = constant_array(self._bound(term))
            if known is not None and not known.any():
                continue  # a mask that masks nothing
            one = self._with_heads(term, static_shape(softmax) or ())
            bias = one if bias is None else self.builder_.emit(relax.op.add(bias, one))
        scale = scores.scale * q.scale * k.scale
        if guarded:  # of which Relax's operator knows nothing
            lanes = self._hardware.lanes(4)
            made = attention_call(self.builder_, operands, bias, scale, lanes, guarded=True)
        else:
            made = relax.op.nn.attention(*operands, bias, tirx.FloatImm("float32", scale))
        fused = self.builder_.emit(made)
        if len(rows) == 3:
            return relax.op.squeeze(fused, [2])
        return relax.op.permute_dims(fused, POSITIONS_FIRST)

    def _probabilities(self, expr: Any) -> tuple[Any, bool]:
        """What an expression is bound to, without the guard that PyTorch puts around a softmax that
        may be masked as a whole: `where(isnan(p), 0, p)`; and whether there was one."""
        bound = self._bound(expr)
        if op_name(bound) != "relax.where":
            return bound, False
        asked, zero, given = bound.args
        asked, known = self._bound(asked), constant_array(self._bound(zero))
        guards = op_name(asked) == "relax.isnan" and asked.args[0].same_as(given)
        if not guards or known is None or known.any():
            return bound, False
        return self._bound(given), True

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
        return (
            self._hardware.kind != "cuda"
            and left[:-2] == right[:-2] == last[:-2]
            and left[-2] >= lanes
            and 2 * 4 * keys * lanes <= self._hardware.own_cache_bytes * KEPT
        )

    def _scores(self, softmax: Any) -> _Scores | None:
        """What a softmax over the last axis takes, if that is a product, scaled, then biased."""
        if int(softmax.attrs.axis) not in (-1, len(softmax.ty.shape) - 1):
            return None
        biases: tuple[Any, ...] = ()
        given = self._bound(softmax.args[0])
        while op_name(given) == "relax.add":
            sides = [self._bound(side) for side in given.args]
            own = [place for place, side in enumerate(sides) if self._leads_to_product(side)]
            if len(own) != 1:
                return None
            biases = (given.args[1 - own[0]], *biases)
            given = sides[own[0]]
        scaled = self._scaled(given, tuple(range(len(softmax.ty.shape))))
        product = self._bound(scaled.source)
        if op_name(product) != "relax.matmul" or scaled.axes != tuple(range(len(scaled.axes))):
            return None
        q, kt = product.args
        grown = static_shape(softmax) != static_shape(product)
        if grown or any(static_shape(bias) is None for bias in biases):
            return None
        return _Scores(q, kt, scaled.scale, biases)

    def _leads_to_product(self, expr: Any) -> bool:
        """Whether an expression is a product, perhaps scaled and biased."""
        if op_name(expr) == "relax.add":
            return any(self._leads_to_product(self._bound(side)) for side in expr.args)
        return op_name(self._bound(self._scaled(expr, ()).source)) == "relax.matmul"

    def _scaled(self, expr: Any, axes: Sequence[int]) -> _Scaled:
        """`permute(expr, axes)` as a permutation of what is neither permuted nor scaled."""
        scale, axes = 1.0, tuple(axes)
        while True:
            bound = self._bound(expr)
            name = op_name(bound)
            if name == "relax.permute_dims" and axes:
                before = _axes(bound)
                expr, axes = bound.args[0], tuple(before[axis] for axis in axes)
            elif name in ("relax.multiply", "relax.divide"):
                factor = _number(self._bound(bound.args[1]))
                grown = static_shape(bound) != static_shape(bound.args[0])
                if not factor or grown:
                    return _Scaled(expr, axes, scale)
                expr = bound.args[0]
                scale = scale * factor if name == "relax.multiply" else scale / factor
            else:
                return _Scaled(expr, axes, scale)

    def _permuted(self, source: Any, axes: tuple[int, ...]) -> Any:
        """The permutation of a permutation as one, or as none."""
        while op_name(bound := self._bound(source)) == "relax.permute_dims":
            before = _axes(bound)
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

    def _with_heads(self, bias: Any, shape: tuple[int, ...]) -> Any:
        """A bias of scores of `shape` with four axes; heads are one where scores have three."""
        own = [int(extent) for extent in bias.ty.shape]
        own = [1] * (len(shape) - len(own)) + own
        full = own if len(shape) == 4 else [own[0], 1, *own[1:]]
        return self.builder_.emit(relax.op.reshape(bias, full))


def _axes(call: Any) -> tuple[int, ...]:
    """The axes of a permutation; reversed, if it names none."""
    rank = len(call.args[0].ty.shape)
    given = call.attrs.axes
    axes = ints(given) if given is not None else tuple(reversed(range(rank)))
    return tuple(axis % rank for axis in axes)


def _number(expr: Any) -> float | None:
    """The number that a constant of one element is; None for any other expression."""
    array = constant_array(expr)
    return float(array.reshape(())) if isinstance(array, np.ndarray) and array.size == 1 else None
