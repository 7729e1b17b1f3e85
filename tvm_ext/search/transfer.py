"""Examples for the cost model from a log: what other tasks, and other models, have taught."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.search.cost_model import Example
from tvm_ext.search.features import Features, Predict
from tvm_ext.tile.cut import cut_for, parted
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.legal import is_legal
from tvm_ext.tile.plan import TilePlan

EXAMPLES = 1500
"""Plans of other tasks that are learned from: a second of work for their features."""


def lessons(
    graphs: Mapping[str, TileGraph],
    measured: Mapping[str, Mapping[TilePlan, float]],
    hardware: HardwareModel,
    predict: Predict,
    seed: int = 0,
    limit: int = EXAMPLES,
) -> list[Example]:
    """Features and latencies of plans of several tasks; of more than `limit`, so many at random
    from all of them.

    graphs    what the tasks compute, by signature
    measured  latencies in us, infinite for plans that failed
    """
    pairs = [
        (signature, plan)
        for signature, plans in measured.items()
        if signature in graphs
        for plan in plans
    ]
    random.Random(seed).shuffle(pairs)
    kept: dict[str, list[TilePlan]] = {}
    for signature, plan in pairs[:limit]:
        kept.setdefault(signature, []).append(plan)
    found: list[Example] = []
    for signature, plans in sorted(kept.items()):
        pieces = cut_for(hardware.kind, graphs[signature])
        features = [Features(piece.graph, hardware) for piece in pieces]
        for plan in plans:
            if not is_legal(graphs[signature], plan, plan.lanes):
                continue
            try:
                parts = parted(pieces, plan)
            except KeyError:  # planned by a version that cut the group otherwise
                continue
            rows = np.concatenate(
                [
                    own.rows(part, predict(piece.graph, part))
                    for own, piece, part in zip(features, pieces, parts, strict=True)
                ]
            )
            found.append(Example(signature, rows, measured[signature][plan]))
    return found
