"""Extents as texts: sums with names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvm_ext.errors import ShapeError
from tvm_ext.extents import as_shapes, at_extents, evaluated, names, terms

TEXTS: dict[str, tuple[set[str], int]] = {
    # what is named, and the value of all at 10
    "n": ({"n"}, 10),
    "n+1": ({"n"}, 11),
    "2*n": ({"n"}, 20),
    "2 * n - 3": ({"n"}, 17),
    "1+n": ({"n"}, 11),
    "past_sequence_length + sequence_length": ({"past_sequence_length", "sequence_length"}, 20),
    "größe": ({"größe"}, 10),
    "batch*heads": ({"batch", "heads"}, 100),
    "n*2 + 2 * 3 * n": ({"n"}, 80),
}


@pytest.mark.parametrize("text", TEXTS)
def test_sums_with_names(text: str) -> None:
    named, value = TEXTS[text]
    assert names(text) == named
    assert at_extents(text, 10) == value
    assert evaluated(text, dict.fromkeys(named, 10)) == value
    assert evaluated(text, {}) is None


@pytest.mark.parametrize("text", ["", "7", "1x", "n m", "n*", "n/2", "floor(n)", "+", "n+", "?"])
def test_other_texts(text: str) -> None:
    assert terms(text) is None
    assert names(text) == set()


def test_numbers_for_each_name() -> None:
    assert at_extents(7, 10) == 7
    assert at_extents("past+n", {"past": 3, "n": 2, "other": 9}) == 5
    assert at_extents("past+n", {"past": 3}) == 4
    assert at_extents("batch*heads+1", {"batch": 3, "heads": 4}) == 13


def test_shapes_as_they_are_given() -> None:
    assert as_shapes(None) == {}
    given = {"x": [1, "n"], "batch": 2, "length": "m+1", "y": np.array([1, 3]), "z": np.int64(4)}
    assert as_shapes(given) == {
        **{"x": (1, "n"), "batch": (2,), "length": ("m+1",)},
        **{"y": (1, 3), "z": (4,)},
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([("x", (1, 3))], "a list is no mapping; give shapes by name"),
        ("x=1,3", "a str is no mapping; give shapes by name"),
        ({0: (1, 3)}, "0 is no name"),
        ({"x": None}, "shape of 'x' is None; give a tuple of integers"),
        ({"x": "n,4"}, "shape of 'x' is 'n,4'; give a tuple of integers"),
        ({"x": (None, 4)}, r"shape of 'x' is \(None, 4\); give a tuple of integers"),
        ({"x": (1.5, 4)}, r"shape of 'x' is \(1.5, 4\); give a tuple of integers"),
        ({"batch": 0}, "0 is not positive"),
        ({"x": ("batch size", 4)}, "'batch size' is no extent"),
        ({"x": ("all - past", 4)}, "'all - past' takes past away"),
        ({"x": ("3-n", 4)}, "'3-n' takes n away"),
    ],
)
def test_shapes_that_are_none(given: Any, words: str) -> None:
    with pytest.raises(ShapeError, match=words) as caught:
        as_shapes(given)
    assert "\n" not in str(caught.value)
