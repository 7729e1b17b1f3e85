"""Permutations of memory under reshapes, drops and insertions agree with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.graph.layout_perm import after_drop, after_insert, after_permute, reshape_layout
from tvm_ext.tvm_api import tirx


@pytest.mark.parametrize(
    ("perm", "old", "new", "expected"),
    [
        ((0, 2, 3, 1), (2, 8, 1, 1), (2, 8), ((0, 2, 3, 1), (0, 1))),
        ((0, 2, 3, 1), (2, 8, 9, 7), (2, 8, 63), ((0, 2, 3, 1), (0, 2, 1))),
        ((0, 2, 3, 1), (2, 8, 9, 7), (2, 504), ((0, 1, 2, 3), (0, 1))),
        ((0, 2, 3, 1), (2, 8, 9, 7), (2, 4, 2, 9, 7), ((0, 2, 3, 1), (0, 3, 4, 1, 2))),
        ((0, 3, 4, 2, 1), (2, 2, 4, 9, 7), (2, 8, 9, 7), ((0, 3, 4, 1, 2), (0, 2, 3, 1))),
        ((0, 2, 3, 1), (1, 8, 9, 7), (1, 1, 8, 9, 7), ((0, 2, 3, 1), (0, 3, 4, 1, 2))),
        ((0, 2, 1), (2, 8, 9), (2, 8, 1, 9), ((0, 2, 1), (0, 2, 3, 1))),
        ((0, 2, 1), (2, 8, 9), (2, 8, 9, 1), ((0, 2, 1), (0, 2, 3, 1))),
        ((0, 2, 1), (1, 1, 1), (1, 1, 1, 1), ((0, 2, 1), (0, 2, 3, 1))),
    ],
)
def test_reshape_layout(perm, old, new, expected):
    assert reshape_layout(perm, old, new) == expected
    data = np.arange(np.prod(old)).reshape(old)
    before, after = expected
    moved = data.transpose(before).reshape([new[axis] for axis in after])
    np.testing.assert_array_equal(moved, data.reshape(new).transpose(after))


def test_reshape_layout_gives_up_on_symbols_that_merge():
    height, width = tirx.Var("h", "int64"), tirx.Var("w", "int64")
    assert reshape_layout((0, 2, 3, 1), (2, 8, height, width), (2, 8, height * width)) is None
    assert reshape_layout((0, 2, 3, 1), (2, 8, height, 7), (2, 4, 2, height, 7)) is not None


@pytest.mark.parametrize("axes", [(0, 2, 3, 1), (3, 1, 0, 2)])
def test_layout_algebra_agrees_with_numpy(axes):
    perm = (0, 2, 3, 1)
    data = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    memory = data.transpose(perm)
    viewed = data.transpose(axes)
    np.testing.assert_array_equal(viewed.transpose(after_permute(perm, axes)), memory)
    np.testing.assert_array_equal(
        data.sum(1).transpose(after_drop(perm, {1})), memory.sum(perm.index(1))
    )
    np.testing.assert_array_equal(
        data[:, None].transpose(after_insert(perm, 1, 3)), memory[:, :, :, None]
    )
