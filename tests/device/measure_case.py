"""Kernels that work and kernels that fail, each in its own way, and the jobs to measure them."""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from tvm_ext.measure.inputs import Argument, make_inputs
from tvm_ext.measure.job import Job, Outcome, OutputCheck

TARGET = {"kind": "llvm", "num-cores": 2}
N = 64


@T.prim_func(s_tir=True)
def double(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.parallel(N):
        B[i] = A[i] * T.float32(2)


@T.prim_func(s_tir=True)
def triple(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.serial(N):
        B[i] = A[i] * T.float32(3)


@T.prim_func(s_tir=True)
def segfault(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.serial(N):
        B[i + 1000000000] = A[i]


@T.prim_func(s_tir=True)
def hang(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    B[0] = T.float32(0)
    while B[0] < T.float32(1):
        B[0] = B[0] * T.float32(0.5)


@T.prim_func(s_tir=True)
def vandal(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.serial(N):
        B[i] = T.float32(0)
        A[i] = T.float32(0)


@T.prim_func(s_tir=True)
def half_written(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.serial(N // 2):
        B[i] = A[i] * T.float32(2)


@T.prim_func(s_tir=True)
def uninitialised_max(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.serial(N):
        B[i] = T.max(A[i] * T.float32(2), B[i])


@T.prim_func(s_tir=True)
def bytes_but_one(A: T.Buffer((N,), "int8"), B: T.Buffer((N,), "int8")):
    for i in T.serial(N - 1):
        B[i + 1] = A[i] - A[i] - T.int8(1)


@T.prim_func(s_tir=True)
def all_bytes(A: T.Buffer((N,), "int8"), B: T.Buffer((N,), "int8")):
    for i in T.serial(N):
        B[i] = A[i] - A[i] - T.int8(1)


@T.prim_func(s_tir=True)
def gpu_only(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.thread_binding(N, thread="threadIdx.x"):
        B[i] = A[i] * T.float32(2)


@T.prim_func(s_tir=True)
def slow(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.serial(N):
        B[i] = A[i]
    for _ in T.serial(500000):
        for i in T.serial(N):
            B[i] = T.sin(B[i])


def arguments(dtype: str = "float32") -> tuple[Argument, ...]:
    return Argument((N,), dtype), Argument((N,), dtype, output=True)


def job(func, *, arguments=arguments(), checked: bool = False, **options) -> Job:  # noqa: B008
    """A job on `func`; `checked` compares it with `double` at every second element."""
    checks = ()
    if checked:
        wanted = 2 * make_inputs(arguments, 0)[0]
        points = np.arange(0, N, 2)
        checks = (OutputCheck(0, points, wanted[points], rtol=1e-6, atol=1e-6),)
    return Job(func, arguments, checks, **options)


def timed(outcome: Outcome) -> bool:
    """Whether there are latencies; on a busy machine a candidate may be cut after one of them."""
    return (
        outcome.failure is None
        and len(outcome.latency_us) >= 1
        and min(outcome.latency_us) > 0
        and min(outcome.latency_us) <= outcome.best_us <= max(outcome.latency_us)
    )
