"""Arithmetic on 16 bits becomes arithmetic on 32, between the same inputs and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from steps import steps

from tvm_ext.graph.widen import Widen
from tvm_ext.tvm_api import IRModule, constant, relax, tirx, topi

op = relax.op
Emit = Callable[[Any], Any]
WEIGHT = constant(np.random.default_rng(0).standard_normal((8, 8)).astype("float16"))


def module(build: Callable[[Any, Any], Any], dtype: str = "float16", rows: Any = 4) -> IRModule:
    """A function of one tensor [rows, 8]; `build` is given the builder and that."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 8), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(build(builder, x))
        builder.emit_func_output(result)
    return builder.finalize()


def dtypes(mod: IRModule) -> list[str]:
    """The types of what is computed, in order."""
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    return [str(one.var.ty.dtype.dtype) for one in bindings if isinstance(one.value, relax.Call)]


def gelu_of_product(builder: Any, x: Any) -> Any:
    product = builder.emit(op.matmul(x, WEIGHT))
    return builder.emit(op.nn.gelu(builder.emit(op.add(product, relax.const(2.0, "float16")))))


def test_a_chain_is_widened_once() -> None:
    mod = module(gelu_of_product)
    wide = Widen()(mod)
    assert steps(wide) == ["astype", "matmul", "add", "gelu", "astype"]
    assert dtypes(wide) == ["float32"] * 4 + ["float16"]
    assert wide["main"].ret_ty == mod["main"].ret_ty
    assert [param.ty for param in wide["main"].params] == [p.ty for p in mod["main"].params]
    assert wide["main"].attrs["global_symbol"] == "main"


def test_open_batches_are_widened() -> None:
    wide = Widen()(module(gelu_of_product, rows=tirx.Var("n", "int64")))
    assert steps(wide) == ["astype", "matmul", "add", "gelu", "astype"]


def test_what_data_say_the_extent_of_is_left_alone() -> None:
    def build(builder: Any, x: Any) -> Any:
        flat = builder.emit(op.reshape(x, (32,)))
        places = builder.emit(op.nonzero(builder.emit(op.astype(flat, "bool"))))
        kind = relax.TensorType((1, tirx.Var("found", "int64")), "int64")
        known = builder.match_cast(places, kind)
        return builder.emit(op.take(flat, builder.emit(op.squeeze(known, [0])), axis=0))

    mod = module(build)
    assert steps(Widen()(mod)) == steps(mod)


def test_casts_in_between_vanish() -> None:
    def build(builder: Any, x: Any) -> Any:
        half = builder.emit(op.astype(x, "bfloat16"))
        return builder.emit(op.astype(builder.emit(op.exp(half)), "float32"))

    wide = Widen()(module(build, "float32"))
    assert steps(wide) == ["exp"]
    assert dtypes(wide) == ["float32"]


def test_what_asks_for_halves_asks_for_floats() -> None:
    def build(builder: Any, x: Any) -> Any:
        filled = builder.emit(op.full((4, 8), relax.const(0.5, "float16"), "float16"))
        product = builder.emit(op.matmul(x, WEIGHT, "float16"))
        return builder.emit(op.add(filled, product))

    assert dtypes(Widen()(module(build))) == ["float32"] * 4 + ["float16"]


def test_kernels_are_given_what_they_were_written_for() -> None:
    def build(builder: Any, x: Any) -> Any:
        y = builder.emit(op.exp(x))
        clipped = builder.emit_te(topi.maximum, y, relax.const(1.0, "float16"))
        return builder.emit(op.negative(clipped))

    wide = Widen()(module(build))
    assert steps(wide) == ["astype", "exp", "astype", "call_tir", "astype", "negative", "astype"]
    assert dtypes(wide)[2:6] == ["float16", "float16", "float32", "float32"]


@pytest.mark.parametrize("how", ["tuple", "split"])
def test_several_results_keep_their_types(how: str) -> None:
    def build(builder: Any, x: Any) -> Any:
        y = builder.emit(op.exp(x))
        if how == "split":
            return builder.emit(op.split(y, 2, 1))
        return builder.emit(relax.Tuple([y, builder.emit(op.argmax(y, 1))]))

    mod = module(build)
    assert Widen()(mod)["main"].ret_ty == mod["main"].ret_ty


def test_floats_stay_as_they_are() -> None:
    mod = module(lambda builder, x: builder.emit(op.exp(x)), "float32")
    assert Widen()(mod).same_as(mod)


def test_what_is_called_by_name_stays_as_it_is() -> None:
    def build(builder: Any, x: Any) -> Any:
        return builder.emit(relax.op.call_pure_packed("f", x, ty_args=x.ty))

    mod = module(build)
    assert steps(Widen()(mod)) == steps(mod)
