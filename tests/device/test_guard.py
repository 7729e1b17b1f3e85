"""Padding read in place: the same values as a padded copy, and no load outside the tensor."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from msgspec.structs import replace
from this_host import skip_unless_it_runs

from tvm_ext.compute.conv import ConvGeometry, conv
from tvm_ext.hardware import get, resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick
from tvm_ext.tile.plan import Attach, TilePlan
from tvm_ext.tir import prepare, write
from tvm_ext.tvm_api import PrimFunc, Target, te, topi, tvm


def depthwise(size: int, channels: int, kernel: int, stride: int, pad: int) -> PrimFunc:
    """A padded depthwise convolution of x [1, size, size, channels]."""
    both = (pad, pad)
    geometry = ConvGeometry(
        (kernel, kernel), (stride, stride), both, both, (1, 1), channels, channels, channels
    )
    x = te.placeholder((1, size, size, channels), "float32", "x")
    w = te.placeholder((kernel, kernel, channels), "float32", "w")
    return te.create_prim_func([x, w, conv(x, w, geometry, 16)])


def max_pool(size: int, channels: int) -> PrimFunc:
    """A 3 x 3 maximum with stride 2, padded by the least float."""
    x = te.placeholder((1, size, size, channels), "float32", "x")
    y = topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max", layout="NHWC")
    return te.create_prim_func([x, y])


def window_of_channels(size: int, channels: int) -> PrimFunc:
    """A mean over five neighbouring channels, padded: the padded axis is the vectors' own."""
    x = te.placeholder((size, channels), "float32", "x")
    padded = topi.nn.pad(x, (0, 2), (0, 2))
    tap = te.reduce_axis((0, 5), name="tap")
    y = te.compute(
        (size, channels), lambda i, c: te.sum(padded[i, c + tap], axis=[tap]), name="window"
    )
    return te.create_prim_func([x, y])


def chosen(func: PrimFunc, machine: str) -> TilePlan:
    prepared = prepare(func)
    assert prepared is not None
    return pick(prepared.graph, get(machine))[0].plan


def values(func: PrimFunc, plan: TilePlan) -> np.ndarray:
    kernel = build(write(func, plan), Target(resolve("cpu").target))
    assert isinstance(kernel, Built), kernel
    source = np.random.default_rng(0)
    shapes = [tuple(int(extent) for extent in buffer.shape) for buffer in func.params]
    arrays = [source.standard_normal(shape).astype("float32") for shape in shapes]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    kernel.main(*tensors)
    result: np.ndarray = tensors[-1].numpy()
    return result


CASES = {
    "depthwise": depthwise(14, 32, 3, 1, 1),
    "depthwise_stride": depthwise(13, 48, 3, 2, 1),
    "depthwise_wide": depthwise(9, 20, 7, 1, 3),
    "max_pool": max_pool(15, 40),
}


@pytest.mark.parametrize("machine", ["cpu/x86-avx512", "cpu/x86-avx2", "cpu/x86-sse"])
@pytest.mark.parametrize("name", CASES)
def test_the_picker_reads_padding_in_place_and_the_values_stay(name: str, machine: str) -> None:
    func = CASES[name]
    plan = chosen(func, machine)
    assert Attach(0, "register") in plan.attach
    copied = replace(plan, attach=tuple(entry for entry in plan.attach if entry.stage != 0))
    np.testing.assert_allclose(values(func, plan), values(func, copied), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("channels", [576, 960])
def test_a_plan_chosen_for_its_place_reads_padding_in_place_as_well(channels: int) -> None:
    """7 rows on two cores: plans that cut channels are quicker alone, and crowd the others out."""
    prepared = prepare(depthwise(7, channels, 3, 1, 1))
    assert prepared is not None
    plan = pick(prepared.graph, replace(get("cpu/x86-avx512"), cores=2))[0].plan
    assert Attach(0, "register") in plan.attach


def test_padding_along_the_vectors_is_copied() -> None:
    func = window_of_channels(64, 192)
    plan = chosen(func, "cpu/x86-avx512")
    assert Attach(0, "register") not in plan.attach
    forced = replace(plan, attach=(*plan.attach, Attach(0, "register")))
    kept = tuple(entry for entry in forced.attach if entry != Attach(0, "core"))
    forced = replace(forced, attach=kept)
    np.testing.assert_allclose(values(func, forced), values(func, plan), rtol=1e-5, atol=1e-5)


BETWEEN_FORBIDDEN_PAGES = """
    import ctypes, mmap, sys
    import numpy as np
    import tvm_ffi
    from test_guard import chosen, depthwise
    from tvm_ext.hardware import get
    from tvm_ext.measure.build import build
    from tvm_ext.tir import write
    from tvm_ext.tvm_api import Target, tvm

    kernel_size = int(sys.argv[2])
    reach = kernel_size // 2
    func = depthwise(8, 64, kernel_size, 1, reach)  # x is four pages long
    plan = chosen(func, sys.argv[1])
    kernel = build(write(func, plan), Target(get(sys.argv[1]).target))
    page, libc = mmap.PAGESIZE, ctypes.CDLL(None, use_errno=True)
    memory = mmap.mmap(-1, 6 * page)
    whole = np.frombuffer(memory, np.uint8)
    x = whole[page : 5 * page].view("float32").reshape(1, 8, 8, 64)
    x[...] = 1.0
    for place in (0, 5):
        address = ctypes.c_void_p(whole.ctypes.data + place * page)
        assert libc.mprotect(address, ctypes.c_size_t(page), 0) == 0
    w = tvm.runtime.tensor(np.ones((kernel_size, kernel_size, 64), "float32"))
    y = tvm.runtime.empty((1, 8, 8, 64), "float32")
    kernel.main(tvm_ffi.from_dlpack(x), w, y)
    inside = np.array([min(at + reach, 7) - max(at - reach, 0) + 1 for at in range(8)])
    np.testing.assert_array_equal(y.numpy()[0, :, :, 0], np.outer(inside, inside))
    print("read inside")
"""


@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("machine", ["cpu/x86-avx512", "cpu/x86-avx2", "cpu/x86-sse"])
def test_no_load_leaves_the_tensor(machine: str, kernel: int) -> None:
    """Of 3 x 3 taps all are masked, of more those outside are left out.

    TVM's simplifier, shown the condition, would take the bounds off the indices; where vectors
    have no masks the load before the first row then ends the process."""
    skip_unless_it_runs(machine)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BETWEEN_FORBIDDEN_PAGES), machine, str(kernel)],
        cwd=__file__.rpartition("/")[0],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "read inside" in done.stdout, done.stderr[-2000:]
