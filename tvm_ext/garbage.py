"""A compile's garbage: not looked for meanwhile, but where there is known to be much of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

WORTH_BYTES = 1 << 26
"""What is looked for: looking through all that a compile has made takes some 90 ms."""


@contextmanager
def without_collections() -> Iterator[None]:
    """Garbage is left to reference counts meanwhile, and to those who know that there is some:
    looking for cycles among a compile's many objects took 5 % of its time. They look among what is
    made meanwhile only, or since a caller's own `gc.freeze`, which stays."""
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()


def look_for(held_bytes: float) -> None:
    """Gives memory back that nothing but cycles hold, if that may be much."""
    if held_bytes >= WORTH_BYTES:
        gc.collect()
