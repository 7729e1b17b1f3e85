"""What a softmax takes, told apart: the product, its scales and what is added to it.

where(mask, -1e9, matmul(q, kᵀ) * s) + m   →   q, kᵀ, scale s, biases (where(mask, -1e9, 0), m)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.graph.legalise_norm import ints, static_shape
from tvm_ext.tvm_api import bound, constant, constant_array, op_name, relax

HIDDEN = -1e9
"""What a masked score is set to is at most this: added to a score it leaves nothing of it."""


class Scores(NamedTuple):
    """What a softmax takes: `matmul(q, kt) * scale * prod(factors) + sum(biases)`."""

    q: Any
    kt: Any
    scale: float
    factors: tuple[Any, ...]
    """Of each head."""
    biases: tuple[Any, ...]


class Scaled(NamedTuple):
    """`permute(source, axes) * scale`."""

    source: Any
    axes: tuple[int, ...]
    scale: float


@dataclass(frozen=True)
class ScoresReader:
    """Reads the function that a mutator visits."""

    mutator: Any

    def scores(self, softmax: Any) -> Scores | None:
        """What a softmax over the last axis takes, if that is a product, scaled, then biased."""
        if int(softmax.attrs.axis) not in (-1, len(softmax.ty.shape) - 1):
            return None
        biases: tuple[Any, ...] = ()
        given = self._bound(softmax.args[0])
        while op_name(given) in ("relax.add", "relax.where"):
            apart = self._unbiased(given) if op_name(given) == "relax.add" else self._shown(given)
            if apart is None:
                return None
            given, biases = self._bound(apart[0]), (apart[1], *biases)
        rows = tuple(range(len(softmax.ty.shape)))
        scaled, factors = self._factored(given, rows)
        product = self._bound(scaled.source)
        if op_name(product) != "relax.matmul" or scaled.axes != rows:
            return None
        q, kt = product.args
        grown = static_shape(softmax) != static_shape(product)
        if grown or any(static_shape(bias) is None for bias in biases):
            return None
        return Scores(q, kt, scaled.scale, factors, biases)

    def _unbiased(self, added: Any) -> tuple[Any, Any] | None:
        """The scores of `scores + bias`, and the bias; None where neither or both are a product."""
        own = [self._leads_to_product(side) for side in added.args]
        if own.count(True) != 1:
            return None
        place = own.index(True)
        return added.args[place], added.args[1 - place]

    def _shown(self, chosen: Any) -> tuple[Any, Any] | None:
        """The scores of `where(mask, -1e9, scores)`, or the other way round, and the bias that
        hides the same; None where what takes the place of a score would not outweigh it."""
        mask, *sides = chosen.args
        numbers = [_number(self._bound(side)) for side in sides]
        hidden = [place for place, n in enumerate(numbers) if n is not None and n <= HIDDEN]
        if len(hidden) != 1 or not self._leads_to_product(sides[1 - hidden[0]]):
            return None
        place = hidden[0]
        known = constant_array(self._bound(mask))
        if known is not None:
            values = [0.0, 0.0]
            values[place] = numbers[place] or 0.0
            return sides[1 - place], constant(np.where(known, *values).astype("float32"))
        terms = [relax.const(0.0, "float32"), relax.const(0.0, "float32")]
        terms[place] = self._bound(sides[place])
        return sides[1 - place], self.mutator.builder_.emit(relax.op.where(mask, *terms))

    def _factored(self, expr: Any, axes: Sequence[int]) -> tuple[Scaled, tuple[Any, ...]]:
        """`scaled`, and the factors that each head has of its own (Swin V2's temperatures)."""
        scaled, factors = self.scaled(expr, axes), tuple[Any, ...]()
        while op_name(made := self._bound(scaled.source)) == "relax.multiply":
            shapes = [static_shape(side) or () for side in made.args]
            of_heads = [place for place, shape in enumerate(shapes) if shape[-2:] == (1, 1)]
            if len(of_heads) != 1 or static_shape(made) != shapes[1 - of_heads[0]]:
                break
            factors = (made.args[of_heads[0]], *factors)
            rest = self.scaled(made.args[1 - of_heads[0]], scaled.axes)
            scaled = rest._replace(scale=rest.scale * scaled.scale)
        return scaled, factors

    def _leads_to_product(self, expr: Any) -> bool:
        """Whether an expression is a product, perhaps scaled, masked and biased."""
        made = self._bound(expr)
        if op_name(made) in ("relax.add", "relax.where"):
            return any(self._leads_to_product(side) for side in made.args)
        return op_name(self._bound(self._factored(made, ())[0].source)) == "relax.matmul"

    def scaled(self, expr: Any, axes: Sequence[int]) -> Scaled:
        """`permute(expr, axes)` as a permutation of what is neither permuted nor scaled."""
        scale, axes = 1.0, tuple(axes)
        while True:
            bound = self._bound(expr)
            name = op_name(bound)
            if name == "relax.permute_dims" and axes:
                before = axes_of(bound)
                expr, axes = bound.args[0], tuple(before[axis] for axis in axes)
            elif name in ("relax.multiply", "relax.divide"):
                numbers = [_number(self._bound(side)) for side in bound.args]
                left = name == "relax.multiply" and bool(numbers[0])
                factor, source = numbers[not left], bound.args[left]
                if not factor or static_shape(bound) != static_shape(source):
                    return Scaled(expr, axes, scale)
                expr = source
                scale = scale * factor if name == "relax.multiply" else scale / factor
            else:
                return Scaled(expr, axes, scale)

    def _bound(self, expr: Any) -> Any:
        return bound(self.mutator, expr)


def axes_of(call: Any) -> tuple[int, ...]:
    """The axes of a permutation; reversed, if it names none."""
    given = call.attrs.axes
    if given is None:
        return tuple(reversed(range(call.args[0].ty.ndim)))
    return tuple(axis % len(given) for axis in ints(given))


def _number(expr: Any) -> float | None:
    """The number that all elements of a constant are; None for any other expression."""
    array = constant_array(expr)
    if not isinstance(array, np.ndarray) or not array.size:
        return None
    first = array.reshape(-1)[0]
    return float(first) if array.size == 1 or (array == first).all() else None
