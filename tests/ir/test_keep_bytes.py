"""Between equal quantisers bytes are moved, between others floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from byte_modules import operators, run

from tvm_ext.graph.keep_bytes import KeepBytes
from tvm_ext.tvm_api import IRModule, relax

op = relax.op
SCALE, POINT = relax.const(0.5, "float32"), relax.const(3, "uint8")
RANDOM = np.random.default_rng(0)
MOVES: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: op.reshape(x, (2, 96)),
    "permute_dims": lambda x: op.permute_dims(x, [0, 2, 3, 1]),
    "strided_slice": lambda x: op.strided_slice(x, [2], [1], [3]),
    "max_pool2d": lambda x: op.nn.max_pool2d(x, (2, 2), (2, 2), (1, 1, 0, 0)),
}


def module(body: Callable[..., Any], count: int = 1) -> IRModule:
    """A function of some images of bytes."""
    builder = relax.BlockBuilder()
    given = [relax.Var(f"x{i}", relax.TensorType((2, 6, 4, 4), "uint8")) for i in range(count)]
    with builder.function("main", given):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit, *given))
        builder.emit_func_output(result)
    return builder.get()


def between(move: Callable[[Any], Any], scale: Any = SCALE, point: Any = POINT) -> Any:
    def body(emit: Any, x: Any) -> Any:
        moved = emit(move(emit(op.dequantize(x, SCALE, POINT, axis=1))))
        return op.quantize(moved, scale, point, axis=1, out_dtype="uint8")

    return body


@pytest.mark.parametrize("name", MOVES)
def test_bytes_are_moved(name: str) -> None:
    mod = module(between(MOVES[name]))
    kept = KeepBytes()(mod)
    assert [one.rpartition(".")[2] for one in operators(kept)] == [name]
    x = RANDOM.integers(0, 256, (2, 6, 4, 4)).astype(np.uint8)
    np.testing.assert_array_equal(run(kept, x), run(mod, x))


@pytest.mark.parametrize(
    "body",
    [
        between(MOVES["reshape"], scale=relax.const(0.25, "float32")),
        between(MOVES["reshape"], point=relax.const(4, "uint8")),
        between(op.nn.relu),
        between(lambda x: op.nn.avg_pool2d(x, (2, 2))),
    ],
    ids=["other_scale", "other_point", "relu", "mean"],
)
def test_others_stay(body: Callable[..., Any]) -> None:
    mod = module(body)
    assert operators(KeepBytes()(mod)) == operators(mod)


def joined(second: Any) -> Callable[..., Any]:
    def body(emit: Any, x: Any, y: Any) -> Any:
        parts = [
            emit(op.dequantize(one, scale, POINT, axis=1))
            for one, scale in ((x, SCALE), (y, second))
        ]
        whole = emit(op.concat(parts, 1))
        return op.quantize(whole, SCALE, POINT, axis=1, out_dtype="uint8")

    return body


def test_parts_of_one_scale_are_joined_as_bytes() -> None:
    assert operators(KeepBytes()(module(joined(SCALE), 2))) == ["concat"]


def test_parts_of_another_scale_are_so_once_they_are_quantised() -> None:
    mod = module(joined(relax.const(0.125, "float32")), 2)
    kept = KeepBytes()(mod)
    assert operators(kept) == ["dequantize", "quantize", "concat"]
    given = [RANDOM.integers(0, 256, (2, 6, 4, 4)).astype(np.uint8) for _ in range(2)]
    np.testing.assert_array_equal(run(kept, *given), run(mod, *given))


def test_what_others_read_too_is_joined_as_floats() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        parts = [emit(op.dequantize(one, SCALE, POINT, axis=1)) for one in (x, y)]
        whole = emit(op.concat([parts[0], emit(op.nn.relu(parts[1]))], 1))
        octets = emit(op.quantize(whole, SCALE, POINT, axis=1, out_dtype="uint8"))
        return op.add(emit(op.astype(octets, "float32")), whole)

    mod = module(body, 2)
    assert operators(KeepBytes()(mod)) == operators(mod)
