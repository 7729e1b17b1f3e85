"""Trials: plans written, measured, and put on record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from math import ceil, isfinite
from statistics import median

import numpy as np

import tvm_ext
from tvm_ext.errors import FleetError
from tvm_ext.hardware import physical_cores
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.measure import Job, Measurer, Outcome, OutputCheck
from tvm_ext.measure.inputs import make_inputs
from tvm_ext.picker import PREFETCH_BYTES, packed_bytes
from tvm_ext.planner import Task
from tvm_ext.records import Database, Record, RecordFailure, TaskGraph
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tvm_api import target_of, tvm_version
from tvm_ext.verify import arguments_of, choose_points

AMONG = 3
"""How often a yardstick is measured among and after the plans of a batch, if it has so many."""
APART = 2
"""Plans between two measurements of it at least: beside three plans it has three, of which one may
be disturbed."""
MOST_DRIFT = 1.5
"""A yardstick further from its usual time says nothing about other kernels."""


class Trials:
    """Measures plans, on this machine or where `measurer` does; every batch is on disk before
    `run` returns."""

    def __init__(
        self,
        hardware: HardwareModel,
        database: Database,
        seed: int,
        measurer: Measurer | None = None,
    ) -> None:
        self.hardware = hardware
        self.database = database
        self.seed = seed
        threads = physical_cores() if hardware.kind == "cuda" else hardware.cores
        self._measurer = measurer or Measurer(target_of(hardware.target), threads)
        self._checks: dict[str, tuple[OutputCheck, ...]] = {}

    def run(
        self,
        task: Task,
        plans: Sequence[TilePlan],
        best_us: float,
        yardstick: TilePlan | None = None,
    ) -> list[Record]:
        """The records of plans of one task, in order, that of the yardstick not among them, nor
        those of plans whose device was lost: nothing is known of them. FleetError if all were.

        best_us    the best latency known before: plans far behind it are not repeated
        yardstick  a plan measured before, to be measured again before, among and after them:
                   machines that are shared are now fast, now slow
        """
        known = self.database.typical(task.signature, self.hardware.fingerprint())
        usual_us = known.get(yardstick, float("inf")) if yardstick else float("inf")
        jobs = [self._job(task, plan) for plan in plans]
        # Devices drift each for itself, and one kernel runs on one of them.
        if not self._measurer.one_machine or yardstick is None or not isfinite(usual_us):
            outcomes, beside, drift = self._measurer.measure(jobs, best_us), [], 1.0
        else:
            own = self._job(task, yardstick, in_full=True)
            every = max(APART, ceil(len(jobs) / AMONG))
            mixed = [own]
            for first in range(0, len(jobs), every):
                mixed += [*jobs[first : first + every], own]
            found = list(zip(mixed, self._measurer.measure(mixed, best_us), strict=True))
            outcomes = [outcome for job, outcome in found if job is not own]
            beside = [
                self._record(task, yardstick, outcome)
                for job, outcome in found
                if job is own and not outcome.failure
            ]
            times_us = [us for record in beside for us in record.latency_us]
            drift = (median(times_us) if times_us else usual_us) / usual_us
            drift = min(MOST_DRIFT, max(1 / MOST_DRIFT, drift))
        pairs = [(p, o) for p, o in zip(plans, outcomes, strict=True) if not o.lost]
        if outcomes and not pairs:
            raise FleetError(next(o.failure.message for o in outcomes if o.failure))
        records = [self._record(task, plan, outcome, drift) for plan, outcome in pairs]
        self.database.append([*self._graph(task), *beside, *records])
        return records

    def close(self) -> None:
        """Ends the measuring process."""
        self._measurer.close()

    def _graph(self, task: Task) -> list[TaskGraph]:
        """What the task computes, if the log does not say it yet."""
        if task.graph is None or task.signature in self.database.graphs:
            return []
        mark, name = self.hardware.fingerprint(), self.hardware.name
        return [
            TaskGraph(graph=task.graph, signature=task.signature, hardware=mark, hardware_name=name)
        ]

    def _job(self, task: Task, plan: TilePlan, *, in_full: bool = False) -> Job:
        if task.signature not in self._checks:
            self._checks[task.signature] = tuple(reference_checks(task, self.seed))
        written = len(task.reference.outputs) if task.reference else 1
        return Job(
            func=task.func,
            plan=plan,
            arguments=arguments_of(task.func, written),
            checks=self._checks[task.signature],
            seed=self.seed,
            cold=_has_weights(task),
            in_full=in_full,
        )

    def _record(self, task: Task, plan: TilePlan, outcome: Outcome, drift: float = 1.0) -> Record:
        failure = outcome.failure
        return Record(
            task=task.key,
            hardware=self.hardware.fingerprint(),
            hardware_name=self.hardware.name,
            target=str(target_of(self.hardware.target)),
            plan=plan,
            latency_us=() if failure else tuple(round(us, 3) for us in outcome.latency_us),
            drift=round(drift, 4),
            error=RecordFailure(failure.kind, failure.message) if failure else None,
            seed=self.seed,
            tir_hash=outcome.tir_hash,
            versions={"tvm": tvm_version(), "tvm_ext": tvm_ext.__version__},
            time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )


def _has_weights(task: Task) -> bool:
    """Whether the task reads weights that a model would find out of cache."""
    graph = task.graph
    return graph is not None and any(
        packed_bytes(graph, node) >= PREFETCH_BYTES for node in graph.nodes
    )


def reference_checks(task: Task, seed: int) -> Iterator[OutputCheck]:
    """Points of every output with their reference values; none if the task has no reference."""
    reference = task.reference
    if reference is None:
        return
    inputs = make_inputs(arguments_of(task.func, len(reference.outputs)), seed)
    for place in range(len(reference.outputs)):
        where = choose_points(reference, place, None, seed)
        points = reference.points(inputs, place, where)
        known = np.isfinite(points.bounds)
        yield OutputCheck(
            output=place,
            flat_indices=where[known],
            values=points.values[known],
            rtol=0.0,
            atol=points.bounds[known],
        )
