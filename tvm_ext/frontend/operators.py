"""Which operators the TVM importer reads, and how a model is brought to those it does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache

import onnx
import onnx_ir as ir
from onnx.inliner import inline_selected_functions
from onnx.version_converter import convert_version

from tvm_ext.errors import ModelError
from tvm_ext.frontend.load import one_line, onnx_opset

CONVERTED_OPSET = 13

# Below 7 broadcasting was an attribute, which the importer does not read; these operators it
# reads from the given operator set on.
BROADCAST_OPSET = 7
FIRST_OPSET = {"Slice": 10, "TopK": 11, "Resize": 11, "Upsample": 9}

# The importer looks at names alone. These it means in Microsoft's domain (and `Gelu` in both).
MICROSOFT_ONLY = {"Attention", "BiasGelu", "EmbedLayerNormalization", "FastGelu"}
MICROSOFT_ONLY |= {"MatMulInteger16", "SkipLayerNormalization"}
MICROSOFT = MICROSOFT_ONLY | {"Gelu"}


def name_nodes(graph: onnx.GraphProto) -> None:
    """Name each unnamed node by its index, `#12`, so that messages can point at it; in place."""
    for position, node in enumerate(graph.node):
        if not node.name:
            node.name = f"#{position}"


def modernise(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` in operators the importer reads, as far as onnx itself can restate them.

    Operators from before numpy broadcasting are converted to opset 13; the model's own functions,
    and standard operators that the importer lacks but onnx defines by a function (`Celu`,
    `Swish`, `Attention`, ...), are inlined.

    Raises ModelError: the model is too old and onnx cannot convert it.
    """
    opset = onnx_opset(model)
    old = {node.op_type for node in model.graph.node if opset < FIRST_OPSET.get(node.op_type, 0)}
    if opset < BROADCAST_OPSET or old:
        try:
            model = convert_version(model, CONVERTED_OPSET)
        except (RuntimeError, ValueError) as error:
            what = ", ".join(sorted(old)) or "the model"
            raise ModelError(
                f"{what} of ONNX opset {opset} cannot be converted to opset {CONVERTED_OPSET} "
                f"({one_line(error)}); export the model with opset {CONVERTED_OPSET} or newer"
            ) from None
        opset = CONVERTED_OPSET
    functions = [(function.domain, function.name) for function in model.functions]
    functions += [("", name) for name in _defined_by_functions(model.graph, opset)]
    if functions:
        model = inline_selected_functions(model, functions, inline_schema_functions=True)
    return model


def unsupported(nodes: Iterable[ir.Node]) -> str | None:
    """All operators among `nodes` that the importer cannot read, with their nodes; None if none.

    For example `LSTM (node 'encoder', '#7'), my.domain::Foo (node '#9')`.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        if not _is_importable(node.domain, node.op_type):
            name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            found[name].append(repr(node.name or "unnamed"))
    listed = [f"{name} (node {', '.join(names)})" for name, names in sorted(found.items())]
    return ", ".join(listed) or None


def _defined_by_functions(graph: onnx.GraphProto, opset: int) -> list[str]:
    """Standard operators of `graph` that the importer lacks and onnx defines by a function."""
    names = {node.op_type for node in graph.node if node.domain in ("", "ai.onnx")}
    lacking = sorted(name for name in names if not _is_importable("", name))
    defined = []
    for name in lacking:
        if onnx.defs.has(name, opset):
            schema = onnx.defs.get_schema(name, opset)
            if schema.has_function or schema.has_context_dependent_function:
                defined.append(name)
    return defined


def _is_importable(domain: str, op_type: str) -> bool:
    if domain == "com.microsoft":
        return op_type in MICROSOFT and op_type in _convert_map()
    return domain in ("", "ai.onnx") and op_type not in MICROSOFT_ONLY and op_type in _convert_map()


@cache
def _convert_map() -> frozenset[str]:
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    return frozenset(_get_convert_map()) | {"If"}
