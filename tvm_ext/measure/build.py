"""Compile scheduled PrimFuncs to machine code in this process, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tvm

from tvm_ext.measure.job import Failure

MESSAGE_CHARS = 300


class Built:
    """A compiled kernel whose machine code exists already: a forked child can call it at once."""

    def __init__(self, executable: Any) -> None:
        self.module = executable.jit()
        self.main = self.module["main"]


def build(func: Any, target: Any, pass_config: dict[str, Any] | None = None) -> Built | Failure:
    """Compile one scheduled PrimFunc for `target`; whatever TVM raises becomes a `Failure`.

    An external function that does not exist is not noticed here: TVM hands out a null function,
    which crashes when called.
    """
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    try:
        with tvm.transform.PassContext(opt_level=3, config=pass_config or {}):
            return Built(tvm.compile(module, target=target))
    except Exception as error:  # TVM raises every kind for a schedule that it cannot lower
        return Failure("compile", one_line(error))


def build_many(
    funcs: Sequence[tuple[Any, dict[str, Any]]],
    target: Any,
    workers: int = 2,
    notify: Callable[[int, bool], None] = lambda index, finished: None,
) -> list[Built | Failure]:
    """Compile (PrimFunc, pass configuration) pairs on `workers` threads; TVM releases the GIL.

    `notify(index, finished)` is called from those threads before and after each one.
    """

    def one(index: int) -> Built | Failure:
        notify(index, False)
        result = build(funcs[index][0], target, funcs[index][1])
        notify(index, True)
        return result

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, range(len(funcs))))


def one_line(error: BaseException) -> str:
    """The type and text of an exception on one line of bounded length."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 3] + "..."
