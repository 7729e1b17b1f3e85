"""Tensors that begin anywhere in their memory, which TVM's own kernels refuse."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_ext.tvm_api import IRModule, Target, tvm
from tvm_ext.tvm_lowering import KERNEL_PIPELINE, TIR_PIPELINE

ROWS, COLUMNS = 6, 20
TARGET = Target({"kind": "llvm", "num-cores": 2})


@T.prim_func(s_tir=True)
def doubled(a: T.Buffer((ROWS, COLUMNS), "float32"), b: T.Buffer((ROWS, COLUMNS), "float32")):
    for i in T.parallel(ROWS):
        for j in range(COLUMNS):
            with T.sblock("doubled"):
                v, w = T.axis.remap("SS", [i, j])
                b[v, w] = a[v, w] * T.float32(2)


@pytest.mark.parametrize("pipeline", [TIR_PIPELINE, KERNEL_PIPELINE])
def test_kernels_take_tensors_with_an_offset(pipeline: str) -> None:
    main = doubled.with_attr({"global_symbol": "main", "tirx.is_scheduled": 1})
    kernel = tvm.compile(IRModule({"main": main}), target=TARGET, tir_pipeline=pipeline).jit()
    whole = np.arange(3 * ROWS * COLUMNS, dtype="float32")
    source, target = (tvm.runtime.tensor(values) for values in (whole, np.zeros_like(whole)))
    size = ROWS * COLUMNS
    part = source._create_view((ROWS, COLUMNS), "float32", 4 * size)
    place = target._create_view((ROWS, COLUMNS), "float32", 8 * size)
    kernel["main"](part, place)
    wanted = np.zeros_like(whole)
    wanted[2 * size :] = 2 * whole[size : 2 * size]
    np.testing.assert_array_equal(target.numpy(), wanted)
