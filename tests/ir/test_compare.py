"""Which elements are chosen, and what passes as equal."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.tir.compare import Points, choose, choose_lines, compare


def test_a_small_tensor_is_checked_whole():
    assert choose((3, 4, 5), None).tolist() == list(range(60))
    assert choose((), None).tolist() == [0]
    assert choose((2, 0), None).size == 0


def test_corners_tile_borders_and_tails_are_chosen():
    shape, tile = (1, 100, 37, 50), (1, 14, 8, 16)
    chosen = choose(shape, tile, count=512)
    assert chosen.size == np.unique(chosen).size == 512
    _, y, x, c = np.unravel_index(chosen, shape)
    at = set(zip(y.tolist(), x.tolist(), c.tolist(), strict=True))
    assert {(i, j, k) for i in (0, 99) for j in (0, 36) for k in (0, 49)} <= at
    for axis, extent, step in ((y, 100, 14), (x, 37, 8), (c, 50, 16)):
        last = (extent - 1) // step * step
        for place in (step - 1, step, last - 1, last, extent - 1):
            assert np.count_nonzero(axis == place) >= 3
    assert np.unique(y).size > 50


def test_the_choice_depends_on_the_seed_alone():
    first = choose((64, 64), (8, 8), seed=1)
    np.testing.assert_array_equal(first, choose((64, 64), (8, 8), seed=1))
    assert not np.array_equal(first, choose((64, 64), (8, 8), seed=2))


@pytest.mark.parametrize("shape", [(1025,), (5, 206), (4096, 4096), (1,) * 4 + (2,) * 12])
def test_as_many_as_asked_for(shape):
    chosen = choose(shape, (1,) * len(shape), count=1024)
    assert chosen.size == np.unique(chosen).size == 1024
    assert 0 <= chosen.min() <= chosen.max() < np.prod(shape)


@pytest.mark.parametrize("tile", [None, (1, 4, 4, 16)])
def test_chosen_lines_share_all_but_their_last_index(tile):
    chosen = choose_lines((1, 28, 28, 128), tile, count=64, per_line=4)
    assert chosen.size == np.unique(chosen).size == 64
    lines, counts = np.unique(chosen // 128, return_counts=True)
    assert lines.size == 16
    assert set(counts) == {4}
    assert {0, 27, 28 * 27, 28 * 28 - 1} <= set(lines.tolist())
    assert {0, 127} <= set((chosen % 128).tolist())
    assert np.unique(chosen % 128).size > 16


def test_short_lines_are_chosen_whole():
    assert choose_lines((5, 2), None, count=64, per_line=4).tolist() == list(range(10))
    assert choose_lines((0, 2), None, count=64, per_line=4).size == 0


def test_the_worst_element_is_reported():
    points = Points(np.array([1.0, 2.0, 4.0], np.float32), np.array([0.1, 0.1, 1.0]))
    assert compare(np.array([1.05, 2.0, 4.5], np.float32), points).ok
    outcome = compare(np.array([1.0, 2.25, 4.5], np.float32), points)
    assert not outcome.ok
    assert (outcome.position, outcome.actual, outcome.expected) == (1, 2.25, 2.0)
    assert outcome.ratio == pytest.approx(2.5)


def test_an_exact_bound_allows_no_difference():
    points = Points(np.array([7, 2**53 + 1]), np.zeros(2))
    assert compare(np.array([7, 2**53 + 1]), points).ok
    assert not compare(np.array([8, 2**53 + 1]), points).ok


def test_an_unknown_element_is_not_judged_and_not_counted():
    outcome = compare(np.array([1.0, 9.0]), Points(np.array([1.0, 2.0]), np.array([0.0, np.inf])))
    assert outcome.ok
    assert outcome.checked == 1


def test_not_a_number_and_infinity_equal_only_themselves():
    points = Points(np.array([np.nan, np.inf, 1.0]), np.array([0.0, 0.0, 1.0]))
    assert compare(np.array([np.nan, np.inf, 1.5]), points).ok
    assert not compare(np.array([0.0, np.inf, 1.0]), points).ok
    assert not compare(np.array([np.nan, np.inf, np.nan]), points).ok
    assert not compare(np.array([np.nan, -np.inf, 1.0]), points).ok


def test_a_different_count_is_refused():
    with pytest.raises(ValueError, match="2 elements given, 1 expected"):
        compare(np.zeros(2), Points(np.zeros(1), np.zeros(1)))
