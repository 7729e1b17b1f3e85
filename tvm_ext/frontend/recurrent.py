"""`LSTM`, `GRU` and `RNN` nodes read: what can be unrolled, with all that follows from the node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tvm_ext.frontend.affine import FLOATS, constant_of, int_of, text_of

MOST_STEPS = 2048
"""Steps of a sequence, in all directions, that are unrolled at most."""
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
OPERATORS = frozenset(
    ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
)
"""Activations that are operators, with the same defaults."""


@dataclass(frozen=True)
class Layer:
    """A recurrent node."""

    op: str
    x: ir.Value
    """[steps, batch, inputs], or [batch, steps, inputs] if `batch_first`."""
    steps: int
    lengths: ir.Value | None
    """How many steps each sequence of the batch has, [batch] int32; None if all have `steps`."""
    batch: int
    hidden: int
    weights: np.ndarray
    """[directions, gates * hidden, inputs]"""
    recurrent: np.ndarray
    """[directions, gates * hidden, hidden]"""
    bias: np.ndarray
    """[directions, 2 * gates * hidden]: of the inputs, of the state."""
    peepholes: np.ndarray | None
    """[directions, 3 * hidden]: of the gates i, o, f."""
    starts: tuple[ir.Value | None, ir.Value | None]
    """State and cell before the first step, [directions, batch, hidden]."""
    reverse: tuple[bool, ...]
    activations: tuple[tuple[str, ...], ...]
    clip: float | None
    coupled: bool
    """Whether what an LSTM forgets is what it does not take in."""
    after: bool
    """Whether a GRU resets after its product."""
    batch_first: bool


def read_layer(node: ir.Node) -> Layer | None:
    """The recurrent layer that a node is; None for other nodes, and where it cannot be unrolled."""
    if node.domain or node.op_type not in GATES or node.inputs[0] is None:
        return None
    op, x = node.op_type, node.inputs[0]
    inputs = [*node.inputs, *[None] * (8 - len(node.inputs))]
    shape = () if x.shape is None or not x.shape.is_static() else x.shape.numpy()
    if len(shape) != 3:
        return None
    batch_first = bool(int_of(node, "layout", 0))
    steps, batch = shape[1::-1] if batch_first else shape[:2]
    direction = text_of(node, "direction", "forward")
    reverse = {"forward": (False,), "reverse": (True,)}.get(direction, (False, True))
    weights, recurrent = constant_of(inputs[1]), constant_of(inputs[2])
    if weights is None or recurrent is None or x.dtype not in FLOATS:
        return None
    if not weights.ndim == recurrent.ndim == 3 or len(weights) != len(reverse):
        return None
    hidden, size = recurrent.shape[2], GATES[op] * recurrent.shape[2]
    bias, lengths, peepholes = (constant_of(inputs[place]) for place in (3, 4, 7))
    if any(
        value is not None and known is None
        for value, known in ((inputs[3], bias), (inputs[7], peepholes))
    ):
        return None
    all_steps = lengths is not None and bool((lengths == steps).all())
    names = _texts(node, "activations") or ACTIVATIONS[op] * len(reverse)
    options = {"activation_alpha", "activation_beta"} & set(node.attributes)
    if options or any(name not in OPERATORS for name in names):
        return None
    if not 0 < steps * len(reverse) <= MOST_STEPS:
        return None
    each = len(names) // len(reverse)
    clip = node.attributes.get("clip")
    return Layer(
        op=op,
        x=x,
        steps=steps,
        lengths=None if all_steps else inputs[4],
        batch=batch,
        hidden=hidden,
        weights=weights,
        recurrent=recurrent,
        bias=np.zeros((len(reverse), 2 * size), weights.dtype) if bias is None else bias,
        peepholes=peepholes,
        starts=(inputs[5], inputs[6]),
        reverse=reverse,
        activations=tuple(tuple(names[k * each : (k + 1) * each]) for k in range(len(reverse))),
        clip=None if clip is None else clip.as_float(),
        coupled=bool(int_of(node, "input_forget", 0)),
        after=bool(int_of(node, "linear_before_reset", 0)),
        batch_first=batch_first,
    )


def _texts(node: ir.Node, name: str) -> tuple[str, ...]:
    attribute = node.attributes.get(name)
    return () if attribute is None else tuple(attribute.as_strings())
