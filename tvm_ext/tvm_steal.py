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

Loops that follow one another become phases of one launch, with a barrier between them (the Global
scheme of AStitch, section 4):

    parallel for t < m: f(t)         parallel for core < cores:
    parallel for t < n: g(t)     →       take tasks of f, as above; wait until all of f are done
                                         take tasks of g

What is waited for are tasks, not cores: a thread that the system has not woken holds nobody up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tvm_ext.tvm_api import IRModule, PrimFunc, ir, structural_map, tirx

STEAL = "tvm_ext.steal"
"""Attribute of functions whose parallel loops are worth it."""
TAKES = 32
"""A core takes its tasks in so many turns at most: each costs some 10 ns."""
LINE_BYTES = 64
SPINS = 4096
"""How often a core looks whether a phase is over before it offers its processor to others."""
STRIDE = LINE_BYTES // 4
"""From one counter to the next: each has a cache line of its own."""
_NEXT, _MEET = "tvm_ext_next", "tvm_ext_meet"
_NEXT_IR = f"""
define i32 @{_NEXT}(ptr %counter, i32 %count) {{
  %first = atomicrmw add ptr %counter, i32 %count monotonic
  ret i32 %first
}}
"""
_MEET_IR = f"""
declare i32 @sched_yield()
define i32 @{_MEET}(ptr %done, i32 %mine, i32 %all) {{
begin:
  %before = atomicrmw add ptr %done, i32 %mine release
  br label %look
look:
  %spins = phi i32 [ 0, %begin ], [ %more, %again ]
  %now = load atomic i32, ptr %done acquire, align 4
  %over = icmp sge i32 %now, %all
  br i1 %over, label %end, label %wait
wait:
  %more = add i32 %spins, 1
  %long = icmp ugt i32 %more, {SPINS}
  br i1 %long, label %offer, label %rest
offer:
  %offered = call i32 @sched_yield()
  br label %again
rest:
  call void asm sideeffect "REST", ""()
  br label %again
again:
  br label %look
end:
  ret i32 0
}}
"""
_REST = {"x86": "pause", "aarch64": "yield"}
"""What a core does while it waits, by how the name of its target begins."""
_DECLARATIONS = (tirx.AllocBuffer, tirx.DeclBuffer)


def mark_steal(func: PrimFunc) -> PrimFunc:
    """The function with the attribute."""
    return func.with_attr(STEAL, 1)


@tirx.transform.prim_func_pass(opt_level=0, name="StealTasks")
def steal_tasks(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Parallel loops of a marked function: those of several tasks for every core of its target, and
    those that follow one another."""
    target = func.attrs.get("target", None) if func.attrs and func.attrs.get(STEAL, 0) else None
    cores = int(target.attrs.get("num-cores", 1)) if target is not None else 1
    if cores < 2:
        return func
    phases: list[int] = []

    def sequence(whole: Any) -> Any:
        runs = list(_runs(whole, cores))
        most = max(len(loops) for _, loops in runs)
        if most < 2:
            return whole
        phases.append(most)
        made: list[Any] = []
        for before, loops in runs:
            made += [*before, *([_launch(loops, cores)] if len(loops) > 1 else loops)]
        return tirx.SeqStmt(made)

    def single(loop: Any) -> Any:
        if not _is_plain(loop, cores) or int(loop.extent) < 2 * cores:
            return loop
        phases.append(1)
        return _launch([loop], cores)

    body = structural_map(func.body, [(tirx.SeqStmt, sequence)], order="pre")
    body = structural_map(body, [(tirx.For, single)], order="pre")
    most = max(phases, default=0)
    for text in (_NEXT_IR, _meet_ir(target))[:most]:
        body = tirx.AttrStmt(_number(0), "pragma_import_llvm", ir.StringImm(text), body)
    return func.with_body(body) if most else func


def _meet_ir(target: Any) -> str:
    """`_MEET` for the processor of a target."""
    triple = str(target.attrs.get("mtriple", ""))
    rest = next((rest for name, rest in _REST.items() if triple.startswith(name)), "")
    return _MEET_IR.replace("REST", rest)


def _runs(sequence: Any, cores: int) -> Iterator[tuple[list[Any], list[Any]]]:
    """Loops to hand out that follow one another, with what comes before them; buffers that are
    declared between two come before the first."""
    before: list[Any] = []
    loops: list[Any] = []
    for statement in _flat(sequence):
        if _is_plain(statement, cores):
            loops.append(statement)
        elif loops and not isinstance(statement, _DECLARATIONS):
            yield before, loops
            before, loops = [statement], []
        else:
            before.append(statement)
    yield before, loops


def _flat(statement: Any) -> Iterator[Any]:
    """The statements of a sequence, those of sequences in it one by one."""
    if isinstance(statement, tirx.SeqStmt):
        for part in statement.seq:
            yield from _flat(part)
    else:
        yield statement


def _is_plain(statement: Any, cores: int) -> bool:
    """Whether it is a parallel loop that counts from zero to a known number of tasks."""
    if not isinstance(statement, tirx.For) or statement.kind != tirx.ForKind.PARALLEL:
        return False
    bounds = (statement.min, statement.extent)
    if statement.annotations or not all(isinstance(bound, tirx.IntImm) for bound in bounds):
        return False
    first, tasks = map(int, bounds)
    return first == 0 < tasks < 2**31 // cores


def _launch(loops: Sequence[Any], cores: int) -> Any:
    """Loops handed out in parts, one a core, one loop after another. A phase has a counter of tasks
    taken for each core, and behind them, if another phase follows, one of all tasks done."""
    lines = cores + 1
    used = range(len(loops) * lines - 1)
    counters = tirx.decl_buffer((len(used) * STRIDE,), "int32", "counters", scope="local")
    core = tirx.Var("core", "int32")
    phases: list[Any] = []
    for number, loop in enumerate(loops):
        counter = partial(_counter, counters, number * lines)
        phases += _phase(loop, core, cores, counter, last=number + 1 == len(loops))
    launch = tirx.For(core, _number(0), _number(cores), tirx.ForKind.PARALLEL, tirx.SeqStmt(phases))
    zeros = [tirx.BufferStore(counters, _number(0), [_number(line * STRIDE)]) for line in used]
    return tirx.SeqStmt([tirx.AllocBuffer(counters), *zeros, launch])


def _counter(counters: Any, first: int, line: Any) -> Any:
    """The address of one of a phase's counters."""
    place = tirx.BufferLoad(counters, [(line + first) * STRIDE])
    return tirx.call_intrin("handle", "tirx.address_of", place)


def _phase(
    loop: Any, core: Any, cores: int, counter: Callable[[Any], Any], *, last: bool
) -> list[Any]:
    """What a core does of a loop, its own part first; before another phase it waits until all of
    the loop is done."""
    tasks = int(loop.extent)
    count = max(1, tasks // (cores * TAKES))
    own = tirx.decl_buffer((2,), "int32", "own", scope="local")
    begin, done = (tirx.BufferLoad(own, [_number(place)]) for place in range(2))
    away, part = (tirx.Var(name, "int32") for name in ("away", "part"))
    first, end = (part * tasks) // cores, ((part + 1) * tasks) // cores
    turn = tirx.call_extern("int32", _NEXT, counter(part), _number(count))
    take = tirx.BufferStore(own, first + turn, [_number(0)])
    # a loop even for one task: TVM frees what a task allocates at the end of the loop around it
    wide = loop.loop_var.ty.dtype
    extent = tirx.min(_number(count), end - begin)
    run = tirx.For(
        loop.loop_var,
        begin.astype(wide),
        extent.astype(wide),
        tirx.ForKind.SERIAL,
        loop.body,
    )
    counted = [] if last else [tirx.BufferStore(own, done + extent, [_number(1)])]
    turns = tirx.While(begin < end, tirx.SeqStmt([run, *counted, take]))
    home = tirx.Bind(part, tirx.floormod(core + away, _number(cores)))
    parts = tirx.For(
        away, _number(0), _number(cores), tirx.ForKind.SERIAL, tirx.SeqStmt([home, take, turns])
    )
    allocated = tirx.AllocBuffer(own)
    if last:
        return [allocated, parts]
    none = tirx.BufferStore(own, _number(0), [_number(1)])
    meet = tirx.call_extern("int32", _MEET, counter(_number(cores)), done, _number(tasks))
    return [allocated, none, parts, tirx.Evaluate(meet)]


def _number(value: int) -> Any:
    return tirx.const(value, "int32")
