"""What this machine can run."""

from __future__ import annotations

import pytest

from tvm_ext.hardware import resolve
from tvm_ext.hardware.catalog import get


def skip_unless_it_runs(machine: str) -> None:
    """Skips the test where this host lacks an instruction set of a machine of the catalog."""
    if not set(get(machine).isa) <= set(resolve("cpu").isa):
        pytest.skip(f"this host does not run code for {machine}")
