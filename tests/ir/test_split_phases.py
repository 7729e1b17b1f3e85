"""`SplitPhases`: which transposed convolutions are taken apart, and what they become."""

from __future__ import annotations

import numpy as np
import pytest
from steps import steps

from tvm_ext.compute.conv_transpose import TransposedGeometry
from tvm_ext.graph import split_phases
from tvm_ext.graph.split_phases import SplitPhases, convolution, runs, weight_of
from tvm_ext.tvm_api import IRModule, constant, relax

op = relax.op
LANES = 8


def module(outputs: int = 8, strides: int = 2, extra: int = 1, bias: bool = True) -> IRModule:
    """relu(conv_transpose(x [1, 5, 6, 4], 3 x 3) + b)"""
    random = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 5, 6, 4), "float32"))
    weight = constant(random.standard_normal((4, outputs, 3, 3)).astype("float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit(
                op.nn.conv2d_transpose(
                    x,
                    weight,
                    strides=(strides, strides),
                    padding=(1, 1, 1, 1),
                    output_padding=(extra, extra),
                    data_layout="NHWC",
                    kernel_layout="IOHW",
                )
            )
            if bias:
                values = random.standard_normal((1, 1, 1, outputs)).astype("float32")
                made = builder.emit(op.add(made, constant(values)))
            result = builder.emit_output(op.nn.relu(made))
        builder.emit_func_output(result)
    return builder.finalize()


@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_for_each_phase_takes_the_bias_along(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with no more taps than its outputs see: 1, 2, 2 and 4 of the nine."""
    monkeypatch.setattr(split_phases, "pays", lambda *_: True)
    mod = module(bias=bias)
    after = SplitPhases(LANES, lambda _: 1.0)(mod)
    part = ["conv2d", "add"] if bias else ["conv2d"]
    row = [*part, *part, "concat"]
    assert steps(after) == [*row, *row, "concat", "reshape", "relu"]
    assert after["main"].ret_ty == mod["main"].ret_ty


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"outputs": 6}, id="channels are no whole vectors"),
        pytest.param({"extra": 0}, id="outputs are no whole strides"),
        pytest.param({"strides": 3, "extra": 2}, id="no zeros are multiplied"),
    ],
)
def test_others_stay_whole(options: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_phases, "pays", lambda *_: True)
    mod = module(**options)
    assert steps(SplitPhases(LANES, lambda _: 1.0)(mod)) == steps(mod)


def test_the_model_decides() -> None:
    mod = module()
    after = SplitPhases(LANES, lambda func: 1.0)(mod)  # four kernels take four times as long
    assert steps(after) == steps(mod)


def test_neighbouring_phases_that_see_the_same_inputs_are_one_convolution() -> None:
    """16 taps by a stride of 8, padded by 4: an output sees two taps, phases 4 to 7 one input
    later."""
    geometry = TransposedGeometry((16,), (8,), (4,), (80,), 3, 2)
    early, late = runs(geometry, 0, 10)
    assert (len(early.taps), len(late.taps)) == (4, 4)
    assert {len(taps) for taps in (*early.taps, *late.taps)} == {2}
    assert (early.before, early.after, late.before, late.after) == (1, 0, 0, 1)
    assert convolution(geometry, [early]).out_channels == 8
    weight = np.arange(3 * 2 * 16, dtype="float32").reshape(3, 2, 16)
    packed = weight_of(weight, [early])
    assert packed.shape == (8, 2, 3)
    # the second phase, its first output channel: elements 13 and 5, the last input's tap last
    assert (packed[2] == weight[:, 0, [13, 5]].T).all()
