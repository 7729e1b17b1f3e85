"""Tables of 256 bytes, by vectors of every width and one by one."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.hardware import resolve
from tvm_ext.tvm_api import IRModule, Schedule, target_of, te, tvm
from tvm_ext.tvm_lowering import TIR_PIPELINE
from tvm_ext.tvm_tables import ENTRIES, ISA, looked_up

HOST = resolve("cpu")
COUNT = 192


@pytest.mark.parametrize("lanes", [1, 8, 16, 32, 64])
@pytest.mark.parametrize("entries", ["uint8", "int8"])
@pytest.mark.parametrize("places", ["uint8", "int8"])
def test_entries_are_found(places: str, entries: str, lanes: int) -> None:
    x = te.placeholder((COUNT,), places, "x")
    table = te.placeholder((ENTRIES,), entries, "table")
    y = te.compute((COUNT,), lambda i: looked_up(table, x[i]), name="y")
    schedule = Schedule(te.create_prim_func([x, table, y]))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    _, inner = schedule.split(loop, [None, lanes])
    if lanes > 1:
        schedule.vectorize(inner)
    func = schedule.mod["main"].with_attr({"global_symbol": "main"})
    target = target_of(HOST.target)
    with target:
        kernel = tvm.compile(IRModule({"main": func}), target=target, tir_pipeline=TIR_PIPELINE)
    picked = "vpermt2b" in kernel.mod.inspect_source("asm")
    assert picked == (ISA in HOST.isa and lanes >= 16)
    random = np.random.default_rng(0)
    octets = random.integers(0, 256, COUNT).astype(np.uint8)
    values = random.permutation(256).astype(np.uint8)
    given = octets.view(places), values.view(entries), np.zeros(COUNT, entries)
    tensors = [tvm.runtime.tensor(one) for one in given]
    kernel.jit()["main"](*tensors)
    np.testing.assert_array_equal(tensors[-1].numpy(), values[octets].view(entries))
