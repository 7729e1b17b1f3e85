"""Functions with TIR's own calls of special functions, as users and TVM's lowering write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcs import FUNCS, over_rows, placeholder
from tvm.s_tir.meta_schedule.testing.te_workload import CONFIGS

from tvm_ext.tvm_api import PrimFunc, te, tirx


def each(function: Callable[[Any], Any], dtype: str = "float32") -> PrimFunc:
    """`function` of every element of a matrix."""
    x = placeholder("x", 12, 48, dtype=dtype)
    return te.create_prim_func([x, te.compute(x.shape, lambda *at: function(x[at]), name="each")])


def power_of(exponent: Any) -> PrimFunc:
    return each(lambda x: tirx.pow(x, tirx.const(exponent, "float32")))


def softmax(rows: int, columns: int) -> PrimFunc:
    """TVM's own softmax."""
    build, _ = CONFIGS["SFM"]
    return te.create_prim_func(build(rows, columns))


def log_sum_exp(rows: int = 12, columns: int = 48) -> PrimFunc:
    """A call inside what a reduction adds up, and one on its result."""
    x = placeholder("x", rows, columns)
    total = over_rows(x, te.sum, lambda i, k: tirx.exp(x[i, k]), "total")
    return te.create_prim_func([x, te.compute((rows,), lambda i: tirx.log(total[i]), name="log")])


def shifted(rows: int = 12, columns: int = 48) -> PrimFunc:
    """A stage of calls that two places of another read, beside padding."""
    x = placeholder("x", rows, columns)
    e = te.compute(x.shape, lambda i, j: tirx.tanh(x[i, j]) * tirx.exp(x[i, j]), name="e")

    def body(i: Any, j: Any) -> Any:
        before = tirx.if_then_else(j > 0, e[i, j - 1], tirx.const(0.0, "float32"))
        return before + tirx.rsqrt(e[i, j] * e[i, j] + tirx.const(1.0, "float32"))

    return te.create_prim_func([x, te.compute(x.shape, body, name="shifted")])


HOLDING: dict[str, Callable[[], PrimFunc]] = {
    "softmax": lambda: softmax(12, 48),
    "softmax_prime": lambda: softmax(7, 37),
    "own softmax": FUNCS["softmax"],
    "norm": FUNCS["norm"],
    "log_sum_exp": log_sum_exp,
    "shifted": shifted,
    "sigmoid": lambda: each(tirx.sigmoid),
    "cube": lambda: power_of(3.0),
    "root": lambda: power_of(-0.5),
    "identity": lambda: each(lambda x: tirx.pow(tirx.exp(x), tirx.const(1.0, "float32"))),
    "one": lambda: each(lambda x: tirx.pow(tirx.exp(x), tirx.const(0.0, "float32"))),
}
