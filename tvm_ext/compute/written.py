"""What kernels that are written loop by loop are written with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tvm_ext.compute.maths import integer
from tvm_ext.tvm_api import Build, tirx

Expr = Any


def times(count: Any, *, parallel: bool = False) -> AbstractContextManager[Expr]:
    """A loop of so many steps, a number or an expression, which cores may share out."""
    steps = integer(count) if isinstance(count, int) else count
    return (Build.parallel if parallel else Build.serial)(integer(0), steps)


def length_of_part(begin: Expr, part: int, whole: int) -> Expr:
    """Elements of the part that begins there: the last is shorter, or has none."""
    return tirx.max(tirx.min(integer(part), integer(whole) - begin), integer(0))


def by_vectors(count: int, lanes: int, each: Callable[[Expr], None]) -> None:
    """Does something at vectors of places, and at what is left one by one."""
    whole = count // lanes * lanes
    with times(whole // lanes) as step:
        each(tirx.Ramp(step * lanes, integer(1), lanes))
    with times(count - whole) as step:
        each(step + whole)


def alike(place: Expr, value: Expr) -> Expr:
    """A value for every one of some places."""
    return tirx.Broadcast(value, place.lanes) if isinstance(place, tirx.Ramp) else value
