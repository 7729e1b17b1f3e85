"""Pixel shuffles behind convolutions: the same pixels from channels in another order."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import make_model, random_inputs, run_plainly, value
from simplify_case import RNG, assert_same, simplified

from tvm_ext.frontend.depth_to_space import blocks_first

pytest.importorskip("onnxruntime")
SIDE = 2


def shuffle(
    *between: str, mode: str = "CRD", groups: int = 1, bias: bool = True, also: bool = False
) -> onnx.ModelProto:
    """conv, whatever is in `between`, DepthToSpace; `also`: the convolution is a result as well."""
    names = ["x", "w", "b"] if bias else ["x", "w"]
    nodes = [helper.make_node("Conv", names, ["y0"], group=groups, pads=[1] * 4)]
    for place, name in enumerate(between):
        nodes.append(helper.make_node(name, [f"y{place}"], [f"y{place + 1}"]))
    last = f"y{len(between)}"
    nodes.append(helper.make_node("DepthToSpace", [last], ["z"], blocksize=SIDE, mode=mode))
    weight = RNG.standard_normal((12, 4 // groups, 3, 3)).astype(np.float32)
    constants = {"w": weight} | ({"b": RNG.standard_normal(12, np.float32)} if bias else {})
    return make_model(nodes, [value("x", 1, 4, 5, 7)], ["z", "y0"] if also else ["z"], constants)


def mode_of(model: onnx.ModelProto) -> str:
    (node,) = (node for node in model.graph.node if node.op_type == "DepthToSpace")
    attributes = {
        attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute
    }
    return str(attributes["mode"].decode())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("between", [(), ("Relu",), ("Tanh", "Relu")])
def test_the_convolution_makes_room(between: tuple[str, ...], bias: bool) -> None:
    model = shuffle(*between, bias=bias)
    changed = simplified(model)
    given = random_inputs(model)
    assert mode_of(changed) == "DCR"
    assert_same(run_plainly(changed, given), run_plainly(model, given))


@pytest.mark.parametrize(
    "model",
    [shuffle(also=True), shuffle(groups=2), shuffle("Softmax")],
    ids=["read by others", "groups", "across channels"],
)
def test_what_stays_as_it_is(model: onnx.ModelProto) -> None:
    assert mode_of(simplified(model)) == "CRD"


def test_blocks_come_before_channels() -> None:
    np.testing.assert_array_equal(
        blocks_first(np.arange(12), 2), [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    )
