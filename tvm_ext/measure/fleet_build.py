"""Schedule a kernel, compile it for a device elsewhere, and link it into a shared object."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm.runtime import Executable
from tvm.support import cc

from tvm_ext.measure.build import one_line, write_and_build
from tvm_ext.measure.job import Failure
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tvm_api import PrimFunc


def export(
    _say: Callable[[str, str], None],
    func: PrimFunc,
    plan: TilePlan | None,
    target: Any,
    path: Path,
    misfit: Failure | None,
    compiler: str,
) -> tuple[Failure | None, str]:
    """Write the shared object of a function scheduled by `plan` (None: it is scheduled): what is
    wrong with it, and the hash of its schedule.

    misfit    what is known to be wrong with its arguments, if it compiles
    compiler  the command that links for the device; empty: the one TVM finds for this machine
    """
    written = write_and_build(func, plan, target, run=False)
    kernel, tir_hash = written.kernel, written.tir_hash
    if isinstance(kernel, Failure) or misfit is not None:
        return kernel if isinstance(kernel, Failure) else misfit, tir_hash
    try:
        fcompile = cc.cross_compiler(compiler) if compiler else None
        Executable(kernel.module).export_library(str(path), fcompile=fcompile)
    except Exception as error:  # no such linker, or one that refuses what it is given
        return Failure("compile", one_line(error)), tir_hash
    return None, tir_hash
