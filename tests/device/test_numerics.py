"""Kernels on hard data: large and small magnitudes, denormals, sixty decades at once.

The reference is evaluated in float64 on the same arrays and says how far a correct kernel may be
from each element; where it has no NaN, neither may the kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kernel_cases import CASES, module

from tvm_ext import passes
from tvm_ext.compute.conv import ConvGeometry, conv, pack_weight
from tvm_ext.compute.winograd import transform_weight, winograd
from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.measure.inputs import make_inputs
from tvm_ext.planner import Task, make_task, plan_task
from tvm_ext.runtime.margin import Output
from tvm_ext.tir.compare import compare
from tvm_ext.tvm_api import Target, te, tvm
from tvm_ext.verify import arguments_of

DATA: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "large": lambda x: x * np.float32(1e15),
    "small": lambda x: x * np.float32(1e-15),
    "denormal": lambda x: x * np.float32(1e-39),
    "decades": lambda x: x * np.float32(10.0) ** (np.arange(x.size).reshape(x.shape) % 55 - 40),
}
NAMES = (
    "conv2d_3x3_bias_relu",
    "conv2d_depthwise",
    "conv2d_grouped",
    "conv2d_silu",
    "matmul_long_k",
    "matmul_batched",
    "max_pool",
    "avg_pool",
    "global_pool",
    "log_softmax",
    "layer_norm",
    "rms_norm",
    "mean_12",
    "sum_long",
    "max_all_long",
)


def assert_right(task: Task, scale: Callable[[np.ndarray], np.ndarray]) -> None:
    """Runs the kernel of a task on scaled data; only its first float input is scaled."""
    hardware = resolve("cpu")
    planned = plan_task(task, hardware)
    built = build(planned.func, Target(hardware.target))
    assert isinstance(built, Built), built
    reference = task.reference
    assert reference is not None
    inputs = make_inputs(arguments_of(task.func, len(reference.outputs)), seed=3)
    place = next(i for i, array in enumerate(inputs) if array.dtype == np.float32)
    inputs[place] = scale(inputs[place]).astype(np.float32)
    assert np.isfinite(inputs[place]).all()
    outputs = [Output.of(shape, dtype) for shape, dtype in reference.outputs]
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    built.main(*tensors, *(output.tensor for output in outputs))
    for index, output in enumerate(outputs):
        actual = output.numpy().reshape(-1)
        where = np.arange(actual.size)[:: max(1, actual.size // 256)]
        result = compare(actual[where], reference.points(inputs, index, where))
        assert result.ok, (task.name, result)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", NAMES)
def test_kernels_on_hard_data(name: str, data: str) -> None:
    hardware = resolve("cpu")
    with Target(hardware.target):
        lowered = tvm.transform.Sequential(passes.graph_passes(hardware))(module(CASES[name]))
    for task in passes.tasks_of(lowered).values():
        if task.reference is not None and "float32" in {str(p.dtype) for p in task.func.params[:1]}:
            assert_right(task, DATA[data])


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("m", [0, 2, 4])
def test_convolution_algorithms_on_hard_data(m: int, data: str) -> None:
    """max|error| / max|y| against float64, the weights He-like; 0 is direct convolution."""
    geometry = ConvGeometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1, 32, 32)
    rng = np.random.default_rng(5)
    x = DATA[data](rng.standard_normal((1, 14, 13, 32), dtype=np.float32)).astype(np.float32)
    w = (rng.standard_normal((32, 3, 3, 32)) * (2 / (9 * 32)) ** 0.5).astype(np.float32)
    packed = transform_weight(w, geometry, 16, m) if m else pack_weight(w, geometry, 16)
    given = te.placeholder(x.shape, "float32", "x")
    filters = te.placeholder(packed.shape, "float32", "w")
    y = winograd(given, filters, geometry, m) if m else conv(given, filters, geometry, 16)
    task = make_task(te.create_prim_func([given, filters, y]), "conv")
    hardware = resolve("cpu")
    built = build(plan_task(task, hardware).func, Target(hardware.target))
    assert isinstance(built, Built), built
    out = tvm.runtime.tensor(np.full((1, 14, 13, 32), np.nan, np.float32))
    built.main(tvm.runtime.tensor(x), tvm.runtime.tensor(np.ascontiguousarray(packed)), out)
    around = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = sum(
        around[:, i : i + 14, j : j + 13] @ w[:, i, j].T.astype(np.float64)
        for i in range(3)
        for j in range(3)
    )
    assert np.isfinite(out.numpy()).all()
    error = np.abs(out.numpy() - expected).max()
    relative, subnormals = {0: (1e-6, 64), 2: (2e-6, 256), 4: (5e-6, 512)}[m]
    smallest = float(np.finfo(np.float32).smallest_subnormal)
    assert error <= relative * np.abs(expected).max() + subnormals * smallest
