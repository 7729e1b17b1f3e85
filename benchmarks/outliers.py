"""Kernels that take much longer than predicted, and those that have no plan, model by model.

    python benchmarks/outliers.py bench_models/*.onnx
    python benchmarks/outliers.py models/*.onnx --factor 2 --share 0.1

A model is compiled for all cores and timed on the first one, where nothing has to be shared. A
kernel is listed if it takes `factor` times as long as predicted times the number of cores, and at
least `share` of the model's time; arithmetic without a plan is listed with what stopped the plans.
Each is a fault: of the kernel, or of the model that chose it. Exits with 1 if there are any, with 2
on bad arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Report = dict[str, Any]


def without_plan(report: Report) -> Iterator[str]:
    """Kernels with arithmetic that no rule tiles, with the reasons."""
    for group in report["groups"]:
        if group["source"] in ("loose", "none") and group["flops"]:
            yield f"no plan   {group['name']}: {'; '.join(group['fallback']) or 'none found'}"


def slow(report: Report, factor: float, share: float) -> Iterator[str]:
    """Kernels that take longer on one core than they should, the slowest first."""
    whole_us = sum(map(_total_us, report["groups"]))
    for group in sorted(report["groups"], key=_total_us, reverse=True):
        allowed_us = group["predicted_us"] * report["num_threads"]
        part = _total_us(group) / whole_us if whole_us else 0.0
        if group["predicted_us"] and group["measured_us"] > factor * allowed_us and part >= share:
            took = f"{group['measured_us']:.1f} us, predicted {allowed_us:.1f}"
            which = f"{group['signature'][:8]}, {group['calls']} times"
            yield f"{part:7.1%}   {group['name']} ({which}): {took}"


def _total_us(group: Report) -> float:
    """What all calls of a kernel take together."""
    return float(group["measured_us"] * group["calls"])


def measured(model: Path, runs: int) -> tuple[Report | None, str]:
    """The report of a model with times of one core; None, and what stopped it."""
    with tempfile.TemporaryDirectory() as folder:
        artifact = str(Path(folder) / "model.so")
        compiled = _ran("tvm_ext.compile", str(model), "-o", artifact)
        if compiled.returncode:
            return None, compiled.stderr.strip()
        asked = ("--measure", "--json", "--runs", str(runs))
        told = _ran("tvm_ext.report", artifact, *asked, alone=True)
        return (json.loads(told.stdout), "") if told.returncode == 0 else (None, told.stderr)


def _ran(module: str, *arguments: str, alone: bool = False) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    first = {min(os.sched_getaffinity(0))}
    return subprocess.run(
        command,
        env=os.environ | ({"TVM_NUM_THREADS": "1"} if alone else {}),
        preexec_fn=(lambda: os.sched_setaffinity(0, first)) if alone else None,
        capture_output=True,
        text=True,
        check=False,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="+", type=Path, metavar="model.onnx")
    parser.add_argument("--factor", type=float, default=1.6, help="times the prediction (1.6)")
    parser.add_argument("--share", type=float, default=0.03, help="of the model's time (0.03)")
    parser.add_argument("--runs", type=int, default=10, help="runs that are timed (10)")
    given = parser.parse_args(arguments)
    found = 0
    for model in given.models:
        report, stopped = measured(model, given.runs)
        if report is None:
            print(f"{model.stem}: {stopped}", flush=True)
            found += 1
            continue
        lines = [*without_plan(report), *slow(report, given.factor, given.share)]
        whole_ms = sum(map(_total_us, report["groups"])) / 1e3
        print(f"{model.stem}: {whole_ms:.2f} ms on one core, {len(report['groups'])} kernels")
        print("".join(f"  {line}\n" for line in lines), end="", flush=True)
        found += len(lines)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
