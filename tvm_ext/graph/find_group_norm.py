"""`FindGroupNorm`: instance norms as TVM imports them, group norms as exporters write them.

    (x - mean(x)) / sqrt(variance(x) + e) * s + b             →   instance_norm(x)
    reshape(instance_norm(reshape(x, [n, g, -1])), shape of x)  →   group_norm(x)

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
    count_uses,
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
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._uses = count_uses(mod)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        rules = {
            "relax.divide": self._instance_norm,
            "relax.multiply": self._scaled,
            "relax.add": self._scaled,
            "relax.reshape": self._group_norm,
        }
        rule = rules.get(op_name(call))
        found = rule(call) if rule else None
        return call if found is None else found

    def _instance_norm(self, quotient: Any) -> Any:
        """(x - mean(x)) / sqrt(variance(x) + epsilon)  →  instance_norm(x)"""
        centred, root = (bound(self, side) for side in quotient.args)
        if op_name(centred) != "relax.subtract" or op_name(root) != "relax.sqrt":
            return None
        x, mean = centred.args[0], bound(self, centred.args[1])
        slack = bound(self, root.args[0])
        if op_name(slack) != "relax.add" or not self._over_places(mean, "relax.mean", x):
            return None
        spread, epsilon = bound(self, slack.args[0]), constant_array(bound(self, slack.args[1]))
        if epsilon is None or epsilon.size != 1:
            return None
        if not self._over_places(spread, "relax.variance", x):
            return None
        channels = (static_shape(x) or ())[CHANNEL]
        return instance_norm(
            x,
            np.ones(channels, "float32"),
            np.zeros(channels, "float32"),
            float(epsilon.reshape(())),
        )

    def _over_places(self, made: Any, name: str, x: Any) -> bool:
        """Whether a reduction is of all axes of x behind its channels, and keeps them as ones."""
        shape = static_shape(x)
        if op_name(made) != name or not made.args[0].same_as(x) or made.attrs.axis is None:
            return False
        if shape is None or len(shape) < 3 or not made.attrs.keepdims:
            return False
        axes = sorted(axis % len(shape) for axis in ints(made.attrs.axis))
        return axes == list(range(CHANNEL + 1, len(shape)))

    def _scaled(self, call: Any) -> Any:
        """instance_norm(x) * s or + b, a constant for each channel  →  instance_norm(x)"""
        for place, side in enumerate(call.args):
            norm, array = bound(self, side), constant_array(bound(self, call.args[1 - place]))
            if op_name(norm) != "relax.nn.instance_norm" or array is None:
                continue
            shape = static_shape(norm) or ()
            extents = (1,) * (len(shape) - array.ndim) + array.shape
            wanted = tuple(e if axis == CHANNEL else 1 for axis, e in enumerate(shape))
            if extents != wanted or self._uses[side] != 1:
                continue
            x, gamma, beta = norm.args
            gamma, beta = constant_array(gamma), constant_array(beta)
            values = array.reshape(-1)
            if op_name(call) == "relax.multiply":
                gamma, beta = gamma * values, beta * values
            else:
                beta = beta + values
            return instance_norm(x, gamma, beta, float(norm.attrs.epsilon))
        return None

    def _group_norm(self, call: Any) -> Any:
        """The norm that a reshape ends, as one operator; None for any other reshape."""
        norm, shape = bound(self, call.args[0]), static_shape(call)
        rows = static_shape(call.args[0])
        if op_name(norm) != "relax.nn.instance_norm" or rows is None or shape is None:
            return None
        made = bound(self, norm.args[0])
        if op_name(made) != "relax.reshape" or static_shape(made.args[0]) != shape:
            return None
        if len(rows) != 3 or len(shape) < 3 or rows[0] != shape[0] or shape[CHANNEL] % rows[1]:
            return None
        each = shape[CHANNEL] // rows[1]
        gamma, beta = (constant(np.repeat(constant_array(side), each)) for side in norm.args[1:])
        return relax.op.nn.group_norm(
            made.args[0],
            gamma,
            beta,
            num_groups=rows[1],
            channel_axis=CHANNEL,
            axes=list(range(CHANNEL + 1, len(shape))),
            epsilon=float(norm.attrs.epsilon),
        )


def instance_norm(x: Any, gamma: np.ndarray, beta: np.ndarray, epsilon: float) -> Any:
    """The call of an instance norm of planes."""
    return relax.op.nn.instance_norm(
        x,
        constant(gamma),
        constant(beta),
        channel_axis=CHANNEL,
        axes=list(range(CHANNEL + 1, x.ty.ndim)),
        epsilon=epsilon,
    )
