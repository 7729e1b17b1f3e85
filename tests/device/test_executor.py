"""How arrays are handed to a model and come back: not copied where nothing can go wrong."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import make_model, value

import tvm_ext
from tvm_ext.errors import ArtifactError
from tvm_ext.runtime import executor
from tvm_ext.runtime.executor import Compiled
from tvm_ext.runtime.machine import LARGE_BYTES, silence

ROWS, COLUMNS = 128, 192
CONSTANT = np.full((ROWS, COLUMNS), 7, np.float32)
X = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), dtype=np.float32)


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    """Outputs: made by a kernel; the same once more; the input itself; a constant; small."""
    assert X.nbytes >= LARGE_BYTES
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale"], ["norm"]),
        helper.make_node("Identity", ["norm"], ["again"]),
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["c"], ["constant"]),
        helper.make_node("ReduceMax", ["x"], ["small"], axes=[1]),
    ]
    names = ["norm", "again", "same", "constant", "small"]
    constants = {"scale": np.ones(COLUMNS, np.float32), "c": CONSTANT}
    model = make_model(nodes, [value("x", ROWS, COLUMNS)], names, constants)
    return tvm_ext.compile(model)


def expected(x: np.ndarray) -> list[np.ndarray]:
    centred = x - x.mean(1, keepdims=True)
    norm = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    return [norm, norm, x, CONSTANT, x.max(1, keepdims=True)]


def assert_right(outputs: list[np.ndarray], x: np.ndarray) -> None:
    for output, wanted in zip(outputs, expected(x), strict=True):
        np.testing.assert_allclose(output, wanted, atol=1e-5)


def at_offset(array: np.ndarray, offset: int) -> np.ndarray:
    """The array `offset` bytes behind the begin of a cache line."""
    room = np.zeros(array.nbytes + 128, np.uint8)
    begin = -room.ctypes.data % 64 + offset
    moved = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


@pytest.mark.parametrize("offset", [0, 4, 16, 33])
def test_inputs_may_begin_anywhere(compiled: Compiled, offset: int) -> None:
    moved = at_offset(X, offset)
    assert moved.ctypes.data % 64 == offset
    assert_right(compiled(moved), X)


def test_inputs_may_be_read_only_or_have_gaps(compiled: Compiled) -> None:
    fixed = X.copy()
    fixed.flags.writeable = False
    assert_right(compiled(fixed), X)
    assert_right(compiled(np.repeat(X, 2, axis=1)[:, ::2]), X)
    assert_right(compiled(np.asfortranarray(X)), X)


def test_an_axis_of_one_element_may_have_any_stride() -> None:
    """numpy takes it for contiguous all the same."""
    node = helper.make_node("Softmax", ["x"], ["y"])
    compiled = tvm_ext.compile(make_model([node], [value("x", 1, ROWS, COLUMNS)], ["y"]))
    every_other = np.stack([X, X, X])[::2][:1]
    assert every_other.flags.c_contiguous
    assert every_other.strides[0] == 2 * X.nbytes
    np.testing.assert_array_equal(compiled(every_other)[0], compiled(X[None].copy())[0])


def test_an_artifact_that_sorts_needs_no_compiler(tmp_path: Path) -> None:
    """What TVM sorts with is in a runtime library of its own."""
    node = helper.make_node("TopK", ["x", "k"], ["top", "places"], axis=-1)
    outputs = ["top", value("places", ROWS, 5, dtype=TensorProto.INT64)]
    model = make_model([node], [value("x", ROWS, COLUMNS)], outputs, {"k": np.array([5])})
    path = tvm_ext.compile(model).save(tmp_path / "top.so")
    np.save(tmp_path / "x.npy", X)
    script = (
        "import sys, numpy, tvm_ext\n"
        f"top, places = tvm_ext.load({str(path)!r})(numpy.load({str(tmp_path / 'x.npy')!r}))\n"
        f"numpy.save({str(tmp_path / 'top.npy')!r}, top)\n"
        "assert 'tvm' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "top.npy"), -np.sort(-X, axis=1)[:, :5])


def test_outputs_are_the_callers_alone(compiled: Compiled) -> None:
    """Whatever is written into them, inputs, constants, other outputs and later runs stay."""
    x = X.copy()
    first = compiled(x)
    for one, other in pairwise(first):
        assert not np.shares_memory(one, other)
    for output in first:
        assert output.flags.writeable
        output[...] = -1
    np.testing.assert_array_equal(x, X)
    second = compiled(x)
    assert_right(second, X)
    third = compiled(2 * X)
    assert_right(second, X)
    assert_right(third, 2 * X)


def test_the_manifest_says_which_outputs_are_made_anew(compiled: Compiled) -> None:
    assert compiled.manifest.anywhere
    assert compiled.manifest.own_outputs == (0, 4)


def test_threads_take_turns(compiled: Compiled) -> None:
    """All use one virtual machine, whose registers and activations are its own."""
    inputs = [X + place for place in range(4)]

    def called(x: np.ndarray) -> None:
        for _ in range(50):
            assert_right(compiled(x), x)
        compiled.seconds(x, repeats=5)
        compiled.profile(x, runs=2)

    with ThreadPoolExecutor(len(inputs)) as pool:
        list(pool.map(called, inputs))


def test_threads_that_silence_tvm_leave_stderr_as_it_was() -> None:
    before = os.fstat(2)

    def silent(_: int) -> None:
        for _ in range(100):
            with silence():
                pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(silent, range(4)))
    assert os.path.samestat(before, os.fstat(2))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_cannot_be_copied_says_what_can(compiled: Compiled, copied: object) -> None:
    assert callable(copied)
    with pytest.raises(ArtifactError, match=r"save\(path\).*tvm_ext\.load\(path\)"):
        copied(compiled)


def needing(compiled: Compiled, *features: str, instruction: str = "fma") -> Compiled:
    """The model as if it were compiled for a CPU with more, its kernels for an instruction."""
    replace, manifest = msgspec.structs.replace, compiled.manifest
    groups = [
        replace(group, plan=replace(group.plan, instruction=instruction)) if group.plan else group
        for group in manifest.groups
    ]
    isa = (*manifest.isa, *features)
    return Compiled(compiled._module, replace(manifest, groups=tuple(groups), isa=isa))


def test_what_this_cpu_lacks_is_named(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before an instruction that it does not know ends the process."""
    with pytest.raises(ArtifactError, match="a CPU with avx1024f, which this one lacks"):
        needing(compiled, "avx1024f")(X)
    less = tuple(name for name in compiled.manifest.isa if not name.startswith("amx"))
    monkeypatch.setattr(executor, "cpu_features", lambda: less)
    assert_right(needing(compiled, "amx-int8")(X), X)
    with pytest.raises(ArtifactError, match="amx-int8"):
        needing(compiled, "amx-int8", instruction="amx")(X)


def test_where_the_system_tells_no_features_it_is_tried(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "cpu_features", lambda: ())
    assert_right(needing(compiled, "avx1024f")(X), X)
