"""Models that run where they were compiled share threads of ours (`runtime/launcher.py`)."""

from __future__ import annotations

import ctypes
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

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
    """None is compiled with the VM's code."""
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
    wide = [group for group in model.manifest.groups if group.plan and group.plan.parallel]
    assert len(loops) >= len(wide) > 0


def test_kernels_made_side_by_side_share_one_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them at first use would each have made threads of its own."""
    made, library = [], str(tmp_path / "empty.so")
    source = tmp_path / "empty.c"
    source.write_text("int empty;")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", library], check=True)

    @cache
    def launch() -> int:
        made.append(1)
        time.sleep(0.2)
        return 0

    monkeypatch.setattr(launcher, "_launch", launch)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(launcher.use_own_threads, [Path(library)] * 4))
    assert len(made) == 1


def test_without_a_compiler_they_run_on_the_pool_of_tvm(
    x: np.ndarray, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_launch", lambda: None)
    np.testing.assert_array_equal(tvm_ext.compile(wide_model())(x)[0], expected)


def test_no_compiler_is_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert launcher._launch.__wrapped__() is None
