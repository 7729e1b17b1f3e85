"""Which kernels of a measured model are told of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from outliers import slow, without_plan


def group(name: str, predicted_us: float, measured_us: float, **more: Any) -> dict[str, Any]:
    known = {"name": name, "predicted_us": predicted_us, "measured_us": measured_us}
    rest = {"signature": "abcdef0123", "calls": 1, "source": "picker", "flops": 1.0, "fallback": []}
    return known | rest | more


def report(*groups: dict[str, Any]) -> dict[str, Any]:
    """Planned for two threads, so that one core may take twice as long."""
    return {"num_threads": 2, "groups": list(groups)}


def test_kernels_that_take_much_longer_than_predicted() -> None:
    """Whisper had one of 281 us that took 31 ms."""
    found = report(group("fine", 100, 210), group("late", 281, 30_862), group("tiny", 1, 100))
    assert [line.split()[1] for line in slow(found, factor=1.6, share=0.03)] == ["late"]


def test_the_share_counts_every_call() -> None:
    found = report(group("once", 100, 200), group("often", 1, 10, calls=20))
    assert [line.split()[1] for line in slow(found, factor=1.6, share=0.4)] == ["often"]


def test_arithmetic_without_a_plan() -> None:
    found = report(
        group("fine", 1, 1, fallback=["picker plan, schedule: refused"]),
        group("copy", 1, 1, source="none", flops=0.0),
        group("lost", 1, 1, source="loose", fallback=["no rule"]),
    )
    assert list(without_plan(found)) == ["no plan   lost: no rule"]
