"""Reading what cachegrind counted, and what it should show."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import traffic

SUMMARY = """\
==21790== D   refs:      347,000,000  (236,000,000 rd   + 111,000,000 wr)
==21790== LLd misses:      4,985,908  (  4,292,601 rd   +     693,307 wr)
==21790== LLd miss rate:         1.4% (        1.8%     +         0.6%  )
"""


def test_lines_fetched_into_the_last_cache() -> None:
    assert traffic.misses(SUMMARY) == 4_985_908


def test_a_run_that_counted_nothing_is_no_zero() -> None:
    with pytest.raises(ValueError, match="said nothing of its last cache"):
        traffic.misses("==1== Command: python")


@pytest.mark.parametrize(("measured", "together"), [((1.6, 5.6), True), ((5.6, 1.6), False)])
def test_less_traffic_in_the_model_is_less_in_the_cache(
    measured: tuple[float, float], together: bool
) -> None:
    forms = zip(("fused", "unfused"), (1, 9), (1.5, 9.5), measured, strict=True)
    found = {name: traffic.Traffic(n, model, cache) for name, n, model, cache in forms}
    assert traffic.fall_together(found) is together


def test_forms_that_the_model_does_not_tell_apart_may_fall_either_way() -> None:
    same = {name: traffic.Traffic(1, 1.57, mb) for name, mb in (("a", 1.6), ("b", 1.7))}
    assert traffic.fall_together(same)
