"""Ctrl-C in a command: raised where it is pressed, and remembered where that is lost.

Raised in a weak reference's call back, say, an exception is printed and forgotten, and the command
would go on to its end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_pressed = threading.Event()


@contextmanager
def remembered() -> Iterator[None]:
    """Meanwhile Ctrl-C is remembered. Where a process is told to ignore it, as in the background of
    a script, it stays ignored."""
    _pressed.clear()
    on_main = threading.current_thread() is threading.main_thread()
    if not on_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupted() -> bool:
    """Whether Ctrl-C was pressed since the command began."""
    return _pressed.is_set()


def check_interrupt() -> None:
    """Raises KeyboardInterrupt if it was and that was lost."""
    if interrupted():
        raise KeyboardInterrupt


def _press(_signal: int, _frame: object) -> None:
    _pressed.set()
    raise KeyboardInterrupt
