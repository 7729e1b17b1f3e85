"""The checks for a CUDA device, on an emulator of one: TVM's CUDA code, launches, memory and all.

What it sees that threads run in turn (`test_gpu_on_cpu`) do not: missing barriers, copies that are
not waited for, vectors that TVM writes wrong, and what loads, moves and launches.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from emulator import COMPILER, emulated

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds the emulator."""
    if COMPILER is None:
        pytest.skip("the emulator takes g++")
    return {**os.environ, **emulated(tmp_path_factory.mktemp("emulator"))}


@pytest.mark.parametrize("checks", sorted(path.name for path in (ROOT / "tests/gpu").glob("*.py")))
def test_the_gpu_checks_pass(checks: str, env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"tests/gpu/{checks}"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


RACE = """
extern "C" __global__ void __launch_bounds__(64) shift_kernel(float* __restrict__ y, float* x) {
  __shared__ alignas(64) float row[64];
  row[(int)threadIdx.x] = x[(int)threadIdx.x];
  BARRIER
  y[(int)threadIdx.x] = row[63 - (int)threadIdx.x];
}
"""
LAUNCH = """
import ctypes, sys
import numpy as np
cuda = ctypes.CDLL("libcuda.so.1")
module, function = ctypes.c_void_p(), ctypes.c_void_p()
image = open(sys.argv[1], "rb").read()
assert cuda.cuModuleLoadData(ctypes.byref(module), image) == 0
assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"shift_kernel") == 0
x, y = np.arange(64, dtype="float32"), np.full(64, -1, "float32")
places = [ctypes.c_void_p(array.ctypes.data) for array in (y, x)]
given = (ctypes.c_void_p * 2)(*(ctypes.addressof(place) for place in places))
config = (ctypes.c_uint32 * 16)(1, 1, 1, 64, 1, 1)
assert cuda.cuLaunchKernelEx(config, function, given, None) == 0
print(np.array_equal(y, x[::-1]))
"""


@pytest.mark.parametrize("barrier", [True, False])
def test_a_missing_barrier_shows(barrier: bool, env: dict[str, str], tmp_path: Path) -> None:
    source, made = tmp_path / "shift.cu", tmp_path / "shift.fatbin"
    code = RACE.replace("BARRIER", "__syncthreads();" if barrier else "")
    source.write_text("#include <cuda.h>\n" + code)
    subprocess.run(["nvcc", "-o", made, source], env=env, check=True)
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, made], env=env, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(barrier)
