"""What fails in a compile: the next plan is taken, the report says it, or the model is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tvm
from tiny import X, assert_close, reference, saved

import tvm_ext
from tvm_ext import assembly, flow
from tvm_ext.errors import ModelError
from tvm_ext.measure.build import Built
from tvm_ext.measure.job import Failure
from tvm_ext.planner import Planned
from tvm_ext.tvm_api import IRModule, relax


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def no_head_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is made where it can be seen to fail."""
    monkeypatch.setattr(flow.HeadStart, "begin", lambda *_: None)


PASSES = flow.graph_passes


@tvm.transform.module_pass(opt_level=0, name="Broken")
class Broken:
    """A pass with a bug."""

    def transform_module(self, mod: tvm.IRModule, _: object) -> tvm.IRModule:
        raise IndexError("off by one")


def test_a_wrong_kernel_is_replaced(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that fails its check gives way to the next plan, and the report says why."""
    real = assembly.check
    failed: set[str] = set()

    def check(planned: Planned, kernel: object) -> str:
        if "conv2d" in planned.task.kind and planned.task.signature not in failed:
            failed.add(planned.task.signature)
            return "output 0: 1 at 0, the reference says 2 within 1e-6"
        return real(planned, kernel)

    monkeypatch.setattr(assembly, "check", check)
    compiled = tvm_ext.compile(str(model))
    replaced = [group for group in compiled.manifest.groups if group.fallback]
    assert {group.signature for group in replaced} == failed
    assert all("the reference says 2" in group.fallback[0] for group in replaced)
    assert_close(compiled(X), reference(model))


def test_a_kernel_that_is_never_right_ends_the_options_not_the_compile(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last option the function stays as TVM wrote it, and counts as unverified."""
    real = assembly.check

    def check(planned: Planned, kernel: object) -> str:
        return "disagrees" if "conv2d" in planned.task.kind else real(planned, kernel)

    monkeypatch.setattr(assembly, "check", check)
    compiled = tvm_ext.compile(str(model))
    disputed = [group for group in compiled.manifest.groups if not group.verified]
    assert disputed
    assert all(group.source == "none" and "conv2d" in group.kind for group in disputed)
    assert all("disagrees" in group.fallback[-1] for group in disputed)
    assert_close(compiled(X), reference(model))


def assert_one_replaced(model: Path, reason: str) -> None:
    """One kernel gave way to the next plan for that reason, and the model is right."""
    compiled = tvm_ext.compile(str(model))
    replaced = [group for group in compiled.manifest.groups if group.fallback]
    assert len(replaced) == 1
    assert reason in replaced[0].fallback[0]
    assert_close(compiled(X), reference(model))


def test_a_plan_that_cannot_be_compiled_is_replaced(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that TVM refuses gives way to the next plan, and concerns no other."""
    real, refused = assembly.compile_kernel, []

    def compile_kernel(*arguments: Any, **options: Any) -> Built | Failure:
        if not refused:
            refused.append(arguments)
            return Failure("compile", "LLVM says no")
        return real(*arguments, **options)

    monkeypatch.setattr(assembly, "compile_kernel", compile_kernel)
    assert_one_replaced(model, "LLVM says no")


def test_a_plan_whose_machine_code_cannot_be_made_is_replaced(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = assembly.Kernel.of, []

    def kernel(*arguments: Any) -> Any:
        if not refused:
            refused.append(arguments)
            raise RuntimeError("no such instruction")
        return real(*arguments)

    monkeypatch.setattr(assembly.Kernel, "of", staticmethod(kernel))
    assert_one_replaced(model, "no such instruction")


def test_a_function_that_tvm_refuses_in_every_form_is_the_models_error(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = Failure("compile", "LLVM says no")
    monkeypatch.setattr(assembly, "compile_kernel", lambda *_, **__: refusal)
    with pytest.raises(ModelError, match="LLVM says no"):
        tvm_ext.compile(str(model))


def test_an_operator_that_tvm_cannot_lower_is_the_models_error(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said in one line, without a traceback."""

    by_rules = relax.transform.LegalizeOps

    def refuse(mod: IRModule) -> IRModule:
        raise TypeError("Check failed:\n  doubles by floats")

    def legalize(rules: Any = None, skip_ops: Any = None) -> Any:
        return refuse if skip_ops else by_rules(rules)

    monkeypatch.setattr(relax.transform, "LegalizeOps", legalize)
    with pytest.raises(ModelError, match="cannot lower one of its operators: Check failed"):
        tvm_ext.compile(model)


def test_a_failure_of_our_own_is_a_report_line(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass or a picker that fails is left out of a user's compile, and the report says so."""
    from tvm_ext import planner

    def broken(*_: object, **__: object) -> None:
        raise IndexError("off by one")

    monkeypatch.setenv("TVM_EXT_STRICT", "0")
    monkeypatch.setattr(planner, "pick", broken)
    monkeypatch.setattr(flow, "graph_passes", lambda hw, *_, **__: [Broken(), *PASSES(hw)])
    compiled = tvm_ext.compile(str(model))
    assert any(
        "Broken left out" in note and "IndexError" in note for note in compiled.manifest.notes
    )
    assert {group.source for group in compiled.manifest.groups} == {"loose"}
    assert all("off by one" in group.fallback[0] for group in compiled.manifest.groups)
    assert_close(compiled(X), reference(model))


def test_a_failure_of_our_own_propagates_in_tests(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "graph_passes", lambda hw, *_, **__: [Broken()])
    with pytest.raises(IndexError, match="off by one"):
        tvm_ext.compile(str(model))
