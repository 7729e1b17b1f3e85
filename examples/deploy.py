"""Runs an artifact with stock TVM alone: this file does not import tvm_ext.

python -m tvm_ext.compile model.onnx -o model.so
python examples/deploy.py model.so input.npy
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TVM_NUM_THREADS", str(len(os.sched_getaffinity(0))))  # before tvm starts

import numpy as np
import tvm
from tvm import relax


def main(artifact: str, *inputs: str) -> list[np.ndarray]:
    """Loads the artifact and runs it once on arrays saved by numpy.save, in model order."""
    module = tvm.runtime.load_module(artifact)
    machine = relax.VirtualMachine(module, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(np.load(path)) for path in inputs))
    outputs = [result] if hasattr(result, "numpy") else list(result)
    return [output.numpy() for output in outputs]


if __name__ == "__main__":
    for output in main(*sys.argv[1:]):
        print(output.shape, output.dtype, output.reshape(-1)[:5])
