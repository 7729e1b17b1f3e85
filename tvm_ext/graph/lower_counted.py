"""`LowerCounted`: what data say the number of, found and put in place, as one kernel each.

    tvm_ext.non_zero(alive)                        →   call_tir(non_zero, alive)
    tvm_ext.scatter_rows(data, places, updates)    →   call_tir(scatter_rows, data, places, updates)

The importer writes them as calls of functions that nobody has (`tvm_counted.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm_ext.compute.non_zero import NonZero
from tvm_ext.compute.scatter_rows import ScatterRows
from tvm_ext.graph.written_kernel import call_written, lowered
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import (
    IRModule,
    element_bytes,
    relax,
    static_extents,
    tvm,
)
from tvm_ext.tvm_counted import NON_ZERO, SCATTER_ROWS, counted_name


@tvm.transform.module_pass(opt_level=0, name="LowerCounted")
@dataclass(frozen=True)
class LowerCounted:
    """Rewrites all of them, whose shapes the importer has seen to be static."""

    hardware: HardwareModel

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module without them."""
        return lowered(mod, self.hardware, _counted)


def _counted(builder: Any, call: Any, hardware: HardwareModel) -> Any:
    name, arguments = counted_name(call), list(call.args[1:])
    if name == NON_ZERO:
        (length,) = static_extents(arguments[0].ty) or ()
        return call_written(builder, NonZero(length), "non_zero", arguments, hardware)
    if name == SCATTER_ROWS:
        return _scattered(builder, hardware, *arguments)
    return None


def _scattered(builder: Any, hardware: HardwareModel, data: Any, places: Any, updates: Any) -> Any:
    shape, (count, *_) = static_extents(data.ty) or (), static_extents(places.ty) or ()
    length, width = shape[0], prod(shape[1:])
    dtype = str(data.ty.dtype.dtype)
    kernel = ScatterRows(length, width, count, dtype, element_bytes(data.ty.dtype))
    flat = [
        builder.emit(relax.op.reshape(value, extents))
        for value, extents in (
            (data, (length, width)),
            (places, (count,)),
            (updates, (count, width)),
        )
    ]
    made = call_written(builder, kernel, "scatter_rows", flat, hardware)
    return relax.op.reshape(made, shape)
