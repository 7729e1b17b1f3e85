"""The passes that can be imported are those that the documents list, in the order of a compile."""

from __future__ import annotations

import re
from pathlib import Path

from tvm_ext import passes
from tvm_ext.hardware import resolve

DOCUMENT = Path(__file__).parents[2] / "docs" / "passes.md"
LISTED = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)


def test_every_pass_is_listed() -> None:
    classes = [name for name in passes.__all__ if isinstance(getattr(passes, name), type)]
    assert sorted(LISTED) == sorted(classes)


def test_they_are_listed_in_the_order_in_which_they_run() -> None:
    names = [step.info.name for step in passes.graph_passes(resolve("cpu/x86-avx512"))]
    first = [name for name in dict.fromkeys(names) if name in LISTED]
    assert [name for name in LISTED if name in first] == first
