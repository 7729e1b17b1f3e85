"""Products of bytes and of bfloat16 on the matrix unit, against integers."""

from __future__ import annotations

import numpy as np
import pytest
from byte_kernels import (
    ByteKernel,
    amx_plan,
    conv_halves,
    conv_kernel,
    dense_halves,
    dense_kernel,
    has_unit,
)

from tvm_ext.hardware import resolve
from tvm_ext.picker import pick
from tvm_ext.tile.chunk import Chunk, with_chunk
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir import prepare, write
from tvm_ext.tvm_api import IRModule, target_of, tvm
from tvm_ext.tvm_lowering import TIR_PIPELINE

HOST = resolve("cpu")
pytestmark = pytest.mark.skipif(not has_unit(HOST), reason="needs AMX")
PRODUCT = dense_kernel((56,), 96, 64)
WINDOW = conv_kernel((10, 28), (64, 32), 3, 1, 1)
POINTS = conv_kernel((7, 7), (32, 32), 1, 1, 0)
CASES = {
    "one matrix": (PRODUCT, amx_plan((56, 64, 24), (14, 16, 12))),
    "two by two": (PRODUCT, amx_plan((28, 64, 24), (28, 32, 12))),
    "four below each other": (PRODUCT, amx_plan((56, 32, 24), (56, 16, 8), parallel=2)),
    "four side by side": (dense_kernel((15,), 64, 64), amx_plan((15, 64, 16), (15, 64, 16))),
    "few dots": (PRODUCT, amx_plan((56, 64, 24), (8, 32, 2))),
    "on one core": (PRODUCT, amx_plan((56, 64, 24), (28, 32, 12), parallel=0)),
    "rows moved back": (dense_kernel((37,), 64, 32), amx_plan((32, 32, 16), (16, 32, 16))),
    "rows of two axes": (
        conv_kernel((4, 7), (128, 32), 3, 1, 1),
        amx_plan((1, 4, 7, 32, 3, 3, 32), (1, 2, 7, 32, 1, 1, 16), 1, 2),
    ),
    "a window": (WINDOW, amx_plan((1, 5, 28, 32, 3, 3, 16), (1, 1, 28, 32, 1, 1, 16), 1, 2)),
    "a window by rows": (
        WINDOW,
        amx_plan((1, 5, 28, 32, 3, 3, 16), (1, 1, 14, 32, 1, 1, 16), 1, 2),
    ),
    "every other place": (
        conv_kernel((15, 21), (64, 48), 3, 2, 1),
        amx_plan((1, 4, 11, 48, 3, 3, 16), (1, 1, 11, 48, 1, 1, 16), 1, 2),
    ),
    "asked for ahead": (
        PRODUCT,
        amx_plan((28, 64, 24), (14, 32, 12), prefetch=True),
    ),
}


def run(case: ByteKernel, plan: TilePlan) -> tuple[np.ndarray, str]:
    """What a kernel computes, and its machine code."""
    func = write(case.func, plan).with_attr({"global_symbol": "main"})
    target = target_of(HOST.target)
    with target:
        kernel = tvm.compile(IRModule({"main": func}), target=target, tir_pipeline=TIR_PIPELINE)
    result = np.full(case.expected.shape, np.nan, np.float32)
    tensors = [tvm.runtime.tensor(one) for one in (*case.given, result)]
    kernel.jit()["main"](*tensors)
    return tensors[-1].numpy(), kernel.mod.inspect_source("asm")


@pytest.mark.parametrize("name", CASES)
def test_is_exact(name: str) -> None:
    case, plan = CASES[name]
    found, code = run(case, plan)
    assert "tdpbusd" in code
    assert "vpdpbusd" not in code
    np.testing.assert_array_equal(found, case.expected)


HALVES = {
    "one matrix": (dense_halves(56, 48, 64), amx_plan((56, 64, 24), (14, 16, 12))),
    "two by two": (dense_halves(56, 48, 64), amx_plan((28, 64, 24), (28, 32, 12))),
    "rows moved back": (dense_halves(37, 32, 32), amx_plan((32, 32, 16), (16, 32, 16))),
    "a window": (
        conv_halves((10, 28), (32, 32), 3, 1, 1),
        amx_plan((1, 5, 28, 32, 3, 3, 16), (1, 1, 28, 32, 1, 1, 16), 1, 2),
    ),
}


@pytest.mark.parametrize("name", HALVES)
def test_sums_of_bfloat16_are_those_of_integers(name: str) -> None:
    case, plan = HALVES[name]
    found, code = run(case, plan)
    assert "tdpbf16ps" in code
    assert "vdpbf16ps" not in code
    np.testing.assert_array_equal(found, case.expected)


def test_a_reduction_in_chunks() -> None:
    case = dense_kernel((32,), 1024, 64)
    prepared = prepare(case.func)
    assert prepared is not None
    plan = amx_plan((32, 64, 256), (32, 32, 16))
    chunked = with_chunk(prepared.graph.nodes[0], plan, Chunk(2, 64))
    np.testing.assert_array_equal(run(case, chunked)[0], case.expected)


PICKED = {
    "an image": conv_kernel((20, 44), (4, 32), 7, 2, 3),
    "a product": dense_kernel((197,), 768, 96),
    "one matrix": dense_kernel((16,), 64, 16),
    "an odd batch": dense_kernel((2, 31), 60, 40),
    "a window": conv_kernel((14, 14), (128, 64), 3, 1, 1),
    "short rows": conv_kernel((7, 7), (64, 160), 3, 1, 1),
    "uneven points": conv_kernel((13, 17), (24, 20), 1, 1, 0),
    "every other place": conv_kernel((28, 28), (48, 32), 3, 2, 1),
}


@pytest.mark.parametrize("name", PICKED)
def test_what_is_picked_is_exact(name: str) -> None:
    """Plans for the unit are among the first, and right whatever the shape."""
    case = PICKED[name]
    prepared = prepare(case.func)
    assert prepared is not None
    plans = [candidate.plan for candidate in pick(prepared.graph, HOST, 8)]
    chosen = [plan for plan in plans if plan.instruction == "amx"]
    assert chosen
    for plan in chosen:
        np.testing.assert_array_equal(run(case, plan)[0], case.expected)
