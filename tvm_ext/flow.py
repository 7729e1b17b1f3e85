"""`compile`, `tune`, `replay`: the one place where all rooms meet."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any, get_args

import msgspec

from tvm_ext import passes
from tvm_ext.arguments import thread_count
from tvm_ext.assembly import Lowered, Notify, assemble, quiet
from tvm_ext.bounds import Bounds, bounds
from tvm_ext.cuda_libraries import use_nvcc
from tvm_ext.errors import LogError, ModelError, ShapeError, TargetError
from tvm_ext.extents import Shapes
from tvm_ext.garbage import look_for, without_collections
from tvm_ext.graph.limits import fewest, may_be_none, most
from tvm_ext.graph.lower_non_max import NON_MAX
from tvm_ext.graph.merger import Explain
from tvm_ext.graph.unify import Point
from tvm_ext.hardware import physical_cores, resolve, runs_here
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.head_start import HeadStart, compiled
from tvm_ext.one_at_a_time import one_at_a_time
from tvm_ext.passes import Precision, Run, graph_passes, lifted, tasks_of
from tvm_ext.planner import Planned
from tvm_ext.records import Database
from tvm_ext.records.files import told
from tvm_ext.records.manifest import Fusion
from tvm_ext.runtime.executor import Compiled
from tvm_ext.runtime.threads import use_threads
from tvm_ext.shield import first_line, shield
from tvm_ext.source import (
    Beginnings,
    Source,
    left_open,
    open_extents,
    read_open,
    read_source,
)
from tvm_ext.symbolic import plan
from tvm_ext.tvm_api import IRModule, called, relax, target_of, tvm, tvm_version
from tvm_ext.tvm_counted import CALL
from tvm_ext.tvm_pairs import HALF, multiplies_pairs

FAST_MATHS = (
    "no nvcc: where there is a CUDA device NVRTC compiles the kernels, with fast maths; "
    "pip install 'tvm_ext[cuda]' for nvcc"
)
_LEGALISE = "Legalise"
_DECIDING = "FuseTiles"
"""The pass that takes longest; it merges few of the kernels that there are by then."""
Decided = Callable[[IRModule, Sequence[Any], HardwareModel], object]
"""Called with a module before that pass, the passes after it, and the machine."""
IN_HALVES = "products and convolutions multiply bfloat16, sums are float32"
NOT_IN_HALVES = "nothing multiplies bfloat16: that is not faster than float32 on "


def hardware_for(target: Any, num_threads: int | None) -> HardwareModel:
    """The machine a target names, with the threads that are to be used; a GPU has those it has.
    Raises TargetError."""
    num_threads = thread_count(num_threads)
    hardware = resolve(target)
    if hardware.kind == "cuda":
        use_nvcc()
        return hardware
    if hardware.name == "cpu/host" or num_threads:
        threads = use_threads(num_threads or physical_cores(), asked=num_threads is not None)
        hardware = msgspec.structs.replace(hardware, cores=threads)
    return hardware


def _disabled() -> set[str]:
    """The passes that a `PassContext` leaves out. Warns of a name that neither TVM nor we have."""
    from tvm_ffi.registry import list_global_func_names  # after tvm, which is kept from torch

    disabled = {str(name) for name in tvm.transform.PassContext.current().disabled_pass}
    if not disabled:
        return disabled
    known = {*dir(passes), *dir(relax.transform), *dir(relax.backend)}
    known.update(name.rpartition(".")[2] for name in list_global_func_names())
    for name in sorted(disabled):
        if name.rpartition(".")[2] not in known:
            near = get_close_matches(name, dir(passes), 1)
            hint = f"is it {near[0]}?" if near else "docs/passes.md lists ours"
            warnings.warn(f"disabled_pass: no pass is called {name!r}; {hint}", stacklevel=2)
    if _LEGALISE in disabled:  # TVM lowers no convolution from planes to channels
        disabled.add("ChannelsLast")
    return disabled


def _all_lowered(mod: IRModule) -> IRModule:
    """What a pass that was left out did not lower; a reshape is no kernel by now but a view."""
    try:
        return relax.transform.LegalizeOps(skip_ops=["relax.reshape"])(mod)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ModelError(
            f"model: TVM {tvm_version()} cannot lower one of its operators: {first_line(error)}; "
            "export the model without it"
        ) from error


@without_collections()
def lower(
    model: Any,
    target: Any,
    shapes: Shapes | None,
    num_threads: int | None,
    precision: Precision | None = None,
    *,
    decided: Decided | None = None,
) -> Lowered:
    """Imports a model and takes it down to unscheduled groups for a machine.

    A `PassContext`'s `disabled_pass` leaves passes out, as in TVM's own flows. `decided` is called
    once most kernels are what they will be, unless extents are left open.
    """
    if precision not in (None, *get_args(Precision)):
        choices = " or ".join(get_args(Precision))
        raise TargetError(f"precision {precision!r}: nothing multiplies so; give {choices}")
    hardware = hardware_for(target, num_threads)
    left_out: list[str] = []
    decisions: list[Fusion] = []
    disabled = _disabled()

    def run(mod: IRModule, steps: Sequence[Any]) -> IRModule:
        for place, step in enumerate(steps, start=1):
            name = step.info.name
            if name == _DECIDING and decided and not opened:
                rest = [one for one in steps[place:] if one.info.name not in disabled]
                decided(mod, rest, hardware)
            if name not in disabled:
                with shield(f"pass {name} left out", left_out):
                    mod = step(mod)
                    continue
            if name == _LEGALISE:  # what is fused is not lowered any more
                mod = _all_lowered(mod)
        return _all_lowered(mod)

    opened = open_extents(model, shapes)
    explain = decisions.append
    with target_of(hardware.target):
        if opened:
            source, mod, between = _lower_open(
                model, shapes, opened, run, hardware, explain, precision
            )
        else:
            source, between = read_source(model, shapes), Bounds({}, {})
            hardware = hardware.running(source.constant_bytes)
            if hardware.kind == "cuda" and {NON_MAX, CALL} & called(source.mod["main"].body):
                raise ModelError(
                    f"{source.name}: what data say the number of (NonMaxSuppression, NonZero) is "
                    f"found on CPUs alone, not on {hardware.name}; export the model without it"
                )
            mod = run(source.mod, graph_passes(hardware, explain, precision=precision))
    look_for(source.constant_bytes)  # what passes were given, weights not yet packed, is in cycles
    notes = (*source.notes, *dict.fromkeys(left_out))
    if hardware.kind == "cuda" and not use_nvcc():
        notes = (*notes, FAST_MATHS)
    fusions = tuple(
        msgspec.structs.replace(decision, times=times)
        for decision, times in Counter(decisions).items()
    )
    tasks = tasks_of(mod)
    in_halves = any(multiplies_pairs(task.func) for task in tasks.values())
    if in_halves or precision == HALF:
        notes = (*notes, IN_HALVES if in_halves else f"{NOT_IN_HALVES}{hardware.name}")
    inputs, outputs = source.inputs, source.outputs
    return Lowered(
        mod,
        hardware,
        tasks,
        source.name,
        inputs,
        outputs,
        notes,
        fusions,
        between,
        "bfloat16" if in_halves else "float32",
        source.unbounded,
    )


def _lower_open(
    model: Any,
    shapes: Shapes | None,
    opened: Sequence[str],
    run: Run,
    hardware: HardwareModel,
    explain: Explain,
    precision: Precision | None,
) -> tuple[Source, IRModule, Bounds]:
    """What a model with extents that are left open says of itself, its unscheduled groups, and for
    which extents they are. Raises ModelError, ShapeError."""
    listed = " and ".join(opened)
    if hardware.kind == "cuda":
        raise ShapeError(
            f"shapes: {listed} cannot be left open for {hardware.name}; give a number for {listed}"
        )
    sources: dict[Point, Source] = {}

    def choices() -> Iterator[dict[Point, IRModule]]:
        nonlocal sources
        for sources in read_open(model, shapes, opened):
            yield {point: found.mod for point, found in sources.items()}

    tables = Beginnings(model, shapes, opened)
    mod = lifted(choices(), opened, run, hardware, explain, tables, precision)
    source = left_open(sources, opened)
    told = Bounds(fewest(mod), most(mod)) if mod else None
    between = bounds(model, shapes, sources, opened, told) if told else None
    if between:
        none = {name: 0 for name in may_be_none(mod) if name not in between.fewest}
        between = between._replace(fewest=none | between.fewest)
    if mod is None or between is None:
        raise ShapeError(
            f"shapes: {listed} cannot be left open in {source.name}, where more depends on "
            f"it than how often the same is computed; give a number for {listed}"
        )
    return source, mod, between


def _lowered_ahead(
    model: Any,
    target: Any,
    shapes: Shapes | None,
    num_threads: int | None,
    precision: Precision | None,
    log: str | os.PathLike[str] | None,
) -> tuple[Lowered, HeadStart]:
    """What `lower` makes, and kernels for this machine that were compiled meanwhile."""
    with HeadStart() as ahead:

        def begin(mod: IRModule, rest: Sequence[Any], hardware: HardwareModel) -> None:
            if hardware.kind == "cpu" and runs_here(hardware):
                ahead.begin(partial(compiled, mod, rest, hardware, log))

        return lower(model, target, shapes, num_threads, precision, decided=begin), ahead


@one_at_a_time()
@without_collections()
def compile(
    model: Any,
    target: Any = "cpu",
    *,
    log: str | os.PathLike[str] | None = None,
    shapes: Shapes | None = None,
    num_threads: int | None = None,
    precision: Precision | None = None,
    verify: bool = True,
    notify: Notify | None = None,
) -> Compiled:
    """Compiles without measuring: plans from the log where it has records, else from the picker.

    model        path of an ONNX file, an onnx.ModelProto, or a Relax IRModule
    target       "cpu" (this machine), a catalog name, or a TVM target
    log          tuning log: a folder or a .jsonl file
    shapes       input name → shape, or a dimension's name → its number, needed where the model
                 leaves a dimension open; with a name in place of a number, such as
                 ("n", 3, 224, 224), that is left to every run
    num_threads  threads to run on; all physical cores by default
    precision    "bfloat16" rounds what products and convolutions multiply, if the machine is
                 faster so; sums, and all between products, stay in float32. By default that is
                 done to models in bfloat16
    verify       check every kernel against its reference, and replace one that is wrong

    Raises ModelError, ShapeError, TargetError, LogError.
    """
    say = notify or quiet
    say("importing")
    lowered, ahead = _lowered_ahead(model, target, shapes, num_threads, precision, log)
    database = Database.open(log) if log is not None else None
    notes = (*lowered.notes, *log_notes(database, lowered))
    planned = plan_all(lowered, database)
    return assemble(lowered, planned, notes, verify=verify, say=say, ahead=ahead)


@one_at_a_time()
@without_collections()
def replay(
    model: Any,
    log: str | os.PathLike[str],
    target: Any = "cpu",
    *,
    strict: bool = False,
    shapes: Shapes | None = None,
    num_threads: int | None = None,
    precision: Precision | None = None,
    notify: Notify | None = None,
) -> Compiled:
    """Compiles from a log, measuring and running nothing. With `strict` a missing record is an
    error (LogError, all misses listed); otherwise the picker fills in."""
    lowered, ahead = _lowered_ahead(model, target, shapes, num_threads, precision, log)
    database = Database.open(log)
    planned = list(plan_all(lowered, database))
    misses = sorted({p.task.kind for p in planned if p.task.graph and not _hit(p)})
    if strict and misses:
        where = f"hardware {lowered.hardware.fingerprint()}"
        if database.corrupt:
            where += f" ({len(database.corrupt)} lines cannot be used)"
        raise LogError(
            f"log {os.fspath(log)}: no record for {len(misses)} kernels ({', '.join(misses)}) on "
            f"{where}; tune the model with this log first"
        )
    notes = (*lowered.notes, *log_notes(database, lowered))
    return assemble(lowered, planned, notes, verify=False, say=notify or quiet, ahead=ahead)


def plan_all(lowered: Lowered, database: Database | None) -> Iterator[Planned]:
    """A kernel for every function of the module, those with most work first; equal tasks are
    planned once."""
    known: dict[object, Planned] = {}
    for task in sorted(lowered.tasks.values(), key=lambda task: task.flops, reverse=True):
        key = (task.signature, tuple(sorted(task.slices.items())))
        base = known.get(key) or plan(task, lowered.hardware, database)
        known[key] = base
        yield replace(base, task=task, reasons=list(base.reasons))


def _hit(planned: Planned) -> bool:
    return planned.option.source == "log"


def log_notes(database: Database | None, lowered: Lowered) -> tuple[str, ...]:
    """What the user should know of the log: corrupt lines, records of other machines only."""
    if database is None:
        return ()
    notes = [f"log line skipped: {line}" for line in told(database.corrupt)]
    own = lowered.hardware.fingerprint()
    others = {mark: entry for mark, entry in database.hardware().items() if mark != own}
    if others and own not in database.hardware():
        names = ", ".join(f"{name} ({mark}): {count}" for mark, (name, count) in others.items())
        notes.append(f"log not used: its records are from other hardware ({names}), this is {own}")
    return tuple(notes)
