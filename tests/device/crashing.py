"""A compiler whose first convolution ends the process that runs it."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

from tvm_ext.assembly import Checker

_COMPILE = Checker.compile


def with_a_crash(checker: Checker, entry: Any) -> Any:
    """In place of `Checker.compile`: the picker's first choice of convolutions crashes."""
    built = _COMPILE(checker, entry)
    if "conv2d" in entry.task.kind and not entry.reasons:
        return replace(built, main=lambda *_: ctypes.string_at(0))
    return built


if __name__ == "__main__":
    from tvm_ext.stand_by import stand_by

    stand_by()
    Checker.compile = with_a_crash  # type: ignore[method-assign]
    from tvm_ext.command import run_command

    run_command("compile")
