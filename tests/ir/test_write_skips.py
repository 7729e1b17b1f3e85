"""Taps in padding are left out: a branch around a tap's work, tile by tile."""

from __future__ import annotations

import re

import pytest
from funcs import conv_func, prepared_graph

from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.tir import write

BRANCH = re.compile(r"if (.*):")
TAP = re.compile(r"\bk[01]_")


def branches(dilation: int, pad: int, size: int = 33) -> list[str]:
    """The conditions on taps in a written convolution."""
    func = conv_func(size, 64, 64, dilation=dilation, pad=pad)
    plans = pick(prepared_graph(func), get("cpu/x86-avx512"), 8)
    plan = next(one.plan for one in plans if one.plan.rule == "tile")
    return [found for found in BRANCH.findall(write(func, plan).script()) if TAP.search(found)]


def test_taps_far_apart_are_asked_for_by_rows_and_columns() -> None:
    rows, columns = branches(12, 12)
    assert "45" in rows
    assert "45" in columns


@pytest.mark.parametrize(("dilation", "pad", "size"), [(1, 1, 33), (1, 0, 33), (2, 0, 33)])
def test_others_are_not(dilation: int, pad: int, size: int) -> None:
    assert branches(dilation, pad, size) == []
