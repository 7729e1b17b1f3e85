"""A kernel's machine code is made once, runs here, and is what an artifact is linked from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.runtime import kernel
from tvm_ext.tvm_api import Target, te, tvm

X = np.arange(8, dtype=np.float32)


@pytest.fixture(scope="module")
def compiled() -> Any:
    x = te.placeholder(X.shape, "float32")
    func = te.create_prim_func([x, te.compute(X.shape, lambda i: te.sin(x[i]) * 2)])
    built = build(func, Target(resolve("cpu").target), "twice", run=False)
    assert isinstance(built, Built), built
    return built.module


def result(made: kernel.Kernel) -> np.ndarray:
    out = tvm.runtime.tensor(np.zeros_like(X))
    made.main(tvm.runtime.tensor(X), out)
    return np.asarray(out.numpy())


def test_the_code_that_runs_is_the_object_files(compiled: Any) -> None:
    """Linked as it is, an undefined function of the mathematical library with it."""
    made = kernel.Kernel.of(compiled, "twice", run=True)
    assert made.code.startswith(b"\x7fELF")
    assert made.module.kind == "library"
    np.testing.assert_allclose(result(made), 2 * np.sin(X), rtol=1e-6)


@pytest.mark.parametrize("linker", [None, "/bin/false", "/nowhere/ld"])
def test_without_a_linker_llvm_makes_the_code_again(
    compiled: Any, monkeypatch: pytest.MonkeyPatch, linker: str | None
) -> None:
    monkeypatch.setattr(kernel, "_linker", lambda: linker)
    made = kernel.Kernel.of(compiled, "twice", run=True)
    assert made.module.kind == "llvm"
    np.testing.assert_allclose(result(made), 2 * np.sin(X), rtol=1e-6)


def test_where_files_are_limited_the_object_is_made_when_it_is_written(
    compiled: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Files in memory are limited too, and LLVM would end the process."""
    monkeypatch.setattr(kernel.resource, "getrlimit", lambda _: (4096, 4096))
    made = kernel.Kernel.of(compiled, "twice", run=True)
    assert not made.code
    np.testing.assert_allclose(result(made), 2 * np.sin(X), rtol=1e-6)
    monkeypatch.undo()
    made.write(tmp_path / "limited.o")
    kernel.Kernel.of(compiled, "twice", run=True).write(tmp_path / "free.o")
    assert (tmp_path / "limited.o").read_bytes() == (tmp_path / "free.o").read_bytes()


def test_code_for_another_machine_is_not_loaded(compiled: Any) -> None:
    made = kernel.Kernel.of(compiled, "twice", run=False)
    assert made.main is None
    assert made.code


def test_a_kernels_name_may_be_longer_than_a_files() -> None:
    x = te.placeholder(X.shape, "float32")
    func = te.create_prim_func([x, te.compute(X.shape, lambda i: te.sin(x[i]) * 2)])
    name = "fused" + "_sin_multiply" * 40
    built = build(func, Target(resolve("cpu").target), name, run=False)
    assert isinstance(built, Built), built
    made = kernel.Kernel.of(built.module, name, run=True)
    assert made.code
    np.testing.assert_allclose(result(made), 2 * np.sin(X), rtol=1e-6)
