"""Rules of `Legalise` for what reads and writes where indices say: none touches other memory."""

from __future__ import annotations

from typing import Any

from tvm_ext.compute.places import (
    gather_elements,
    gather_nd,
    scatter_elements,
    scatter_nd,
    slice_extents,
    strided_slice,
    take,
)
from tvm_ext.tvm_api import relax, tirx, topi

MOVES = {"op_pattern": 2}
"""For what moves elements, each once: TVM takes a gather for something it must not fuse."""
THREADS = 256
"""Of a block of a GPU's that scatters."""


def legalise_take(builder: Any, call: Any, options: Any) -> Any:
    """A gather along one axis; what TVM calls `fast` has indices that should be in range."""
    axis, mode = call.attrs.axis, str(call.attrs.mode)
    place = None if axis is None else int(axis) % len(call.args[0].ty.shape)
    kept = "clip" if mode == "fast" else mode

    def body(x: Any, indices: Any) -> Any:
        if mode == "fast" and place is not None:
            return take(x, indices, place)
        return topi.take(x, indices, place, mode=kept)

    return builder.call_te(
        body, *call.args, key=(place, mode), primfunc_name_hint="take", primfunc_attrs=MOVES
    )


def legalise_gather_elements(builder: Any, call: Any, options: Any) -> Any:
    """A gather of single elements along one axis."""
    axis = int(call.attrs.axis) % len(call.args[0].ty.shape)
    return builder.call_te(
        lambda x, indices: gather_elements(x, indices, axis),
        *call.args,
        key=axis,
        primfunc_name_hint="gather_elements",
    )


def legalise_gather_nd(builder: Any, call: Any, options: Any) -> Any:
    """A gather by coordinates."""
    batch = int(call.attrs.batch_dims)
    return builder.call_te(
        lambda x, indices: gather_nd(x, indices, batch),
        *call.args,
        key=batch,
        primfunc_name_hint="gather_nd",
    )


def legalise_dynamic_slice(builder: Any, call: Any, options: Any) -> Any:
    """A slice between places that data say, of as many elements as lie there."""
    data, begin, end, stride = call.args
    found = builder.emit(builder.call_te(slice_extents, data, begin, end, stride))
    extents = [tirx.Var("s", "int64") for _ in data.ty.shape]
    shape = builder.emit(relax.op.tensor_to_shape(found))
    builder.match_cast(shape, relax.ShapeType(extents))
    return builder.call_te(strided_slice, data, begin, stride, extents)


def legalise_scatter_elements(builder: Any, call: Any, options: Any) -> Any:
    """A scatter of single elements along one axis."""
    axis, how = int(call.attrs.axis) % len(call.args[0].ty.shape), str(call.attrs.reduction)
    threads = _threads(options)
    return builder.call_te(
        lambda x, indices, updates: scatter_elements(x, indices, updates, axis, how, threads),
        *call.args,
        key=(axis, how),
        primfunc_name_hint="scatter_elements",
    )


def legalise_scatter_nd(builder: Any, call: Any, options: Any) -> Any:
    """A scatter by coordinates."""
    how, parts, threads = str(call.attrs.reduction), options.hardware.cores, _threads(options)
    return builder.call_te(
        lambda x, indices, updates: scatter_nd(x, indices, updates, how, parts, threads),
        *call.args,
        key=how,
        primfunc_name_hint="scatter_nd",
    )


def _threads(options: Any) -> int:
    return THREADS if options.hardware.kind == "cuda" else 0


PLACES = {
    "relax.take": legalise_take,
    "relax.gather_elements": legalise_gather_elements,
    "relax.gather_nd": legalise_gather_nd,
    "relax.dynamic_strided_slice": legalise_dynamic_slice,
    "relax.scatter_elements": legalise_scatter_elements,
    "relax.scatter_nd": legalise_scatter_nd,
}
