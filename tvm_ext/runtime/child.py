"""`in_child`: work that may end the process it runs in, done in a forked one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tvm_ext.flags import guarded
from tvm_ext.measure.sandbox import Limits, clear_alarm, set_alarm
from tvm_ext.runtime.artifact import last_line

CHECK_S = 120.0
"""What the check of one kernel may take; the longest takes 2."""


def verdict(check: Callable[[], str], apart: bool) -> str:
    """What a check finds wrong; in this process, or `apart` in one that it may end. One that does
    not come to an end ends this one too, where somebody stands by."""
    if apart:
        return in_child(check, CHECK_S)
    with _ended_after(CHECK_S if guarded() else 0.0):
        return check()


@contextmanager
def _ended_after(timeout_s: float) -> Iterator[None]:
    """Ends this process by SIGALRM if that takes longer; 0 never does, nor touches an alarm."""
    if not timeout_s:
        yield
        return
    set_alarm(Limits(timeout_s))
    try:
        yield
    finally:
        clear_alarm()


def in_child(work: Callable[[], str | None], timeout_s: float = 0.0) -> str:
    """Does the work in a forked child; returns what it says is wrong, why it failed, or an empty
    text.

    The child has this process' memory, so nothing need be handed over. It ends by an alarm after
    `timeout_s`, if that is given; what it prints last says why it was ended otherwise.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.close(reader)
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            with _ended_after(timeout_s):
                wrong = work()
            os.write(2, f"\n{wrong or ''}\n".encode())
            code = 1 if wrong else 0
        except BaseException as error:
            os.write(2, f"\n{last_line(error)}\n".encode())
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, encoding="utf-8", errors="replace") as words:
        lines = [line.strip() for line in words if line.strip()]
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == -signal.SIGALRM:
        return f"did not return within {timeout_s:g} s"
    if code < 0:
        lines.append(", ".join([*lines[-1:], f"ended by {signal.Signals(-code).name}"]))
    return (lines or [f"ended with code {code}"])[-1] if code else ""
