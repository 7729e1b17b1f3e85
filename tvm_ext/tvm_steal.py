"""Work stealing: a core that has done its tasks takes over what others have not begun.

TVM gives each core of a parallel loop an equal part, and the kernel ends with the slowest core. On
two cores of a shared machine, with nothing else to do, the slower one takes 1.02 to 1.25 times what
both would if they shared the work (medians over minutes); cores of two kinds differ by more.

    parallel for t < n: task(t)
        →
    next[..] = 0
    parallel for core < cores:
        for away < cores:                                 its own tasks first
            part = (core + away) % cores
            while (t = next[part]++) < tasks of part: task(t)

Tasks stay with their core unless it is late, so what a kernel leaves in a core's cache is where the
next one looks for it.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.tvm_api import IRModule, PrimFunc, ir, structural_map, tirx

STEAL = "tvm_ext.steal"
"""Attribute of functions whose parallel loops are worth it."""
TAKES = 32
"""A core takes its tasks in so many turns at most: each costs some 10 ns."""
LINE_BYTES = 64
_NEXT = "tvm_ext_next"
_NEXT_IR = f"""
define i32 @{_NEXT}(ptr %counter, i32 %count) {{
  %first = atomicrmw add ptr %counter, i32 %count monotonic
  ret i32 %first
}}
"""


def mark_steal(func: PrimFunc) -> PrimFunc:
    """The function with the attribute."""
    return func.with_attr(STEAL, 1)


@tirx.transform.prim_func_pass(opt_level=0, name="StealTasks")
def steal_tasks(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Parallel loops of a marked function, of several tasks for every core of its target."""
    target = func.attrs.get("target", None) if func.attrs and func.attrs.get(STEAL, 0) else None
    cores = int(target.attrs.get("num-cores", 1)) if target is not None else 1
    if cores < 2:
        return func
    changed: list[Any] = []

    def visit(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.PARALLEL or not _is_plain(loop, cores):
            return loop
        changed.append(loop)
        return _stealing(loop, cores)

    body = structural_map(func.body, [(tirx.For, visit)], order="post")
    if not changed:
        return func
    zero = tirx.const(0, "int32")
    imported = tirx.AttrStmt(zero, "pragma_import_llvm", ir.StringImm(_NEXT_IR), body)
    return func.with_body(imported)


def _is_plain(loop: Any, cores: int) -> bool:
    """Whether a loop counts from zero to a known number of tasks, several for each core."""
    bounds = (loop.min, loop.extent)
    if loop.annotations or not all(isinstance(bound, tirx.IntImm) for bound in bounds):
        return False
    first, tasks = map(int, bounds)
    return first == 0 and 2 * cores <= tasks < 2**31 // cores


def _stealing(loop: Any, cores: int) -> Any:
    """The loop handed out in parts, one a core."""

    def number(value: int) -> Any:
        return tirx.const(value, "int32")

    tasks = int(loop.extent)
    count = max(1, tasks // (cores * TAKES))
    stride = LINE_BYTES // 4
    counters = tirx.decl_buffer((cores * stride,), "int32", "counters", scope="local")
    taken = tirx.decl_buffer((1,), "int32", "taken", scope="local")
    core, away, part = (tirx.Var(name, "int32") for name in ("core", "away", "part"))
    counter = tirx.call_intrin(
        "handle", "tirx.address_of", tirx.BufferLoad(counters, [part * stride])
    )
    first, end = (part * tasks) // cores, ((part + 1) * tasks) // cores
    turn = tirx.call_extern("int32", _NEXT, counter, number(count))
    take = tirx.BufferStore(taken, first + turn, [number(0)])
    begin = tirx.BufferLoad(taken, [number(0)])
    # a loop even for one task: TVM frees what a task allocates at the end of the loop around it
    wide = loop.loop_var.ty.dtype
    extent = tirx.min(number(count), end - begin)
    run = tirx.For(
        loop.loop_var,
        begin.astype(wide),
        extent.astype(wide),
        tirx.ForKind.SERIAL,
        loop.body,
    )
    turns = tirx.While(begin < end, tirx.SeqStmt([run, take]))
    home = tirx.Bind(part, tirx.floormod(core + away, number(cores)))
    parts = tirx.For(
        away, number(0), number(cores), tirx.ForKind.SERIAL, tirx.SeqStmt([home, take, turns])
    )
    each = tirx.SeqStmt([tirx.AllocBuffer(taken), parts])
    launch = tirx.For(core, number(0), number(cores), tirx.ForKind.PARALLEL, each)
    zeros = [tirx.BufferStore(counters, number(0), [number(c * stride)]) for c in range(cores)]
    return tirx.SeqStmt([tirx.AllocBuffer(counters), *zeros, launch])
