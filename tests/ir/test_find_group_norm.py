"""`FindGroupNorm`: what exporters make of a group norm, and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tvm_ext.graph.find_group_norm import FindGroupNorm
from tvm_ext.graph.fold import FoldLayout
from tvm_ext.graph.normalise import Normalise
from tvm_ext.tvm_api import IRModule, constant, constant_array, op_name, relax, structural_walk

op = relax.op
SHAPE, GROUPS = (2, 12, 5, 7), 4


def module(
    rows: tuple[int, int, int] = (2, GROUPS, -1),
    after: tuple[int, ...] = SHAPE,
    axis: int = 2,
    scale: np.ndarray | None = None,
    shift: np.ndarray | None = None,
) -> IRModule:
    """x by groups, normalised along an axis, scaled and shifted, in the shape `after`."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = emit(op.reshape(x, rows))
            mean = emit(op.mean(y, [axis], keepdims=True))
            spread = emit(op.variance(y, [axis], keepdims=True))
            root = emit(op.sqrt(emit(op.add(spread, relax.const(1e-5, "float32")))))
            y = emit(op.divide(emit(op.subtract(y, mean)), root))
            if scale is not None:
                y = emit(op.multiply(y, constant(scale)))
            if shift is not None:
                y = emit(op.add(y, constant(shift)))
            result = builder.emit_output(op.reshape(y, after))
        builder.emit_func_output(result)
    return builder.finalize()


def calls(mod: IRModule) -> list[Any]:
    found: list[Any] = []
    structural_walk(
        FindGroupNorm()(FoldLayout()(Normalise()(mod)))["main"].body, (relax.Call, found.append)
    )
    return found


def vector(values: list[float]) -> np.ndarray:
    return np.array(values, "float32").reshape(1, -1, 1)


def test_an_instance_norm_of_groups_is_a_group_norm() -> None:
    (found,) = calls(module())
    assert op_name(found) == "relax.nn.group_norm"
    assert int(found.attrs.num_groups) == GROUPS
    assert [int(axis) for axis in found.attrs.axes] == [2, 3]
    assert float(found.attrs.epsilon) == pytest.approx(1e-5)
    np.testing.assert_array_equal(constant_array(found.args[1]), np.ones(12))
    np.testing.assert_array_equal(constant_array(found.args[2]), np.zeros(12))


def test_scales_of_groups_are_those_of_their_channels() -> None:
    (found,) = calls(module(scale=vector([1, 2, 3, 4]), shift=vector([5, 6, 7, 8])))
    np.testing.assert_array_equal(constant_array(found.args[1]), np.repeat([1, 2, 3, 4], 3))
    np.testing.assert_array_equal(constant_array(found.args[2]), np.repeat([5, 6, 7, 8], 3))


def by_channels(
    scaled: Callable[[Any, Any], Any],
    axes: tuple[int, ...] = (2, 3),
    shape: tuple[int, ...] = SHAPE,
) -> IRModule:
    """x normalised along axes; `scaled` is given what emits and the result."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            mean = emit(op.mean(x, axes, keepdims=True))
            spread = emit(op.variance(x, axes, keepdims=True))
            root = emit(op.sqrt(emit(op.add(spread, relax.const(1e-3, "float32")))))
            y = emit(op.divide(emit(op.subtract(x, mean)), root))
            result = builder.emit_output(scaled(emit, y))
        builder.emit_func_output(result)
    return builder.finalize()


def channels(start: int) -> Any:
    return constant(np.arange(start, start + 12, dtype="float32").reshape(12, 1, 1))


def test_an_instance_norm_takes_its_scale_and_shift_in() -> None:
    def scaled(emit: Any, y: Any) -> Any:
        return op.add(emit(op.multiply(y, channels(1))), channels(5))

    (found,) = calls(by_channels(scaled))
    assert op_name(found) == "relax.nn.instance_norm"
    assert ([int(axis) for axis in found.attrs.axes], int(found.attrs.channel_axis)) == ([2, 3], 1)
    assert float(found.attrs.epsilon) == pytest.approx(1e-3)
    np.testing.assert_array_equal(constant_array(found.args[1]), np.arange(1, 13))
    np.testing.assert_array_equal(constant_array(found.args[2]), np.arange(5, 17))


def test_a_shift_before_the_scale_is_scaled_as_well() -> None:
    def scaled(emit: Any, y: Any) -> Any:
        return op.multiply(emit(op.add(y, channels(1))), channels(2))

    (found,) = calls(by_channels(scaled))
    expected = np.arange(1, 13) * np.arange(2, 14)
    np.testing.assert_array_equal(constant_array(found.args[2]), expected)


def test_what_is_read_twice_keeps_its_scale_apart() -> None:
    def scaled(emit: Any, y: Any) -> Any:
        return op.subtract(emit(op.multiply(y, channels(2))), y)

    names = [op_name(call).removeprefix("relax.") for call in calls(by_channels(scaled))]
    assert names == ["nn.instance_norm", "multiply", "subtract"]


@pytest.mark.parametrize("axes", [(3,), (1, 2, 3), (0, 2, 3)])
def test_norms_over_other_axes_are_none_of_instances(axes: tuple[int, ...]) -> None:
    found = calls(by_channels(lambda _, y: op.nn.relu(y), axes))
    assert "relax.nn.instance_norm" not in {op_name(call) for call in found}


@pytest.mark.parametrize(
    "mod",
    [
        module(axis=1),
        module(after=(2, 12, 7, 5)),
        module(rows=(4, 2, -1)),
        module(scale=np.ones((1, 1, 105), "float32")),
    ],
    ids=["across groups", "another shape", "batches together", "scales of pixels"],
)
def test_what_only_looks_like_one(mod: IRModule) -> None:
    assert "relax.nn.group_norm" not in {op_name(call) for call in calls(mod)}
