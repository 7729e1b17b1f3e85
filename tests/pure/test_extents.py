"""Extents as texts: sums with names."""

from __future__ import annotations

import pytest

from tvm_ext.extents import at_extents, evaluated, names, solved, terms

TEXTS: dict[str, tuple[set[str], int]] = {
    # what is named, and the value of all at 10
    "n": ({"n"}, 10),
    "n+1": ({"n"}, 11),
    "2*n": ({"n"}, 20),
    "2 * n - 3": ({"n"}, 17),
    "1+n": ({"n"}, 11),
    "past_sequence_length + sequence_length": ({"past_sequence_length", "sequence_length"}, 20),
    "größe": ({"größe"}, 10),
}


@pytest.mark.parametrize("text", TEXTS)
def test_sums_with_names(text: str) -> None:
    named, value = TEXTS[text]
    assert names(text) == named
    assert at_extents(text, 10) == value
    assert evaluated(text, dict.fromkeys(named, 10)) == value
    assert evaluated(text, {}) is None


@pytest.mark.parametrize("text", ["", "7", "1x", "n m", "n*2", "n/2", "floor(n)", "+", "n+", "?"])
def test_other_texts(text: str) -> None:
    assert terms(text) is None
    assert names(text) == set()


def test_what_the_name_must_be() -> None:
    assert solved("n", 7) == ("n", 7)
    assert solved("n+1", 7) == ("n", 6)
    assert solved("2*n-3", 7) == ("n", 5)
    assert solved("2*n-3", 8) == ("n", None), "no whole number"
    assert solved("n+1", 1) == ("n", None), "none would be left"
    assert solved("n-n", 0) == ("n", None), "any would do"


def test_what_a_name_must_be_beside_others() -> None:
    assert solved("past+n", 7, {"n": 2}) == ("past", 5)
    assert solved("past+n", 7, {"past": 2}) == ("n", 5)
    assert solved("past+n", 7, {"past": 2, "n": 3}) == ("past", 4), "one that is known may differ"
    assert solved("past+n", 7) == ("past", None), "one equation of two"


def test_numbers_for_each_name() -> None:
    assert at_extents(7, 10) == 7
    assert at_extents("past+n", {"past": 3, "n": 2, "other": 9}) == 5
    assert at_extents("past+n", {"past": 3}) == 4
