"""Runs commands as users type them, each in a process of its own, and makes what they work on."""

from __future__ import annotations

import importlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cli_case import DISK_BYTES, SHAPE, Command, Tuned, good, make_model, refused

import tvm_ext


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of every command: no probing, and nothing kept outside the test's folders."""
    root = str(Path(tvm_ext.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    cache = tmp_path_factory.mktemp("cache")
    fixed = {"TVM_EXT_PROBE": "0", "TVM_EXT_CACHE": str(cache), "PYTHONPATH": path}
    return {**os.environ, **fixed}


@pytest.fixture(scope="session")
def command(environment: dict[str, str]) -> Command:
    """Runs a verb and returns the finished process; `full_disk` limits the files it may write."""

    def run(
        verb: str, *arguments: str | Path, full_disk: bool = False, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (DISK_BYTES, DISK_BYTES))
        return subprocess.run(
            [sys.executable, "-m", f"tvm_ext.{verb}", *map(str, arguments)],
            env=environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=300,
            preexec_fn=limit if full_disk else None,
        )

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("a model") / "tiny.onnx")


@pytest.fixture(scope="session")
def artifact(command: Command, model: Path) -> Path:
    """The model compiled without tuning."""
    path = model.with_name("compiled.so")
    good(command("compile", model, *SHAPE, "-o", path))
    return path


@pytest.fixture(scope="session")
def tuned(command: Command, model: Path) -> Tuned:
    return Tuned(command, model)


@pytest.fixture
def refuses(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> Callable[..., None]:
    """Runs a verb that must fail, in this process: for the many errors that are found early."""
    for name in ("TVM_EXT_PROBE", "TVM_EXT_CACHE"):
        monkeypatch.setenv(name, environment[name])

    def run(verb: str, *arguments: str | Path, words: list[str]) -> None:
        main = importlib.import_module(f"tvm_ext.cli.{verb}").main
        code = main([*map(str, arguments)])
        refused(subprocess.CompletedProcess([], code, *capfd.readouterr()), *words)

    return run
