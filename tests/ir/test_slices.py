"""Slices: parameters become flat memory with strides, and the dense function is kept."""

from __future__ import annotations

import numpy as np
import pytest
from funcs import map_func, placeholder
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.errors import PlanError
from tvm_ext.tir.signature import signature
from tvm_ext.tir.slices import dense, gathered, row_by_row, sliced, span, spread, with_slices
from tvm_ext.tvm_api import PrimFunc, Target, schedule_of, te, tirx, tvm


def twice_func() -> PrimFunc:
    x = placeholder("x", 4, 8)
    return te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="y")])


def test_indices_become_a_place_in_flat_memory() -> None:
    """y[i, j] → y[i * 16 + j], in the store and in what the block says it writes."""
    text = with_slices(twice_func(), {1: (16, 1)}).script()
    assert "y[v_i * 16 + v_j] = x[v_i, v_j] * T.float32(2.0)" in text
    assert 'y: T.Buffer((56,), "float32", offset_factor=1)' in text
    assert "T.writes(y[0:56])" in text


def test_rows_of_slices_have_loops_of_their_own() -> None:
    """for f in range(32): y[f // 8, f % 8]  →  for row in range(4): for place in range(8)"""
    func = twice_func()
    schedule = schedule_of(func)
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.fuse(*schedule.get_loops(block))
    fused = schedule.mod["main"]
    text = row_by_row(with_slices(fused, {1: (16, 1)})).script()
    assert "for row, place in T.grid(4, 8):" in text
    assert 'T.axis.remap("SS", [row, place])' in text
    assert row_by_row(func).script() == func.script()


def test_the_dense_function_comes_back() -> None:
    func = map_func(4, 8)
    back, slices = dense(sliced(func, {0: (16, 1)}))
    assert signature(back) == signature(func)
    assert slices == {0: (16, 1)}
    assert dense(func) == (func, {})


def test_a_parameter_that_is_handed_on_whole_is_refused() -> None:
    x, y = (tirx.decl_buffer((8,), "float32", name) for name in "xy")
    body = tirx.Evaluate(tirx.call_extern("int32", "f", x.data, y.data))
    with pytest.raises(PlanError, match="x is used as more than a tensor"):
        with_slices(PrimFunc([x, y], body), {0: (2,)})


@pytest.mark.parametrize("begin", [0, 3, 36])
def test_a_kernel_writes_its_slice_and_nothing_else(begin: int) -> None:
    """Columns begin .. begin + 8 of a tensor 100 wide, also where no vector is aligned."""
    kernel = tvm.compile(with_slices(twice_func(), {0: (8, 1), 1: (100, 1)}), Target("llvm"))
    x = np.arange(32, dtype="float32")
    whole = tvm.runtime.tensor(np.full((4, 100), -1, "float32"))
    view = tvm.get_global_func("runtime.TVMTensorCreateView")
    shape = tvm.runtime.ShapeTuple([span((4, 8), (100, 1))])
    kernel(tvm.runtime.tensor(x), view(whole, shape, "float32", 4 * begin))
    expected = np.full((4, 100), -1, "float32")
    expected[:, begin : begin + 8] = 2 * x.reshape(4, 8)
    np.testing.assert_array_equal(whole.numpy(), expected)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_what_is_spread_is_gathered(shape: list[int], data: st.DataObject) -> None:
    """Of any shape, with any gaps between its rows; the gaps are no numbers."""
    strides = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        inner = strides[axis + 1] * shape[axis + 1]
        strides[axis] = inner + data.draw(st.integers(0, 3))
    array = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    memory = spread(array, tuple(strides))
    np.testing.assert_array_equal(gathered(memory, array.shape, tuple(strides)), array)
    assert np.isnan(memory).sum() == memory.size - array.size
