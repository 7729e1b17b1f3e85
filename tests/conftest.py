"""Settings every test runs under: nothing measured, a cache of its own, no competing threads."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

CACHE = tempfile.TemporaryDirectory(prefix="tvm_ext_tests_")

# Before anything is imported: TVM reads its thread count once, when its pool starts.
os.environ["TVM_EXT_PROBE"] = "0"
os.environ["TVM_EXT_STRICT"] = "1"
os.environ["TVM_EXT_CACHE"] = CACHE.name
os.environ["TVM_NUM_THREADS"] = "2"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# Helpers shared by test folders lie beside the tests that own them.
FOLDERS = ("pure", "ir", "device", "emulator")
sys.path[:0] = [str(Path(__file__).parent / folder) for folder in FOLDERS]

import pytest  # noqa: E402

from tvm_ext.hardware.model import HardwareModel  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the files under tests/golden"
    )
    parser.addoption(
        "--random-graphs", type=int, default=24, metavar="N", help="graphs of test_random_graphs.py"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten rather than compared with."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(params=["cpu/x86-avx512", "cpu/x86-avx2"])
def hardware(request: pytest.FixtureRequest) -> HardwareModel:
    """A catalog machine; tests that take it run once on each."""
    from tvm_ext.hardware import get

    return get(request.param)
