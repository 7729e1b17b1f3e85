"""Kernels that a process beside the passes compiles: which are taken, and that they are what would
have been made."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest
from tiny import X, tiny_model

from tvm_ext import flow, head_start
from tvm_ext.head_start import Ahead, HeadStart
from tvm_ext.measure.build import Built, build
from tvm_ext.runtime import kernel
from tvm_ext.tvm_api import Target

ONE, TWO = Ahead("one", "abc", b"x" * 100_000), Ahead("two", "def", b"y")


class Patient(HeadStart):
    """One that lets its process come to an end."""

    def end(self) -> None:
        for child in self._files:
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        super().end()


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_start, "physical_cores", lambda: 2)


@pytest.mark.parametrize("cores", [2, 3, 64])
def test_what_is_finished_is_taken_once_by_name_and_hash(
    monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(head_start, "physical_cores", lambda: cores)
    with Patient() as ahead:
        ahead.begin(lambda first, step: [ONE, TWO][first::step])
    assert ahead.taken("one", "def") == b""
    assert ahead.taken("one", "abc") == ONE.code
    assert ahead.taken("one", "abc") == b""
    assert ahead.taken("two", "def") == b"y"


def test_what_is_not_finished_is_given_up() -> None:
    def work(*_: int) -> Iterator[Ahead]:
        yield ONE
        time.sleep(600)
        yield TWO

    started = time.monotonic()
    with HeadStart() as ahead:
        ahead.begin(work)
        while os.fstat(*ahead._files.values()).st_size <= len(ONE.code):
            assert time.monotonic() - started < 60
            time.sleep(0.01)
    assert time.monotonic() - started < 60
    assert ahead.taken("one", "abc") == ONE.code
    assert ahead.taken("two", "def") == b""


def test_a_kernel_cut_short_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda file, data: os.pwrite(file, data[:-1], 0))
    with Patient() as ahead:
        ahead.begin(lambda *_: [ONE])
    assert ahead.taken("one", "abc") == b""


def test_what_fails_there_leaves_what_was_done(capfd: pytest.CaptureFixture[str]) -> None:
    def work(*_: int) -> Iterator[Ahead]:
        yield TWO
        print("to nobody", flush=True)
        raise ValueError("told when it fails here")

    with Patient() as ahead:
        ahead.begin(work)
    assert ahead.taken("two", "def") == b"y"
    assert capfd.readouterr() == ("", "")


def test_one_core_has_no_head_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_start, "physical_cores", lambda: 1)
    with HeadStart() as ahead:
        ahead.begin(lambda *_: [ONE])
        assert not ahead._files
    assert ahead.taken("one", "abc") == b""


@pytest.mark.parametrize("call", ["fork", "memfd_create"])
def test_a_system_that_allows_no_more_is_no_error(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object) -> int:
        raise BlockingIOError("resource temporarily unavailable")

    monkeypatch.setattr(os, call, refuse)
    open_files = len(os.listdir("/proc/self/fd"))
    with HeadStart() as ahead:
        ahead.begin(lambda *_: [ONE])
    assert ahead.taken("one", "abc") == b""
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_a_compile_takes_what_would_have_been_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, bytes] = {}
    linked = kernel.Kernel.linked

    def noted(code: bytes, name: str) -> kernel.Kernel | None:
        made[name] = code
        return linked(code, name)

    monkeypatch.setattr(kernel.Kernel, "linked", staticmethod(noted))
    monkeypatch.setattr(flow, "HeadStart", Patient)
    ahead = flow.compile(tiny_model())
    assert len(made) == len(ahead.manifest.groups)

    monkeypatch.setattr(HeadStart, "begin", lambda *_: None)
    plain = flow.compile(tiny_model())
    assert plain.manifest == ahead.manifest
    np.testing.assert_array_equal(ahead(x=X)[0], plain(x=X)[0])

    lowered = flow.lower(tiny_model(), "cpu", None, None)
    for planned in flow.plan_all(lowered, None):
        name = planned.task.name
        if name in made:
            built = build(planned.func, Target(lowered.hardware.target), name, run=False)
            assert isinstance(built, Built)
            assert kernel.object_file(built.module) == made[name]
