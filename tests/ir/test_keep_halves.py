"""What only products in bfloat16 read is rounded before it is joined, moved or pooled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from byte_modules import operators

from tvm_ext.graph.keep_halves import KeepHalves
from tvm_ext.graph.multiply_halves import rounded
from tvm_ext.tvm_api import IRModule, relax

op = relax.op
Body = Callable[[Any, Any, Any], Any]


def pool(x: Any, **options: Any) -> Any:
    return op.nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC", **options)


def module(body: Body) -> IRModule:
    """A function of two images, channels last; `body` is given what makes variables, and them."""
    builder = relax.BlockBuilder()
    given = [relax.Var(name, relax.TensorType((1, 6, 6, 8), "float32")) for name in "xy"]
    with builder.function("main", given):
        with builder.dataflow():
            results = body(builder, *given)
            result = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(result)
    return builder.finalize()


def round_(builder: Any, x: Any) -> Any:
    return builder.emit(rounded(builder, x))


def skipped(builder: Any, x: Any, y: Any) -> Any:
    """As in a U-Net: pooled, and joined to what comes back."""
    made, back = builder.emit(op.nn.relu(x)), builder.emit(op.exp(y))
    joined = builder.emit(op.concat([made, back], 3))
    return [round_(builder, builder.emit(pool(made))), round_(builder, joined)]


def read_as_floats(builder: Any, x: Any, y: Any) -> Any:
    made = builder.emit(op.nn.relu(x))
    joined = builder.emit(op.concat([made, y], 3))
    return [round_(builder, joined), builder.emit(op.exp(joined))]


def part_read_as_floats(builder: Any, x: Any, y: Any) -> Any:
    """A part that others read is rounded by itself, as the whole would have been."""
    made = builder.emit(op.nn.relu(x))
    joined = builder.emit(op.concat([made, y], 3))
    return [round_(builder, joined), builder.emit(op.exp(made))]


def returned(builder: Any, x: Any, y: Any) -> Any:
    joined = builder.emit(op.concat([x, y], 3))
    return [round_(builder, joined), joined]


def pooled_alone(builder: Any, x: Any, _: Any) -> Any:
    return [round_(builder, builder.emit(pool(builder.emit(op.nn.relu(x)))))]


def moved(builder: Any, x: Any, y: Any) -> Any:
    joined = builder.emit(op.concat([x, y], 3))
    return [round_(builder, builder.emit(op.reshape(joined, (36, 16))))]


def pooled_with_holes(builder: Any, x: Any, y: Any) -> Any:
    joined = builder.emit(op.concat([x, y], 3))
    return [
        round_(builder, builder.emit(pool(joined, dilation=(2, 2)))),
        round_(builder, joined),
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (skipped, ["nn.relu", "exp", "halves", "largest_half", "halves", "halves1", "concat"]),
        (part_read_as_floats, ["nn.relu", "halves", "halves1", "concat", "exp"]),
        (moved, ["halves", "halves1", "concat", "reshape"]),
    ],
)
def test_it_is_rounded_before(body: Body, expected: list[str]) -> None:
    found = operators(KeepHalves()(module(body)))
    assert sorted(_unnumbered(found)) == sorted(_unnumbered(expected))
    assert found.index("concat") > max(
        place for place, name in enumerate(found) if name.startswith("halves")
    )


@pytest.mark.parametrize("body", [read_as_floats, returned, pooled_alone, pooled_with_holes])
def test_what_is_read_as_floats_and_what_strips_may_hold_stays(body: Body) -> None:
    mod = module(body)
    assert operators(KeepHalves()(mod)) == operators(mod)


def _unnumbered(names: list[str]) -> list[str]:
    return [name.rstrip("0123456789") if name.startswith("halves") else name for name in names]
