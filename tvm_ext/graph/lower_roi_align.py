"""`LowerRoiAlign`: regions resampled by vectors of channels, as one kernel.

    roi_align(x, regions)
        →
    permute_dims(call_tir(roi_align, permute_dims(x), regions))

`ChannelsLast` has convolutions make what the kernel reads. As TVM wrote it each element works its
points out anew, 50 times as slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_ext.compute.roi_align import RoiAlign
from tvm_ext.graph.written_kernel import call_written, lowered
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import IRModule, op_name, relax, static_extents, tvm

ROI_ALIGN = "relax.vision.roi_align"


@tvm.transform.module_pass(opt_level=0, name="LowerRoiAlign")
@dataclass(frozen=True)
class LowerRoiAlign:
    """Rewrites means of float32 images of static shape, channels first."""

    hardware: HardwareModel

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module without them."""
        return lowered(mod, self.hardware, _roi_align)


def _roi_align(builder: Any, call: Any, hardware: HardwareModel) -> Any:
    if op_name(call) != ROI_ALIGN:
        return None
    (x, regions), attrs = call.args, call.attrs
    shape, counted = (static_extents(one.ty) for one in (x, regions))
    floats = all(str(one.ty.dtype.dtype) == "float32" for one in (x, regions))
    plain = str(attrs.layout) == "NCHW" and str(attrs.mode) == "avg"
    if shape is None or counted is None or not floats or not plain or not counted[0]:
        return None
    images, channels, height, width = shape
    kernel = RoiAlign(
        images,
        height,
        width,
        channels,
        counted[0],
        (int(attrs.pooled_size[0]), int(attrs.pooled_size[1])),
        float(attrs.spatial_scale),
        int(attrs.sample_ratio),
        None if attrs.aligned else 1.0,
        hardware.lanes(4),
    )
    turned = builder.emit(relax.op.permute_dims(x, [0, 2, 3, 1]))
    made = call_written(builder, kernel, "roi_align", [turned, regions], hardware)
    return relax.op.permute_dims(made, [0, 3, 1, 2])
