"""Failures of our own: in a user's compile a line of the report, in tests an exception."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvm_ext import flags
from tvm_ext.errors import PlanError, TvmExtError


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
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else "no message"
