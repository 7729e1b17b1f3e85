"""Which operators the TVM importer reads, and how a model is brought to those it does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache

import onnx
import onnx_ir as ir
from onnx import helper
from onnx.inliner import inline_selected_functions
from onnx.shape_inference import infer_shapes
from onnx.version_converter import convert_version

from tvm_ext.errors import ModelError
from tvm_ext.frontend.counted import DOMAIN
from tvm_ext.frontend.load import STANDARD, one_line, onnx_opset, standard_nodes
from tvm_ext.frontend.resize_axes import AS_BEFORE, CROP, PLACES, misread

CONVERTED_OPSET = 13

# Below 7 broadcasting was an attribute, which the importer does not read; these operators it
# reads from the given operator set on.
BROADCAST_OPSET = 7
FIRST_OPSET = {"Slice": 10, "TopK": 11, "MaxUnpool": 11, "Upsample": 9, "LpNormalization": 13}

# From this one on a `Resize` says where its elements lie.
PLACED_OPSET = 11

# Attributes of which the importer reads these values right, and others silently wrong.
READ: dict[str, dict[str, tuple[object, ...]]] = {
    "BatchNormalization": {"training_mode": (0,), "spatial": (1,)},
    "ConvTranspose": {"output_shape": ()},
    "Resize": {
        "antialias": (0,),
        "coordinate_transformation_mode": (*PLACES, CROP),
    },
    "RoiAlign": {"mode": ("avg",)},
    "SpaceToDepth": {"mode": ("DCR",)},
}
# It divides this one by 6, where ONNX's own definition multiplies: 6 % of a layer before it.
RESTATED = {"HardSwish"}
OURS = {"BitCast", "If"}
"""Operators that `importer` reads, or TVM's apart from the others."""

# The importer looks at names alone. These it means in Microsoft's domain (and `Gelu` in both).
MICROSOFT_ONLY = {"Attention", "BiasGelu", "EmbedLayerNormalization", "FastGelu"}
MICROSOFT_ONLY |= {"MatMulInteger16", "SkipLayerNormalization"}
# Those of it that `microsoft` does not restate.
MICROSOFT = {"BiasGelu", "FastGelu", "Gelu", "MatMulInteger16"}


def name_nodes(graph: onnx.GraphProto) -> None:
    """Name each unnamed node by its first output, so that messages can point at it; in place."""
    for node in graph.node:
        if not node.name:
            node.name = next(filter(None, node.output), "")


def modernise(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` in operators the importer reads, as far as onnx itself can restate them.

    Operators from before numpy broadcasting are converted to opset 13; the model's own functions,
    and standard operators that the importer lacks but onnx defines by a function (`Celu`,
    `Swish`, `Attention`, ...), are inlined.

    Raises ModelError: the model is too old and onnx cannot convert it.
    """
    opset = onnx_opset(model)
    operators = {node.op_type for node in standard_nodes(model.graph)}
    old = sorted(name for name in operators if opset < FIRST_OPSET.get(name, BROADCAST_OPSET))
    if old:
        try:
            model = convert_version(model, CONVERTED_OPSET)
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"operators of ONNX opset {opset} ({', '.join(old)}) cannot be converted to opset "
                f"{CONVERTED_OPSET}: {one_line(error)}; export with that opset or a newer one"
            ) from None
        if opset < PLACED_OPSET:
            _keep_places(model.graph)
        opset = CONVERTED_OPSET
    return _inline(model, opset)


def _keep_places(graph: onnx.GraphProto) -> None:
    """Mark each `Resize` that was converted as one of elements at their old places; in place.

    onnx leaves them to the defaults, which are others than those from before.
    """
    for node in standard_nodes(graph):
        if node.op_type == "Resize":
            node.attribute.append(helper.make_attribute("nearest_mode", AS_BEFORE))


def _inline(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """`model` without calls of functions, where onnx can inline them; else as it is."""
    functions = [(function.domain, function.name) for function in model.functions]
    functions += [("", name) for name in _schema_functions(model.graph, opset)]
    if not functions:
        return model
    # The inliner drops what a node leaves to its defaults, and does not infer the types that some
    # bodies depend on; of inputs that are left out, whose name is empty, it asks that as well.
    typed = infer_shapes(model)
    for node in typed.graph.node:
        if ("", node.op_type) in functions:
            _state_defaults(node, opset)
    typed.graph.value_info.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in typed.graph.initializer
    )
    typed.graph.value_info.append(onnx.ValueInfoProto(name="", type=onnx.TypeProto()))
    try:
        inlined = inline_selected_functions(typed, functions, inline_schema_functions=True)
    except RuntimeError:
        return model
    named = [value for value in inlined.graph.value_info if value.name]
    del inlined.graph.value_info[:]
    inlined.graph.value_info.extend(named)
    # A body may call another function (`SwiGLU` calls `Swish`).
    return inlined if len(inlined.graph.node) == len(model.graph.node) else _inline(inlined, opset)


def unsupported(nodes: Iterable[ir.Node]) -> str | None:
    """All operators among `nodes` that the importer cannot read, with their nodes; None if none.

    For example `LSTM (node 'encoder', 'h1'), my.domain::Foo (node 'y')`.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        misread = _misread(node)
        if misread or not _is_importable(node.domain, node.op_type):
            found[name + misread].append(repr(node.name or "unnamed"))
    listed = [f"{name} (node {', '.join(names)})" for name, names in sorted(found.items())]
    return ", ".join(listed) or None


def _misread(node: ir.Node) -> str:
    """What TVM would get wrong about `node`, or fail on without saying why; else empty."""
    for name, values in READ.get(node.op_type, {}).items():
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.value not in values:
            return f" with {name}={attribute.value}"
    constants = [None if value is None else value.const_value for value in node.inputs]
    kind = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    match node.op_type:
        case "ConstantOfShape" if constants[0] is None:
            return " of a shape that is no constant"
        case "CumProd":
            return " along an axis that is no constant"
        case "DeformConv":
            return " of other than images of float32"
        case "Det":
            return " of more than 4 rows"
        case "Dropout":
            return " in training mode"
        case "Expand" if constants[1] is None:
            return " to a shape that is no constant"
        case "MaxPool" if len(node.outputs) > 1:
            return " whose indices are read, of windows that are not known or too large"
        case "MaxUnpool":
            return " to a shape that is no constant"
        case "PRelu" if not _fits(node.inputs[1], node.inputs[0]):
            return " with a slope that does not fit its input"
        case "Pow" if kind is not None and kind.is_integer():
            return " of integers"
        case "ReduceMax" | "ReduceMin" if kind == ir.DataType.BOOL:
            return " of booleans"
        case "Resize" | "Upsample":
            return misread(node)
        case "SequenceInsert" if len(constants) > 2:
            position = constants[2]
            if position is None or (position.numpy() < 0).any():
                return " at a position that is not a constant counted from the front"
        case "TopK" if kind == ir.DataType.UINT64:
            return " of uint64"
    return ""


def _fits(operand: ir.Value | None, source: ir.Value | None) -> bool:
    """Whether `operand` broadcasts to the shape of `source`, as far as shapes are known."""
    shapes = [None if value is None else value.shape for value in (operand, source)]
    if None in shapes:
        return True
    small, large = (list(shape) for shape in shapes if shape is not None)
    tail = large[len(large) - len(small) :]
    return len(small) <= len(large) and all(a in (1, b) for a, b in zip(small, tail, strict=True))


def _schema_functions(graph: onnx.GraphProto, opset: int) -> list[str]:
    """Standard operators of `graph` that the importer lacks and onnx defines by a function."""
    names = {
        node.op_type
        for node in standard_nodes(graph)
        if not _is_importable("", node.op_type) or _is_more(node)
    }
    schemas = {
        name: onnx.defs.get_schema(name, opset) for name in names if onnx.defs.has(name, opset)
    }
    return sorted(
        name
        for name, schema in schemas.items()
        if schema.has_function or schema.has_context_dependent_function
    )


def _state_defaults(node: onnx.NodeProto, opset: int) -> None:
    """Write out the attributes that `node` leaves to their defaults; in place."""
    stated = {attribute.name for attribute in node.attribute}
    for name, attribute in onnx.defs.get_schema(node.op_type, opset).attributes.items():
        if name not in stated and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


def _is_more(node: onnx.NodeProto) -> bool:
    """Mean and deviation of a layer norm, which the importer leaves out, and casts that do not
    saturate, of which onnxscript makes such as do."""
    if node.op_type == "CastLike":
        return any(one.name == "saturate" and not one.i for one in node.attribute)
    return node.op_type == "LayerNormalization" and any(node.output[1:])


def _is_importable(domain: str, op_type: str) -> bool:
    if domain == DOMAIN:
        return True
    if domain == "com.microsoft":
        return op_type in MICROSOFT and op_type in _convert_map()
    return domain in STANDARD and op_type not in MICROSOFT_ONLY and op_type in _convert_map()


@cache
def _convert_map() -> frozenset[str]:
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    return (frozenset(_get_convert_map()) | OURS) - RESTATED
