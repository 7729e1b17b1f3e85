"""The whole model against another engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import make_model, value
from tiny import tiny_model

import tvm_ext
from tvm_ext import check
from tvm_ext.errors import ModelError, VerifyError
from tvm_ext.frontend.from_onnx import TensorInfo
from tvm_ext.runtime.executor import Compiled


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return tvm_ext.compile(tiny_model())


def test_against_onnxruntime(compiled: Compiled, tmp_path: Path) -> None:
    onnx.save(tiny_model(), str(tmp_path / "tiny.onnx"))
    for model in (tiny_model(), str(tmp_path / "tiny.onnx"), tmp_path / "tiny.onnx"):
        result = tvm_ext.check_model(compiled, model)
        assert result is not None
        assert result.engine == "ONNX Runtime"
        assert 0 < result.error < 1e-5


def test_without_onnxruntime(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "find_spec", lambda _: None)
    assert tvm_ext.check_model(compiled, tiny_model()) is None
    result = tvm_ext.check_model(compiled, tiny_model(), reference=True)
    assert result is not None
    assert "reference" in result.engine
    assert result.error < 1e-5


def test_without_room_for_what_the_engine_is_given(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not compared, and no error: neither is the model's fault."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    begun = check.begin(compiled, tiny_model())
    assert begun is not None
    with begun:
        assert begun.outputs() is None
    assert tvm_ext.check_model(compiled, tiny_model()) is None


def test_another_model_is_told_apart(compiled: Compiled) -> None:
    with pytest.raises(VerifyError, match="output 'probabilities': differs from ONNX Runtime"):
        tvm_ext.check_model(compiled, tiny_model(seed=1))


@pytest.mark.parametrize(
    ("name", "columns", "outputs", "words"),
    [
        ("z", 4, 1, "it has no input 'x'"),
        ("x", 5, 1, r"its input 'x' has the shape \[3, 5\], not \[3, 4\]"),
        ("x", 4, 2, "it has 2 outputs, not 1"),
    ],
)
def test_a_model_that_was_not_compiled(name: str, columns: int, outputs: int, words: str) -> None:
    def model(name: str, columns: int, outputs: int) -> onnx.ModelProto:
        names = [f"y{place}" for place in range(outputs)]
        nodes = [onnx.helper.make_node("Relu", [name], [output]) for output in names]
        return make_model(nodes, [value(name, 3, columns)], names)

    compiled = tvm_ext.compile(model("x", 4, 1))
    with pytest.raises(ModelError, match=f"is not the one that was compiled, {words}"):
        tvm_ext.check_model(compiled, model(name, columns, outputs))


def test_distances() -> None:
    y = np.array([1.0, -4.0, np.nan, np.inf], "float32")
    assert check.distance(y, y) == 0.0
    assert check.distance(y + np.float32(1), y) == 0.25
    assert check.distance(np.zeros(4, "float32"), y) == float("inf")
    assert check.distance(y[:2], y) == float("inf")
    assert check.distance(np.zeros(0, "float32"), np.zeros(0, "float32")) == 0.0
    assert check.distance(np.arange(3), np.arange(3)) == 0.0
    assert check.distance(np.arange(3), np.zeros(3, int)) == float("inf")
    assert check.distance(np.zeros(2, "float32"), np.zeros(2, "float32")) == 0.0


def test_a_few_elements_more_are_not_compared() -> None:
    """Where data say how many there are, rounding may decide of one or two."""
    outputs = [TensorInfo("rows", "float32", (1, -1, 2)), TensorInfo("y", "float32", (3,))]
    ours = [np.zeros((1, 355, 2)), np.zeros(3)]
    for others, found in (((1, 357, 2), {"rows"}), ((1, 355, 2), set()), ((1, 300, 2), set())):
        assert check._recounted(outputs, ours, [np.zeros(others), np.zeros(3)]) == found
    assert check._recounted(outputs, ours, [np.zeros((1, 357, 3)), np.zeros(3)]) == set()


def test_inputs_are_nudged_in_their_last_bits() -> None:
    x = np.linspace(-3, 3, 1000, dtype="float32")
    moved = check._nudged(x, seed=0)
    assert moved.dtype == x.dtype
    assert 0 < np.abs(moved - x).max() <= 3 * (check.NUDGE + np.finfo("float32").eps)
    numbers = np.arange(5)
    assert check._nudged(numbers, seed=0) is numbers


@pytest.mark.parametrize(("taps", "by"), [(3, check.QUICK_NUDGE), (1, check.NUDGE)])
def test_inputs_are_nudged_by_what_kernels_may_be_off(taps: int, by: float) -> None:
    """SSD's boxes by Winograd's algorithm: 1.2e-4 off, where inputs with other last bits move them
    by 2.6e-5."""
    weight = np.random.default_rng(0).standard_normal((64, 64, taps, taps), dtype="float32")
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=[taps // 2] * 4)
    model = make_model([node], [value("x", 1, 64, 28, 28)], ["y"], {"w": weight})
    assert check._nudge(tvm_ext.compile(model, "cpu/x86-avx512").manifest) == by


def test_an_engine_that_differs_from_itself_widens_the_bound(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that rounds on its way: 0.01 off, where the engine is `apart` from itself."""
    ours = compiled(np.zeros(compiled.inputs[0].shape, "float32"))
    monkeypatch.setattr(
        check, "make_inputs", lambda *_: [np.zeros(i.shape, i.dtype) for i in compiled.inputs]
    )
    for apart, accepted in ((0.008, True), (0.004, False), (float("nan"), False)):

        def engine(
            model: object, feed: object, rewrites: bool = False, by: float = apart
        ) -> list[np.ndarray]:
            return [y - np.abs(y).max() * np.float32(0.01 - by * rewrites) for y in ours]

        monkeypatch.setattr(check, "_onnxruntime", engine)
        if accepted:
            result = tvm_ext.check_model(compiled, tiny_model())
            assert result is not None
            assert result.error == pytest.approx(0.01, rel=0.1)
            assert result.spread == pytest.approx(apart, rel=0.1)
        else:
            with pytest.raises(VerifyError, match="the bound is"):
                tvm_ext.check_model(compiled, tiny_model())
