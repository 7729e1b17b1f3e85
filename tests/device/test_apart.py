"""Kernels that end the process that runs them, and those that write beside their outputs: replaced,
as wrong ones are."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crashing import HANGING, with_a_crash
from tiny import X, assert_close, reference, saved

import tvm_ext
from tvm_ext import assembly
from tvm_ext.runtime.child import in_child
from tvm_ext.runtime.margin import MARGIN_BYTES, Output


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("model"))


def test_a_kernel_that_crashes_is_replaced(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_EXT_APART", "1")
    monkeypatch.setattr(assembly.Checker, "compile", with_a_crash)
    compiled = tvm_ext.compile(str(model))
    replaced = [group for group in compiled.manifest.groups if group.fallback]
    assert replaced
    assert all("conv2d" in group.kind and group.verified for group in replaced)
    assert all("ended by SIGSEGV" in group.fallback[0] for group in replaced)
    assert_close(compiled(X), reference(model))


@pytest.mark.parametrize(("hanging", "ended_by"), [("", "SIGSEGV"), ("1", "SIGALRM")])
def test_the_command_finds_out_by_itself(
    model: Path, tmp_path: Path, hanging: str, ended_by: str
) -> None:
    script = Path(__file__).parent / "crashing.py"
    words = [sys.executable, str(script), str(model), "-o", str(tmp_path / "tiny.so"), "--json"]
    env = os.environ | {HANGING: hanging}
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert f"{ended_by}; once more" in done.stderr
    answer = json.loads(done.stdout)
    assert answer["verified"] == sum(answer["kernels"].values())
    assert_close(tvm_ext.load(tmp_path / "tiny.so")(X), reference(model))


def test_a_kernel_that_writes_behind_its_output_is_replaced(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = assembly.Checker.compile

    def compile(checker: assembly.Checker, entry: Any) -> Any:
        built = real(checker, entry)

        def overrun(*tensors: Any) -> None:
            built.main(*tensors)
            ctypes.memset(tensors[-1].data_ptr() + tensors[-1].numpy().nbytes, 0, 8)

        spoilt = "conv2d" in entry.task.kind and not entry.reasons
        return replace(built, main=overrun) if spoilt else built

    monkeypatch.setattr(assembly.Checker, "compile", compile)
    compiled = tvm_ext.compile(str(model))
    replaced = [group.fallback[0] for group in compiled.manifest.groups if group.fallback]
    assert replaced
    assert all("writes up to 8 bytes behind its output" in reason for reason in replaced)
    assert_close(compiled(X), reference(model))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64", "bool"])
def test_margins_of_an_output(dtype: str) -> None:
    output = Output.of((3, 5), dtype)
    size_bytes = output.numpy().nbytes
    assert output.tensor.data_ptr() % 64 == 0
    assert not output.overrun()
    ctypes.memset(output.tensor.data_ptr(), 0, size_bytes)
    assert not output.overrun()
    assert not output.numpy().any()
    ctypes.memset(output.tensor.data_ptr() + size_bytes + 4, 0, 2)
    assert output.overrun() == "writes up to 6 bytes behind its output"
    ctypes.memset(output.tensor.data_ptr() - MARGIN_BYTES, 0, 1)
    assert output.overrun() == f"writes up to {MARGIN_BYTES} bytes before its output"


def test_an_output_of_a_type_that_numpy_lacks() -> None:
    assert np.isnan(Output.of((3,), "bfloat16").numpy().astype("float32")).all()


def test_what_a_child_says() -> None:
    def divide() -> str:
        return str(1 // 0)

    def hang() -> str:
        while True:
            pass

    def crash() -> str:
        os.write(2, b"free(): invalid pointer\n")
        return str(os.kill(os.getpid(), signal.SIGABRT))

    assert in_child(lambda: "") == in_child(lambda: None) == ""
    assert in_child(lambda: "off by one") == "off by one"
    assert in_child(divide) == "integer division or modulo by zero"
    assert in_child(hang, 0.2) == "did not return within 0.2 s"
    assert in_child(crash) == "free(): invalid pointer, ended by SIGABRT"
