"""`FindGroupNorm`: group norms as exporters of old operator sets write them.

    reshape(normalised(reshape(x, [n, g, -1])) * s + b, shape of x)   →   group_norm(x, g groups)

PyTorch has an instance norm of groups stand for it, and so a reshape that puts channels and pixels
together: channels-last data would be brought to planes for it and back (64 channels of 64 x 64 in
16 groups: eight times the time). As one operator it is reduced as it lies (`legalise_norm`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.graph.legalise_norm import ints, static_shape
from tvm_ext.tvm_api import (
    IRModule,
    bound,
    constant,
    constant_array,
    op_name,
    relax,
    rewritten,
    tvm,
)

CHANNEL = 1


@tvm.transform.module_pass(opt_level=0, name="FindGroupNorm")
@dataclass(frozen=True)
class FindGroupNorm:
    """Rewrites what it finds, before layouts are chosen; scales of channels stay behind it."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module; the operators that were replaced are dead and gone."""
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Finder(mod)))


@relax.expr_functor.mutator
class _Finder(relax.PyExprMutator):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) != "relax.reshape":
            return call
        found = self._group_norm(call)
        return call if found is None else found

    def _group_norm(self, call: Any) -> Any:
        """The norm that a reshape ends, as one operator; None for any other reshape."""
        rows, shape = static_shape(call.args[0]), static_shape(call)
        if rows is None or shape is None or len(rows) != 3 or len(shape) < 3:
            return None
        _, groups, _ = rows
        shift, value = self._by_group(call.args[0], "relax.add", groups)
        scale, value = self._by_group(value, "relax.multiply", groups)
        found = self._normalised(value)
        if found is None:
            return None
        (given, epsilon), made = found, bound(self, found[0])
        if op_name(made) != "relax.reshape" or static_shape(made.args[0]) != shape:
            return None
        channels = shape[CHANNEL]
        if rows[0] != shape[0] or channels % groups or static_shape(given) != rows:
            return None
        each = channels // groups
        gamma, beta = (
            np.full(channels, default, "float32") if array is None else np.repeat(array, each)
            for array, default in ((scale, 1.0), (shift, 0.0))
        )
        return relax.op.nn.group_norm(
            made.args[0],
            constant(gamma),
            constant(beta),
            num_groups=groups,
            channel_axis=CHANNEL,
            axes=list(range(CHANNEL + 1, len(shape))),
            epsilon=epsilon,
        )

    def _by_group(self, expr: Any, name: str, groups: int) -> tuple[np.ndarray | None, Any]:
        """The constant of one element a group that an operator takes, and its other operand."""
        made = bound(self, expr)
        if op_name(made) != name:
            return None, expr
        for place, side in enumerate(made.args):
            array = constant_array(bound(self, side))
            if array is not None and array.shape[-2:] == (groups, 1) and array.size == groups:
                return array.reshape(-1), made.args[1 - place]
        return None, expr

    def _normalised(self, expr: Any) -> tuple[Any, float] | None:
        """x and epsilon of `(x - mean(x)) / sqrt(variance(x) + epsilon)` over the last axis."""
        quotient = bound(self, expr)
        if op_name(quotient) != "relax.divide":
            return None
        centred, root = (bound(self, side) for side in quotient.args)
        if op_name(centred) != "relax.subtract" or op_name(root) != "relax.sqrt":
            return None
        x, mean = centred.args[0], bound(self, centred.args[1])
        slack = bound(self, root.args[0])
        if op_name(slack) != "relax.add" or not self._over_rows(mean, "relax.mean", x):
            return None
        spread, epsilon = bound(self, slack.args[0]), constant_array(bound(self, slack.args[1]))
        if epsilon is None or epsilon.size != 1:
            return None
        over = self._over_rows(spread, "relax.variance", x)
        return (x, float(epsilon.reshape(()))) if over else None

    def _over_rows(self, made: Any, name: str, x: Any) -> bool:
        """Whether a reduction is of the last of three axes of x, which stays as one element."""
        if op_name(made) != name or not made.args[0].same_as(x) or made.attrs.axis is None:
            return False
        return bool(made.attrs.keepdims) and ints(made.attrs.axis) in ((2,), (-1,))
