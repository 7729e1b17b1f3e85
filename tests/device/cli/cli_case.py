"""A very small model, tuned once, and what is said of a finished command: for the tests here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_ext.records import Record
from tvm_ext.records.record import decode_line

TRIALS = "9"
SHAPE = ("--shape", "x=1,3,16,16")
DISK_BYTES = 9000
"""Room on the disk where it counts as full: for a few records, for no artifact."""


Command = Callable[..., "subprocess.CompletedProcess[str]"]
"""Runs a verb with its arguments; see the fixture `command`."""


def make_model(path: Path, *extra: onnx.NodeProto) -> Path:
    """Two convolutions, pooling and a dense layer; `x` is (n, 3, 16, 16), `y` is (n, 10)."""
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        scale = np.sqrt(2 / np.prod(shape[1:]))
        data = generator.standard_normal(shape) * scale
        return numpy_helper.from_array(data.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["y"], transB=1),
        *extra,
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, ["n", 10])],
        [
            weight("w0", 8, 3, 3, 3),
            weight("b0", 8),
            weight("w1", 16, 8, 3, 3),
            weight("w2", 10, 256),
            weight("b2", 10),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def record_lines(log: bytes) -> list[bytes]:
    """The lines of a log that are records; others say what their tasks compute."""
    return [line for line in log.splitlines() if isinstance(decode_line(line), Record)]


class Tuned:
    """A tuned model: its log, its artifact and what the command said."""

    def __init__(self, command: Command, model: Path) -> None:
        self.log = model.with_name("a log")
        self.artifact = model.with_name("tuned.so")
        words = (model, *SHAPE, "--trials", TRIALS, "--log", self.log, "-o", self.artifact)
        self.words = words
        self.said = good(command("tune", *words))
        (self.file,) = self.log.glob("*.jsonl")
        self.text = self.file.read_bytes()
        self.lines = record_lines(self.text)


def good(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stderr
    return done


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON object that stands on stdout."""
    found = json.loads(good(done).stdout)
    assert isinstance(found, dict)
    return found


def refused(done: subprocess.CompletedProcess[str], *words: str) -> str:
    """The message of a command that failed as it should."""
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2, done.stderr
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in errors[0]
    return errors[0]
