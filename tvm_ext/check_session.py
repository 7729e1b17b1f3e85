"""`Session`: ONNX Runtime at work on one input, in a process of its own.

Its threads must not live in this process: a forked child that exits would wait for them. What else
there is to do may be done meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

_PROGRAM = """
import json, sys
import numpy, onnxruntime
model, given, results, names, level = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
options.log_severity_level = 3
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
arrays = numpy.load(given)
feed = {name: arrays[f"arr_{place}"] for place, name in enumerate(json.loads(names))}
numpy.savez(results, *session.run(None, feed))
"""
FILES = ("model.onnx", "given.npz", "results.npz")


class Session:
    """Begins to run a model.

    model     its path, or an onnx.ModelProto
    feed      inputs by name
    rewrites  whether its graph rewrites are on
    """

    def __init__(self, model: Any, feed: dict[str, np.ndarray], rewrites: bool = False) -> None:
        self._held = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        level = "ORT_ENABLE_ALL" if rewrites else "ORT_DISABLE_ALL"
        try:
            room = tempfile.TemporaryDirectory(prefix="tvm_ext-check-")
            folder = Path(self._held.enter_context(room))
            path, given, self._results = (folder / name for name in FILES)
            if isinstance(model, str | os.PathLike):
                path = Path(model)
            else:
                path.write_bytes(model.SerializeToString())
            np.savez(given, *feed.values())
            words = [path, given, self._results, json.dumps([*feed]), level]
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *map(str, words)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except (OSError, ValueError, EncodeError):  # no room for them, or for the model in one
            return

    def outputs(self) -> list[Any] | None:
        """Its outputs, when they are there; None if it cannot run the model."""
        if self._process is None or self._process.wait():
            return None
        try:
            with np.load(self._results) as saved:
                return [saved[f"arr_{place}"] for place in range(len(saved.files))]
        except (OSError, ValueError):
            return None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._held.close()
