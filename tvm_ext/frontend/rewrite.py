"""What of onnxscript's rewriting is worth its time to us, and the tidying after it.

Left out of its own list are rules for operators that cannot be compiled, those that `affine` and
`simplify` make needless and that take 1e-12 for zero (`x + 1e-12 -> x`: a layer norm of equal
elements then divides by zero), and the one that makes a `Split` of two slices: it looks through the
whole graph at every node, and slices are read in place where the parts of a split are copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from functools import partial
from itertools import count, groupby
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common as tidying

from tvm_ext.frontend.nodes import own_results


def rewrite(model: ir.Model) -> bool:
    """Applies the rules to a model, in place; whether one applied.

    Rules name what they make after what they read, so two that read the same make two constants of
    one name, of which onnxscript keeps the later one; here each keeps a name of its own.
    """
    from onnxscript.rewriter.rules import common as rules

    from tvm_ext.frontend import (
        as_meant,
        dead_taps,
        deformed,
        element_types,
        fourier,
        moved,
        pooled,
        products,
        readable,
        restate,
        tensor_scatter,
    )

    chosen = (
        *restate.rules,
        *as_meant.rules,
        *dead_taps.rules,
        *fourier.rules,
        *tensor_scatter.rules,
        *readable.rules,
        *element_types.rules,
        *deformed.rules,
        *moved.rules,
        *pooled.rules,
        *products.rules,
        rules.one_reshape_matmul_reshape_rule,
        rules.two_reshapes_matmul_reshape_rule,
        rules.cast_constant_of_shape_rule,
        rules.cast_constant_of_shape_without_value_rule,
        rules.collapse_slice_rule,
        rules.collapse_slice2_rule,
        rules.materialize_reshape_shape_rule,
        rules.min_min_rule,
        rules.max_max_rule,
        rules.min_max_rule,
        rules.max_min_rule,
        rules.successive_clip_relu_rule,
        rules.successive_relu_clip_rule,
        rules.successive_relu_rule,
        rules.successive_clip_rule,
        rules.cast_cast_rule,
        rules.no_op_cast_rule,
        rules.no_op_expand_rule,
        rules.flatten_to_reshape_rule,
        rules.reshape_reshape_rule,
        rules.no_op_transpose_rule,
        rules.transpose_transpose_rule,
        rules.unsqueeze_unsqueeze_rule,
        rules.squeeze_reshape_1d_rule,
        rules.no_op_dynamic_scatter_nd_rule,
        rules.normalize_pad_format_conv_rule,
        rules.fuse_pad_into_conv_rule,
        rules.fuse_batchnorm_into_conv_rule,
        rules.fuse_batchnorm_into_conv_transpose_rule,
        rules.fuse_batchnorm_into_gemm_rule,
        rules.remove_optional_bias_from_conv_rule,
        rules.remove_optional_bias_from_conv_transpose_rule,
        rules.remove_optional_bias_from_gemm_rule,
    )
    return _apply(chosen, model)


def settle_resizes(model: ir.Model) -> None:
    """Restates what TVM's importer would take for another `Resize`, in place; shapes are known."""
    if not any(node.op_type in ("Resize", "Upsample") for node in model.graph.all_nodes()):
        return
    from tvm_ext.frontend import resize

    _apply(resize.old, model)
    _apply(resize.rules, model)
    tidying.LiftSubgraphInitializersToMainGraphPass()(model)


def _apply(rules: Iterable[Any], model: ir.Model) -> bool:
    """Applies rules to a model, in place; whether one applied."""
    from onnxscript.rewriter import RewritePass

    groups = groupby(rules, key=lambda rule: (rule.remove_nodes, rule.as_function))
    modified = bool(RewritePass([_one_of(list(group)) for _, group in groups])(model).modified)
    _name_apart(model.graph)
    return modified


def _one_of(rules: Sequence[Any]) -> Any:
    """The first of some rules that applies, of those whose pattern ends with a node's operator.

    onnxscript begins a match of every rule at every node and finds that out inside, which took half
    of the time that rewriting takes, and to ask each of eighty a third of the rest.
    """
    roots = [(rule._target_pattern.output_nodes[0].op, rule) for rule in rules]
    ending_with: dict[str, list[Any]] = {}

    def try_rewrite(model: Any, graph: Any, node: ir.Node, **options: Any) -> Any:
        kind = node.op_type
        if kind not in ending_with:
            ending_with[kind] = [rule for root, rule in roots if root.matches(kind)]
        made = (rule.try_rewrite(model, graph, node, **options) for rule in ending_with[kind])
        return next((one for one in made if one is not None), None)

    def visit(visitor: str) -> None:
        for call in filter(None, (getattr(rule, visitor) for rule in rules)):
            call()

    either = copy(rules[0])
    either.name, either.try_rewrite = None, try_rewrite
    either.graph_pre_visitor = partial(visit, "graph_pre_visitor")
    either.graph_post_visitor = partial(visit, "graph_post_visitor")
    return either


def _name_apart(graph: ir.Graph) -> None:
    """Gives new names to constants that nodes read and the graph has lost to others of theirs."""
    known = graph.initializers
    for node in graph.all_nodes():
        for constant in node.inputs:
            if constant is None or constant.const_value is None or constant.producer() is not None:
                continue
            if constant.is_initializer():
                continue
            names = (f"{constant.name}_{number}" for number in count(2))
            constant.name = next(name for name in names if name not in known)
            known.add(constant)


def tidy(model: ir.Model) -> None:
    """Functions inlined, what does nothing or is not read gone, constants as initialisers, each
    once, and equal nodes once; in place."""
    for step in (
        tidying.InlinePass(),
        tidying.IdentityEliminationPass(),
        tidying.RemoveUnusedNodesPass(),
        tidying.RemoveUnusedFunctionsPass(),
        tidying.RemoveUnusedOpsetsPass(),
        tidying.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        tidying.LiftSubgraphInitializersToMainGraphPass(),
        tidying.DeduplicateInitializersPass(),
        tidying.CommonSubexpressionEliminationPass(),
        tidying.OutputFixPass(),
        tidying.NameFixPass(),
    ):
        step(model)
    own_results(model.graph)
