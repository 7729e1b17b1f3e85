"""Reductions whose iterations are shared out: sums of columns in parts of their rows."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import make_model, value

import tvm_ext
from tvm_ext.compute.norm import reduction
from tvm_ext.compute.norm_columns import column_square, column_sum
from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick
from tvm_ext.picker.split import split_plan
from tvm_ext.planner import make_task
from tvm_ext.tir import write
from tvm_ext.tvm_api import PrimFunc, Target, te, tvm

HARDWARE = resolve("cpu")
TWO = msgspec.structs.replace(HARDWARE, cores=2)
SHAPES = ((1, 16, 6, 32), (1, 8, 5, 100), (1, 2, 1, 3), (1, 14, 14, 37), (1, 64, 64, 64), (4, 512))
HOW = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


def run(func: PrimFunc, *inputs: np.ndarray) -> np.ndarray:
    """What the split plan of the first reduction computes."""
    graph = make_task(func, "columns").graph
    assert graph is not None
    anchor = next(place for place, node in enumerate(graph.nodes) if node.kind == "reduce")
    found = split_plan(graph, anchor, TWO)
    assert found is not None
    assert found.plan.rule == "split"
    built = build(write(func, found.plan), Target(HARDWARE.target))
    assert isinstance(built, Built), built
    result = tvm.runtime.empty([int(extent) for extent in func.params[-1].shape], "float32")
    built.main(*map(tvm.runtime.tensor, inputs), result)
    made: np.ndarray = result.numpy()
    return made


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("how", HOW)
def test_columns_in_parts(how: str, shape: tuple[int, ...]) -> None:
    axes = tuple(range(1, len(shape) - 1)) or (0,)
    x = te.placeholder(shape, "float32", "x")
    made = reduction(x, axes, how, keepdims=False, lanes=HARDWARE.lanes(4))
    data = np.random.default_rng(0).standard_normal(shape).astype("float32")
    found = run(te.create_prim_func([x, made]), data)
    np.testing.assert_allclose(found, HOW[how](data.astype("float64"), axes), rtol=1e-5, atol=1e-4)


def test_squares_about_a_mean() -> None:
    shape = (1, 12, 9, 48)
    x, mean = te.placeholder(shape, "float32", "x"), te.placeholder((1, 48), "float32", "mean")
    func = te.create_prim_func([x, mean, column_square(x, mean, (1, 2), HARDWARE.lanes(4))])
    data = np.random.default_rng(0).standard_normal(shape).astype("float32")
    about = data.mean((1, 2))
    expected = ((data - about[:, None, None]).astype("float64") ** 2).sum((1, 2))
    np.testing.assert_allclose(run(func, data, about), expected, rtol=1e-5)


def test_rows_stay_where_the_kernel_before_left_them() -> None:
    """Between other kernels columns are not shared out; a kernel alone may have either plan."""
    x = te.placeholder((1, 128, 128, 32), "float32", "x")
    func = te.create_prim_func([x, reduction(x, (1, 2), "mean", keepdims=False, lanes=16)])
    graph = make_task(func, "columns").graph
    assert graph is not None
    assert pick(graph, TWO)[0].plan.rule == "split"


def test_images_are_shared_out_whole() -> None:
    """What a core has of a batch are images, not parts of their rows."""
    x = te.placeholder((2, 28, 28, 96), "float32", "x")
    graph = make_task(te.create_prim_func([x, column_sum(x, (1, 2), 16)]), "columns").graph
    assert graph is not None
    assert split_plan(graph, 0, TWO) is None


@pytest.mark.parametrize("kernel", [(2, 2), (4, 4)])
def test_a_window_is_not_shared_out(kernel: tuple[int, int]) -> None:
    """Its taps are steps of a reduction too, over rows that several results see or few."""
    x = te.placeholder((1, 16, 16, 32), "float32", "x")
    i, j = (te.reduce_axis((0, extent), "k") for extent in kernel)

    def body(n: int, h: int, w: int, c: int) -> object:
        return te.max(x[n, h * kernel[0] + i, w * kernel[1] + j, c], axis=[i, j])

    shape = (1, 16 // kernel[0], 16 // kernel[1], 32)
    graph = make_task(te.create_prim_func([x, te.compute(shape, body)]), "pool").graph
    assert graph is not None
    assert split_plan(graph, 0, TWO) is None


@pytest.mark.parametrize("extent", [7, 14, 20])
def test_columns_of_what_tiles_have_made(extent: int) -> None:
    """Squeeze and excitation: when columns are summed, stages before them are within others."""
    rng = np.random.default_rng(0)
    taps = rng.standard_normal((96, 1, 5, 5)).astype("float32") / 5
    nodes = [
        helper.make_node("Conv", ["x", "taps"], ["conv"], group=96, pads=[2, 2, 2, 2]),
        helper.make_node("Sigmoid", ["conv"], ["sigmoid"]),
        helper.make_node("Mul", ["conv", "sigmoid"], ["made"]),
        helper.make_node("GlobalAveragePool", ["made"], ["squeezed"]),
    ]
    model = make_model(
        nodes, [value("x", 1, 96, extent, extent)], ["made", "squeezed"], {"taps": taps}
    )
    compiled = tvm_ext.compile(model, shapes={}, num_threads=2)
    assert not [group for group in compiled.manifest.groups if group.fallback]
    data = {"x": rng.standard_normal((1, 96, extent, extent)).astype("float32")}
    expected = ReferenceEvaluator(model).run(None, data)
    for one, other in zip(compiled(data), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
