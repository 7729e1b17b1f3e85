"""Compile scheduled PrimFuncs to machine code in this process, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tvm_ext.measure.job import Failure
from tvm_ext.tvm_api import TIR_PIPELINE, tvm

MESSAGE_CHARS = 300


class Built:
    """A compiled kernel. With `run` its machine code exists already: a forked child can call it at
    once as `main`."""

    def __init__(self, executable: Any, name: str, run: bool) -> None:
        self.module = executable.jit()
        self.main: Any = self.module[name] if run else None


def build(func: Any, target: Any, name: str = "main", *, run: bool = True) -> Built | Failure:
    """Compile one scheduled PrimFunc for `target`; whatever TVM raises becomes a `Failure`.

    name  the symbol of the kernel
    run   make its machine code now, for this machine

    An external function that does not exist is not noticed here: TVM hands out a null function,
    which crashes when called.
    """
    module = tvm.IRModule({name: func.with_attr("global_symbol", name)})
    try:
        executable = tvm.compile(module, target=target, tir_pipeline=TIR_PIPELINE)
        return Built(executable, name, run)
    except Exception as error:  # TVM raises every kind for a schedule that it cannot lower
        return Failure("compile", one_line(error))


def build_many(
    funcs: Sequence[Any],
    target: Any,
    workers: int = 2,
    notify: Callable[[int, bool], None] = lambda index, finished: None,
) -> list[Built | Failure]:
    """Compile PrimFuncs on `workers` threads; TVM releases the GIL.

    `notify(index, finished)` is called from those threads before and after each one.
    """

    def one(index: int) -> Built | Failure:
        notify(index, False)
        result = build(funcs[index], target)
        notify(index, True)
        return result

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, range(len(funcs))))


def one_line(error: BaseException) -> str:
    """The type and text of an exception on one line of bounded length."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 3] + "..."
