"""Constants are worked out at compile time, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_ext.graph.fold import FoldIndices, FoldLayout, constant
from tvm_ext.tvm_api import constant_array, count_uses, op_name


def module(build: Callable[[relax.BlockBuilder, Any], Any]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(build(builder, x))
        builder.emit_func_output(out)
    return builder.finalize()


def operators(mod: tvm.IRModule) -> list[str]:
    found: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.ir.Call):
            found.append(str(node.op.name).removeprefix("relax."))

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def folded(mod: tvm.IRModule) -> np.ndarray:
    """The constant that is the second operand of the module's one `add`."""
    found: list[np.ndarray] = []

    def visit(node: Any) -> None:
        array = constant_array(node)
        if array is not None:
            found.append(array)

    relax.analysis.post_order_visit(mod["main"], visit)
    (array,) = found
    return array


W = np.arange(6, dtype="float32").reshape(3, 2)

LAYOUTS = {
    "permute_dims": (lambda w: relax.op.permute_dims(w), W.T),
    "reshape": (lambda w: relax.op.reshape(w, (2, 3)), W.reshape(2, 3)),
    "chain": (
        lambda w: relax.op.squeeze(relax.op.expand_dims(relax.op.permute_dims(w), 0), 0),
        W.T,
    ),
    "broadcast_to": (
        lambda w: relax.op.broadcast_to(relax.op.strided_slice(w, [0], [0], [1]), (2, 2)),
        None,
    ),
}


def test_reshapes_in_a_row_are_one() -> None:
    """reshape(expand_dims(reshape(y))) → reshape(y), and y where that is its shape."""

    def chain(shape: tuple[int, ...]) -> list[str]:
        def build(b: Any, x: Any) -> Any:
            flat = b.emit(relax.op.reshape(b.emit(relax.op.nn.relu(x)), (6,)))
            return b.emit(relax.op.reshape(b.emit(relax.op.expand_dims(flat, 0)), shape))

        return operators(FoldLayout()(module(build)))

    assert chain((3, 2)) == ["nn.relu", "reshape"]
    assert chain((2, 3)) == ["nn.relu"]


def test_a_reshape_that_others_read_stays() -> None:
    """Kernels fuse up to what several read: it is written once (ViTDet's windows: 23 kernels, and
    27 where both read what the first reshape does)."""

    def build(b: Any, x: Any) -> Any:
        flat = b.emit(relax.op.reshape(b.emit(relax.op.nn.relu(x)), (6,)))
        turned = b.emit(relax.op.reshape(flat, (3, 2)))
        return b.emit(relax.op.add(turned, b.emit(relax.op.sum(flat))))

    after = FoldLayout()(module(build))
    (block,) = after["main"].body.blocks
    (relu,) = (one.var for one in block.bindings if op_name(one.value) == "relax.nn.relu")
    assert count_uses(after)[relu] == 1


@pytest.mark.parametrize(
    "name", [name for name, (_, value) in LAYOUTS.items() if value is not None]
)
def test_layout_of_a_constant(name: str) -> None:
    """add(x, reshape(const)) → add(x, const)."""
    move, expected = LAYOUTS[name]
    before = module(lambda b, x: b.emit(relax.op.add(x, b.emit(move(relax.const(W))))))
    before = relax.transform.CanonicalizeBindings()(relax.transform.Normalize()(before))
    after = FoldLayout()(before)
    assert operators(after) == ["add"]
    np.testing.assert_array_equal(folded(after), expected)


def test_what_is_no_constant_stays() -> None:
    before = module(lambda b, x: b.emit(relax.op.permute_dims(x)))
    tvm.ir.assert_structural_equal(FoldLayout()(before), before)


def test_shape_arithmetic_becomes_a_constant() -> None:
    """take(shape_to_tensor(shape), index) + 1, all of constants, lowered → one constant."""

    def build(builder: relax.BlockBuilder, x: Any) -> Any:
        shape = builder.emit(relax.op.shape_to_tensor(relax.ShapeExpr([7, 5])))
        row = builder.emit(relax.op.take(shape, constant(np.array([1, 0])), axis=0))
        wide = builder.emit(relax.op.add(row, constant(np.array([1, 1]))))
        table = builder.emit(relax.op.astype(wide, "float32"))
        return builder.emit(relax.op.add(x, builder.emit(relax.op.reshape(table, (2, 1)))))

    lowered = relax.transform.LegalizeOps()(module(build))
    assert operators(lowered).count("call_tir") == 6
    after = FoldIndices()(lowered)
    assert operators(after).count("call_tir") == 1
    np.testing.assert_array_equal(folded(after), [[6], [8]])
