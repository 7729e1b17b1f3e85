"""One compile at a time: TVM keeps state of the whole process, which threads would share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

_compiling = RLock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Waits until no other thread compiles. What is inside may come here again."""
    with _compiling:
        yield
