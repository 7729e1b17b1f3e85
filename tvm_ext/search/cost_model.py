"""The learned cost model: XGBoost over features of plans (Ansor §5.2).

A plan's score is the sum over the rows of its pieces, one for most. With y, its throughput beside
the best of its task, 0 to 1, the loss is

    y * (sum of f(row) - log2 y)^2

It weighs fast plans most, for it is them that must be told apart, and counts in factors, as times
differ: on 2684 random plans of 45 operators it put 81 % of held-out pairs in order, where the
paper's `y * (sum - y)^2` put 79 %. Many small steps do better than few (2381 plans of 30
operators: 300 of 0.05 0.857, 200 of 0.07 0.856, 150 of 0.09 0.855).

One model serves all tasks and is trained anew from all it was shown; records of other tasks, or of
a log that was shipped, say something about the first plans of a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tvm_ext.search.features import FEATURES, Rows

ROUNDS = 200
LEAST = 1 / 64
"""Throughput of a plan that failed, or is slower than that."""
LEAST_WEIGHT = 0.05
"""Least weight of a plan: nothing else would tell slow ones from the best."""
MANY = 1000
"""Rows from which on threads are faster than one: 200 of a search that has just measured take 50 ms
on one, and 150 on two, which wait for each other."""
PARAMETERS: dict[str, Any] = {
    "max_depth": 6,
    "eta": 0.07,
    "gamma": 1e-4,
    "lambda": 1.0,
    "min_child_weight": 1e-3,
    "subsample": 0.9,
    "colsample_bytree": 0.5,
    "base_score": 0.0,
    "tree_method": "hist",
    "max_bin": 32,
}


class Example(msgspec.Struct, frozen=True, eq=False):
    """One measured plan: its task, its rows of features, its latency (infinite if it failed)."""

    task: str
    rows: Rows
    latency_us: float


class CostModel:
    """Tells fast plans from slow ones. Untrained until `fit` has seen two plans that work."""

    def __init__(self, seed: int = 0, threads: int = 1) -> None:
        self._parameters = {**PARAMETERS, "seed": seed}
        self._threads = threads
        self._booster: Any = None

    @property
    def trained(self) -> bool:
        """Whether there is a model."""
        return self._booster is not None

    def fit(self, examples: Sequence[Example]) -> None:
        """Train on all examples, from scratch."""
        import xgboost

        reached = throughputs(examples)
        if sum(reached > 0) < 2:
            return
        data, packs = _stacked([example.rows for example in examples])
        targets = np.log2(np.maximum(reached, LEAST))
        weights = np.maximum(reached, LEAST_WEIGHT)

        def loss(scores: NDArray[Any], _data: Any) -> tuple[NDArray[Any], NDArray[Any]]:
            error = np.bincount(packs, scores, len(targets)) - targets
            return (weights * error)[packs], weights[packs]

        parameters = {**self._parameters, "nthread": self._threads if len(data) >= MANY else 1}
        matrix = xgboost.DMatrix(data)
        self._booster = xgboost.train(parameters, matrix, ROUNDS, obj=loss)

    def scores(self, plans: Sequence[Rows]) -> NDArray[Any]:
        """The predicted throughput of plans beside the best of their task; higher is faster."""
        data, packs = _stacked(plans)
        found = self._booster.inplace_predict(data, predict_type="margin")
        return np.exp2(np.bincount(packs, found, len(plans)))


def throughputs(examples: Sequence[Example]) -> NDArray[Any]:
    """Of each plan, the best latency of its task over its own; 0 if it failed."""
    best: dict[str, float] = {}
    for example in examples:
        best[example.task] = min(best.get(example.task, np.inf), example.latency_us)
    return np.array(
        [
            best[example.task] / example.latency_us if np.isfinite(example.latency_us) else 0.0
            for example in examples
        ]
    )


def pairwise_accuracy(scores: NDArray[Any], targets: NDArray[Any]) -> float:
    """Part of the pairs of plans that the scores put in the order of their throughputs; pairs of
    one throughput do not count. 1 without any pair."""
    one, other = np.triu_indices(len(targets), 1)
    differ = targets[one] != targets[other]
    agree = (scores[one] > scores[other]) == (targets[one] > targets[other])
    return float(agree[differ].mean()) if differ.any() else 1.0


def recall(scores: NDArray[Any], targets: NDArray[Any], count: int) -> float:
    """Part of the best `count` plans that are among the `count` with the highest scores."""
    count = min(count, len(targets))
    best = set(np.argsort(-targets, kind="stable")[:count])
    chosen = set(np.argsort(-scores, kind="stable")[:count])
    return len(best & chosen) / count if count else 1.0


def _stacked(plans: Sequence[Rows]) -> tuple[Rows, NDArray[Any]]:
    """All rows of all plans, and of each row the plan it belongs to."""
    packs = np.repeat(np.arange(len(plans)), [len(rows) for rows in plans])
    data = np.concatenate(plans) if plans else np.zeros((0, len(FEATURES)), np.float32)
    return data, packs
