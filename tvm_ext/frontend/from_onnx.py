"""From a user's ONNX model to a Relax module: `import_onnx`, the way through this room."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from keyword import iskeyword
from math import prod
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from tvm_ext.errors import ModelError
from tvm_ext.extents import Shapes
from tvm_ext.frontend.load import load_onnx, one_line, onnx_opset
from tvm_ext.frontend.microsoft import restated
from tvm_ext.frontend.non_max import kept_boxes
from tvm_ext.frontend.operators import modernise, name_nodes, unsupported
from tvm_ext.frontend.quantised import dequantised
from tvm_ext.frontend.shapes import apply_shapes, resolve_shapes, runtime_inputs
from tvm_ext.frontend.simplify import let_go, quiet, simplify
from tvm_ext.frontend.too_few import too_few
from tvm_ext.frontend.weights import attach_weights, detach_weights
from tvm_ext.shield import readable
from tvm_ext.tvm_api import (
    IRModule,
    constant,
    constant_array,
    relax,
    static_extents,
    tirx,
    tvm,
    tvm_version,
)
from tvm_ext.tvm_counted import non_zero, scatter_rows

C_KEYWORD = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|"
    "inline|int|long|register|restrict|return|short|signed|sizeof|static|struct|switch|typedef|"
    "union|unsigned|void|volatile|while"
)

BY_PLACES = ("GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND")
PAIRWISE = {"Sum": relax.op.add, "Max": relax.op.maximum, "Min": relax.op.minimum}
"""Operators of any number of inputs; TVM's importer copies all of them into one tensor first."""


class TensorInfo(msgspec.Struct, frozen=True):
    """An input or output: its name in the ONNX model, its element type and its shape.

    An extent of an output that depends on the data is -1.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ImportedModel:
    """A model as a Relax module whose `main` takes `inputs` in order; the weights are constants.

    `main` returns the tensor itself where there is one output, else a tuple in model order.
    """

    mod: IRModule
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    notes: tuple[str, ...]
    constant_bytes: int


def import_onnx(
    source: str | os.PathLike[str] | onnx.ModelProto,
    shapes: Shapes | None = None,
    extents: int | Mapping[str, int] = 1,
) -> ImportedModel:
    """Read, simplify and import an ONNX model; a `ModelProto` given as source is not changed.

    source  as for `load_onnx`
    shapes, extents as for `resolve_shapes`; needed where the model leaves a dimension symbolic

    Raises ModelError: the model cannot be read, holds operators that cannot be compiled (all are
    listed), or the importer fails on a node; ShapeError: as `resolve_shapes`.
    """
    proto = load_onnx(source)
    dtypes = _input_dtypes(proto)
    resolved = resolve_shapes(proto, shapes, extents)
    output_names = [value.name for value in proto.graph.output]
    light, weights = detach_weights(proto)
    apply_shapes(light, resolved)
    name_nodes(light.graph)
    model = attach_weights(_to_ir(modernise(dequantised(restated(light)))), weights)
    model, notes = simplify(model)
    lacking = unsupported(model.graph.all_nodes())
    if lacking is not None:
        let_go(model)
        raise ModelError(f"operators that cannot be compiled: {lacking}; export without them")
    reason = too_few(model.graph.all_nodes())
    if reason is not None:
        let_go(model)
        raise ModelError(f"{reason}; give larger shapes")
    inputs = tuple(TensorInfo(name, dtypes[name], shape) for name, shape in resolved.items())
    for value, name in zip(model.graph.inputs, _identifiers(model.graph, resolved), strict=True):
        value.name = name
    weights_left = {
        name: value.const_value
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and (value.uses() or value.is_graph_output())
    }
    let_go(model)
    mod = _to_relax(model, weights_left)
    outputs = tuple(
        TensorInfo(name, str(kind.dtype.dtype), _static(kind))
        for name, kind in zip(output_names, _tensor_types(mod), strict=True)
    )
    constant_bytes = sum(tensor.nbytes for tensor in weights_left.values())
    del proto, light, weights, weights_left, model
    gc.collect()  # graphs are cycles, and a single tensor left holds the memory of the whole file
    return ImportedModel(mod, inputs, outputs, notes, constant_bytes)


def _input_dtypes(model: onnx.ModelProto) -> dict[str, str]:
    dtypes = {}
    for value in runtime_inputs(model):
        if not value.type.HasField("tensor_type"):
            kind = str(value.type.WhichOneof("value")).removesuffix("_type")
            raise ModelError(f"input {value.name!r} is a {kind}; only tensors can be compiled")
        element = ir.DataType(value.type.tensor_type.elem_type)
        if element == ir.DataType.STRING:
            raise ModelError(f"input {value.name!r} holds strings; convert them outside the model")
        dtypes[value.name] = element.numpy().name
    return dtypes


class _Importer(ONNXGraphImporter):
    """TVM's importer, given the weights apart, that remembers which node it is at."""

    def __init__(self, weights: Mapping[str, ir.TensorProtocol]) -> None:
        super().__init__({}, {}, keep_params_in_input=False, sanitize=False)
        self.at = "the graph"
        self.in_block = False
        self._weights = weights
        self._found: dict[Any, Any] = {}
        """Extents that data say, by the tensors of one number that say them."""

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        for name, tensor in self._weights.items():
            self.at = f"constant {name!r} of shape {tuple(tensor.shape)}"
            self._nodes[name] = relax.const(_tensor(tensor.numpy()))

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        self.in_block = True
        for node in graph.node:
            self.at = f"{node.op_type} (node {node.name!r})"
            super()._construct_nodes(SimpleNamespace(node=[node]))
            for name in filter(None, node.output):
                extents = static_extents(getattr(self._nodes.get(name), "ty", None)) or ()
                if min(extents, default=0) < 0:
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
            raise _ConversionError from error

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


class _ConversionError(BaseException):
    """Carries the importer's error past its own `except Exception`."""


def _to_ir(model: onnx.ModelProto) -> ir.Model:
    try:
        with quiet():
            return ir.from_proto(model)
    except ir.serde.SerdeError as error:
        cause = error.__cause__ or error
        raise ModelError(f"the model is not valid ONNX: {one_line(cause)}") from error


def _to_relax(model: ir.Model, weights: Mapping[str, ir.TensorProtocol]) -> IRModule:
    """The Relax module of `model`, whose initialisers are `weights`."""
    model.graph.initializers.clear()
    importer = _Importer(weights)
    try:
        proto = ir.to_proto(model)
        return importer.from_onnx(proto.graph, onnx_opset(proto))
    except ModelError:
        raise
    except (_ConversionError, Exception) as error:
        if importer.in_block:
            # TVM would complain on stderr of the block that the error left open.
            importer.bb._end_block()
        cause = error.__cause__ if isinstance(error, _ConversionError) else error
        raise ModelError(
            f"{importer.at} cannot be imported by TVM {tvm_version()}: "
            f"{type(cause).__name__}: {one_line(readable(str(cause)))}; "
            "give other shapes, or export the model without it"
        ) from cause


def _tensor(array: np.ndarray) -> tvm.runtime.Tensor:
    """`array` as a TVM tensor; written in place, since a weight may be a broadcast or very big."""
    if array.dtype.isbuiltin != 1 or array.dtype == bool:
        return tvm.runtime.tensor(array)
    tensor = tvm.runtime.empty(array.shape, array.dtype.name)
    np.from_dlpack(tensor)[...] = array
    return tensor


def _identifiers(graph: ir.Graph, names: Iterable[str]) -> list[str]:
    """A C identifier for each name that no other value of `graph` has."""
    taken = {value.name for node in graph.all_nodes() for value in node.outputs}
    taken |= set(graph.initializers)
    result = []
    for name in names:
        clean = re.sub(r"\W", "_", name, flags=re.ASCII)
        if not re.match("[A-Za-z_]", clean) or C_KEYWORD.fullmatch(clean) or iskeyword(clean):
            clean = f"input_{clean}"
        unique, count = clean, 0
        while unique in taken:
            count += 1
            unique = f"{clean}_{count}"
        taken.add(unique)
        result.append(unique)
    return result


def _tensor_types(mod: IRModule) -> list[relax.TensorType]:
    result = mod["main"].ret_ty
    return list(result.fields) if isinstance(result, tvm.ir.TupleType) else [result]


def _static(kind: relax.TensorType) -> tuple[int, ...]:
    """The shape, with -1 for every extent that is not a number."""
    if kind.shape is None:
        return (-1,) * kind.ndim
    return tuple(int(dim) if isinstance(dim, tirx.IntImm) else -1 for dim in kind.shape)
