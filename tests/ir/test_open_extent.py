"""What follows an extent that is not known, and what is decided whatever number stands for it."""

from __future__ import annotations

import pytest

from tvm_ext.compute.open_attention import SPARE_ROWS
from tvm_ext.graph.memory_order import type_bytes
from tvm_ext.graph.open_extent import follows, of_about_slice, of_slice
from tvm_ext.graph.unify import SEVERAL
from tvm_ext.tvm_api import relax

POINTS = [tuple(pair[place] for pair in SEVERAL[0]) for place in (0, 1)]


def test_some_of_an_extent() -> None:
    assert of_slice(12 * 41 * 307, (41, 307)) == 12
    assert of_slice(768, (41, 307)) == 768
    assert follows(2 * 307, 307)
    assert follows(308, 307)
    assert not follows(768, 307)
    assert not follows(768, 0)


@pytest.mark.parametrize("point", POINTS)
def test_sizes_are_the_same_whatever_the_numbers(point: tuple[int, ...]) -> None:
    """Orders by size were others for other numbers: 307 + 96 rows are 13 times 31."""
    length, batch, kept = point
    for extent in (length, batch, kept, length + SPARE_ROWS, length + 1, length + kept):
        assert of_about_slice(extent, point) == 1
    bias = relax.TensorType((batch, 1, length + SPARE_ROWS, length), "float32")
    rows = relax.TensorType((batch * length, 3072), "float32")
    assert type_bytes(bias, point) == 4
    assert type_bytes(rows, point) == 4 * 3072
    assert type_bytes(rows) == 4 * 3072 * batch * length
