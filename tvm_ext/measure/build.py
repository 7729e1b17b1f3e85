"""Schedule PrimFuncs and compile them to machine code in this process, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from tvm_ext.errors import PlanError
from tvm_ext.measure.job import Failure
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir import write
from tvm_ext.tir.signature import hash_func
from tvm_ext.tvm_api import PrimFunc, tvm
from tvm_ext.tvm_lowering import KERNEL_PIPELINE, TIR_PIPELINE

MESSAGE_CHARS = 300
TOGETHER = 8
"""Kernels of one module at most: what LLVM does for each module, whatever is in it, takes a quarter
of the time of compiling one kernel."""


class Built:
    """A compiled kernel. With `run` its machine code exists already: a forked child can call it at
    once as `main`, and knows it by its `number`. Other kernels may be in its `module`, where its
    own name is `name`."""

    _numbers = count()

    def __init__(self, module: Any, name: str, run: bool) -> None:
        self.number = next(Built._numbers)
        self.module, self.name = module, name
        self.main: Any = module[name] if run else None


def build(
    func: Any, target: Any, name: str = "main", *, run: bool = True, checked: bool = False
) -> Built | Failure:
    """Compile one scheduled PrimFunc for `target`; whatever TVM raises becomes a `Failure`.

    name     the symbol of the kernel
    run      make its machine code now, for this machine
    checked  whether it looks at the types and shapes of its arguments when it is called

    An external function that does not exist is not noticed here: TVM hands out a null function,
    which crashes when called.
    """
    try:
        return _compiled({name: func}, target, run=run, checked=checked)[0]
    except Exception as error:  # TVM raises every kind for a schedule that it cannot lower
        return Failure("compile", one_line(error))


def _compiled(funcs: dict[str, Any], target: Any, *, run: bool, checked: bool) -> list[Built]:
    """The kernels of one module, by name."""
    named = {name: func.with_attr("global_symbol", name) for name, func in funcs.items()}
    pipeline = TIR_PIPELINE if checked else KERNEL_PIPELINE
    module = tvm.compile(tvm.IRModule(named), target=target, tir_pipeline=pipeline).jit()
    return [Built(module, name, run) for name in funcs]


class Written:
    """A kernel's schedule and what became of it."""

    def __init__(self, func: PrimFunc | None, kernel: Built | Failure) -> None:
        self.kernel = kernel
        self.tir_hash = hash_func(func) if func is not None else ""


def write_and_build(
    func: PrimFunc, plan: TilePlan | None, target: Any, *, run: bool = True
) -> Written:
    """Schedule a function by a plan (None: it is scheduled) and compile it, to be `run` here or
    not. A plan that cannot be written is a `Failure` of the reason's kind."""
    scheduled = _scheduled(func, plan)
    if isinstance(scheduled, Failure):
        return Written(None, scheduled)
    return Written(scheduled, build(scheduled, target, run=run))


def _scheduled(func: PrimFunc, plan: TilePlan | None) -> PrimFunc | Failure:
    try:
        return func if plan is None else write(func, plan)
    except PlanError as error:
        return Failure(error.reason, str(error))


def build_many(
    jobs: Sequence[tuple[PrimFunc, TilePlan | None]],
    target: Any,
    workers: int = 2,
    notify: Callable[[int, bool], None] = lambda index, finished: None,
) -> list[Written]:
    """Schedule and compile on `workers` threads, some together; TVM releases the GIL.

    `notify(index, finished)` is called from those threads before and after each one.
    """
    size = min(TOGETHER, -(-len(jobs) // workers))

    def some(first: int) -> list[Written]:
        places = range(first, min(first + size, len(jobs)))
        for index in places:
            notify(index, False)
        found = [_scheduled(*jobs[index]) for index in places]
        kernels = iter(_together([one for one in found if not isinstance(one, Failure)], target))
        written = [
            Written(None, one) if isinstance(one, Failure) else Written(one, next(kernels))
            for one in found
        ]
        for index in places:
            notify(index, True)
        return written

    with ThreadPoolExecutor(workers) as pool:
        return [one for group in pool.map(some, range(0, len(jobs), size or 1)) for one in group]


def _together(funcs: Sequence[PrimFunc], target: Any) -> Sequence[Built | Failure]:
    """The kernels of scheduled functions, compiled as one module; each by itself if one fails."""
    try:
        named = {f"main{place}": func for place, func in enumerate(funcs)}
        return _compiled(named, target, run=True, checked=False)
    except Exception:  # as in `build`
        return [build(func, target) for func in funcs]


def one_line(error: BaseException) -> str:
    """The type and text of an exception on one line of bounded length; of one by nvcc what it says,
    without the code."""
    said = str(error).rpartition("\nCompilation error:\n")[2]
    text = " ".join(f"{type(error).__name__}: {said}".split())
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 3] + "..."
