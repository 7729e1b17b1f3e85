"""Models that run where they were compiled share threads of ours (`runtime/launcher.py`)."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from test_launch import wide_model

import tvm_ext
from tvm_ext.hardware import physical_cores
from tvm_ext.runtime import launcher

pytestmark = pytest.mark.skipif(physical_cores() < 2, reason="loops of one core are not parallel")


class Group(ctypes.Structure):
    """What a part is told of its loop."""

    _fields_ = (("sync_handle", ctypes.c_void_p), ("num_task", ctypes.c_int32))


Part = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(Group), ctypes.c_void_p)
Launch = ctypes.CFUNCTYPE(ctypes.c_int, Part, ctypes.c_void_p, ctypes.c_int)


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, 32, 40, 40), dtype="float32")


@pytest.fixture(scope="module")
def expected(x: np.ndarray) -> np.ndarray:
    return tvm_ext.compile(wide_model())(x)[0]


def test_every_kernel_calls_the_launcher(
    x: np.ndarray, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model with one kernel as well: none is compiled with the VM's code."""
    loops = []

    def launch(part: Part, data: int, parts: int) -> int:
        count = parts or 2
        loops.append(count)
        group = Group(None, count)
        return int(any(part(number, ctypes.byref(group), data) for number in range(count)))

    callback = Launch(launch)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    monkeypatch.setattr(launcher, "_launch", lambda: address)
    model = tvm_ext.compile(wide_model())
    loops.clear()
    np.testing.assert_array_equal(model(x)[0], expected)
    wide = [group for group in model.manifest.groups if "par" in str(group.plan)]
    assert len(loops) >= len(wide) > 0


def test_without_a_compiler_they_run_on_the_pool_of_tvm(
    x: np.ndarray, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_launch", lambda: None)
    np.testing.assert_array_equal(tvm_ext.compile(wide_model())(x)[0], expected)


def test_no_compiler_is_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert launcher._launch.__wrapped__() is None
