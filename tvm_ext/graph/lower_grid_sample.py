"""`LowerGridSample`: images sampled by vectors of channels, as one kernel.

    grid_sample(x, grid)
        →
    permute_dims(call_tir(grid_sample, permute_dims(x), grid))

`ChannelsLast` has convolutions make what the kernel reads. As TVM wrote it each element works its
point out anew, and is gathered by itself (64 channels of 56 x 56: 465 us, with what turns planes
102 so). Of a few channels neither matters, and planes stay what they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_ext.compute.grid_sample import GridSample
from tvm_ext.graph.written_kernel import call_written, lowered
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import IRModule, op_name, relax, static_extents, tvm

GRID_SAMPLE = "relax.image.grid_sample"
METHODS = ("bilinear", "nearest")


@tvm.transform.module_pass(opt_level=0, name="LowerGridSample")
@dataclass(frozen=True)
class LowerGridSample:
    """Rewrites samples of float32 images of static shape, channels first, that have at least half a
    vector of channels."""

    hardware: HardwareModel

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module without them."""
        return lowered(mod, self.hardware, _grid_sample)


def _grid_sample(builder: Any, call: Any, hardware: HardwareModel) -> Any:
    if op_name(call) != GRID_SAMPLE:
        return None
    (x, grid), attrs = call.args, call.attrs
    shape, points = (static_extents(one.ty) for one in (x, grid))
    if shape is None or points is None or len(shape) != 4 or not all((*shape, *points)):
        return None
    images, channels, height, width = shape
    floats = all(str(one.ty.dtype.dtype) == "float32" for one in (x, grid))
    method, beyond, corners = str(attrs.method), str(attrs.padding_mode), bool(attrs.align_corners)
    plain = str(attrs.layout) == "NCHW" and method in METHODS
    lanes = hardware.lanes(4)
    if not floats or not plain or 2 * channels < lanes:
        return None
    kernel = GridSample(
        images,
        height,
        width,
        channels,
        (points[2], points[3]),
        beyond,  # type: ignore[arg-type]  # TVM has no others
        corners,
        method == "bilinear",
        lanes,
    )
    turned = builder.emit(relax.op.permute_dims(x, [0, 2, 3, 1]))
    made = call_written(builder, kernel, "grid_sample", [turned, grid], hardware)
    return relax.op.permute_dims(made, [0, 3, 1, 2])
