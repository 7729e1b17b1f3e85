"""`SplitReductions`: which reductions go part by part, and what is left of a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tvm_ext.graph.split_reductions import SplitReductions
from tvm_ext.hardware import get
from tvm_ext.tvm_api import IRModule, op_name, relax, static_extents

HARDWARE = msgspec.structs.replace(get("cpu/x86-avx2"), cores=2)
op = relax.op
Build = Callable[[Callable[[Any], Any], Any], list[Any]]


def called(build: Build, shape: tuple[int, ...], dtype: str = "float32") -> IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.Tuple(build(builder.emit, x)))
        builder.emit_func_output(result)
    return builder.finalize()


def calls(mod: IRModule) -> list[tuple[str, tuple[int, ...]]]:
    """Operators and the shapes of what they make, in order."""
    (block,) = mod["main"].body.blocks
    made = (binding for binding in block.bindings if op_name(binding.value))
    return [
        (op_name(one.value).removeprefix("relax."), static_extents(one.value.ty) or ())
        for one in made
    ]


def split(mod: IRModule, cached_bytes: float = 0) -> IRModule:
    return SplitReductions(HARDWARE, cached_bytes)(mod)


def rows_and_columns(emit: Callable[[Any], Any], x: Any) -> list[Any]:
    return [emit(op.mean(x, 1)), emit(op.max(x, 0, keepdims=True))]


def test_both_read_one_view() -> None:
    """mean(x, 1), max(x, 0)   →   v; mean(v, 2), max(max(v, 1), 0)"""
    assert calls(split(called(rows_and_columns, (512, 768)))) == [
        ("reshape", (8, 64, 768)),
        ("mean", (8, 64)),
        ("reshape", (512,)),
        ("max", (8, 768)),
        ("max", (768,)),
        ("reshape", (1, 768)),
    ]


def test_parts_fit_a_core() -> None:
    _, *shape = next(shape for _, shape in calls(split(called(rows_and_columns, (8192, 2048)))))
    assert 4 * shape[0] * shape[1] <= HARDWARE.own_cache_bytes


def test_axes_before_the_rows_are_kept() -> None:
    def build(emit: Callable[[Any], Any], x: Any) -> list[Any]:
        return [emit(op.sum(x, [1], keepdims=True)), emit(op.min(x, [2]))]

    assert calls(split(called(build, (2, 64, 48, 32))))[0] == ("reshape", (2, 2, 32, 48, 32))


UNCHANGED: dict[str, tuple[Build, tuple[int, ...], str]] = {
    "rows alone": (lambda emit, x: [emit(op.sum(x, 1)), emit(op.max(x, 1))], (64, 96), "float32"),
    "a prime": (rows_and_columns, (509, 96), "float32"),
    "one row": (rows_and_columns, (1, 96), "float32"),
    "integers": (rows_and_columns, (64, 96), "int32"),
    "one of two tensors": (
        lambda emit, x: [emit(op.sum(emit(op.exp(x)), 0)), emit(op.max(x, 1))],
        (64, 96),
        "float32",
    ),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_others_stay(name: str) -> None:
    build, shape, dtype = UNCHANGED[name]
    mod = called(build, shape, dtype)
    assert calls(split(mod)) == calls(mod)


def test_what_a_cache_holds_stays() -> None:
    mod = called(rows_and_columns, (512, 768))
    assert calls(split(mod, cached_bytes=512 * 768 * 4)) == calls(mod)
