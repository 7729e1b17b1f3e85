"""`compile`, `tune`, `replay`, `load`: the one place where all rooms meet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import tvm_ext
from tvm_ext import flags
from tvm_ext.errors import LogError, ModelError, TargetError
from tvm_ext.hardware import physical_cores, resolve
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.measure.build import build as compile_kernel
from tvm_ext.measure.job import Failure
from tvm_ext.passes import apply_plans, graph_passes, lowering_passes, tasks_of
from tvm_ext.planner import Planned, Task, hash_text, next_option, plan_task
from tvm_ext.records import Database
from tvm_ext.records.manifest import MANIFEST_VERSION, Manifest, TensorInfo
from tvm_ext.runtime.artifact import load_artifact, with_manifest
from tvm_ext.runtime.executor import Compiled
from tvm_ext.runtime.threads import use_threads
from tvm_ext.shield import first_line, shield
from tvm_ext.tvm_api import PASS_CONFIG, IRModule, Target, relax, tirx, tvm, tvm_version
from tvm_ext.verify import check, has_reference

Shapes = Mapping[str, Sequence[int]]
Notify = Callable[[str], None]


def quiet(_: str) -> None:
    """Says nothing."""


@dataclass(frozen=True)
class Lowered:
    """A model as groups: what `compile`, `tune` and `replay` start from."""

    mod: IRModule
    hardware: HardwareModel
    tasks: dict[str, Task]
    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    notes: tuple[str, ...]

    @property
    def distinct(self) -> dict[str, Task]:
        """One task for each signature."""
        return {task.signature: task for task in self.tasks.values()}


def lower(model: Any, target: Any, shapes: Shapes | None, num_threads: int | None) -> Lowered:
    """Imports a model and takes it down to unscheduled groups for a machine."""
    hardware = resolve(target)
    if hardware.kind == "cuda":
        raise TargetError(
            f"target {hardware.name}: whole models compile for CPUs only so far; use cpu, a "
            "cpu/ or an arm/ target"
        )
    if hardware.name == "cpu/host" or num_threads:
        threads = use_threads(num_threads or physical_cores(), asked=num_threads is not None)
        hardware = msgspec.structs.replace(hardware, cores=threads)
    if isinstance(model, IRModule):
        mod, name = model, "module"
        notes: tuple[str, ...] = ()
        inputs, outputs = _signature_of(mod)
    else:
        from tvm_ext.frontend.from_onnx import import_onnx

        imported = import_onnx(model, shapes)
        mod, notes = imported.mod, imported.notes
        name = Path(model).name if isinstance(model, str | os.PathLike) else "model"
        inputs = tuple(TensorInfo(i.name, i.dtype, i.shape) for i in imported.inputs)
        outputs = tuple(TensorInfo(o.name, o.dtype, o.shape) for o in imported.outputs)
    left_out: list[str] = []
    with Target(hardware.target):
        for step in graph_passes(hardware):
            with shield(f"pass {step.info.name} left out", left_out):
                mod = step(mod)
        mod = relax.transform.LegalizeOps()(mod)  # what a pass that was left out did not lower
    notes = (*notes, *left_out)
    return Lowered(mod, hardware, tasks_of(mod), name, inputs, outputs, notes)


def compile(
    model: Any,
    target: Any = "cpu",
    *,
    log: str | os.PathLike[str] | None = None,
    shapes: Shapes | None = None,
    num_threads: int | None = None,
    verify: bool = True,
    notify: Notify | None = None,
) -> Compiled:
    """Compiles without measuring: plans from the log where it has records, else from the picker.

    model        path of an ONNX file, an onnx.ModelProto, or a Relax IRModule
    target       "cpu" (this machine), a catalog name, or a TVM target
    log          tuning log: a folder or a .jsonl file
    shapes       input name → shape, needed where the model leaves a dimension open
    num_threads  threads to run on; all physical cores by default
    verify       check every kernel against its reference, and replace one that is wrong

    Raises ModelError, ShapeError, TargetError, LogError.
    """
    say = notify or quiet
    say("importing")
    lowered = lower(model, target, shapes, num_threads)
    database = Database.open(log) if log is not None else None
    say(f"planning {len(lowered.distinct)} kernels")
    planned = plan_all(lowered, database)
    notes = (*lowered.notes, *log_notes(database, lowered))
    return assemble(lowered, planned, notes, verify=verify, say=say)


def replay(
    model: Any,
    log: str | os.PathLike[str],
    target: Any = "cpu",
    *,
    strict: bool = False,
    shapes: Shapes | None = None,
    num_threads: int | None = None,
    notify: Notify | None = None,
) -> Compiled:
    """Compiles from a log, measuring and running nothing. With `strict` a missing record is an
    error (LogError, all misses listed); otherwise the picker fills in."""
    lowered = lower(model, target, shapes, num_threads)
    database = Database.open(log)
    planned = plan_all(lowered, database)
    misses = sorted({p.task.kind for p in planned.values() if p.task.graph and not _hit(p)})
    if strict and misses:
        raise LogError(
            f"log {os.fspath(log)}: no record for {len(misses)} kernels ({', '.join(misses)}) on "
            f"hardware {lowered.hardware.fingerprint()}; tune the model with this log first"
        )
    notes = (*lowered.notes, *log_notes(database, lowered))
    return assemble(lowered, planned, notes, verify=False, say=notify or quiet)


def load(path: str | os.PathLike[str], num_threads: int | None = None) -> Compiled:
    """Loads an artifact written by `Compiled.save`. Raises ArtifactError."""
    use_threads(num_threads or physical_cores(), asked=num_threads is not None)
    executable, manifest = load_artifact(Path(path))
    return Compiled(executable, manifest, Path(path))


def plan_all(lowered: Lowered, database: Database | None) -> dict[str, Planned]:
    """A kernel for every function of the module; equal tasks are planned once."""
    by_signature = {
        mark: plan_task(task, lowered.hardware, database) for mark, task in lowered.distinct.items()
    }
    planned = {}
    for name, task in lowered.tasks.items():
        base = by_signature[task.signature]
        planned[name] = Planned(task, base.func, base.option, base.rest, list(base.reasons))
    return planned


def assemble(
    lowered: Lowered,
    planned: dict[str, Planned],
    notes: tuple[str, ...],
    *,
    verify: bool,
    say: Notify = quiet,
) -> Compiled:
    """Builds the module with the planned kernels.

    A kernel that TVM cannot compile, or that is wrong, gives way to the task's next option and the
    module is built again; the options end with the function as TVM wrote it.
    """
    runnable = lowered.hardware.name == "cpu/host"
    if not runnable:
        notes = (*notes, f"not verified: {lowered.hardware.name} is not this machine")
    checked = verify and runnable
    while True:
        for entry in planned.values():
            entry.verified = checked and has_reference(entry.task) and not entry.disputed
        say(f"building {len(planned)} kernels")
        try:
            executable, manifest = build(lowered, planned, notes)
        except Exception as error:
            failing = find_failing(lowered, planned)
            if not failing and flags.strict():
                raise
            if not failing:
                raise ModelError(
                    f"model {lowered.name}: TVM cannot build it: {first_line(error)}"
                ) from error
        else:
            say("verifying" if checked else "ready")
            failing = verify_kernels(executable, planned) if checked else {}
            if not failing:
                return Compiled(executable, manifest)
        replace_failing(lowered, planned, failing, checked)


def build(
    lowered: Lowered, planned: dict[str, Planned], notes: tuple[str, ...]
) -> tuple[Any, Manifest]:
    """Compiles the module for its target, the manifest inside it."""
    scheduled = apply_plans(lowered.mod, planned)
    manifest = make_manifest(lowered, planned, notes)
    target = Target(lowered.hardware.target)
    pipeline = tvm.transform.Sequential(lowering_passes())
    with target, tvm.transform.PassContext(config=PASS_CONFIG):
        executable = tvm.compile(
            with_manifest(scheduled, manifest), target=target, relax_pipeline=pipeline
        )
    return executable, manifest


def make_manifest(
    lowered: Lowered, planned: dict[str, Planned], notes: tuple[str, ...]
) -> Manifest:
    """What the artifact says of itself. The code hash covers every kernel's scheduled text."""
    hashes = sorted(f"{entry.task.signature} {entry.tir_hash}" for entry in planned.values())
    return Manifest(
        version=MANIFEST_VERSION,
        model=lowered.name,
        hardware=lowered.hardware.fingerprint(),
        hardware_name=lowered.hardware.name,
        target=str(Target(lowered.hardware.target)),
        num_threads=lowered.hardware.cores,
        inputs=lowered.inputs,
        outputs=lowered.outputs,
        groups=tuple(entry.group() for entry in planned.values()),
        code_hash=hash_text("\n".join(hashes)),
        versions={"tvm": tvm_version(), "tvm_ext": tvm_ext.__version__},
        notes=notes,
    )


def replace_failing(
    lowered: Lowered, planned: dict[str, Planned], failing: dict[str, str], checked: bool
) -> None:
    """Gives each failing task its next option that compiles and, if `checked`, is right."""
    target = Target(lowered.hardware.target)
    for name, first_reason in failing.items():
        entry, reason = planned[name], first_reason
        while reason:
            entry = next_option(entry, reason)
            if entry.option.plan is None:
                break
            built = compile_kernel(entry.func, target, PASS_CONFIG)
            if isinstance(built, Failure):
                reason = f"{built.kind}: {built.message}"
            else:
                wrong = check(entry, built.main) if checked else ""
                reason = f"wrong: {wrong}" if wrong else ""
        planned[name] = entry


def find_failing(lowered: Lowered, planned: dict[str, Planned]) -> dict[str, str]:
    """Kernels that TVM cannot compile by themselves: name → reason."""
    failing = {}
    for name, entry in planned.items():
        if entry.option.plan is None:
            continue
        built = compile_kernel(entry.func, Target(lowered.hardware.target), PASS_CONFIG)
        if isinstance(built, Failure):
            failing[name] = f"{built.kind}: {built.message}"
    return failing


def verify_kernels(executable: Any, planned: dict[str, Planned]) -> dict[str, str]:
    """Checks every distinct kernel of a built module: name → what is wrong."""
    library = executable.jit()
    wrong: dict[str, str] = {}
    verdicts: dict[tuple[str, str], str] = {}
    for name, entry in planned.items():
        if entry.disputed:
            continue
        key = (entry.task.signature, entry.tir_hash)
        if key not in verdicts:
            found: list[str] = []
            with shield("the check itself", found):
                verdicts[key] = check(entry, library.get_function(name, True))
            verdicts.setdefault(key, "".join(found))
        if verdicts[key]:
            wrong[name] = f"wrong: {verdicts[key]}"
    return wrong


def _hit(planned: Planned) -> bool:
    return planned.option.source == "log"


def log_notes(database: Database | None, lowered: Lowered) -> tuple[str, ...]:
    """What the user should know of the log: corrupt lines, records of other machines only."""
    if database is None:
        return ()
    notes = [f"log line skipped: {line}" for line in database.corrupt]
    own = lowered.hardware.fingerprint()
    others = {mark: entry for mark, entry in database.hardware().items() if mark != own}
    if others and own not in database.hardware():
        names = ", ".join(f"{name} ({mark}): {count}" for mark, (name, count) in others.items())
        notes.append(f"log not used: its records are from other hardware ({names}), this is {own}")
    return tuple(notes)


def _signature_of(mod: IRModule) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Inputs and outputs of a Relax module's `main`. Raises ModelError without static shapes."""
    if "main" not in [variable.name_hint for variable in mod.get_global_vars()]:
        raise ModelError("module: has no function main; name the entry function main")
    main = mod["main"]

    def info(name: str, ty: Any) -> TensorInfo:
        extents = getattr(getattr(ty, "shape", None), "values", None)
        if extents is None or not all(isinstance(extent, tirx.IntImm) for extent in extents):
            raise ModelError(
                f"module: {name} has no static shape; bind it with relax.transform.BindSymbolicVars"
            )
        return TensorInfo(name, str(ty.dtype.dtype), tuple(int(extent) for extent in extents))

    inputs = tuple(info(parameter.name, parameter.ty) for parameter in main.params)
    returned = main.ret_ty
    fields = list(returned.fields) if hasattr(returned, "fields") else [returned]
    outputs = tuple(info(f"output{place}", ty) for place, ty in enumerate(fields))
    return inputs, outputs
