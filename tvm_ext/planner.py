"""From a group to its scheduled kernel: a record if there is one, else the picker, else a fallback.

Never aborts and never is silently slow: a plan that TVM refuses, or whose kernel is wrong, gives
way to the next one, and the group says so in its report line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tvm_ext.compute.plain_calls import with_vector_maths
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.hardware.roofline import roof
from tvm_ext.picker import PICKED, exchange_us, pick, predict
from tvm_ext.records import Database, TaskKey
from tvm_ext.records.manifest import Group
from tvm_ext.shield import shield
from tvm_ext.tile.attention import attention_stages
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.legal import check_parts
from tvm_ext.tile.plan import LevelTile, TilePlan
from tvm_ext.tir import Reference, prepare, signature, write
from tvm_ext.tir.signature import hash_func
from tvm_ext.tir.slices import Strides, dense, of_rows, with_slices
from tvm_ext.tir.symbolic import typical
from tvm_ext.tvm_api import PrimFunc, written_cycles


@dataclass(frozen=True)
class Task:
    """A distinct group: what it computes, by signature, and where it occurs.

    Graph, signature and reference are those of `original`: what the group is known by and checked
    against does not change with the polynomials its kernels are made of.
    """

    original: PrimFunc
    """The function as it came."""
    func: PrimFunc
    """The same blocks with vector maths in place of calls: what schedules are written from."""
    graph: TileGraph | None
    """Its stages, for 1 of what is not known."""
    signature: str
    name: str
    calls: int = 1
    slices: Mapping[int, Strides] = field(default_factory=dict)
    """The strides of parameters that lie in larger tensors. All else here is dense."""

    @cached_property
    def reference(self) -> Reference | None:
        """What the task should compute; None if it cannot be said in numpy."""
        return Reference.of(self.original)

    @property
    def flops(self) -> float:
        """Its arithmetic; 0 where it could not be read."""
        return self.graph.flops if self.graph else 0.0

    @property
    def io_bytes(self) -> int:
        """Its least traffic; 0 where it could not be read."""
        return self.graph.io_bytes if self.graph else 0

    @property
    def key(self) -> TaskKey:
        """What records call it."""
        return TaskKey(self.signature, self.kind, int(self.flops), self.io_bytes)

    @property
    def kind(self) -> str:
        """The operators of the group, `conv2d_add_relu`, without the numbers that make names
        unique."""
        return re.sub(r"(?<=[a-z])\d+(?=_|$)", "", self.name.removeprefix("fused_"))


@dataclass(frozen=True)
class Option:
    """One way to run a group."""

    source: str
    plan: TilePlan | None
    bound: str = ""
    predicted_us: float = 0.0
    measured_us: float = 0.0
    tir_hash: str = ""
    """`hash_func` of the kernel that was measured; of a record only."""


@dataclass
class Planned:
    """A task with the kernel chosen for it, and the options not tried yet."""

    task: Task
    func: PrimFunc
    option: Option
    rest: list[Option]
    reasons: list[str] = field(default_factory=list)
    verified: bool = False
    disputed: bool = False
    """Whether even the function as TVM wrote it differs from its reference."""
    outdated: bool = False
    """Whether a record's plan became another kernel than when it was measured."""

    @cached_property
    def tir_hash(self) -> str:
        """`hash_func` of the kernel."""
        return hash_func(self.func)

    def group(self) -> Group:
        """The report line."""
        graph = self.task.graph
        return Group(
            name=self.task.name,
            kind=self.task.kind,
            signature=self.task.signature,
            source=self.option.source,
            plan=self.option.plan,
            bound=self.option.bound,
            predicted_us=round(self.option.predicted_us, 2),
            measured_us=round(self.option.measured_us, 2),
            flops=self.task.flops,
            multiply_flops=multiply_flops(graph, self.option.plan),
            io_bytes=self.task.io_bytes,
            calls=self.task.calls,
            verified=self.verified,
            fallback=tuple(self.reasons),
        )


def multiply_flops(graph: TileGraph | None, plan: TilePlan | None) -> float:
    """Operations of the reductions the plan tiles; 0 if it tiles none."""
    if graph is None or plan is None:
        return 0.0
    found = attention_stages(graph) if plan.rule == "attention" else None
    anchors = (found.scores, found.mixed) if found else [part.anchor for part in plan.parts()]
    return sum(node.flops for a in anchors if (node := graph.nodes[a]).kind == "reduce")


def make_task(func: PrimFunc, name: str, calls: int = 1) -> Task:
    """The task of an unscheduled function."""
    func, slices = dense(func)
    mark = signature(func)
    graph: TileGraph | None = None
    vectorised = func
    with shield("reading", []):
        prepared = prepare(typical(func, 1), mark)
        graph = prepared.graph if prepared else None
        vectorised = with_vector_maths(func)
    return Task(func, vectorised, graph, mark, name, calls, slices)


def options(
    task: Task,
    hardware: HardwareModel,
    database: Database | None,
    reasons: list[str],
    *,
    alone: bool = False,
) -> list[Option]:
    """Ways to run the task, best first: record, picker, loose, untouched."""
    if cycles := written_cycles(task.original):
        return [Option("written", None, predicted_us=cycles / hardware.clock_ghz / 1e3)]
    found: list[Option] = []
    graph = task.graph
    if database is not None and graph is not None:

        def beside_us(plan: TilePlan) -> float:
            return 0.0 if alone else exchange_us(graph, plan, hardware)

        found += logged(task, hardware, database, beside_us, reasons)
    if graph is not None:
        with shield("picker", reasons):
            for candidate in pick(graph, hardware, PICKED, alone=alone):
                guess = candidate.estimate
                found.append(Option("picker", candidate.plan, guess.bound, guess.latency_us))
        limit = roof(graph.flops, graph.io_bytes, hardware)
        found.append(Option("loose", loose_plan(hardware), limit.bound, limit.latency_us))
    return [*found, Option("none", None)]


def logged(
    task: Task,
    hardware: HardwareModel,
    database: Database,
    beside_us: Callable[[TilePlan], float],
    reasons: list[str],
) -> list[Option]:
    """The best record of a task, if there is one; `beside_us` as in `Database.best`."""
    signature, machine, graph = task.signature, hardware.fingerprint(), task.graph
    if graph is None:
        return []

    def usable_us(plan: TilePlan) -> float:
        with shield("log plan", reasons):
            check_parts(graph, plan)
            return beside_us(plan)
        return float("inf")

    record = database.best(signature, machine, usable_us)
    if record is None:
        return []
    with shield("log plan", reasons):
        model = predict(graph, record.plan, hardware)
        times = model.latency_us, database.typical(signature, machine)[record.plan]
        return [Option("log", record.plan, model.bound, *times, record.tir_hash)]
    return []


def loose_plan(hardware: HardwareModel) -> TilePlan:
    """The plan that tiles nothing: outer loops in parallel, inner ones in vectors where legal."""
    return TilePlan(
        rule="block_loose" if hardware.kind == "cuda" else "loose",
        anchor=0,
        tiles=(LevelTile("core", Tile(())),),
        order=(),
        parallel=1,
        lanes=hardware.lanes(4),
    )


def choose(task: Task, rest: list[Option], reasons: list[str]) -> Planned:
    """The first option that can be written; why others could not be is kept."""
    for place, option in enumerate(rest):
        if option.plan is None:
            if task.graph is None and option.source == "none":
                reasons.append("structure: no blocks with static extents")
            func = with_slices(task.original, task.slices)
            return Planned(task, func, option, [], reasons)
        with shield(f"{option.source} plan", reasons):
            scheduled = write(task.func, option.plan)
            outdated = bool(option.tir_hash) and hash_func(scheduled) != option.tir_hash
            func = of_rows(scheduled, task.slices)
            return Planned(task, func, option, rest[place + 1 :], reasons, outdated=outdated)
    raise AssertionError("the list of options ends with the untouched function")


def plan_task(
    task: Task, hardware: HardwareModel, database: Database | None = None, *, alone: bool = False
) -> Planned:
    """The kernel for a task, to run between others of a model or `alone`."""
    reasons: list[str] = []
    return choose(task, options(task, hardware, database, reasons, alone=alone), reasons)


def next_option(planned: Planned, reason: str) -> Planned:
    """The next kernel for a task whose present one failed for `reason`; after the last option the
    function as TVM wrote it stays, disputed."""
    note = f"{planned.option.source} plan, {reason}"
    if not planned.rest:
        return replace(planned, reasons=[*planned.reasons, note], disputed=True)
    return choose(planned.task, planned.rest, [*planned.reasons, note])
