"""`LowerResize`: planes enlarged linearly, as one kernel that works each row out once.

    resize2d(x, linear)   →   call_tir(resize, x, columns, shares, rows, shares)

What convolutions read stays what it is: channels last it is made of whole vectors anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.compute.resize import Resize
from tvm_ext.graph.written_kernel import call_written
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import IRModule, constant, op_name, relax, rewritten, static_extents, tvm

RESIZE = "relax.image.resize2d"
PLANES = 4
"""Channels of a picture, which stay planes even before a convolution."""
CONVOLUTION = "conv"


@tvm.transform.module_pass(opt_level=0, name="LowerResize")
@dataclass(frozen=True)
class LowerResize:
    """Rewrites what makes planes of float32 larger, unless a convolution reads the result."""

    hardware: HardwareModel

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module without them."""
        return rewritten(mod, _Rewriter(mod, self.hardware, _before_convolutions(mod)))


def _before_convolutions(mod: IRModule) -> set[Any]:
    """Variables that convolutions read, or what is made of them."""
    found: set[Any] = set()
    for block in getattr(mod["main"].body, "blocks", ()):
        for binding in reversed(block.bindings):
            value = getattr(binding, "value", None)
            if CONVOLUTION in op_name(value) or binding.var in found:
                relax.analysis.post_order_visit(
                    value, lambda part: found.add(part) if isinstance(part, relax.Var) else None
                )
    return found


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule, hardware: HardwareModel, convolved: set[Any]) -> None:
        super().__init__(mod)
        self._hardware, self._convolved = hardware, convolved

    def visit_var_binding_(self, binding: Any) -> None:
        value = binding.value
        shape = static_extents(value.args[0].ty) if op_name(value) == RESIZE else None
        planes = shape is not None and shape[1] <= PLANES
        if shape is not None and (planes or binding.var not in self._convolved):
            made = self._resized(value, shape)
            if made is not None:
                self.set_var_remap(binding.var, self.builder_.emit(made))
                return
        super().visit_var_binding_(binding)

    def _resized(self, call: Any, shape: tuple[int, ...]) -> Any:
        x, size, attrs = self.visit_expr(call.args[0]), call.args[1], call.attrs
        images, channels, height, width = shape
        rows, columns = (int(extent) for extent in size.values)
        linear = str(attrs.method) == "linear" and str(attrs.layout) == "NCHW"
        tables = [
            _table(was, now, str(attrs.coordinate_transformation_mode))
            for was, now in ((width, columns), (height, rows))
        ]
        floats = str(x.ty.dtype.dtype) == "float32"
        if not linear or not floats or None in tables or rows < height or columns < width:
            return None
        lanes = self._hardware.lanes(4)
        kernel = Resize(images * channels, height, width, rows, columns, lanes)
        flat = self.builder_.emit(relax.op.reshape(x, (kernel.planes, height, width)))
        arguments = [flat, *(constant(array) for table in tables if table for array in table)]
        made = call_written(self.builder_, kernel, "resize", arguments, self._hardware)
        return relax.op.reshape(made, (images, channels, rows, columns))


def _table(was: int, now: int, mode: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Along an axis, for each result the element before it, and the share of the one behind; None
    of coordinates that are others."""
    places = np.arange(now, dtype=np.float64)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        places = (places + 0.5) * was / now - 0.5
        if mode == "pytorch_half_pixel" and now == 1:
            places = np.zeros(1)
    elif mode == "align_corners":
        places = places * (was - 1) / (now - 1) if now > 1 else places
    elif mode == "asymmetric":
        places = places * was / now
    else:
        return None
    places = np.clip(places, 0, was - 1)
    lows = np.floor(places)
    return lows.astype(np.int32), (places - lows).astype(np.float32)
