"""From a user's ONNX model to a Relax module: `import_onnx`, the way through this room."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from keyword import iskeyword

import msgspec
import onnx
import onnx_ir as ir

from tvm_ext.errors import ModelError
from tvm_ext.extents import Shapes
from tvm_ext.frontend.importer import ConversionError, Importer
from tvm_ext.frontend.load import load_onnx, one_line, onnx_opset
from tvm_ext.frontend.microsoft import restated
from tvm_ext.frontend.not_constant import not_constant
from tvm_ext.frontend.operators import modernise, name_nodes, unsupported
from tvm_ext.frontend.quantised import dequantised
from tvm_ext.frontend.shapes import apply_shapes, resolve_shapes, runtime_inputs
from tvm_ext.frontend.simplify import let_go, quiet, simplify
from tvm_ext.frontend.too_few import too_few
from tvm_ext.frontend.weights import attach_weights, detach_weights
from tvm_ext.garbage import look_for
from tvm_ext.shield import readable
from tvm_ext.tvm_api import (
    IRModule,
    relax,
    tirx,
    tvm,
    tvm_version,
)

C_KEYWORD = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|"
    "inline|int|long|register|restrict|return|short|signed|sizeof|static|struct|switch|typedef|"
    "union|unsigned|void|volatile|while"
)


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
    unbounded: str = ""
    """The first node that makes as much as data say, without a bound."""


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
    reason = not_constant(model.graph.all_nodes())
    if reason is not None:
        let_go(model)
        raise ModelError(f"{reason}; export the model with a fixed value there")
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
    mod, unbounded = _to_relax(model, weights_left)
    outputs = tuple(
        TensorInfo(name, str(kind.dtype.dtype), _static(kind))
        for name, kind in zip(output_names, _tensor_types(mod), strict=True)
    )
    constant_bytes = sum(tensor.nbytes for tensor in weights_left.values())
    del proto, light, weights, weights_left, model
    look_for(constant_bytes)  # graphs are cycles, a single tensor left holds all that a file has
    return ImportedModel(mod, inputs, outputs, notes, constant_bytes, unbounded)


def _input_dtypes(model: onnx.ModelProto) -> dict[str, str]:
    dtypes = {}
    _check_tensors("input", runtime_inputs(model))
    _check_tensors("output", model.graph.output)
    for value in runtime_inputs(model):
        element = ir.DataType(value.type.tensor_type.elem_type)
        if element == ir.DataType.STRING:
            raise ModelError(f"input {value.name!r} holds strings; convert them outside the model")
        dtypes[value.name] = element.numpy().name
    return dtypes


def _check_tensors(what: str, values: Iterable[onnx.ValueInfoProto]) -> None:
    """Raises ModelError: one of them is known to be something else."""
    for value in values:
        kind = str(value.type.WhichOneof("value") or "tensor_type").removesuffix("_type")
        if kind != "tensor":
            raise ModelError(f"{what} {value.name!r} is a {kind}; only tensors can be compiled")


def _to_ir(model: onnx.ModelProto) -> ir.Model:
    try:
        with quiet():
            return ir.from_proto(model)
    except ir.serde.SerdeError as error:
        cause = error.__cause__ or error
        raise ModelError(f"the model is not valid ONNX: {one_line(cause)}") from error


def _to_relax(model: ir.Model, weights: Mapping[str, ir.TensorProtocol]) -> tuple[IRModule, str]:
    """The Relax module of `model`, whose initialisers are `weights`, and the first of its nodes
    that makes as much as data say."""
    model.graph.initializers.clear()
    importer = Importer(weights)
    try:
        proto = ir.to_proto(model)
        return importer.from_onnx(proto.graph, onnx_opset(proto)), importer.unbounded
    except ModelError:
        raise
    except (ConversionError, Exception) as error:
        if importer.in_block:
            # TVM would complain on stderr of the block that the error left open.
            importer.bb._end_block()
        cause = error.__cause__ if isinstance(error, ConversionError) else error
        raise ModelError(
            f"{importer.at} cannot be imported by TVM {tvm_version()}: "
            f"{type(cause).__name__}: {one_line(readable(str(cause)))}; "
            "give other shapes, or export the model without it"
        ) from cause


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
