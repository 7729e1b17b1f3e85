"""Self-attention of projections, as models write it, for tests of how these are joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.tvm_api import IRModule, constant, relax

op = relax.op
POSITIONS, MODEL, HEADS, WIDTH = 32, 48, 3, 16
COLUMNS = HEADS * WIDTH


@dataclass(frozen=True)
class Projections:
    """Constants of three projections of `MODEL` features; a bias of None is not added."""

    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray | None, ...]

    @staticmethod
    def drawn(biased: Sequence[bool] = (True, True, True)) -> Projections:
        """Random ones, with and without biases."""
        rng = np.random.default_rng(0)
        weights = [rng.standard_normal((MODEL, COLUMNS)) / MODEL**0.5 for _ in biased]
        biases = [rng.standard_normal(COLUMNS) if one else None for one in biased]
        return Projections(
            tuple(one.astype("float32") for one in weights),
            tuple(None if one is None else one.astype("float32") for one in biases),
        )

    def expected(self, *sources: np.ndarray) -> np.ndarray:
        """What `module` computes, in float64."""
        found = [
            (x.astype("float64") @ w + (0 if b is None else b)).reshape(*x.shape[:2], -1, WIDTH)
            for x, w, b in zip(sources, self.weights, self.biases, strict=True)
        ]
        q, k, v = found
        scores = np.einsum("bihd,bjhd->bhij", q, k)
        power = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bhij,bjhe->bihe", power / power.sum(-1, keepdims=True), v)


def module(
    given: Projections,
    sources: Sequence[int] = (0, 0, 0),
    also: Callable[[Any, list[Any]], list[Any]] = lambda emit, projected: [],
) -> IRModule:
    """attention of `given`'s projections; `sources` numbers the tensor that each is of, and `also`
    makes further results of them."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    shape = relax.TensorType((1, POSITIONS, MODEL), "float32")
    params = [relax.Var(f"x{place}", shape) for place in range(max(sources) + 1)]

    def projection(place: int) -> Any:
        y = emit(op.matmul(params[sources[place]], constant(given.weights[place])))
        bias = given.biases[place]
        return y if bias is None else emit(op.add(y, constant(bias)))

    with builder.function("main", params):
        with builder.dataflow():
            projected = [projection(place) for place in range(3)]
            y = attention(emit, projected)
            more = also(emit, projected)
            result = builder.emit_output(relax.Tuple([y, *more]) if more else y)
        builder.emit_func_output(result)
    return builder.finalize()


def split_module(given: Projections) -> IRModule:
    """The same of one product that the model splits itself."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    x = relax.Var("x", relax.TensorType((1, POSITIONS, MODEL), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = emit(op.matmul(x, constant(np.concatenate(given.weights, axis=1))))
            parts = emit(op.split(emit(op.add(y, constant(np.concatenate(given.biases)))), 3, -1))
            result = builder.emit_output(attention(emit, [emit(parts[i]) for i in range(3)]))
        builder.emit_func_output(result)
    return builder.finalize()


def attention(emit: Callable[[Any], Any], projected: Sequence[Any]) -> Any:
    """Heads of queries, keys and values, and the products around their softmax; [b, n, h, d]."""
    rows = [emit(op.reshape(x, (1, POSITIONS, -1, WIDTH))) for x in projected]
    q, k, v = (emit(op.permute_dims(x, (0, 2, 1, 3))) for x in rows)
    scores = emit(op.matmul(q, emit(op.permute_dims(k, (0, 1, 3, 2)))))
    mixed = emit(op.matmul(emit(op.nn.softmax(scores, -1)), v))
    return emit(op.permute_dims(mixed, (0, 2, 1, 3)))
