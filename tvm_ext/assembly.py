"""From planned kernels to a runnable model: compiled on all cores, checked, linked.

    plans arrive one by one → each kernel is compiled on a thread of its own → checked when ready
    → replaced by its task's next option if it is refused or wrong → linked with the VM's code

Kernels are modules of their own: compiling releases Python's lock, so planning and checking go on
meanwhile, and a kernel that TVM refuses concerns no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

import tvm_ext
from tvm_ext import flags
from tvm_ext.bounds import Bounds
from tvm_ext.edge_levels import stage_levels, step_levels
from tvm_ext.errors import ModelError
from tvm_ext.graph.own_outputs import own_outputs
from tvm_ext.hardware import physical_cores, runs_here
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.head_start import HeadStart
from tvm_ext.loops import Loops
from tvm_ext.measure.build import build as compile_kernel
from tvm_ext.measure.build import one_line
from tvm_ext.measure.job import Failure
from tvm_ext.passes import Precision, apply_plans, calling_passes, placing_passes
from tvm_ext.planner import Planned, Task, next_option
from tvm_ext.records.manifest import MANIFEST_VERSION, Fusion, Manifest, TensorInfo
from tvm_ext.runtime.child import verdict
from tvm_ext.runtime.executor import Compiled
from tvm_ext.runtime.export import Parts, with_manifest
from tvm_ext.runtime.kernel import DeviceKernel, Kernel
from tvm_ext.runtime.weights import detach
from tvm_ext.shield import shield
from tvm_ext.tir.signature import hash_text
from tvm_ext.tvm_api import (
    InternalError,
    IRModule,
    PrimFunc,
    Target,
    target_of,
    tirx,
    tvm,
    tvm_version,
)
from tvm_ext.tvm_lowering import TIR_PIPELINE
from tvm_ext.verify import check, has_reference

Notify = Callable[[str], None]
_NOTHING = "tvm_ext_nothing"
AnyKernel = Kernel | DeviceKernel


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
    fusions: tuple[Fusion, ...] = ()
    bounds: Bounds = field(default_factory=lambda: Bounds({}, {}))
    """Of what is left open."""
    precision: Precision = "float32"
    """Of what products multiply."""
    unbounded: str = ""
    """Its first node that makes as much as data say, without a bound."""

    @property
    def distinct(self) -> dict[str, Task]:
        """One task for each signature."""
        return {task.signature: task for task in self.tasks.values()}

    @property
    def runnable(self) -> bool:
        """Whether this machine can run the kernels."""
        return runs_here(self.hardware)


def assemble(
    lowered: Lowered,
    planned: Iterable[Planned],
    notes: tuple[str, ...],
    *,
    verify: bool,
    say: Notify = quiet,
    ahead: HeadStart | None = None,
    apart: bool = False,
) -> Compiled:
    """Compiles and links the planned kernels of a module, one for each of its functions; some may
    have been compiled `ahead`. They are checked in this process, or `apart`, each in one of its own
    (TVM_EXT_APART=1 asks for that too); those of a GPU always here, for its driver knows no forks.

    A kernel that TVM cannot compile, or that is wrong, gives way to the task's next option; the
    options end with the function as TVM wrote it. Raises ModelError if even that is refused.
    """
    apart = (apart or flags.apart()) and lowered.hardware.kind == "cpu"
    if not lowered.runnable:
        notes = (*notes, f"not verified: {lowered.hardware.name} is not this machine")
    count = len(lowered.tasks)
    checker = Checker(lowered, verify and lowered.runnable, apart, ahead)
    kernels: dict[str, AnyKernel] = {}
    done: dict[str, Planned] = {}
    with ThreadPoolExecutor(physical_cores()) as pool:
        jobs = [(entry, pool.submit(checker.compile, entry)) for entry in planned]
        if apart:  # what a thread holds when its process is forked is held in the child for ever
            wait(job for _, job in jobs)
        for place, (entry, job) in enumerate(jobs):
            say(f"kernel {place + 1} of {count}: {entry.task.kind}")
            name = entry.task.name
            done[name], kernels[name] = checker.settle(entry, job.result())
    outdated = sum(entry.outdated for entry in done.values())
    if outdated:
        notes = (
            *notes,
            f"{outdated} of {count} kernels are no longer those measured when the log was written, "
            "by another version of tvm_ext or TVM; tune again to measure them",
        )
    say("linking")
    in_order = {name: done[name] for name in lowered.tasks}
    return link(lowered, in_order, kernels, notes, verify and lowered.runnable, apart)


class Checker:
    """Compiles and checks kernels of one model; equal kernels are checked once."""

    def __init__(
        self, lowered: Lowered, checked: bool, apart: bool, ahead: HeadStart | None = None
    ) -> None:
        self._model = lowered.name
        self._target = target_of(lowered.hardware.target)
        self._kind = DeviceKernel if lowered.hardware.kind == "cuda" else Kernel
        self._runnable = lowered.runnable
        self._checked, self._apart = checked, apart
        self._ahead = ahead
        self._verdicts: dict[tuple[str, str], str] = {}

    def compile(self, entry: Planned) -> AnyKernel | Failure:
        """The kernel's machine code."""
        name = entry.task.name
        ready = self._ahead.taken(name, entry.tir_hash) if self._ahead else b""
        if ready and (kernel := Kernel.linked(ready, name)):
            return kernel
        built = compile_kernel(entry.func, self._target, name, run=False)
        if isinstance(built, Failure):
            return built
        try:
            return self._kind.of(built.module, name, self._runnable)
        except Exception as error:  # of whatever kind LLVM's refusal comes
            return Failure("compile", one_line(error))

    def settle(self, entry: Planned, built: AnyKernel | Failure) -> tuple[Planned, AnyKernel]:
        """The first of the task's options, from the present one on, that compiles and is right."""
        while True:
            if isinstance(built, Failure):
                if not entry.rest:
                    raise ModelError(
                        f"model {self._model}: TVM cannot build {entry.task.name}: {built.message}"
                    )
                reason = f"{built.kind}: {built.message}"
            else:
                reason = self._wrong(entry, built)
                if not reason:
                    entry.verified = (
                        self._checked and has_reference(entry.task) and not entry.disputed
                    )
                    return entry, built
            entry = next_option(entry, reason)
            built = self.compile(entry)

    def _wrong(self, entry: Planned, built: AnyKernel) -> str:
        if not self._checked or entry.disputed:
            return ""
        key = (entry.task.signature, entry.tir_hash)
        if key not in self._verdicts:
            found: list[str] = []
            with shield("the check itself", found):
                self._verdicts[key] = verdict(partial(check, entry, built.main), self._apart)
            self._verdicts.setdefault(key, "".join(found))
        return f"wrong: {wrong}" if (wrong := self._verdicts[key]) else ""


def link(
    lowered: Lowered,
    planned: dict[str, Planned],
    kernels: dict[str, AnyKernel],
    notes: tuple[str, ...],
    checked: bool,
    apart: bool,
) -> Compiled:
    """The model's VM code with its kernels and its loops, `checked` if this machine can, here or
    `apart`, the manifest inside it.

    A kernel that nobody calls is compiled with the VM's code: TVM gives a module without any a form
    that can only be run from a file. GPU kernels are brought along by the VM's code, as TVM does.
    """
    target = target_of(lowered.hardware.target)
    loops = Loops(planned, kernels, target, checked, apart)
    with target:
        calling = tvm.transform.Sequential(calling_passes())(apply_plans(lowered.mod, planned))
        called = loops.rerolled(calling)
        manifest = make_manifest(lowered, planned, loops, called, notes)
        with _of_known_extents(lowered):
            lowest = tvm.transform.Sequential(placing_passes())(with_manifest(called, manifest))
    names = {str(variable.name_hint) for variable in called.get_global_vars()}
    kernels = {name: kernel for name, kernel in kernels.items() if name in names}
    kernels |= loops.kernels
    rest = IRModule(
        {
            variable: function
            for variable, function in lowest.functions.items()
            if variable.name_hint not in kernels
        }
    )
    rest[_NOTHING] = _nothing(target)

    def built(mod: IRModule) -> Any:
        with target:
            return tvm.compile(mod, target=target, relax_pipeline=None, tir_pipeline=TIR_PIPELINE)

    def bring(executable: Any, brought: Iterable[AnyKernel]) -> None:
        for kernel in brought:
            executable.mod.import_module(kernel.module)

    def parts() -> Parts:
        asking, weights = detach(rest)
        executable = built(asking)
        bring(executable, (k for k in kernels.values() if isinstance(k, DeviceKernel)))
        linked = [k for k in kernels.values() if isinstance(k, Kernel)]
        return Parts(executable, linked, weights)

    with _of_known_extents(lowered):
        executable = built(rest)
    bring(executable, kernels.values())
    return Compiled(executable.jit(), manifest, parts=parts)


@contextmanager
def _of_known_extents(lowered: Lowered) -> Iterator[None]:
    """Raises ModelError where TVM fails on extents that data say."""
    try:
        yield
    except InternalError as error:
        if not lowered.unbounded:
            raise
        raise ModelError(
            f"model {lowered.name}: {lowered.unbounded} makes as many elements as data say, and "
            f"TVM {tvm_version()} cannot compile what reads them; make constants of what it reads, "
            "or export the model without it"
        ) from error


def _nothing(target: Target) -> PrimFunc:
    function = PrimFunc([], tirx.Evaluate(0))
    host = target.host or target
    return function.with_attr({"global_symbol": _NOTHING, "target": host, "tirx.noalias": True})


def make_manifest(
    lowered: Lowered,
    planned: dict[str, Planned],
    loops: Loops,
    called: IRModule,
    notes: tuple[str, ...],
) -> Manifest:
    """What the artifact says of itself; `called` are its kernels and loops as a run calls them. The
    code hash covers every kernel's scheduled text."""
    looped = loops.groups()
    io_bytes = {name: entry.task.io_bytes for name, entry in planned.items()}
    io_bytes |= {group.name: group.io_bytes for group in looped}
    hashes = sorted(f"{entry.task.signature} {entry.tir_hash}" for entry in planned.values())
    return Manifest(
        version=MANIFEST_VERSION,
        model=lowered.name,
        hardware=lowered.hardware.fingerprint(),
        hardware_name=lowered.hardware.name,
        isa=lowered.hardware.isa,
        target=str(target_of(lowered.hardware.target)),
        num_threads=lowered.hardware.cores,
        inputs=lowered.inputs,
        outputs=lowered.outputs,
        groups=(
            *looped,
            *(
                msgspec.structs.replace(
                    entry.group(),
                    calls=entry.task.calls - loops.calls(name),
                    stages=stage_levels(entry.task.graph, entry.option.plan, lowered.hardware),
                )
                for name, entry in planned.items()
            ),
        ),
        code_hash=hash_text("\n".join(hashes)),
        versions={"tvm": tvm_version(), "tvm_ext": tvm_ext.__version__},
        notes=(*notes, *loops.notes),
        anywhere=True,
        own_outputs=own_outputs(lowered.mod["main"]),
        fusions=lowered.fusions,
        fewest=lowered.bounds.fewest,
        most=lowered.bounds.most,
        precision=lowered.precision,
        steps=step_levels(called, io_bytes, lowered.hardware),
    )
