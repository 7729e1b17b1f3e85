"""Failures of our own: in a user's compile a line of the report, in tests an exception."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tvm_ext import flags
from tvm_ext.errors import PlanError, TvmExtError

PRINTED = (
    (re.compile(r'ir\.Op\(span=.*?name="([\w.]+)".*?support_level=\d+\)', re.DOTALL), r"\1"),
    (
        re.compile(r'metadata\["[\w.]+"\]\[\d+\](?:\s*# Metadata omitted[^\n]*?to show it\.)?'),
        "a constant",
    ),
    (re.compile(r"T\.u?int\d+\((-?\d+)\)"), r"\1"),
    (re.compile(r"R\.shape\(\[([^\]]*)\]\)"), r"(\1)"),
)
"""What TVM prints of its own objects in messages, and what people call them."""


@contextmanager
def shield(what: str, reasons: list[str]) -> Iterator[None]:
    """Notes why `what` failed and goes on. Errors of the user's are none of ours and propagate."""
    try:
        yield
    except PlanError as error:
        reasons.append(f"{what}, {error.reason}: {error}")
    except TvmExtError:
        raise
    except Exception as error:
        if flags.strict():
            raise
        reasons.append(f"{what}, internal {type(error).__name__}: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The first line of an error's message that says something."""
    lines = [line.strip() for line in readable(str(error)).splitlines() if line.strip()]
    return lines[0] if lines else "no message"


def readable(message: str) -> str:
    """A message of TVM's with operators by their names, shapes and numbers as Python has them."""
    for printed, called in PRINTED:
        message = printed.sub(called, message)
    return message
