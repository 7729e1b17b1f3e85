"""What fusion does to a model: kernels and traffic beside TVM's own, and the time of the passes.

    python benchmarks/fusion.py bench_models/*.onnx     # memory-bound kernels, MB, seconds
    python benchmarks/fusion.py --operators 1000 10000  # passes over a recurrent network

`others` are kernels that sum up nothing for several results: no products, no convolutions. TVM's
are those that LegalizeOps, FuseOps and FuseTIR leave. Traffic is that of kernels that find nothing
in a cache: all they read and write, once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import onnx
from chains import Graph

from tvm_ext.flow import hardware_for
from tvm_ext.frontend.from_onnx import import_onnx
from tvm_ext.passes import graph_passes, tasks_of
from tvm_ext.planner import Task
from tvm_ext.tir.read import uses_again
from tvm_ext.tvm_api import IRModule, Target, relax

HIDDEN = 32


def tvm_fused(mod: IRModule) -> IRModule:
    """A module as TVM's own passes fuse it."""
    transform = relax.transform
    for step in (
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
    ):
        mod = step(mod)
    return mod


def our_fused(mod: IRModule) -> tuple[IRModule, float]:
    """A module as our passes fuse it, and the seconds they took."""
    hardware = hardware_for("cpu", None)
    start = time.perf_counter()
    with Target(hardware.target):
        for step in graph_passes(hardware):
            mod = step(mod)
        mod = relax.transform.LegalizeOps(skip_ops=["relax.reshape"])(mod)
    return mod, time.perf_counter() - start


def counted(tasks: Mapping[str, Task]) -> dict[str, float]:
    """Kernels that are called, those of them that are memory-bound, and megabytes moved."""
    others = [task for task in tasks.values() if not uses_again(task.original)]
    return {
        "kernels": sum(task.calls for task in tasks.values()),
        "others": sum(task.calls for task in others),
        "mb": sum(task.calls * task.io_bytes for task in tasks.values()) / 1e6,
        "others_mb": sum(task.calls * task.io_bytes for task in others) / 1e6,
    }


def recurrent(operators: int) -> onnx.ModelProto:
    """A gated recurrent unit, unrolled until the graph has so many operators."""
    g = Graph()
    weights = [
        g.constant(g.random(HIDDEN, HIDDEN) / HIDDEN**0.5) for _ in ("update", "reset", "new")
    ]
    biases = [g.weight(HIDDEN) for _ in weights]
    state, one = "x", g.constant(1.0)
    while g.operators < operators:
        update, reset = (
            g("Sigmoid", g("Add", g("MatMul", state, w), b))
            for w, b in zip(weights[:2], biases[:2], strict=True)
        )
        new = g("Tanh", g("Add", g("MatMul", g("Mul", reset, state), weights[2]), biases[2]))
        state = g("Add", g("Mul", update, state), g("Mul", g("Sub", one, update), new))
    return g.model([("x", (1, HIDDEN))], state)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, metavar="model.onnx")
    parser.add_argument("--operators", nargs="*", type=int, default=[], help="sizes of a network")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    args = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    print(f"{'model':24} {'kernels':>13} {'others':>13} {'MB':>15} {'passes s':>9}")
    for path in args.models:
        mod = import_onnx(path).mod
        theirs = counted(tasks_of(tvm_fused(mod)))
        ours, seconds = our_fused(mod)
        mine = counted(tasks_of(ours))
        figures[path.stem] = {f"tvm_{key}": value for key, value in theirs.items()}
        figures[path.stem] |= mine | {"passes_s": seconds}
        print(
            f"{path.stem:24} {theirs['kernels']:5.0f} → {mine['kernels']:5.0f} "
            f"{theirs['others']:5.0f} → {mine['others']:5.0f} "
            f"{theirs['mb']:6.0f} → {mine['mb']:6.0f} {seconds:9.2f}",
            flush=True,
        )
    for operators in args.operators:
        mod = import_onnx(recurrent(operators)).mod
        ours, seconds = our_fused(mod)
        mine = counted(tasks_of(ours))
        figures[f"recurrent-{operators}"] = mine | {"passes_s": seconds}
        print(f"{operators} operators: {mine['kernels']:.0f} kernels, passes {seconds:.2f} s")
    if args.models:
        models = [figures[path.stem] for path in args.models]
        before, after = (sum(model[key] for model in models) for key in ("tvm_others", "others"))
        print(f"memory-bound kernels: {after:.0f} of {before:.0f} ({after / before:.0%})")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
