"""TVM's importer, as it means what ONNX does and says where it is: `Importer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from tvm_ext.frontend.non_max import kept_boxes
from tvm_ext.tvm_api import (
    constant,
    constant_array,
    relax,
    static_extents,
    te,
    tirx,
    tvm,
)
from tvm_ext.tvm_counted import non_zero, scatter_rows

BY_PLACES = ("GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND")
PAIRWISE = {"Sum": relax.op.add, "Max": relax.op.maximum, "Min": relax.op.minimum}
"""Operators of any number of inputs; TVM's importer copies all of them into one tensor first."""


class Importer(ONNXGraphImporter):
    """TVM's importer, given the weights apart, that remembers which node it is at."""

    def __init__(self, weights: Mapping[str, ir.TensorProtocol]) -> None:
        super().__init__({}, {}, keep_params_in_input=False, sanitize=False)
        self.at = "the graph"
        self.in_block = False
        self.unbounded = ""
        """The first node that makes as much as data say."""
        self._weights = weights
        self._found: dict[Any, Any] = {}
        """Extents that data say, by the tensors of one number that say them."""

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        for name, tensor in self._weights.items():
            self.at = f"constant {name!r} of shape {tuple(tensor.shape)}"
            self._nodes[name] = relax.const(_tensor(tensor.numpy()))

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Nothing: `unsupported` has said what is, and knows which operators are read here."""

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        self.in_block = True
        for node in graph.node:
            self.at = f"{node.op_type} (node {node.name!r})"
            super()._construct_nodes(SimpleNamespace(node=[node]))
            for name in filter(None, node.output):
                kind = getattr(self._nodes.get(name), "ty", None)
                extents = static_extents(kind)
                if extents is None and isinstance(kind, relax.TensorType):
                    self.unbounded = self.unbounded or self.at
                if min(extents or (), default=0) < 0:
                    raise ValueError(f"its result {name!r} would be of shape {extents}")

    def _convert_operator(
        self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        try:
            if op_name in PAIRWISE:
                join = PAIRWISE[op_name]
                return reduce(lambda left, right: self.bb.normalize(join(left, right)), inputs)
            if op_name == "Einsum":  # TVM's importer lowers it at once: no pass would know it
                equation = attrs["equation"]
                text = equation.decode() if isinstance(equation, bytes) else str(equation)
                return self.bb.normalize(relax.op.einsum(relax.Tuple(list(inputs)), text))
            if op_name == "BitCast":
                return self.bb.normalize(_bits(self.bb, inputs[0], attrs["to"]))
            if op_name == "Gather":
                data, indices = inputs
                taken = _gathered(data, indices, attrs.get("axis", 0))
                if taken is not None:
                    return self.bb.normalize(taken)
            if attrs.get("counted"):
                return self._counted(op_name, inputs, attrs)
            if op_name in BY_PLACES and all(static_extents(own.ty) is not None for own in inputs):
                return self.bb.normalize(_by_places(op_name, inputs, attrs))
            if op_name == "RoiAlign":
                return _aligned(self.bb, inputs, attrs, opset)
            if op_name == "BitShift":
                data, bits = inputs
                left = attrs["direction"] in (b"LEFT", "LEFT")
                return self.bb.normalize(_shifted(data, bits, left))
            if op_name == "MaxRoiPool":
                inputs = [inputs[0], _in_images(self.bb, *inputs)]
            if op_name == "Slice":
                cut = self._first(*inputs[:4])
                if cut is not None:
                    return cut
            if op_name == "ReduceLogSumExp":
                return _log_of_sum(self.bb, inputs, attrs)
            return super()._convert_operator(op_name, inputs, attrs, opset)
        except Exception as error:
            # The base class prints the node's inputs, weights and all, on every Exception.
            raise ConversionError from error

    def _counted(self, op_name: str, inputs: list[Any], attrs: dict[str, Any]) -> Any:
        """Operators of which data say how much they find (`counted_graph`)."""
        if op_name == "ScatterND":
            return self.bb.normalize(scatter_rows(*inputs))
        if op_name == "NonMaxSuppression":
            return self.bb.normalize(relax.Tuple(kept_boxes(self.bb, inputs, attrs)))
        found = self.bb.emit(non_zero(*inputs))
        places, count = (self.bb.emit(relax.TupleGetItem(found, place)) for place in (0, 1))
        return self.bb.normalize(relax.Tuple([places, relax.op.reshape(count, ())]))

    def _first(self, data: Any, begins: Any = None, ends: Any = None, axes: Any = None) -> Any:
        """The first elements along the outermost axis, as many as data say; None of any other
        slice."""
        begin, axis, shape = constant_array(begins), constant_array(axes), None
        if begin is not None and axis is not None and begin.size == 1:
            shape = static_extents(getattr(data, "ty", None))
        if shape is None or begin.any() or not isinstance(ends, (relax.Var, relax.Call)):
            return None
        place = int(axis.item())
        if prod(shape[:place]) != 1:
            return None
        if (ends, shape[place]) not in self._found:
            self._found[ends, shape[place]] = self._extent(ends, shape[place])
        whole, cut = self.bb.emit(data), [*shape]
        cut[place] = self._found[ends, shape[place]]
        return self.bb.normalize(relax.op.memory.view(whole, cut, data.ty.dtype.dtype, 0))

    def _extent(self, ends: Any, most: int) -> Any:
        """As an extent, where data say that the first of so many elements end."""
        ends = self.bb.emit(relax.op.astype(ends, "int64"))
        zero, whole = (relax.const(number, "int64") for number in (0, most))
        behind = relax.op.where(relax.op.less(ends, zero), relax.op.add(ends, whole), ends)
        given = self.bb.emit(relax.op.clip(self.bb.normalize(behind), 0, most))
        extent = tirx.Var("there", "int64")
        shape = self.bb.emit(relax.op.tensor_to_shape(given))
        self.bb.match_cast(shape, relax.ShapeType([extent]))
        return extent


def _bits(builder: Any, x: Any, to: int) -> Any:
    """The bits of x as elements of another type of as many; a truth value is a byte, 0 or 1."""
    if str(x.ty.dtype.dtype) == "bool":
        return _bits(builder, builder.emit(relax.op.astype(x, "uint8")), to)
    if to == ir.DataType.BOOL:
        return relax.op.astype(x, "bool")
    dtype = ir.DataType(to).numpy().name

    def kernel(source: Any) -> Any:
        return te.compute(
            source.shape, lambda *at: tirx.reinterpret(dtype, source(*at)), name="bits"
        )

    return builder.emit_te(kernel, x, primfunc_name_hint="bits")


def _gathered(data: Any, indices: Any, axis: int) -> Any:
    """Elements along an axis of known extent, counted from either end; None for what TVM's importer
    folds or follows as a shape. It has three kernels look at the sign of every index first."""
    extents = static_extents(getattr(data, "ty", None))
    known = constant_array(indices)
    if not extents or isinstance(indices, relax.ShapeExpr):
        return None
    if known is None:
        return relax.op.take(data, indices, axis)
    if constant_array(data) is not None:
        return None
    counted = np.where(known < 0, known + extents[axis], known).astype(known.dtype)
    return relax.op.take(data, constant(counted), axis, mode="clip")


def _by_places(op_name: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Gathers and scatters of elements and rows, by indices as they are: what is counted from the
    end `Legalise` reads, and TVM's importer with a kernel of its own."""
    axis, how = attrs.get("axis", 0), attrs.get("reduction", "none")
    how = how.decode() if isinstance(how, bytes) else how
    how = "update" if how == "none" else how
    match op_name:
        case "GatherElements":
            return relax.op.gather_elements(*inputs, axis)
        case "GatherND":
            return relax.op.gather_nd(*inputs, attrs.get("batch_dims", 0))
        case "ScatterND":
            return relax.op.scatter_nd(*inputs, how)
        case _:
            return relax.op.scatter_elements(*inputs, axis, how)


def _shifted(x: Any, bits: Any, left: bool) -> Any:
    """Bits moved, where as many as there are, or a negative number of them, move all bits out: what
    a machine makes of those is anything."""
    kind = np.dtype(x.ty.dtype.dtype)
    zero, last = relax.const(0, kind.name), relax.const(8 * kind.itemsize - 1, kind.name)
    known = constant_array(bits)
    shift = relax.op.left_shift if left else relax.op.right_shift
    if known is not None and ((known >= 0) & (known < 8 * kind.itemsize)).all():
        return shift(x, bits)
    outside = relax.op.logical_or(relax.op.less(bits, zero), relax.op.greater(bits, last))
    if kind.kind == "i" and not left:  # their sign fills what they leave
        return shift(x, relax.op.where(outside, last, bits))
    return relax.op.where(outside, zero, shift(x, relax.op.where(outside, zero, bits)))


def _aligned(builder: Any, inputs: Sequence[Any], attrs: Mapping[str, Any], opset: int) -> Any:
    """RoiAlign by regions whose coordinates are those of elements' middles: half an element less,
    where TVM's importer takes half a pixel of the image, however large an element is."""
    data, regions, images = inputs
    mode = attrs.get("coordinate_transformation_mode", "half_pixel" if opset >= 16 else "")
    half_pixel = (mode.decode() if isinstance(mode, bytes) else mode) == "half_pixel"
    scale = float(attrs.get("spatial_scale", 1.0))
    dtype = regions.ty.dtype.dtype
    if half_pixel:
        regions = relax.op.subtract(regions, relax.const(0.5 / scale, dtype))
    images = relax.op.clip(images, 0, int(data.ty.shape[0]) - 1)
    images = relax.op.astype(relax.op.expand_dims(images, axis=1), dtype)
    return builder.normalize(
        relax.op.vision.roi_align(
            data,
            relax.op.concat([images, regions], axis=1),
            pooled_size=(attrs.get("output_height", 1), attrs.get("output_width", 1)),
            spatial_scale=scale,
            sample_ratio=attrs.get("sampling_ratio", 0),
            aligned=half_pixel,
            layout="NCHW",
            mode="avg",
        )
    )


def _in_images(builder: Any, data: Any, regions: Any) -> Any:
    """Regions [n, 5] whose first numbers, those of their images, are of images that there are."""
    images, corners = (
        builder.emit(relax.op.strided_slice(regions, [1], [begin], [end]))
        for begin, end in ((0, 1), (1, 5))
    )
    images = builder.emit(relax.op.clip(images, 0, int(data.ty.shape[0]) - 1))
    return builder.emit(relax.op.concat([images, corners], axis=1))


def _log_of_sum(builder: Any, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """log(sum(exp(x))) of rows that may hold infinities: TVM's importer subtracts them from
    themselves."""
    x, *rest = inputs
    axes = list(attrs.get("axes", ()))
    if rest and rest[0] is not None:
        given = constant_array(rest[0])
        if given is None:
            raise ValueError("axes that are no constant")
        axes = given.reshape(-1).tolist()
    if not axes and attrs.get("noop_with_empty_axes", 0):
        return x
    top = builder.normalize(relax.op.max(x, axes or None, True))
    zero = relax.const(0, top.ty.dtype)
    top = builder.normalize(relax.op.where(relax.op.isinf(top), zero, top))
    total = relax.op.sum(relax.op.exp(relax.op.subtract(x, top)), axes or None, True)
    result = builder.normalize(relax.op.add(relax.op.log(total), top))
    if attrs.get("keepdims", 1):
        return result
    return builder.normalize(relax.op.squeeze(result, axes or None))


class ConversionError(BaseException):
    """Carries the importer's error past its own `except Exception`."""


def _tensor(array: np.ndarray) -> tvm.runtime.Tensor:
    """`array` as a TVM tensor; written in place, since a weight may be a broadcast or very big."""
    if array.dtype.isbuiltin != 1 or array.dtype == bool:
        return tvm.runtime.tensor(array)
    tensor = tvm.runtime.empty(array.shape, array.dtype.name)
    np.from_dlpack(tensor)[...] = array
    return tensor
