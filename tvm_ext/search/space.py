"""The plans of one task: which to measure next, given what was measured (Ansor §5, Droplet).

Every batch mixes three kinds: the best of an evolving population, steps from the best plan so far
(coordinate descent, which finishes what evolution began), and a few at random, so that the model
sees more than its own favourites.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.search.annotate import Annotator
from tvm_ext.search.cost_model import CostModel, Example
from tvm_ext.search.evolve import evolve
from tvm_ext.search.features import Estimate, Features, Predict, Rows
from tvm_ext.search.neighbours import neighbours
from tvm_ext.search.sketch import SketchRule, sketches
from tvm_ext.tile.amx import INSTRUCTION as AMX
from tvm_ext.tile.amx import has_unit
from tvm_ext.tile.block import MAX_THREADS
from tvm_ext.tile.cut import Piece, cut_for, joined, parted
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.legal import is_legal
from tvm_ext.tile.plan import TilePlan

EPSILON = 0.1
"""Part of a batch that is chosen at random (Ansor: 0.05)."""
DESCENT = 0.35
"""Part of a batch that is one step from the best plan."""
ELITE = 8
"""Measured plans that are parents."""
DRAWN = 24
"""Plans annotated afresh for every batch."""
LEAST_VERIFIED = 16
"""Plans of which the learned model is asked even if they are few."""
TRUST = 16.0
"""Measurements of a task from which the learned model counts as much as the performance model."""


class PieceSpace:
    """The plans of one piece of a group."""

    def __init__(
        self,
        graph: TileGraph,
        hardware: HardwareModel,
        predict: Predict,
        rules: Sequence[SketchRule],
        source: random.Random,
    ) -> None:
        self.graph = graph
        self.lanes = MAX_THREADS if hardware.kind == "cuda" else hardware.lanes(4)
        self.sketches = [
            sketch
            for sketch in sketches(graph, hardware.cores, rules, hardware.kind)
            if sketch.instruction != AMX or has_unit(graph.nodes[sketch.anchor], hardware.isa)
        ]
        self.annotator = Annotator(graph, self.lanes, source)
        self._features = Features(graph, hardware)
        self._predict = predict
        self._rows: dict[TilePlan, Rows] = {}
        self._estimates: dict[TilePlan, Estimate] = {}

    def rows(self, plan: TilePlan) -> Rows:
        """Features of a plan of the piece."""
        if plan not in self._rows:
            self._rows[plan] = self._features.rows(plan, self._estimate(plan))
        return self._rows[plan]

    def predicted_us(self, plan: TilePlan) -> float:
        """What the performance model says of it."""
        return self._estimate(plan).latency_us

    def _estimate(self, plan: TilePlan) -> Estimate:
        if plan not in self._estimates:
            self._estimates[plan] = self._predict(self.graph, plan)
        return self._estimates[plan]

    def draw(self, count: int) -> list[TilePlan]:
        """Plans at random, as many of each sketch."""
        each = -(-count // max(1, len(self.sketches)))
        return [p for sketch in self.sketches for p in self.annotator.plans(sketch, each)]


class TaskSpace:
    """The search over one task. Plans go out by `propose` and come back by `take`.

    picked   the picker's plans, best first: the first one is to be measured before any other
    predict  the performance model
    rules    sketch rules of the user's own
    beside_us  what a plan costs that no measurement of it alone shows
    """

    def __init__(
        self,
        graph: TileGraph,
        hardware: HardwareModel,
        picked: Sequence[TilePlan],
        predict: Predict,
        seed: int = 0,
        rules: Sequence[SketchRule] = (),
        beside_us: Callable[[TilePlan], float] = lambda plan: 0.0,
    ) -> None:
        self.name = graph.signature
        self._graph = graph
        self._beside_us = cache(beside_us)
        self._random = random.Random(f"{seed} {graph.signature}")
        self.pieces: tuple[Piece, ...] = cut_for(hardware.kind, graph)
        self._spaces = [
            PieceSpace(piece.graph, hardware, predict, rules, self._random) for piece in self.pieces
        ]
        self.picked = list(picked)
        self.measured: dict[TilePlan, float] = {}
        self._believed: dict[TilePlan, float] = {}
        self._proposed: set[TilePlan] = set()

    @property
    def best(self) -> TilePlan:
        """The fastest plan that is believed; the picker's first before any worked."""
        return self._fastest(self._believed)

    @property
    def best_us(self) -> float:
        """Its latency; infinite before any worked."""
        return self._believed.get(self.best, float("inf"))

    @property
    def promising(self) -> TilePlan:
        """The fastest plan if all measurements are right; the picker's first before any worked."""
        return self._fastest(self.measured)

    def take(self, plan: TilePlan, latency_us: float, believed_us: float | None = None) -> None:
        """A measurement, and how fast the plan is believed to be for it, which may be less; both
        infinite if the plan failed. One that the task cannot follow, as a damaged log may hold,
        teaches nothing."""
        if not is_legal(self._graph, plan, plan.lanes):
            self._proposed.add(plan)
            return
        self.measured[plan] = latency_us
        self._believed[plan] = latency_us if believed_us is None else believed_us

    def _fastest(self, latency_us: Mapping[TilePlan, float]) -> TilePlan:
        plan = min(
            latency_us,
            key=lambda plan: latency_us[plan] + self._beside_us(plan),
            default=self.picked[0],
        )
        return plan if np.isfinite(latency_us.get(plan, np.inf)) else self.picked[0]

    def examples(self) -> list[Example]:
        """All measurements, for the model."""
        found = []
        for plan, latency_us in self.measured.items():
            parts = self._parts(plan)
            if parts is not None:
                found.append(Example(self.name, self._whole_rows(parts), latency_us))
        return found

    def propose(self, count: int, model: CostModel) -> list[TilePlan]:
        """Up to `count` legal plans not proposed before; fewer where there are no more."""
        chosen: list[TilePlan] = []

        def add(plans: Sequence[TilePlan], limit: int) -> None:
            for plan in plans:
                if len(chosen) >= min(count, limit):
                    return
                if not self._known(plan):
                    self._proposed.add(plan)
                    chosen.append(plan)

        if not self.measured:
            add(self.picked[:1], 1)
        add(self.picked, len(chosen) + max(1, count // 2))
        best = self._varied()
        if best is None:
            return chosen
        place = self._piece(best)
        add(self._untried(best, place), count)
        near = self._near(best, place, model)
        bred = self._bred(best, place, model)
        add(near, len(chosen) + round(DESCENT * count))
        add(bred, count - round(EPSILON * count))
        self._random.shuffle(bred)
        add(bred, count)
        add(near, count)
        return chosen

    def _varied(self) -> tuple[TilePlan, ...] | None:
        """The fastest plan of pieces: plans by strips are measured as they are picked."""
        if (best := self._parts(self.best)) is not None:
            return best
        rest = {plan: us for plan, us in self._believed.items() if self._parts(plan)}
        others = (*sorted(rest, key=rest.__getitem__), *self.picked)
        return next((parts for plan in others if (parts := self._parts(plan))), None)

    def _piece(self, best: tuple[TilePlan, ...]) -> int:
        """The piece whose plan is varied next, as likely as its part of the predicted time."""
        if len(self.pieces) == 1:
            return 0
        times = [s.predicted_us(part) for s, part in zip(self._spaces, best, strict=True)]
        return self._random.choices(range(len(times)), times)[0]

    def _untried(self, best: tuple[TilePlan, ...], place: int) -> list[TilePlan]:
        """A plan of every sketch of which none was proposed yet: the best of a few by the
        performance model."""
        space = self._spaces[place]
        seen = {parts[place] for plan in self._proposed if (parts := self._parts(plan))}
        tried = {(plan.rule, plan.anchor) for plan in (*seen, best[place])}
        found = []
        for sketch in space.sketches:
            if (sketch.rule, sketch.anchor) not in tried:
                drawn = list(space.annotator.plans(sketch, DRAWN))
                found += sorted(drawn, key=space.predicted_us)[:1]
        return [self._with(best, place, plan) for plan in found]

    def _near(self, best: tuple[TilePlan, ...], place: int, model: CostModel) -> list[TilePlan]:
        """Plans one step from the best, those with the highest score first."""
        space = self._spaces[place]
        steps = [
            plan
            for plan in neighbours(space.graph, best[place])
            if is_legal(space.graph, plan, space.lanes)
        ]
        if not steps:
            return []
        scores = self._scores(place, steps, model)
        ranked = [steps[i] for i in np.argsort(-scores, kind="stable")]
        return [self._with(best, place, plan) for plan in ranked]

    def _bred(self, best: tuple[TilePlan, ...], place: int, model: CostModel) -> list[TilePlan]:
        """Plans of an evolving population, those with the highest score first."""
        space = self._spaces[place]
        working = sorted(
            (plan for plan, us in self.measured.items() if np.isfinite(us)),
            key=lambda plan: self.measured[plan],
        )
        parents = [parts[place] for plan in working if (parts := self._parts(plan))]
        parents = list(islice(dict.fromkeys(parents), ELITE))
        picked = [parts[place] for plan in self.picked if (parts := self._parts(plan))]
        seeds = [
            plan
            for plan in dict.fromkeys((*parents, *picked, *space.draw(DRAWN)))
            if is_legal(space.graph, plan, space.lanes)
        ]
        if not seeds:
            return []
        found = evolve(
            space.graph,
            seeds,
            lambda plans: self._scores(place, plans, model),
            space.lanes,
            lambda plan: self._known(self._with(best, place, plan)),
            self._random,
        )
        return [self._with(best, place, plan) for plan in found]

    def _scores(self, place: int, plans: Sequence[TilePlan], model: CostModel) -> NDArray[Any]:
        """Throughput by the performance model, and by the learned one as far as it is trusted; the
        half that the former finds slowest is not shown to the latter."""
        space = self._spaces[place]
        times = np.array([space.predicted_us(plan) for plan in plans])
        picked = next((parts for plan in self.picked if (parts := self._parts(plan))), None)
        drafted = (space.predicted_us(picked[place]) if picked else times.min()) / times
        if not model.trained:
            return drafted
        trust = len(self.measured) / (len(self.measured) + TRUST)
        kept = np.argsort(-drafted, kind="stable")[: max(LEAST_VERIFIED, len(plans) // 2)]
        learned = np.zeros(len(plans))
        learned[kept] = model.scores([space.rows(plans[place]) for place in kept])
        return trust * learned + (1 - trust) * drafted

    def _known(self, plan: TilePlan) -> bool:
        return plan in self._proposed or plan in self.measured

    def _parts(self, plan: TilePlan) -> tuple[TilePlan, ...] | None:
        """The plan piece by piece; None for one of another structure, as an old log may hold."""
        try:
            return parted(self.pieces, plan)
        except KeyError:
            return None

    def _with(self, best: tuple[TilePlan, ...], place: int, plan: TilePlan) -> TilePlan:
        return joined(self.pieces, (*best[:place], plan, *best[place + 1 :]))

    def _whole_rows(self, parts: tuple[TilePlan, ...]) -> Rows:
        pairs = zip(self._spaces, parts, strict=True)
        return np.concatenate([space.rows(part) for space, part in pairs])
