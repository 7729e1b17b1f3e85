"""Chains of products and norms as Relax modules, and what numpy makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from tvm_ext.tvm_api import IRModule, relax

op, nn = relax.op, relax.op.nn
Link = str
"""`norm`, `dense` (its width and activation follow: `dense 384 gelu`) or `skip` (adds what went
into the chain)."""


@dataclass(frozen=True)
class Chain:
    """A chain of links over rows of one width."""

    links: tuple[Link, ...]
    shape: tuple[int, ...]
    weights: tuple[np.ndarray, ...]

    @staticmethod
    def drawn(links: Sequence[Link], shape: tuple[int, ...], seed: int = 0) -> Chain:
        """Weights such that values stay about as large as they are."""
        rng = np.random.default_rng(seed)
        width, weights = shape[-1], []
        for link in links:
            kind, *details = link.split()
            if kind == "norm":
                weights += [rng.uniform(0.5, 1.5, width), rng.standard_normal(width)]
            elif kind == "dense":
                scale = (2 / width) ** 0.5
                weights.append(rng.standard_normal((width, int(details[0]))) * scale)
                width = int(details[0])
                weights.append(rng.standard_normal(width))
        return Chain(tuple(links), shape, tuple(w.astype("float32") for w in weights))

    def module(self) -> IRModule:
        """Weights are constants, as of a model."""
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType(self.shape, "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                result = builder.emit_output(self._emitted(builder.emit, x))
            builder.emit_func_output(result)
        return builder.finalize()

    def expected(self, x: np.ndarray) -> np.ndarray:
        """The result in float64."""
        weights = iter([w.astype("float64") for w in self.weights])
        y = first = x.astype("float64")
        for link in self.links:
            kind, *details = link.split()
            if kind == "norm":
                y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
                y = y * next(weights) + next(weights)
            elif kind == "dense":
                y = y @ next(weights) + next(weights)
                if details[1:] == ["gelu"]:
                    y = y * 0.5 * (1 + special.erf(y / np.sqrt(2)))
            else:
                y = y + first
        return y

    def _emitted(self, emit: Callable[[Any], Any], x: Any) -> Any:
        weights = iter([relax.const(w) for w in self.weights])
        y = x
        for link in self.links:
            kind, *details = link.split()
            if kind == "norm":
                y = emit(nn.layer_norm(y, next(weights), next(weights), axes=[-1], epsilon=1e-5))
            elif kind == "dense":
                y = emit(op.add(emit(op.matmul(y, next(weights))), next(weights)))
                y = emit(nn.gelu(y)) if details[1:] == ["gelu"] else y
            else:
                y = emit(op.add(y, x))
        return y
