"""A compiler whose convolutions end the process that runs them, or never end."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from typing import Any

from tvm_ext.assembly import Checker
from tvm_ext.runtime import child

HANGING = "TESTS_HANGING"
_COMPILE = Checker.compile


def with_a_crash(checker: Checker, entry: Any) -> Any:
    """In place of `Checker.compile`: the picker's first choice of convolutions crashes."""
    built = _COMPILE(checker, entry)
    if "conv2d" in entry.task.kind and not entry.reasons:
        return replace(built, main=_hang if os.environ.get(HANGING) else _crash)
    return built


def _crash(*_: Any) -> None:
    ctypes.string_at(0)


def _hang(*_: Any) -> None:
    while True:
        pass


if __name__ == "__main__":
    from tvm_ext.stand_by import stand_by

    stand_by()
    child.CHECK_S = 1.0
    Checker.compile = with_a_crash  # type: ignore[method-assign]
    from tvm_ext.command import run_command

    run_command("compile")
