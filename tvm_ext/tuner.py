"""`tune`, `tune_all`, `tune_tir`: models, or a function, compiled with plans found by measuring."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from tvm_ext.arguments import above_zero, whole_number
from tvm_ext.assembly import assemble
from tvm_ext.errors import ArgumentError, ModelError, TargetError
from tvm_ext.extents import Shapes
from tvm_ext.flow import hardware_for, log_notes, lower, plan_all
from tvm_ext.hardware import runs_here
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.measure import Measurer
from tvm_ext.measure.build import build
from tvm_ext.measure.job import Failure
from tvm_ext.one_at_a_time import one_at_a_time
from tvm_ext.passes import Precision
from tvm_ext.planner import Task, make_task
from tvm_ext.records import Database
from tvm_ext.runtime.executor import Compiled
from tvm_ext.search import Objective, SketchRule
from tvm_ext.symbolic import parts, plan
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tuning import Tuner, Watch, unwatched
from tvm_ext.tvm_api import PrimFunc, Target, target_of


def tune(
    model: Any,
    target: Any = "cpu",
    *,
    trials: int = 200,
    log: str | os.PathLike[str] = "tuning_logs",
    time_budget_s: float | None = None,
    goal_us: float | None = None,
    seed: int = 0,
    shapes: Shapes | None = None,
    num_threads: int | None = None,
    precision: Precision | None = None,
    fleet: Sequence[str] | None = None,
    watch: Watch | None = None,
) -> Compiled:
    """Compiles with measured plans. Ctrl-C ends the search; the best so far is compiled.

    trials         measurements in all for this model, those already in the log included; beyond
                   them only the picker's plans of kernels that the log knows by others alone
    log            folder or .jsonl file; what it holds for this machine is not measured again
    time_budget_s  stop measuring after so many seconds
    goal_us        or when the kernels together take no longer than this
    precision      as in `compile`; a log holds kernels of either
    fleet          measure on other machines: the tracker's `host:port`, their key, and the C++
                   compiler that links for them if it is not that of this machine
    watch          called after every batch with the tasks and the number of trials done

    Raises what `compile` raises, ArgumentError, FleetError if no device of the fleet measures, and
    LogError if the log cannot be written.
    """
    (compiled,) = tune_all(
        [model],
        target,
        trials=trials,
        log=log,
        time_budget_s=time_budget_s,
        goals_us=() if goal_us is None else (goal_us,),
        seed=seed,
        shapes=shapes,
        num_threads=num_threads,
        precision=precision,
        fleet=fleet,
        watch=watch,
    )
    return compiled


@one_at_a_time()
def tune_all(
    models: Sequence[Any],
    target: Any = "cpu",
    *,
    trials: int = 200,
    log: str | os.PathLike[str] = "tuning_logs",
    time_budget_s: float | None = None,
    objective: Objective = "latency",
    goals_us: Sequence[float] = (),
    seed: int = 0,
    shapes: Shapes | None = None,
    num_threads: int | None = None,
    precision: Precision | None = None,
    fleet: Sequence[str] | None = None,
    watch: Watch | None = None,
) -> list[Compiled]:
    """Tunes several models at once: a task that occurs in more than one is measured once.

    objective  what the trials are spent for: `latency`, the sum over the models, or `geomean`, by
               which a small model counts as much as a large one
    goals_us   for each model, the latency of its kernels together below which it gets no more

    The rest is as in `tune`; `shapes` must fit every model. Raises what `tune` raises.
    """
    if not isinstance(models, list | tuple) or not models:
        raise ArgumentError(f"models: {models!r} is no list of models; give one, or call tune")
    if objective not in get_args(Objective):
        choices = " or ".join(map(repr, get_args(Objective)))
        raise ArgumentError(f"objective={objective!r}: is none; give {choices}")
    for goal_us in goals_us:
        above_zero("goal_us", goal_us)
    if goals_us and len(goals_us) != len(models):
        raise ArgumentError(f"goals_us: {len(goals_us)} for {len(models)} models; give one each")
    deadline = _checked(trials, time_budget_s, seed)
    lowered = [lower(model, target, shapes, num_threads, precision) for model in models]
    measurer = measurer_of(fleet, lowered[0].hardware)
    database = Database.open(log, create=True)
    tasks: dict[str, tuple[Task, tuple[float, ...]]] = {}
    for place, one in enumerate(lowered):
        for task in (
            part for whole in one.distinct.values() for part in parts(whole, one.hardware)
        ):
            known = tasks.get(task.signature, (task, (0.0,) * len(lowered)))
            weights = tuple(w + task.calls * (i == place) for i, w in enumerate(known[1]))
            tasks[task.signature] = (known[0], weights)
    tuner = Tuner(
        tasks,
        lowered[0].hardware,
        database,
        seed,
        objective=objective,
        goals_us=goals_us,
        watch=watch or unwatched,
        measurer=measurer,
    )
    tuner.search(trials, deadline)
    return [
        assemble(
            one,
            plan_all(one, database),
            (*one.notes, *log_notes(database, one), *tuner.notes()),
            verify=True,
            apart=True,
        )
        for one in lowered
    ]


def _checked(trials: Any, time_budget_s: Any, seed: Any) -> float:
    """When to stop measuring, on the monotonic clock. Raises ArgumentError."""
    whole_number("trials", trials, 1)
    whole_number("seed", seed, 0)
    return time.monotonic() + (above_zero("time_budget_s", time_budget_s) or float("inf"))


def measurer_of(fleet: Sequence[str] | None, hardware: HardwareModel) -> Measurer | None:
    """What measures on a fleet, given its tracker and key; None if there is none. TargetError for a
    machine that neither measures; FleetError if nobody is there, before anything has been spent."""
    if hardware.kind == "cuda" and (fleet is not None or not runs_here(hardware)):
        raise TargetError(
            f"target {hardware.name}: kernels of a GPU are measured on the device beside this CPU "
            "only; tune where it is, or take the picker's plans by python -m tvm_ext.compile"
        )
    machine = str(hardware.target.get("mtriple", "")).partition("-")[0]
    if fleet is None and machine not in ("", platform.machine()):
        raise TargetError(
            f"target {hardware.name}: its kernels do not run on this {platform.machine()}; measure "
            "on a fleet (docs/fleet.md), or take the picker's plans by python -m tvm_ext.compile"
        )
    if fleet is None:
        return None
    from tvm_ext.measure.fleet import FleetMeasurer
    from tvm_ext.measure.tracker import check_fleet

    tracker, key, *compiler = fleet
    check_fleet(tracker, key)
    return FleetMeasurer(hardware.target, tracker, key, hardware.cores, compiler="".join(compiler))


@dataclass(frozen=True)
class TunedKernel:
    """What `tune_tir` found."""

    func: PrimFunc
    """The scheduled function; build it under `tir_pipeline="tvm_ext"`, or call `build`."""
    plan: TilePlan | None
    """None if the function has no structure that can be planned: it is as TVM wrote it."""
    latency_us: float
    """Of the best plan, that of the largest tile where extents are not known; infinite if none was
    measured."""
    first_us: float
    """Of the picker's first plan, which measures nothing."""
    trials: int
    target: Target
    notes: tuple[str, ...]

    def build(self, name: str = "main") -> Any:
        """The machine code as a TVM runtime module whose entry is `name`. Raises ModelError."""
        built = build(self.func, self.target, name, checked=True)
        if isinstance(built, Failure):
            raise ModelError(f"function {name}: TVM cannot build it: {built.message}")
        return built.module


@one_at_a_time()
def tune_tir(
    func: PrimFunc,
    target: Any = "cpu",
    trials: int = 64,
    *,
    log: str | os.PathLike[str] = "tuning_logs",
    time_budget_s: float | None = None,
    seed: int = 0,
    num_threads: int | None = None,
    rules: Sequence[SketchRule] = (),
    fleet: Sequence[str] | None = None,
    watch: Watch | None = None,
) -> TunedKernel:
    """Tunes one unscheduled function, whatever made it: TE, TVMScript, or a Relax flow.

    rules  sketch rules of your own, tried before ours (`tvm_ext.search.sketch`)

    The rest is as in `tune`. Raises ArgumentError, TargetError, LogError.
    """
    deadline = _checked(trials, time_budget_s, seed)
    hardware = hardware_for(target, num_threads)
    measurer = measurer_of(fleet, hardware)
    database = Database.open(log, create=True)
    name = str(func.attrs["global_symbol"]) if func.attrs and "global_symbol" in func.attrs else ""
    task = make_task(func, name or "main")
    tasks = {part.signature: (part, (1.0,)) for part in parts(task, hardware)}
    tuner = Tuner(
        tasks,
        hardware,
        database,
        seed,
        rules=rules,
        watch=watch or unwatched,
        measurer=measurer,
        alone=True,
    )
    tuner.search(trials, deadline)
    planned = plan(task, hardware, database, alone=True)
    space = tuner.tasks[0].space if tuner.tasks else None
    return TunedKernel(
        func=planned.func,
        plan=planned.option.plan,
        latency_us=space.best_us if space else float("inf"),
        first_us=space.measured.get(space.picked[0], float("inf")) if space else float("inf"),
        trials=tuner.done,
        target=target_of(hardware.target),
        notes=(*tuner.notes(), *planned.reasons),
    )
