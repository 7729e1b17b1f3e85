"""Weights behind the artifact's code: the same results, each kept once, and a light loader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvm_ext
from tvm_ext.errors import ArtifactError
from tvm_ext.runtime.executor import Compiled
from tvm_ext.runtime.weights import LEAST_BYTES, SHARE

SIDE, ROWS = 160, 3
"""A square matrix of float32 that is large enough to be moved."""


def model(words: int = 500) -> onnx.ModelProto:
    """x [3, 160] -> relu(x w) w + table[ids], and the large constant `fixed` as it is."""
    rng = np.random.default_rng(0)

    def weight(name: str, array: np.ndarray) -> onnx.TensorProto:
        return numpy_helper.from_array(array, name)

    square = (rng.standard_normal((SIDE, SIDE)) / np.sqrt(SIDE)).astype("float32")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["first"]),
        helper.make_node("Relu", ["first"], ["positive"]),
        helper.make_node("MatMul", ["positive", "w"], ["second"]),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Add", ["second", "rows"], ["y"]),
        helper.make_node("Identity", ["fixed"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "weights",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, SIDE]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, [ROWS]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, SIDE]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [SIDE, SIDE]),
        ],
        [
            weight("w", square),
            weight("table", rng.standard_normal((words, SIDE)).astype("float32")),
            weight("fixed", rng.standard_normal((SIDE, SIDE)).astype("float32")),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = np.random.default_rng(1).standard_normal((ROWS, SIDE), dtype="float32")
IDS = np.array([7, 0, 499])


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return tvm_ext.compile(model())


@pytest.fixture(scope="module")
def artifact(compiled: Compiled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled.save(tmp_path_factory.mktemp("weights") / "model.so")


def test_large_weights_are_moved_once_each_and_returned_ones_stay(compiled: Compiled) -> None:
    assert compiled._parts is not None
    weights = compiled._parts().weights
    assert SIDE * SIDE * 4 >= LEAST_BYTES
    assert sorted(array.size for array in weights) == [SIDE * SIDE, 500 * SIDE]


def test_the_artifact_computes_what_was_compiled(compiled: Compiled, artifact: Path) -> None:
    loaded = tvm_ext.load(artifact)
    for ours, expected in zip(loaded(x=X, ids=IDS), compiled(x=X, ids=IDS), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_stock_tvm_runs_it_from_many_threads(compiled: Compiled, artifact: Path) -> None:
    """The views of the weights are made at the first use, which threads may race for."""
    expected = compiled(x=X, ids=IDS)[0]

    def run(_: int) -> np.ndarray:
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(artifact)), tvm.cpu())
        result: np.ndarray = machine["main"](tvm.runtime.tensor(X), tvm.runtime.tensor(IDS))[
            0
        ].numpy()
        return result

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(run, range(8)):
            np.testing.assert_array_equal(found, expected)


def test_an_artifact_that_lost_its_weights_is_refused(artifact: Path, tmp_path: Path) -> None:
    for name, kept in (("cut", -1), ("stripped", -500 * SIDE * 4)):
        short = tmp_path / f"{name}.so"
        short.write_bytes(artifact.read_bytes()[:kept])
        with pytest.raises(ArtifactError, match="weights are missing"):
            tvm_ext.load(short)
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(short)), tvm.cpu())
        with pytest.raises(RuntimeError, match="weights are missing"):
            machine["main"](tvm.runtime.tensor(X), tvm.runtime.tensor(IDS))


def test_weights_are_found_from_another_folder(
    compiled: Compiled, artifact: Path, tmp_path: Path
) -> None:
    """A path that is relative when the artifact is loaded is looked at then."""
    (tmp_path / "model.so").write_bytes(artifact.read_bytes())
    np.savez(tmp_path / "x.npz", x=X, ids=IDS)
    command = [sys.executable, "-c", ELSEWHERE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == compiled(x=X, ids=IDS)[0].tolist()


WHERE = """
import json, sys
import numpy as np
import tvm_ext
loaded = tvm_ext.load(sys.argv[1])
given = np.load(sys.argv[2])
y = loaded(x=given["x"], ids=given["ids"])[0].tolist()
found = []
for line in open("/proc/self/smaps"):
    word, *rest = line.split()
    if "-" in word:
        name = line
    elif word == "Size:":
        size_kb = int(rest[0])
    elif word == "VmFlags:" and size_kb > 6000:
        found.append((sys.argv[1] in name, "hg" in rest))
print(json.dumps([y, any(own for own, _ in found), any(huge for _, huge in found)]))
"""
MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not MODES.exists() or "[never]" in MODES.read_text(), reason="no large pages here"
)
@pytest.mark.parametrize("shared", [False, True])
def test_weights_are_read_into_large_pages_or_mapped(shared: bool, tmp_path: Path) -> None:
    compiled = tvm_ext.compile(model(10_000))
    artifact = compiled.save(tmp_path / "model.so")
    np.savez(tmp_path / "x.npz", x=X, ids=IDS)
    command = [sys.executable, "-c", WHERE, str(artifact), str(tmp_path / "x.npz")]
    environment = os.environ | ({SHARE: "1"} if shared else {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    y, mapped, large = json.loads(done.stdout)
    assert y == compiled(x=X, ids=IDS)[0].tolist()
    assert (mapped, large) == (shared, not shared)


ELSEWHERE = """
import json, os
import numpy as np
import tvm
from tvm import relax
x = np.load("x.npz")
machine = relax.VirtualMachine(tvm.runtime.load_module("./model.so"), tvm.cpu())
os.chdir("/")
print(json.dumps(machine["main"](*map(tvm.runtime.tensor, (x["x"], x["ids"])))[0].numpy().tolist()))
"""


LIGHT = """
import json, sys
import numpy as np
import tvm_ext
loaded = tvm_ext.load(sys.argv[1])
x = np.load(sys.argv[2])
before = loaded(x["x"], x["ids"])[0].tolist()
modules = [name for name in ("tvm", "onnx", "xgboost", "torch", "scipy") if name in sys.modules]
import tvm  # the compiler can still come, and find the runtime library loaded
after = tvm.runtime.load_module(sys.argv[1])
from tvm import relax
machine = relax.VirtualMachine(after, tvm.cpu())
again = machine["main"](tvm.runtime.tensor(x["x"]), tvm.runtime.tensor(x["ids"]))[0].numpy()
print(json.dumps([modules, before, again.tolist()]))
"""


def test_running_an_artifact_loads_neither_compiler_nor_torch(
    compiled: Compiled, artifact: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", x=X, ids=IDS)
    command = [sys.executable, "-c", LIGHT, str(artifact), str(tmp_path / "x.npz")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    modules, before, after = json.loads(done.stdout.splitlines()[-1])
    assert modules == []
    assert before == after == compiled(x=X, ids=IDS)[0].tolist()
