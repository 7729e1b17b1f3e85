"""Kernels that compute products and norms strip by strip."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from chain_modules import Chain

from tvm_ext import passes
from tvm_ext.graph.fuse_tiles import FuseTiles
from tvm_ext.hardware import resolve
from tvm_ext.passes import TIR_PIPELINE
from tvm_ext.picker import pick_strips, predict
from tvm_ext.tile import decode_plan, encode_plan
from tvm_ext.tir import write
from tvm_ext.tvm_api import IRModule, PrimFunc, Target, relax, tvm

HARDWARE = resolve("cpu")
BOUND = 1e-5
CASES = {
    "block": (("norm", "dense 96 gelu", "dense 32", "skip"), (1, 64, 32)),
    "tails": (("norm", "dense 33 gelu", "dense 17"), (1, 62, 30)),
    "products": (("dense 48 gelu", "dense 48 gelu", "dense 5"), (70, 20)),
    "norm last": (("dense 40", "skip", "norm"), (2, 26, 40)),
    "images": (("norm", "dense 24", "norm"), (1, 12, 5, 16)),
    "batch": (("dense 31", "norm"), (6, 11, 29)),
}


def one_kernel(chain: Chain) -> IRModule:
    """The chain as far as plans are made, a single kernel."""

    def shorter(func: PrimFunc, rule: str = "") -> float:
        return 1.0 if passes.predicted_us(func, HARDWARE, rule) < inf else inf

    mod = chain.module()
    with Target(HARDWARE.target):
        for step in passes.graph_passes(HARDWARE):
            mod = (FuseTiles(shorter) if step.info.name == "FuseTiles" else step)(mod)
    return mod


def run(mod: IRModule, x: np.ndarray) -> np.ndarray:
    """The result of a module whose kernels are scheduled."""
    with Target(HARDWARE.target):
        lowest = tvm.transform.Sequential(passes.lowering_passes())(mod)
        target = Target(HARDWARE.target)
        executable = tvm.compile(lowest, target, relax_pipeline=None, tir_pipeline=TIR_PIPELINE)
    result: np.ndarray = relax.VirtualMachine(executable, tvm.cpu())["main"](
        tvm.runtime.tensor(x)
    ).numpy()
    return result


@pytest.mark.parametrize("name", CASES)
def test_strips_of_every_height(name: str) -> None:
    links, shape = CASES[name]
    chain = Chain.drawn(links, shape)
    mod = one_kernel(chain)
    (task,) = passes.tasks_of(mod).values()
    assert task.graph is not None
    x = np.random.default_rng(1).standard_normal(shape).astype("float32")
    expected = chain.expected(x)
    candidates = pick_strips(task.graph, HARDWARE)
    assert candidates
    for candidate in candidates:
        plan = decode_plan(encode_plan(candidate.plan))
        assert plan == candidate.plan
        guess = predict(task.graph, plan, HARDWARE)
        assert guess.latency_us == pytest.approx(candidate.estimate.latency_us)
        scheduled = mod.clone()
        scheduled.update_func(scheduled.get_global_var(task.name), write(task.func, plan))
        error = np.abs(run(scheduled, x) - expected).max() / np.abs(expected).max()
        assert error < BOUND, plan
