"""MetaSchedule's search for one function, as a peer of the picker."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvm_ext.measure import Failure
from tvm_ext.measure.build import Built, one_line
from tvm_ext.tvm_api import PrimFunc, tvm

ROUND = 64  # trials measured between two trainings of its cost model, its own default
BUILD_TIMEOUT_S = 120.0


def warm_up() -> None:
    """Imports what a search needs. The tensor intrinsics alone take 16 s, once per process, which
    would otherwise be counted as the first operator's search time."""
    import tvm.s_tir.tensor_intrin  # noqa: F401
    from tvm.s_tir import meta_schedule  # noqa: F401

    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.ERROR)


def search(
    func: PrimFunc, target: Any, trials: int, threads: int, seed: int, folder: Path | None = None
) -> tuple[PrimFunc | None, float]:
    """The best kernel of `trials` measurements, None if none worked, and the seconds it took.

    Its runner is a process that inherits TVM_NUM_THREADS, so its kernels run on as many threads as
    ours. Every setting is MetaSchedule's default for the target, but for one: its builders, started
    anew for every round, import the tensor intrinsics first, and on a busy machine that alone takes
    longer than the 30 s it gives a build. A search kept whole in `folder` is not done again.
    """
    from tvm.s_tir.meta_schedule.builder import LocalBuilder
    from tvm.s_tir.meta_schedule.database import JSONDatabase
    from tvm.s_tir.meta_schedule.tir_integration import compile_tir, tune_tir

    with tempfile.TemporaryDirectory(prefix="metaschedule-") as temporary:
        place = folder or Path(temporary)
        seconds = place / "search_s"
        if not seconds.exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            start = time.perf_counter()
            with _quiet():
                tune_tir(
                    func,
                    target,
                    str(place),
                    max_trials_global=trials,
                    num_trials_per_iter=min(trials, ROUND),
                    num_tuning_cores=threads,
                    builder=LocalBuilder(timeout_sec=BUILD_TIMEOUT_S),
                    seed=seed,
                )
            seconds.write_text(f"{time.perf_counter() - start:.1f}\n")
        files = [str(place / f"database_{part}.json") for part in ("workload", "tuning_record")]
        schedule = compile_tir(JSONDatabase(*files), func, target)
        elapsed_s = float(seconds.read_text())
    return (schedule.mod["main"] if schedule is not None else None), elapsed_s


def build(func: PrimFunc, target: Any) -> Built | Failure:
    """Its kernel as TVM compiles it by default, as its own builders did."""
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    try:
        return Built(tvm.compile(module, target=target).jit(), "main", True)
    except tvm.TVMError as error:
        return Failure("compile", one_line(error))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what the search prints, from C++ and from its workers, off our table."""
    kept = [os.dup(1), os.dup(2)]
    with open(os.devnull, "w") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    try:
        yield
    finally:
        for number, copy in enumerate(kept, 1):
            os.dup2(copy, number)
            os.close(copy)
