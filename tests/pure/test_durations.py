"""Durations as people type them."""

from __future__ import annotations

import argparse

import pytest

from tvm_ext.cli.common import duration_s, positive


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("90s", 90),
        ("10m", 600),
        ("1h", 3600),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("2h5m10s", 7510),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-5", "10 m", "m", "10d", "5m1h", "1e3", "nan", "inf"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="10m"):
        duration_s(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "many"])
def test_counts_are_whole_and_positive(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        positive(text)
    assert positive("12") == 12
