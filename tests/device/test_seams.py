"""Strips whose windows want rows of their neighbours: expansion, depthwise window, product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scheduled import HARDWARE, one_kernel, runner

from tvm_ext import passes
from tvm_ext.picker import pick_strips, predict
from tvm_ext.picker import strip as picker_strip
from tvm_ext.picker.pick import _picked_strips
from tvm_ext.planner import Task
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tile.strip import strip_tiles
from tvm_ext.tir import write
from tvm_ext.tvm_api import IRModule, relax, s_tir, structural_walk

LOWERED = (
    "ConvertBlocksToOpaque",
    "PlanAndUpdateBufferAllocationLocation",
    "CompactBufferAllocation",
)
op = relax.op


@dataclass(frozen=True)
class Block:
    """An inverted residual: x [images, height, width, inner] through `wide` channels, a window of
    `kernel` rows and columns, to `outer` channels (0: no last product)."""

    images: int
    height: int
    width: int
    inner: int
    wide: int
    outer: int = 0
    kernel: int = 3
    stride: int = 1
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    """Above, left, below, right."""
    weights: tuple[np.ndarray, ...] = ()

    def drawn(self) -> Block:
        rng = np.random.default_rng(0)
        shapes = [(self.wide, self.inner), (self.wide, self.kernel, self.kernel)]
        shapes += [(self.outer, self.wide)] if self.outer else []
        made = [rng.standard_normal(shape).astype("float32") for shape in shapes]
        return Block(**{**self.__dict__, "weights": tuple(made)})

    @property
    def shape(self) -> tuple[int, ...]:
        return self.images, self.height, self.width, self.inner

    def module(self) -> IRModule:
        builder = relax.BlockBuilder()
        given = relax.Var("x", relax.TensorType(self.shape, "float32"))
        expand, taps, *project = self.weights
        options = {
            "strides": (self.stride, self.stride),
            "padding": self.pads,
            "groups": self.wide,
        }
        with builder.function("main", [given]):
            with builder.dataflow():
                planes = builder.emit(op.permute_dims(given, [0, 3, 1, 2]))
                y = builder.emit(op.nn.conv2d(planes, relax.const(expand[:, :, None, None])))
                y = builder.emit(op.clip(y, 0, 6))
                y = builder.emit(op.nn.conv2d(y, relax.const(taps[:, None]), **options))
                y = builder.emit(op.nn.relu(y))
                for last in project:
                    y = builder.emit(op.nn.conv2d(y, relax.const(last[:, :, None, None])))
                y = builder.emit(op.add(y, relax.const(np.float32(1))))
                result = builder.emit_output(op.permute_dims(y, [0, 2, 3, 1]))
            builder.emit_func_output(result)
        return builder.finalize()

    def expected(self, x: np.ndarray) -> np.ndarray:
        expand, taps, *project = (weight.astype("float64") for weight in self.weights)
        top, left, bottom, right = self.pads
        y = np.einsum("nhwi,oi->nohw", x.astype("float64"), expand).clip(0, 6)
        y = np.pad(y, ((0, 0), (0, 0), (top, bottom), (left, right)))
        windows = np.lib.stride_tricks.sliding_window_view(y, (self.kernel,) * 2, axis=(2, 3))
        windows = windows[:, :, :: self.stride, :: self.stride]
        y = np.maximum(np.einsum("nchwkl,ckl->nchw", windows, taps), 0)
        for last in project:
            y = np.einsum("nihw,oi->nohw", y, last)
        return y.transpose(0, 2, 3, 1) + 1


CASES = {
    "expansion": Block(1, 16, 12, 8, 32),
    "stride": Block(1, 17, 13, 16, 48, stride=2),
    "odd channels": Block(1, 24, 7, 5, 19),
    "five taps": Block(1, 20, 11, 16, 32, kernel=5, pads=(2, 2, 2, 2)),
    "uneven": Block(1, 15, 10, 8, 32, stride=2, pads=(0, 0, 1, 1)),
    "no padding": Block(1, 18, 9, 8, 32, pads=(0, 0, 0, 0)),
    "whole block": Block(1, 16, 12, 8, 48, outer=16),
    "whole block, stride": Block(1, 24, 14, 16, 33, outer=7, stride=2),
    "images": Block(3, 16, 5, 8, 32, outer=8),
}


@pytest.fixture(autouse=True)
def _every_height(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Strips are picked of all heights that there are."""
    monkeypatch.setattr(picker_strip, "_tiles", lambda graph, _: iter(strip_tiles(graph)))
    _picked_strips.cache_clear()
    yield
    _picked_strips.cache_clear()


def as_one(block: Block) -> tuple[IRModule, Task]:
    """The block as far as plans are made, and its task: a single kernel."""
    mod = one_kernel(block.module())
    (task,) = passes.tasks_of(mod).values()
    return mod, task


def plans(task: Task) -> list[TilePlan]:
    """By strips of all heights."""
    assert task.graph is not None
    found = pick_strips(task.graph, HARDWARE)
    assert len(found) > 1
    for candidate in found:
        guess = predict(task.graph, candidate.plan, HARDWARE)
        assert guess.latency_us == pytest.approx(candidate.estimate.latency_us)
    return [candidate.plan for candidate in found]


@pytest.mark.parametrize("name", CASES)
def test_every_height_computes_the_block(name: str) -> None:
    """After nothing but nan, of which memory beside what lies between is full from then on."""
    block = CASES[name].drawn()
    mod, task = as_one(block)
    x = np.random.default_rng(1).standard_normal(block.shape).astype("float32")
    expected = block.expected(x)
    for plan in plans(task):
        scheduled = mod.clone()
        scheduled.update_func(scheduled.get_global_var(task.name), write(task.func, plan))
        run = runner(scheduled)
        run(np.full_like(x, np.nan))
        error = np.abs(run(x) - expected).max() / np.abs(expected).max()
        assert error < 1e-5, plan


@pytest.mark.parametrize("name", CASES)
def test_a_strip_holds_no_more_rows_than_it_needs(name: str) -> None:
    """TVM could not tell, were indices of padding clamped, and would keep all for each strip."""
    block = CASES[name].drawn()
    _, task = as_one(block)
    for plan in plans(task):
        mod = IRModule({"main": write(task.func, plan)})
        for name in LOWERED:
            mod = getattr(s_tir.transform, name)()(mod)
        rows: list[int] = []

        def note(alloc: Any, rows: list[int] = rows) -> None:
            for buffer in alloc.alloc_buffers:
                if buffer.scope() == "global" and len(buffer.shape) == 4:
                    rows.append(int(buffer.shape[1]))

        structural_walk(mod["main"].body, (s_tir.SBlock, note))
        height = plan.at("core").extents[1]
        assert rows, plan
        assert max(rows) <= (height - 1) * block.stride + block.kernel
