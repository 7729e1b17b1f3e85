"""Pixel shuffles that move whole runs of channels, the convolution before them making room.

rewrite:
    DepthToSpace(relu(conv(x, W, b)), CRD)   =>   DepthToSpace(relu(conv(x, W', b')), DCR)

PyTorch keeps the pixels of a block side by side (CRD: c, i, j), so that channels-last data is taken
apart element by element. W' and b' have the same channels in another order (DCR: i, j, c): what
moves then are runs of channels.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tvm_ext.frontend.affine import add_initialiser, constant_of, int_of, text_of

POINTWISE = frozenset({"Clip", "Elu", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"})
"""What does the same to every channel; its other inputs are numbers."""


def order_channels(graph: ir.Graph) -> None:
    """Rewrites every such node behind a convolution of constant weights, in place."""
    for node in list(graph):
        if node.domain or node.op_type != "DepthToSpace" or text_of(node, "mode", "DCR") != "CRD":
            continue
        conv = _convolution_before(node)
        if conv is None:
            continue
        side = int_of(node, "blocksize", 1)
        for place in (1, 2):
            old = conv.inputs[place] if place < len(conv.inputs) else None
            array = constant_of(old)
            if old is not None and array is not None:
                moved = add_initialiser(graph, f"{old.name}_blocks", blocks_first(array, side))
                conv.replace_input_with(place, moved)
        node.attributes["mode"] = ir.AttrString("mode", "DCR")


def blocks_first(array: np.ndarray, side: int) -> np.ndarray:
    """[c * side * side, ...], c outermost  →  the same rows with c innermost."""
    apart = array.reshape(-1, side * side, *array.shape[1:])
    return apart.swapaxes(0, 1).reshape(array.shape)


def _convolution_before(node: ir.Node) -> ir.Node | None:
    """The convolution whose channels nobody but a node reads; None if there is none."""
    source = node.inputs[0]
    while source is not None and len(source.uses()) == 1 and not source.is_graph_output():
        maker = source.producer()
        if maker is None or maker.domain:
            return None
        if maker.op_type == "Conv":
            known = all(constant_of(value) is not None for value in maker.inputs[1:] if value)
            return maker if known and int_of(maker, "group", 1) == 1 else None
        if maker.op_type not in POINTWISE:
            return None
        source = maker.inputs[0]
    return None
