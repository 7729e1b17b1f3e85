"""Simplification of an ONNX graph before import: everything that is known is computed, in numpy.

onnxscript folds constants and shapes and removes what does nothing (`rewrite`). Ours are the three
things it leaves: weights made by `ConstantOfShape`, `Dropout` of old operator sets, and
chains of batch norms and per-channel arithmetic (`affine`). Recurrent layers are unrolled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from tvm_ext.errors import ModelError
from tvm_ext.frontend.affine import FLOATS, add_initialiser, constant_of, fold_affine
from tvm_ext.frontend.counted import Unbounded
from tvm_ext.frontend.counted_graph import bound_counts, has_counts
from tvm_ext.frontend.depth_to_space import order_channels
from tvm_ext.frontend.load import one_line
from tvm_ext.frontend.narrow import hold_wider
from tvm_ext.frontend.narrow_types import has_narrow
from tvm_ext.frontend.nodes import filler_of, opset_of
from tvm_ext.frontend.nothing import leave_out_nothing
from tvm_ext.frontend.packed_weights import unpack_weights
from tvm_ext.frontend.quantised_weights import fold_quantised
from tvm_ext.frontend.rewrite import rewrite, settle_resizes, tidy
from tvm_ext.frontend.sequences import resolve_sequences
from tvm_ext.frontend.unroll import unroll
from tvm_ext.frontend.unroll_loops import unroll_loops

LARGEST_CONSTANT = 1 << 28
"""Elements of the largest constant that is folded; a bigger one is computed at run time."""

ROUNDS = 4
"""Times that a model is folded at most; more than once only if shapes are left to be known."""
TAKES_SHAPE = {
    "Expand": 1,
    "Pad": 1,
    "Reshape": 1,
    "Resize": 1,
    "Slice": 1,
    "Tile": 1,
    "Upsample": 1,
}
"""Operators with operands that are shapes, or worked out from shapes; the first of those."""


def simplify(model: ir.Model) -> tuple[ir.Model, tuple[str, ...]]:
    """An equivalent model (up to floating-point rounding) with fewer nodes, and notes.

    `model` is changed; the names and order of inputs and outputs are kept. Where onnxscript fails
    on a model, its part is left out and a note says so. The result depends on `model` alone.
    """
    from onnxscript.optimizer import fold_constants

    limits = {"input_size_limit": LARGEST_CONSTANT, "output_size_limit": LARGEST_CONSTANT}
    notes: list[str] = []

    def fold(copy: ir.Model) -> None:
        RemoveUnusedNodesPass()(copy)  # what nobody reads would be computed too
        with careful_inference():
            fold_constants(copy, onnx_shape_inference=True, should_fold=_is_no_waste, **limits)

    def clean(copy: ir.Model) -> None:
        if rewrite(copy):
            fold(copy)
            rewrite(copy)
        tidy(copy)

    _materialise_constants(model.graph)
    unpack_weights(model.graph)
    fold_quantised(model.graph)
    _drop_dropout(model.graph)
    if has_narrow(model.graph):
        model = _attempt("constant folding", fold, model, notes)
        fold_quantised(model.graph)
        hold_wider(model)
    resolve_sequences(model.graph)  # onnxscript gives `Unsqueeze` an axis without a dimension
    for _ in range(ROUNDS):
        before = len(model.graph)
        model = _attempt("constant folding", fold, model, notes)
        leave_out_nothing(model.graph)
        unrolled = unroll_loops(model.graph) | unroll(model.graph) | resolve_sequences(model.graph)
        fold_affine(model.graph)
        model = _attempt("graph clean-up", clean, model, notes)
        folds_on = _materialise_constants(model.graph)
        fold_quantised(model.graph)
        known = len(model.graph) == before or not any(map(_computes_shape, model.graph))
        known = known and not folds_on
        if known and not unrolled:
            break
    if has_counts(model):
        model = _bounded(model, notes)
        model = _attempt("constant folding", fold, model, notes)
        model = _attempt("graph clean-up", clean, model, notes)
    try:
        _drop_empty(model.graph)
        with quiet():
            settle_resizes(model)
        order_channels(model.graph)
        _multiply_before_erf(model.graph)
        _widen_expand(model.graph)
        _cast_exponents(model.graph)
    except ModelError:
        let_go(model)
        raise
    return model, tuple(dict.fromkeys(notes))


def _is_no_waste(node: ir.Node) -> bool | None:
    """False for what is known to be too large: onnxscript would make it, look how large it is, and
    drop it (gigabytes, for a mask expanded to a thousand images). None leaves it to its rules."""
    shapes = [output.shape for output in node.outputs if output.shape is not None]
    large = (shape.is_static() and prod(shape.numpy()) > LARGEST_CONSTANT for shape in shapes)
    return False if any(large) else None


def _bounded(model: ir.Model, notes: list[str]) -> ir.Model:
    """`model` with bounds in the place of extents that data say; as it is, with a note, where these
    have none that can be told and TVM's importer can do without.

    Raises ModelError: it cannot.
    """
    copy = model.clone()
    try:
        bound_counts(copy)
    except Unbounded as error:
        reason = f"extents that data say have no bound: {error}"
        if any(node.op_type == "NonMaxSuppression" for node in model.graph.all_nodes()):
            raise ModelError(f"{reason}; export the model without it") from None
        notes.append(reason)
        return model
    let_go(model)
    return copy


@contextmanager
def careful_inference() -> Iterator[None]:
    """Shapes of what follows tensors of less than no elements, windows over fewer than they take,
    are not inferred meanwhile: onnx ends the process at a slice of one."""
    infer = onnx.shape_inference.infer_node_outputs

    def careful(schema: Any, node: Any, types: Mapping[str, Any], *rest: Any, **more: Any) -> Any:
        if any(dim.dim_value < 0 for kind in types.values() for dim in kind.tensor_type.shape.dim):
            raise onnx.shape_inference.InferenceError("an input has less than no elements")
        return infer(schema, node, types, *rest, **more)

    onnx.shape_inference.infer_node_outputs = careful
    try:
        yield
    finally:
        onnx.shape_inference.infer_node_outputs = infer


def _computes_shape(node: ir.Node) -> bool:
    """Whether a node works with a shape that is not known yet. Folding may know it the next time:
    what was folded tells of the shapes of what follows (a reshape to the size of a window)."""
    if node.op_type not in TAKES_SHAPE or node.domain:
        return node.op_type == "Shape"
    shapes = [value for value in node.inputs[TAKES_SHAPE[node.op_type] :] if value is not None]
    return any(ir.convenience.get_const_tensor(value) is None for value in shapes)


def _attempt(
    what: str, change: Callable[[ir.Model], object], model: ir.Model, notes: list[str]
) -> ir.Model:
    """`model` changed by a library's pass, or untouched, with a note, where the pass fails."""
    try:
        with quiet():
            copy = model.clone()
            change(copy)
    except MemoryError:
        raise
    except Exception as error:
        notes.append(f"{what} by onnxscript failed, went on without: {one_line(error)}")
        return model
    let_go(model)
    return copy


def let_go(model: ir.Model) -> None:
    """Takes a graph's weights from it that is no longer needed: rewriting rules keep the last one
    they changed, for good."""
    for value in model.graph.initializers.values():
        value.const_value = None


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what onnxscript and onnx_ir log: each line names a node they left as it was; and what
    numpy says of infinities and NaN, which are as right in a folded constant as at run time."""
    loggers = [logging.getLogger(name) for name in ("onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _materialise_constants(graph: ir.Graph) -> bool:
    """Turn `Constant`, and `ConstantOfShape` of a known shape, into initialisers; whether there are
    nodes that read only constants, what the latter made among them.

    Those take no memory yet: all their elements are one. onnxscript leaves them, and with them what
    is worked out of them (in `Attention` the mask of words that come later).
    """
    made = []
    for node in list(graph):
        if node.domain or node.op_type not in ("Constant", "ConstantOfShape"):
            continue
        old = node.outputs[0]
        tensor = ir.convenience.get_const_tensor(old)
        if node.op_type == "ConstantOfShape" and node.inputs[0] is not None:
            tensor = _filled(node, ir.convenience.get_const_tensor(node.inputs[0]))
        if tensor is None:
            continue
        new = ir.Value(name=old.name, const_value=tensor)
        new.type, new.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        graph.register_initializer(new)
        if node.op_type == "ConstantOfShape":
            made.append(new)
    readers = (reader for value in made for reader, _ in value.uses())
    return any(all(_is_constant(value) for value in reader.inputs) for reader in readers)


def _is_constant(value: ir.Value | None) -> bool:
    return value is None or value.const_value is not None


def _filled(node: ir.Node, shape: ir.TensorProtocol | None) -> ir.TensorProtocol | None:
    """What `ConstantOfShape` makes of a known and sensible shape."""
    extents = [-1] if shape is None else shape.numpy().tolist()
    if min(extents, default=0) < 0 or prod(extents) > LARGEST_CONSTANT:
        return None
    return ir.Tensor(np.broadcast_to(filler_of(node), extents))


def _drop_dropout(graph: ir.Graph) -> None:
    """Remove each `Dropout` that is in inference mode: it passes its input on, and its mask is true
    everywhere. Before operator set 10 masks were of its input's type."""
    for node in list(graph.all_nodes()):
        if node.op_type != "Dropout" or node.domain or None in (node.inputs[0], node.graph):
            continue
        # From opset 12 on the third input switches to training mode.
        training = node.inputs[2] if len(node.inputs) > 2 else None
        if training is not None:
            switch = ir.convenience.get_const_tensor(training)
            if switch is None or switch.numpy().any():
                continue
        source, owner, (result, *masks) = node.inputs[0], node.graph, node.outputs
        assert source is not None
        assert owner is not None
        made = [ir.node("Identity", [source])]
        if any(mask.uses() or mask.is_graph_output() for mask in masks):
            kind = ir.DataType.BOOL if opset_of(node) >= 10 else source.dtype
            extents = ir.node("Shape", [source])
            ones = ir.tensor(np.ones(1, (kind or ir.DataType.FLOAT).numpy()))
            made += [extents, ir.node("ConstantOfShape", extents.outputs, {"value": ones})]
        new = [made[0].outputs[0], *(made[-1].outputs[0] for _ in masks)]
        ir.convenience.replace_nodes_and_values(owner, node, [node], made, [result, *masks], new)


def _drop_empty(graph: ir.Graph) -> None:
    """Leave out the operands of each `Resize` that are empty: before opset 13 `scales` had to stand
    beside `sizes`, and exporters still write it so."""
    for node in graph:
        for place, value in enumerate(node.inputs if node.op_type == "Resize" else ()):
            tensor = None if value is None else ir.convenience.get_const_tensor(value)
            if place and tensor is not None and not tensor.size:
                node.replace_input_with(place, None)


def _multiply_before_erf(graph: ir.Graph) -> None:
    """Erf(x / c) => Erf(x * (1 / c)): a division by a constant takes a third of GELU's time.

    Only there: what is cut or compared after it (an index) may hang on the last bit.
    """
    for node in list(graph):
        source = node.inputs[0] if node.op_type == "Erf" and not node.domain else None
        divide = None if source is None else source.producer()
        if divide is None or divide.op_type != "Div" or divide.domain:
            continue
        dividend, divisor = divide.inputs
        constant, result = constant_of(divisor), divide.outputs[0]
        if constant is None or divisor is None or divisor.dtype not in FLOATS:
            continue
        with np.errstate(all="ignore"):
            reciprocal = (1 / constant.astype(np.float64)).astype(constant.dtype)
        if not np.isfinite(reciprocal).all():
            continue
        factor = add_initialiser(graph, f"{result.name}_factor", reciprocal)
        multiply = ir.node("Mul", [dividend, factor], name=f"{divide.name}/times")
        multiply.outputs[0].type, multiply.outputs[0].shape = result.type, result.shape
        multiply.outputs[0].name = f"{result.name}_scaled"
        graph.insert_before(node, multiply)
        node.replace_input_with(0, multiply.outputs[0])
        if not result.uses() and not result.is_graph_output():
            graph.remove(divide, safe=True)


def _widen_expand(graph: ir.Graph) -> None:
    """Give each `Expand` the shape of its result, which is all that TVM's importer understands.

    ONNX broadcasts both ways: (3, 1) expanded to (1, 4), or to (4,), is (3, 4).
    """
    for node in graph:
        if node.op_type != "Expand" or node.domain or None in node.inputs:
            continue
        source, target = node.inputs
        assert source is not None
        assert target is not None
        wanted = ir.convenience.get_const_tensor(target)
        if wanted is None or source.shape is None or not source.shape.is_static():
            continue
        try:
            shape = np.broadcast_shapes(source.shape.numpy(), wanted.numpy().tolist())
        except ValueError:
            raise ModelError(
                f"Expand (node {node.name!r}) cannot make {tuple(wanted.numpy().tolist())} of "
                f"{tuple(source.shape.numpy())}; give other shapes"
            ) from None
        if list(shape) != wanted.numpy().tolist():
            name = f"{node.outputs[0].name}_shape"
            node.replace_input_with(1, add_initialiser(graph, name, np.array(shape, np.int64)))


def _cast_exponents(graph: ir.Graph) -> None:
    """Give constant exponents of `Pow` the type of the base, which TVM's importer wants."""
    for node in graph:
        if node.op_type != "Pow" or node.domain or None in node.inputs:
            continue
        base, exponent = node.inputs
        assert base is not None
        assert exponent is not None
        constant = ir.convenience.get_const_tensor(exponent)
        if constant is not None and base.dtype in FLOATS and constant.dtype != base.dtype:
            array = constant.numpy().astype(base.dtype.numpy())
            name = f"{node.outputs[0].name}_exponent"
            node.replace_input_with(1, add_initialiser(graph, name, array))
