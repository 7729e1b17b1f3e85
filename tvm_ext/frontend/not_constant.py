"""Inputs that say how large results are, or along which axis, have to be constants: where one hangs
on what a caller gives, that is said."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from tvm_ext.frontend.affine import constant_of

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
FIXED: dict[str, tuple[int, ...]] = {
    **{f"Reduce{name}": (1,) for name in _REDUCTIONS},
    "AffineGrid": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Expand": (1,),
    "GRU": (1, 2),
    "LSTM": (1, 2),
    "Loop": (0,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "OneHot": (1, 2),
    "Pad": (1, 3),
    "RNN": (1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Split": (1,),
    "SplitToSequence": (1,),
    "TopK": (1,),
    "Upsample": (1,),
}
"""Places of such inputs."""


def not_constant(nodes: Iterable[ir.Node]) -> str | None:
    """The first of them whose input is no constant, and what it hangs on; None if none is.

    For example `TopK (node 'best') takes 'K' from input 'k', which is no constant`.
    """
    for node in nodes:
        for place in () if node.domain else FIXED.get(node.op_type, ()):
            value = node.inputs[place] if place < len(node.inputs) else None
            given = [] if value is None or constant_of(value) is not None else _given(value)
            if given:
                formal = onnx.defs.get_schema(node.op_type).inputs[place].name
                listed = " and ".join(f"input {name!r}" for name in given)
                return (
                    f"{node.op_type} (node {node.name!r}) takes {formal!r} from {listed}, "
                    "which is no constant"
                )
    return None


def _given(value: ir.Value) -> list[str]:
    """Names of the inputs of a graph whose elements a value is worked out from; of other inputs it
    may read the shape."""
    found, seen, left = [], {value}, [value]
    while left:
        one = left.pop()
        node = one.producer()
        if node is None and one.is_graph_input():
            found.append(str(one.name))
        if node is None or node.op_type in ("Shape", "Size"):
            continue
        more = [source for source in node.inputs if source is not None and source not in seen]
        seen.update(more)
        left += more
    return sorted(found)
