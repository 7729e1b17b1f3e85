"""The TIR pipelines that our schedules are lowered by: TVM's own, with a few changes."""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm_ext.tvm_amx import REFUSED, use_amx
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    ir,
    is_scheduled,
    op_name,
    structural_map,
    structural_walk,
    tirx,
    tvm,
)
from tvm_ext.tvm_dots import fuse_dots
from tvm_ext.tvm_extremes import EXTREMES, infinite_extremes, of_a_number
from tvm_ext.tvm_indices import plain_indices
from tvm_ext.tvm_masks import load_masked
from tvm_ext.tvm_pairs import fuse_pairs, round_to_halves
from tvm_ext.tvm_rounding import round_once
from tvm_ext.tvm_stack import align_tasks, on_a_line, on_stack
from tvm_ext.tvm_steal import steal_tasks
from tvm_ext.tvm_strides import pick_strided
from tvm_ext.tvm_tables import pick_bytes

PASS_CONFIG: dict[str, Any] = {
    "s_tir.LoopPartition": {"partition_const_loop": True},
    "tirx.disable_cse_tir": True,
}
"""Pass configuration our schedules need: tails become loops of their own instead of predicates.
Common subexpressions are left to LLVM, which finds the same ones sooner."""


LEFT_OUT = ("s_tir.RenormalizeSplitPattern", "tirx.RemoveNoOp")
"""Passes over unrolled code that take a third of a Winograd kernel's compile time and change no
instruction: LLVM does the same sooner."""
TIR_PIPELINE = "tvm_ext"
"""TIR pipeline our schedules need: TVM's own under `PASS_CONFIG` but for `LEFT_OUT`, with tasks of
marked functions handed out, register tiles on a stack that begins at a cache line and arguments
anywhere in memory, with an offset or without."""
KERNEL_PIPELINE = "tvm_ext_kernel"
"""The same for kernels whose arguments are known to fit: without the checks of each one's type,
shape, strides and device, which take 15 to 20 ms of a kernel's compile time."""
DATA, BYTE_OFFSET = 1, 8
"""Fields of a tensor that is an argument, as TVM numbers them (`TVMStructFieldKind`)."""
LIMIT = "IndexError"
"""What an assertion raises that stays in such kernels: an extent that is not known until it runs
may be too large."""
COMPUTED = "compute_scope"
"""What is around a function's own work, once its arguments are taken apart."""
CPU = 1
"""The device type of host memory (`kDLCPU`)."""


def _anywhere(attribute: Any) -> Any:
    """Takes back TVM's promise that an argument begins at a cache line: arrays of numpy do not, and
    need not be copied to be handed over."""
    if attribute.attr_key != "storage_alignment":
        return attribute
    return tirx.AttrStmt(attribute.node, attribute.attr_key, 1, attribute.body, attribute.span)


def _attribute(attribute: Any) -> Any:
    """An argument anywhere in memory; what is computed, on a stack that begins at a cache line."""
    if attribute.attr_key != COMPUTED:
        return _anywhere(attribute)
    body = on_a_line(attribute.body)
    return tirx.AttrStmt(attribute.node, COMPUTED, attribute.value, body, attribute.span)


def _from_its_offset(call: Any) -> Any:
    """An argument's data begins where its offset says; what asks for the offset is told 0."""
    if op_name(call) != "tirx.tvm_struct_get":
        return call
    *argument, field = call.args
    if int(field) == DATA:
        offset = tirx.call_intrin("uint64", "tirx.tvm_struct_get", *argument, BYTE_OFFSET)
        return tirx.handle_add_byte_offset(call, offset)
    return tirx.const(0, call.ty.dtype) if int(field) == BYTE_OFFSET else call


def _unchecked(check: Any) -> Any:
    """A check that also does something, or may fail whatever the arguments are, stays."""
    asks = any(str(part.value) == REFUSED for part in check.message_parts)
    return check if asks or str(check.error_kind.value) == LIMIT else tirx.Evaluate(0)


def _placed(func: PrimFunc, *more: Any) -> PrimFunc:
    scopes = ("local",) if _calls_device(func) else ("local", "global")
    kinds = (
        (tirx.AllocBuffer, partial(on_stack, scopes=scopes)),
        (tirx.AttrStmt, _attribute),
        (tirx.For, align_tasks),
        (ir.Call, _from_its_offset),
        (EXTREMES, of_a_number),
        *more,
    )
    return func.with_body(structural_map(func.body, kinds, order="post"))


def _calls_device(func: PrimFunc) -> bool:
    """Whether what a function allocates may be memory of a GPU."""
    devices = set[int]()

    def look(attribute: Any) -> None:
        if attribute.attr_key == "device_type":
            devices.add(int(attribute.value))

    structural_walk(func.body, [(tirx.AttrStmt, look)])
    return bool(devices - {CPU})


@tirx.transform.prim_func_pass(opt_level=0, name="PlaceBuffers")
def place_buffers(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Small buffers stay on the stack, where LLVM turns register tiles into registers; arguments
    may lie anywhere, and begin anywhere in their memory (`graph/plan_memory.py`): TVM's kernels
    refuse tensors with an offset."""
    return _placed(func)


@tirx.transform.prim_func_pass(opt_level=0, name="PlaceUnchecked")
def place_unchecked(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """The same, and arguments are taken as they come."""
    return _placed(func, (tirx.AssertStmt, _unchecked))


def _for_cuda(mod: IRModule) -> bool:
    """Whether the module's functions run on a GPU."""
    targets = (f.attrs.get("target") for f in mod.functions.values() if isinstance(f, PrimFunc))
    return any(target is not None and str(target.kind) == "cuda" for target in targets)


def with_threads(mod: IRModule) -> IRModule:
    """The module with threads for functions that have none yet, by TVM's own rules."""
    bare = {
        variable: function
        for variable, function in mod.functions.items()
        if not (is_scheduled(function) or _has_threads(function))
    }
    result = mod.clone()
    if bare:
        from tvm.s_tir.dlight import ApplyDefaultSchedule, gpu

        rules = (gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
        result.update(ApplyDefaultSchedule(*rules)(IRModule(bare)))
    return result


def _has_threads(func: PrimFunc) -> bool:
    """Whether a function says itself what its threads do, as TVM's sorting does."""
    found = False

    def look(node: Any) -> None:
        nonlocal found
        by_loop = isinstance(node, tirx.For) and node.thread_binding is not None
        found = found or by_loop or getattr(node, "attr_key", "") == "thread_extent"

    structural_walk(func.body, [((tirx.For, tirx.AttrStmt), look)])
    return found


def _tir_pipeline(place: Any) -> tuple[Any, Any, Any]:
    lower, finalize_host, finalize_device = tirx.get_tir_pipeline("s_tir")

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext_tir")
    def run(mod: IRModule, ctx: Any) -> IRModule:
        cuda = _for_cuda(mod)
        mod = with_threads(mod) if cuda else infinite_extremes(round_to_halves(mod))
        config = dict(ctx.config) | PASS_CONFIG | {"tirx.use_async_copy": cuda}
        left_out = [*ctx.disabled_pass, *LEFT_OUT]
        with tvm.transform.PassContext(ctx.opt_level, disabled_pass=left_out, config=config):
            return lower(mod)

    def host() -> Any:
        return tvm.transform.Sequential(
            [
                use_amx,
                fuse_dots,
                fuse_pairs,
                round_once,
                pick_bytes,
                load_masked,
                pick_strided,
                plain_indices,
                steal_tasks,
                place,
                finalize_host(),
            ]
        )

    return run, host, finalize_device


tirx.register_tir_pipeline(TIR_PIPELINE, partial(_tir_pipeline, place_buffers))
tirx.register_tir_pipeline(KERNEL_PIPELINE, partial(_tir_pipeline, place_unchecked))
