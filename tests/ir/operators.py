"""The operators every hardware model must get plans for: a product, a convolution with padding and
epilogue, reductions along rows, and an element-wise chain."""

from __future__ import annotations

from collections.abc import Callable

from funcs import chain_func, conv_func, matmul_func, placeholder, softmax_func, sum_func

from tvm_ext.planner import Option, Planned, Task, make_task
from tvm_ext.tile import TilePlan
from tvm_ext.tir import write
from tvm_ext.tvm_api import PrimFunc, te, tirx


def gelu_func(*shape: int) -> PrimFunc:
    """(x + b) erf-free gelu: x sigmoid(1.702 x), in three stages that are one."""
    x, b = placeholder("x", *shape), placeholder("b", shape[-1])
    y = te.compute(shape, lambda *at: x[at] + b[at[-1]], name="add")
    s = te.compute(shape, lambda *at: tirx.sigmoid(y[at] * 1.702), name="sigmoid")
    return te.create_prim_func([x, b, te.compute(shape, lambda *at: y[at] * s[at], name="gate")])


OPERATORS: dict[str, Callable[[], PrimFunc]] = {
    "product": lambda: matmul_func(192, 320, 96),
    "convolution": lambda: conv_func(size=28, channels=32, out=64),
    "row_sum": lambda: sum_func(96, 1000),
    "softmax": lambda: softmax_func(96, 1000),
    "chain": lambda: chain_func(64, 1000),
    "gelu": lambda: gelu_func(8, 49, 96),
}

ODD_OPERATORS: dict[str, Callable[[], PrimFunc]] = {
    "product": lambda: matmul_func(61, 83, 37),
    "convolution": lambda: conv_func(size=17, channels=5, out=70, stride=2, dilation=2),
    "row_sum": lambda: sum_func(7, 61),
    "softmax": lambda: softmax_func(5, 127),
    "chain": lambda: chain_func(7, 61),
    "gelu": lambda: gelu_func(3, 5, 7),
}


def task_of(operators: dict[str, Callable[[], PrimFunc]], name: str) -> Task:
    return make_task(operators[name](), name)


def planned_by(task: Task, plan: TilePlan) -> Planned:
    """The task scheduled by a plan of the picker."""
    return Planned(task, write(task.func, plan), Option("picker", plan), [])
