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

A loop around them goes into the launch as well (Cocktailer, section 4: control flow is scheduled to
the cores, with what it is around):

    for s < n:                           parallel for core < cores:
        parallel for t < m: f(s, t)  →       for s < n:
        g(s)                                     take tasks of f(s); wait; the one of g(s); wait

Counters of tasks go on from one turn of the loop to the next, so nobody has to set them back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from tvm_ext.tvm_api import IRModule, PrimFunc, ir, structural_map, tirx, uses

STEAL = "tvm_ext.steal"
"""Attribute of functions whose parallel loops are worth it."""
TAKES = 32
"""A core takes its tasks in so many turns at most: each costs some 10 ns."""
LINE_BYTES = 64
SPINS = 4096
"""How often a core looks whether a phase is over before it offers its processor to others."""
FOREVER = -1
PATIENCE = 32
"""How often it looks before it takes over tasks of a core that is late: half a microsecond or so. A
task that is taken over finds its data in the other core's cache."""
STRIDE = LINE_BYTES // 4
"""From one counter to the next: each has a cache line of its own."""
_NEXT, _NEXT_BELOW, _MEET = "tvm_ext_next", "tvm_ext_next_below", "tvm_ext_meet"
_NEXT_IR = f"""
define i32 @{_NEXT}(ptr %counter, i32 %count) {{
  %first = atomicrmw add ptr %counter, i32 %count monotonic
  ret i32 %first
}}
"""
_NEXT_BELOW_IR = f"""
define i32 @{_NEXT_BELOW}(ptr %counter, i32 %count, i32 %end) {{
begin:
  %at_first = load atomic i32, ptr %counter monotonic, align 4
  br label %look
look:
  %now = phi i32 [ %at_first, %begin ], [ %seen, %take ]
  %over = icmp sge i32 %now, %end
  br i1 %over, label %done, label %take
take:
  %after = add i32 %now, %count
  %beyond = icmp sgt i32 %after, %end
  %next = select i1 %beyond, i32 %end, i32 %after
  %pair = cmpxchg ptr %counter, i32 %now, i32 %next monotonic monotonic
  %seen = extractvalue {{ i32, i1 }} %pair, 0
  %took = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %took, label %done, label %look
done:
  ret i32 %now
}}
"""
_MEET_IR = f"""
declare i32 @sched_yield()
define i32 @{_MEET}(ptr %done, i32 %mine, i32 %all, i32 %patience) {{
begin:
  %before = atomicrmw add ptr %done, i32 %mine release
  br label %look
look:
  %spins = phi i32 [ 0, %begin ], [ %more, %rest ], [ %spins, %offer ]
  %now = load atomic i32, ptr %done acquire, align 4
  %over = icmp sge i32 %now, %all
  br i1 %over, label %end, label %wait
wait:
  %enough = icmp eq i32 %spins, %patience
  br i1 %enough, label %end, label %choose
choose:
  %long = icmp eq i32 %spins, {SPINS}
  br i1 %long, label %offer, label %rest
offer:
  %offered = call i32 @sched_yield()
  br label %look
rest:
  %more = add i32 %spins, 1
  call void asm sideeffect "REST", ""()
  br label %look
end:
  %result = zext i1 %over to i32
  ret i32 %result
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
    needed: set[str] = set()

    def launched(loops: Sequence[Any], turns: Any = None) -> Any:
        needed.add(_NEXT_IR if turns is None else _NEXT_BELOW_IR)
        if turns is not None or len(loops) > 1:
            needed.add(_meet_ir(target))
        return _launch(loops, cores, turns)

    def sequence(whole: Any) -> Any:
        runs = list(_runs(whole, cores))
        if max(len(loops) for _, loops in runs) < 2:
            return whole
        made: list[Any] = []
        for before, loops in runs:
            made += [*before, *([launched(loops)] if len(loops) > 1 else loops)]
        return tirx.SeqStmt(made)

    def around(loop: Any) -> Any:
        before, loops = _turns(loop, cores)
        return tirx.SeqStmt([*before, launched(loops, loop)]) if loops else loop

    def single(loop: Any) -> Any:
        few = not _is_plain(loop, cores) or int(loop.extent) < 2 * cores
        return loop if few else launched([loop])

    body = structural_map(func.body, [(tirx.For, around)], order="pre")
    body = structural_map(body, [(tirx.SeqStmt, sequence)], order="pre")
    body = structural_map(body, [(tirx.For, single)], order="pre")
    for text in sorted(needed):
        body = tirx.AttrStmt(_number(0), "pragma_import_llvm", ir.StringImm(text), body)
    return func.with_body(body) if needed else func


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


def _turns(loop: Any, cores: int) -> tuple[list[Any], list[Any]]:
    """What a loop that goes into a launch declares, which moves before it, and the phases of each
    of its turns; none of a loop around no parallel ones. What is not parallel is a phase of one
    task."""
    if not isinstance(loop, tirx.For) or loop.kind != tirx.ForKind.SERIAL:
        return [], []
    statements = list(_flat(loop.body))
    declared = [one for one in statements if isinstance(one, _DECLARATIONS)]
    work = [one for one in statements if not isinstance(one, _DECLARATIONS)]
    phases: list[Any] = []
    for plain, run in groupby(work, partial(_is_plain, cores=cores)):
        together = list(run)
        phases += together if plain else [_task(together)]
    if not all(isinstance(one, tirx.For | tirx.BufferStore) for one in work):
        return [], []
    known = all(isinstance(bound, tirx.IntImm) for bound in (loop.min, loop.extent))
    if not known or int(loop.min) or not any(_is_plain(one, cores) for one in work):
        return [], []
    most = max(int(phase.extent) for phase in phases)
    fits = int(loop.extent) * most < 2**31 // cores
    moves = not any(uses(statement, loop.loop_var) for statement in declared)
    return (declared, phases) if fits and moves else ([], [])


def _task(statements: Sequence[Any]) -> Any:
    """A parallel loop of one task."""
    body = tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]
    one = tirx.Var("one", "int32")
    return tirx.For(one, _number(0), _number(1), tirx.ForKind.PARALLEL, body)


def _launch(loops: Sequence[Any], cores: int, turns: Any = None) -> Any:
    """Loops handed out in parts, one a core, one loop after another; again and again in each of the
    `turns` of a loop around them. A phase has a counter of tasks taken for each core, and behind
    them, if another phase follows, one of all tasks done."""
    lines = cores + 1
    used = range(len(loops) * lines - (turns is None))
    counters = tirx.decl_buffer((len(used) * STRIDE,), "int32", "counters", scope="local")
    own = tirx.decl_buffer((3,), "int32", "own", scope="local")
    core = tirx.Var("core", "int32")
    turn = None if turns is None else turns.loop_var.astype("int32")
    phases: list[Any] = []
    for number, loop in enumerate(loops):
        counter = partial(_counter, counters, number * lines)
        last = turns is None and number + 1 == len(loops)
        phases += _phase(loop, core, cores, own, counter, turn, last=last)
    if turns is not None:
        whole = tirx.SeqStmt(phases)
        phases = [tirx.For(turns.loop_var, turns.min, turns.extent, tirx.ForKind.SERIAL, whole)]
    work = tirx.SeqStmt([tirx.AllocBuffer(own), *phases])
    launch = tirx.For(core, _number(0), _number(cores), tirx.ForKind.PARALLEL, work)
    zeros = [tirx.BufferStore(counters, _number(0), [_number(line * STRIDE)]) for line in used]
    return tirx.SeqStmt([tirx.AllocBuffer(counters), *zeros, launch])


def _counter(counters: Any, first: int, line: Any) -> Any:
    """The address of one of a phase's counters."""
    place = tirx.BufferLoad(counters, [(line + first) * STRIDE])
    return tirx.call_intrin("handle", "tirx.address_of", place)


def _phase(
    loop: Any,
    core: Any,
    cores: int,
    own: Any,
    counter: Callable[[Any], Any],
    turn: Any,
    *,
    last: bool,
) -> list[Any]:
    """What a core does of a loop, its own part first; before another phase it waits until all of
    the loop is done. In `turn` s all counters go on from s times what they count."""
    tasks = int(loop.extent)
    count = max(1, tasks // (cores * TAKES))
    begin, done, over = (tirx.BufferLoad(own, [_number(place)]) for place in range(3))
    away, part = (tirx.Var(name, "int32") for name in ("away", "part"))
    first, end = (part * tasks) // cores, ((part + 1) * tasks) // cores
    if turn is None:
        taken = tirx.call_extern("int32", _NEXT, counter(part), _number(count))
    else:
        before = turn * (end - first)
        limit = before + (end - first)
        taken = tirx.call_extern("int32", _NEXT_BELOW, counter(part), _number(count), limit)
        taken = taken - before
    take = tirx.BufferStore(own, first + taken, [_number(0)])
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
    work: Any = tirx.SeqStmt([home, take, turns])
    if last:
        return [tirx.For(away, _number(0), _number(cores), tirx.ForKind.SERIAL, work)]
    all_done = _number(tasks) if turn is None else (turn + 1) * tasks

    def meet(patience: int) -> Any:
        counters = counter(_number(cores))
        return tirx.call_extern("int32", _MEET, counters, done, all_done, _number(patience))

    nothing = tirx.BufferStore(own, _number(0), [_number(1)])
    look = tirx.SeqStmt([tirx.BufferStore(own, meet(PATIENCE), [_number(2)]), nothing])
    work = tirx.SeqStmt(
        [
            tirx.IfThenElse(away.equal(_number(1)), look, None),
            tirx.IfThenElse(over.equal(_number(0)), work, None),
        ]
    )
    return [
        nothing,
        tirx.BufferStore(own, _number(0), [_number(2)]),
        tirx.For(away, _number(0), _number(cores), tirx.ForKind.SERIAL, work),
        tirx.Evaluate(meet(FOREVER)),
    ]


def _number(value: int) -> Any:
    return tirx.const(value, "int32")
