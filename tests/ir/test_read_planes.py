"""Convolutions that take planes: which transpositions go, and which stay."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.graph.read_planes import ReadPlanes
from tvm_ext.tvm_api import IRModule, constant, relax


def image(
    channels: int, axes: tuple[int, ...] = (0, 2, 3, 1), groups: int = 1, fixed: bool = True
) -> IRModule:
    """A transposed x and its convolution, NHWC; `fixed`: by a constant."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, channels, 12, 12), "float32"))
    shape = (8, 3, 3, channels // groups)
    w = (
        constant(np.ones(shape, "float32"))
        if fixed
        else relax.Var("w", relax.TensorType(shape, "float32"))
    )
    with builder.function("main", [x] if fixed else [x, w]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(x, axes))
            y = relax.op.nn.conv2d(
                turned, w, strides=2, padding=1, groups=groups, data_layout="NHWC",
                kernel_layout="OHWI",
            )  # fmt: skip
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    return builder.finalize()


def convolution(mod: IRModule) -> relax.Call:
    (block,) = mod["main"].body.blocks
    return block.bindings[-1].value


def test_a_convolution_of_an_image_reads_its_planes() -> None:
    before = image(3)
    after = convolution(ReadPlanes()(before))
    assert after.args[0].name == "x"
    assert (str(after.attrs.data_layout), str(after.attrs.out_layout)) == ("NCHW", "NHWC")
    assert list(after.attrs.strides) == [2, 2]
    assert list(after.attrs.padding) == [1, 1, 1, 1]
    assert tuple(map(int, after.ty.shape)) == tuple(map(int, convolution(before).ty.shape))


@pytest.mark.parametrize(
    "mod",
    [image(16), image(12, (0, 3, 2, 1)), image(4, groups=2), image(3, fixed=False)],
    ids=["wide", "turned", "groups", "no_constant"],
)
def test_other_transpositions_stay(mod: IRModule) -> None:
    after = convolution(ReadPlanes()(mod))
    assert str(after.attrs.data_layout) == "NHWC"
    assert after.args[0].name != "x"
