"""Products of floats by bytes on this machine, beside numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.compute.byte_weights import dense_by_bytes
from tvm_ext.compute.dense import pack_matrix
from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.planner import make_task, plan_task
from tvm_ext.tvm_api import Target, te, tvm
from tvm_ext.verify import check

HARDWARE = resolve("cpu")
RANDOM = np.random.default_rng(2)


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "blocks"),
    [(1, 512, 384, 1), (1, 512, 384, 16), (3, 96, 33, 3), (1, 7, 1, 1), (17, 64, 100, 4)],
)
def test_equals_numpy(rows: int, inner: int, columns: int, blocks: int) -> None:
    integers = RANDOM.integers(-128, 128, (inner, columns)).astype(np.int8)
    steps = RANDOM.uniform(1e-3, 1e-1, (blocks, columns)).astype(np.float32)
    packed, own = (pack_matrix(one, HARDWARE.lanes(4)) for one in (integers, steps))
    x = te.placeholder((rows, inner), "float32", "x")
    w = te.placeholder(packed.shape, "int8", "w")
    s = te.placeholder(own.shape, "float32", "s")
    func = te.create_prim_func([x, w, s, dense_by_bytes(x, w, s, columns)])
    planned = plan_task(make_task(func, "dense_by_bytes"), HARDWARE)
    assert planned.option.source == "picker", planned.reasons
    kernel = build(planned.func, Target(HARDWARE.target))
    assert isinstance(kernel, Built), kernel
    assert not check(planned, kernel.main)
    data = RANDOM.normal(size=(rows, inner)).astype(np.float32)
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(one)) for one in (data, packed, own)]
    result = tvm.runtime.tensor(np.zeros((rows, columns), np.float32))
    kernel.main(*tensors, result)
    expected = data @ (integers * np.repeat(steps, inner // blocks, axis=0))
    bound = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=bound)
