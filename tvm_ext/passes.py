"""What other people's flows import: every pass by itself, and the whole way as one pipeline.

    mod = tvm_ext.passes.ChannelsLast()(mod)
    exe = tvm.compile(mod, target, relax_pipeline="tvm_ext", tir_pipeline="tvm_ext")

The pipeline, phase by phase (`pipeline`): tidy, layout, lower, fuse, plan, then TVM's own lowering.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, product
from typing import Any

from tvm_ext.costs import predicted_us, sliced_us, why_no_strips
from tvm_ext.errors import ModelError
from tvm_ext.garbage import look_for
from tvm_ext.graph.absorb_views import AbsorbViews
from tvm_ext.graph.add_bytes import AddBytes
from tvm_ext.graph.channels_last import ALL_CONVOLUTIONS, ChannelsLast
from tvm_ext.graph.concat_in_place import ConcatInPlace
from tvm_ext.graph.constant_forms import Tables
from tvm_ext.graph.find_group_norm import FindGroupNorm
from tvm_ext.graph.fold import FoldIndices, FoldLayout
from tvm_ext.graph.fold_depth import FoldDepth
from tvm_ext.graph.fold_dilation import FoldDilation
from tvm_ext.graph.fold_products import FoldProducts
from tvm_ext.graph.fold_window import FoldWindow
from tvm_ext.graph.fuse import Fuse
from tvm_ext.graph.fuse_attention import FuseAttention
from tvm_ext.graph.fuse_multi_output import FuseMultiOutput
from tvm_ext.graph.fuse_tiles import FuseTiles
from tvm_ext.graph.keep_bytes import KeepBytes
from tvm_ext.graph.keep_halves import KeepHalves
from tvm_ext.graph.legalise import Legalise
from tvm_ext.graph.look_up_bytes import LookUpBytes
from tvm_ext.graph.lower_counted import LowerCounted
from tvm_ext.graph.lower_einsum import LowerEinsum
from tvm_ext.graph.lower_grid_sample import LowerGridSample
from tvm_ext.graph.lower_non_max import LowerNonMax
from tvm_ext.graph.lower_resize import LowerResize
from tvm_ext.graph.lower_roi_align import LowerRoiAlign
from tvm_ext.graph.lower_scan import LowerScan
from tvm_ext.graph.lower_split import LowerSplit
from tvm_ext.graph.lower_top_k import LowerTopK
from tvm_ext.graph.memory_order import MemoryOrder
from tvm_ext.graph.merger import Explain
from tvm_ext.graph.multiply_bytes import MultiplyBytes
from tvm_ext.graph.multiply_fewest import MultiplyFewest
from tvm_ext.graph.multiply_halves import MultiplyHalves, Precision
from tvm_ext.graph.multiply_quarters import MultiplyQuarters
from tvm_ext.graph.normalise import Normalise
from tvm_ext.graph.plan_memory import PlanMemory, input_symbols
from tvm_ext.graph.pool_axes import PoolAxes
from tvm_ext.graph.pool_squares import PoolSquares
from tvm_ext.graph.quantise_early import QuantiseEarly
from tvm_ext.graph.read_planes import ReadPlanes
from tvm_ext.graph.reroll_loops import RerollLoops
from tvm_ext.graph.share import Known, Share
from tvm_ext.graph.sink_concats import SinkConcats
from tvm_ext.graph.sink_reshapes import SinkReshapes
from tvm_ext.graph.slice_in_place import SliceInPlace
from tvm_ext.graph.split_phases import SplitPhases
from tvm_ext.graph.split_reductions import SplitReductions
from tvm_ext.graph.stitch import Stitch
from tvm_ext.graph.stitch_global import StitchGlobal
from tvm_ext.graph.unify import MOST, Point, pairs_for, unify_all, with_extents
from tvm_ext.graph.widen import Widen
from tvm_ext.hardware import resolve
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker.traffic import cached_bytes, cold_us
from tvm_ext.planner import Planned, Task, make_task
from tvm_ext.records import Database
from tvm_ext.records.manifest import Fusion
from tvm_ext.symbolic import plan
from tvm_ext.tvm_api import (
    GenericConst,
    IRModule,
    PrimFunc,
    Target,
    constant_array,
    is_scheduled,
    relax,
    structural_walk,
    tvm,
)
from tvm_ext.tvm_lowering import TIR_PIPELINE

__all__ = [
    "TIR_PIPELINE",
    "AbsorbViews",
    "AddBytes",
    "ChannelsLast",
    "ConcatInPlace",
    "FindGroupNorm",
    "FoldDepth",
    "FoldDilation",
    "FoldIndices",
    "FoldLayout",
    "FoldProducts",
    "FoldWindow",
    "Fuse",
    "FuseAttention",
    "FuseMultiOutput",
    "FuseTiles",
    "KeepBytes",
    "KeepHalves",
    "Legalise",
    "LookUpBytes",
    "LowerCounted",
    "LowerEinsum",
    "LowerGridSample",
    "LowerNonMax",
    "LowerResize",
    "LowerRoiAlign",
    "LowerScan",
    "LowerSplit",
    "LowerTopK",
    "MemoryOrder",
    "MultiplyBytes",
    "MultiplyFewest",
    "MultiplyHalves",
    "MultiplyQuarters",
    "Normalise",
    "Plan",
    "PlanMemory",
    "PoolAxes",
    "PoolSquares",
    "QuantiseEarly",
    "ReadPlanes",
    "RerollLoops",
    "Share",
    "SinkConcats",
    "SinkReshapes",
    "SliceInPlace",
    "SplitPhases",
    "SplitReductions",
    "Stitch",
    "StitchGlobal",
    "Widen",
    "calling_passes",
    "graph_passes",
    "lowering_passes",
    "pipeline",
    "placing_passes",
]

Run = Callable[[IRModule, Sequence[Any]], IRModule]
"""Applies passes."""
TRIES = 3
"""Choices of numbers that stand for open extents with which models that take them go through all
passes: what comes out alike for none of these hardly does for others."""


def graph_passes(
    hardware: HardwareModel,
    explain: Explain | None = None,
    extents: Point = (),
    precision: Precision | None = None,
    known: Known | None = None,
) -> list[Any]:
    """From a Relax module to calls of a PrimFunc per group, none of them scheduled.

    explain    told what fusion passes decide
    extents    stand for some that are not known, if given: what is decided is what suits so many
               slices, one after another
    precision  of what products and convolutions multiply (`MultiplyHalves`)
    known      constants of other modules that went the same way, as in `Share`
    """
    predict_us = cache(partial(predicted_us, hardware=hardware))
    if extents:
        predict_us = cache(partial(sliced_us, hardware=hardware, extents=extents))
    in_place = [] if extents else [ConcatInPlace(hardware.lanes(4) // 2)]
    by_strips = FuseTiles(
        predict_us,
        explain=explain,
        cold_us=None if extents else partial(cold_us, hw=hardware),
        why_unwritten=partial(why_no_strips, hardware=hardware, extents=extents),
    )
    pooled = [] if extents else [PoolSquares()]
    in_parts = (
        [] if extents else [SplitReductions(hardware, cached_bytes(hardware)), SliceInPlace()]
    )
    on_cuda = hardware.kind == "cuda"
    in_phases = [] if on_cuda else [StitchGlobal(predict_us, explain)]
    written = (LowerTopK, LowerNonMax, LowerCounted, LowerRoiAlign, LowerGridSample, LowerResize)
    by_kind = [LowerScan()] if on_cuda else [lowering(hardware) for lowering in written]
    widened = [] if on_cuda else [Widen()]
    return [
        *widened,
        LowerEinsum(),
        LowerSplit(),
        *by_kind,
        Normalise(),
        FoldLayout(),
        MultiplyFewest(),
        FoldProducts(),
        FuseAttention(hardware, extents),
        FindGroupNorm(),
        ChannelsLast(ALL_CONVOLUTIONS, hardware.lanes(4)),
        FoldDepth(hardware, predict_us),
        FoldDilation(hardware, predict_us),
        FoldLayout(),
        SplitPhases(hardware.lanes(4), predict_us),
        SinkReshapes(),
        SinkConcats(),
        FoldLayout(),
        ReadPlanes(),
        Normalise(),
        *in_parts,
        QuantiseEarly(),
        MultiplyBytes(hardware),
        MultiplyHalves(hardware, predict_us, precision),
        KeepHalves(),
        KeepBytes(),
        LookUpBytes(hardware),
        AddBytes(hardware),
        PoolAxes(predict_us),
        *pooled,
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        FoldWindow(hardware, predict_us),
        MultiplyQuarters(hardware, predict_us, extents),
        Legalise(hardware, predict_us=predict_us, extents=extents),
        Share(known=known),
        FoldIndices(),
        Fuse(),
        Stitch(predict_us, explain=explain),
        AbsorbViews(predict_us, explain),
        by_strips,
        FuseMultiOutput(predict_us, explain=explain),
        *in_phases,
        MemoryOrder(extents),
        *in_place,
    ]


def lifted(
    choices: Iterable[Mapping[Point, IRModule]],
    names: Sequence[str],
    run: Run,
    hardware: HardwareModel,
    explain: Explain | None = None,
    tables: Tables = tuple,
    precision: Precision | None = None,
) -> IRModule | None:
    """A module with extents that are not known after all `graph_passes`, which see static shapes;
    None if it does not come out alike for all numbers, whichever are chosen.

    choices  of modules by the numbers that stand for extents of those names, as in `unify_all`
    explain  told what fusion passes decided, for the first of the numbers
    tables   makes arrays of which constants may be the beginning
    """
    for modules in islice(choices, TRIES):
        made: dict[Point, IRModule] = {}
        known: Known = {}
        decisions: list[Fusion] = []
        for point, mod in modules.items():
            told = None if made else decisions.append
            made[point] = run(mod, graph_passes(hardware, told, point, precision, known))
            look_for(_constant_bytes(mod))  # weights not yet packed are in cycles
        whole = unify_all(made, names, tables)
        if whole is not None:
            if explain:
                for decision in decisions:
                    explain(decision)
            return run(whole, [ConcatInPlace(hardware.lanes(4) // 2)])
    return None


def _constant_bytes(mod: IRModule) -> int:
    """Of the constants in a module's Relax functions."""
    found: list[Any] = []
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            structural_walk(function, (GenericConst, found.append))
    arrays = (constant_array(one) for one in found)
    return sum(array.nbytes for array in arrays if array is not None)


def calling_passes() -> list[Any]:
    """From call_tir to calls of kernels with what they write to, as `RerollLoops` takes them."""
    transform = relax.transform
    return [transform.ToNonDataflow(), transform.RemovePurityChecking(), transform.CallTIRRewrite()]


def placing_passes() -> list[Any]:
    """From calls of kernels to VM instructions: TVM's own passes, but for the planning of memory,
    whose tensors only kernels take that `TIR_PIPELINE` lowers."""
    transform = relax.transform
    return [
        PlanMemory(),
        transform.StaticPlanBlockMemory(),  # functions with branches
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]


def lowering_passes() -> list[Any]:
    """From call_tir to VM instructions: the last two phases of TVM's CPU pipeline, with loops as
    kernels and our planning of memory."""
    return [*calling_passes(), RerollLoops(), *placing_passes()]


@tvm.transform.module_pass(opt_level=0, name="Plan")
@dataclass(frozen=True)
class Plan:
    """Schedules every PrimFunc that no pass has scheduled yet: from the log where it has a record,
    else by the analytical picker. Nothing is measured.

    hardware  the machine; by default that of the current target
    log       path of a tuning log, or None
    """

    hardware: HardwareModel | None = None
    log: str | None = None

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module with scheduled functions."""
        hardware = self.hardware or resolve(Target.current(allow_none=False))
        database = Database.open(self.log) if self.log else None
        planned = [plan(task, hardware, database) for task in tasks_of(mod).values()]
        return apply_plans(mod, {entry.task.name: entry for entry in planned})


def tasks_of(mod: IRModule) -> dict[str, Task]:
    """The unscheduled functions of a module as tasks, by name, with their number of calls."""
    calls: Counter[str] = Counter()

    def count(node: Any) -> None:
        if not isinstance(node, tvm.ir.Call):
            return
        lowered = isinstance(node.op, tvm.ir.GlobalVar)
        if lowered or str(getattr(node.op, "name", "")) == "relax.call_tir":
            calls[str((node.op if lowered else node.args[0]).name_hint)] += 1

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, count)
    return {
        str(variable.name_hint): make_task(
            function, str(variable.name_hint), calls[str(variable.name_hint)]
        )
        for variable, function in mod.functions.items()
        if isinstance(function, PrimFunc) and not is_scheduled(function)
    }


def apply_plans(mod: IRModule, planned: dict[str, Planned]) -> IRModule:
    """The module with each planned function in place of the unscheduled one."""
    result = mod.clone()
    for variable in mod.get_global_vars():
        if variable.name_hint in planned:
            result.update_func(variable, planned[variable.name_hint].func)
    return result


@relax.register_pipeline("tvm_ext")
def pipeline(log: str | None = None, precision: Precision | None = None) -> Any:
    """The whole way as one pass, for `tvm.compile(mod, target, relax_pipeline="tvm_ext",
    tir_pipeline="tvm_ext")`.

    The machine follows from the target. Without the TIR pipeline tails carry predicates and
    register tiles lie on the heap: slower but as right. A module with a few extents that are not
    known is `lifted` where it can be.
    """

    def applied(mod: IRModule, passes: Sequence[Any]) -> IRModule:
        return tvm.transform.Sequential(list(passes))(mod)

    def known(mod: IRModule, names: Sequence[str]) -> Iterator[dict[Point, IRModule]]:
        for pairs in pairs_for(len(names)):
            with suppress(ModelError):
                yield {
                    point: with_extents(mod, dict(zip(names, point, strict=True)))
                    for point in product(*pairs)
                }

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext")
    def run(mod: IRModule, _: Any) -> IRModule:
        hardware = resolve(Target.current(allow_none=False))
        made = None
        functions = [one for one in mod.functions.values() if isinstance(one, relax.Function)]
        symbols = [symbol for function in functions for symbol in input_symbols(function)]
        names = tuple(dict.fromkeys(str(symbol.name) for symbol in symbols))
        if len(functions) == 1 and 0 < len(names) <= MOST:
            made = lifted(known(mod, names), names, applied, hardware, precision=precision)
        if made is None:
            made = applied(mod, graph_passes(hardware, precision=precision))
        return applied(made, [Plan(hardware, log), *lowering_passes()])

    return run
