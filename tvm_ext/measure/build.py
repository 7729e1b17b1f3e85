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


class Built:
    """A compiled kernel. With `run` its machine code exists already: a forked child can call it at
    once as `main`, and knows it by its `number`."""

    _numbers = count()

    def __init__(self, executable: Any, name: str, run: bool) -> None:
        self.number = next(Built._numbers)
        self.module = executable.jit()
        self.main: Any = self.module[name] if run else None


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
    module = tvm.IRModule({name: func.with_attr("global_symbol", name)})
    try:
        executable = tvm.compile(
            module, target=target, tir_pipeline=TIR_PIPELINE if checked else KERNEL_PIPELINE
        )
        return Built(executable, name, run)
    except Exception as error:  # TVM raises every kind for a schedule that it cannot lower
        return Failure("compile", one_line(error))


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
    try:
        scheduled = func if plan is None else write(func, plan)
    except PlanError as error:
        return Written(None, Failure(error.reason, str(error)))
    return Written(scheduled, build(scheduled, target, run=run))


def build_many(
    jobs: Sequence[tuple[PrimFunc, TilePlan | None]],
    target: Any,
    workers: int = 2,
    notify: Callable[[int, bool], None] = lambda index, finished: None,
) -> list[Written]:
    """Schedule and compile on `workers` threads; TVM releases the GIL.

    `notify(index, finished)` is called from those threads before and after each one.
    """

    def one(index: int) -> Written:
        notify(index, False)
        result = write_and_build(*jobs[index], target)
        notify(index, True)
        return result

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, range(len(jobs))))


def one_line(error: BaseException) -> str:
    """The type and text of an exception on one line of bounded length; of one by nvcc what it says,
    without the code."""
    said = str(error).rpartition("\nCompilation error:\n")[2]
    text = " ".join(f"{type(error).__name__}: {said}".split())
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 3] + "..."
