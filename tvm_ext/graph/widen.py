"""`Widen`: numbers of 16 bits are computed with as numbers of 32.

    y = gelu(matmul(x, w) + b)              of float16: sums of 768 products to 11 bits
        →
    y = astype(gelu(matmul(astype(x), w) + b))      of float32, w and b widened at once

Processors that add up in 16 bits lose what was to be added: BERT in float16 was 2.7 % of its
largest value away from itself in float32, where ONNX Runtime, which widens as well, is 0.25 %, and
this 0.18 %. Those that have no such arithmetic convert every element in every operation. Inputs and
results keep their types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm_ext.graph.layout_rules import with_attrs
from tvm_ext.graph.plan_memory import input_symbols
from tvm_ext.graph.steps import TIR_CALL
from tvm_ext.tir.symbolic import symbols_of
from tvm_ext.tvm_api import (
    GenericConst,
    IRModule,
    array_of,
    constant,
    extents_of,
    ir,
    op_name,
    relax,
    tvm,
)
from tvm_ext.tvm_pairs import HALF

HALVES = frozenset({"float16", "bfloat16"})
WIDE = "float32"
WIDENED = "tvm_ext.widened"
"""Attribute of a function that was in bfloat16."""


@tvm.transform.module_pass(opt_level=0, name="Widen")
@dataclass(frozen=True)
class Widen:
    """Widens functions that run straight through and consist of operators, and of kernels, which
    are given what they were written for, on tensors whose extents are known or an input's."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module without arithmetic on 16 bits, before any other pass."""
        changed = {
            variable: _widened(mod, variable.name_hint, function)
            for variable, function in mod.functions.items()
            if isinstance(function, relax.Function) and _is_plain(function)
        }
        return IRModule(dict(mod.functions.items()) | changed) if changed else mod


def _is_plain(function: Any) -> bool:
    """Whether there are halves in a function, and nothing but what can be widened."""
    tensors, told = _tensors(function), frozenset(input_symbols(function))
    if not any(_has_halves(one.ty) for one in tensors):
        return False
    if not all(_is_told(one.ty, told) for one in tensors):
        return False
    return all(_is_known(getattr(binding, "value", None)) for binding in _bindings(function))


def _is_told(ty: Any, told: frozenset[Any]) -> bool:
    """Whether inputs tell all extents: TVM lowers no cast of a tensor of which data say one."""
    if not isinstance(ty, relax.TensorType):
        return True
    return ty.shape is not None and told.issuperset(symbols_of(extents_of(ty)))


def _bindings(function: Any) -> list[Any]:
    return [b for block in getattr(function.body, "blocks", ()) for b in block.bindings]


def _tensors(function: Any) -> list[Any]:
    return [*function.params, *(binding.var for binding in _bindings(function))]


def _is_known(value: Any) -> bool:
    if op_name(value) == TIR_CALL:
        return isinstance(value.ty, relax.TensorType) and isinstance(value.args[1], relax.Tuple)
    if isinstance(value, relax.Call):
        name = op_name(value)
        return name.startswith("relax.") and not name.startswith(("relax.call_", "relax.invoke"))
    return isinstance(value, relax.Tuple | relax.TupleGetItem | relax.Var | GenericConst)


def _has_halves(ty: Any) -> bool:
    return any(_has(half, ty) for half in HALVES)


def _has(dtype: str, ty: Any) -> bool:
    if isinstance(ty, ir.TupleType):
        return any(_has(dtype, field) for field in ty.fields)
    return isinstance(ty, relax.TensorType) and _dtype(ty) == dtype


def _dtype(ty: Any) -> str:
    return str(getattr(ty.dtype, "dtype", ty.dtype))


def _widened(mod: IRModule, name: str, function: Any) -> Any:
    builder = relax.BlockBuilder(mod)
    params = [relax.Var(str(one.name), one.ty) for one in function.params]
    known: dict[Any, Any] = {}
    with builder.function(f"{name}_wide", params, attrs=dict(function.attrs or {})):
        with builder.dataflow():
            for old, new in zip(function.params, params, strict=True):
                halves = isinstance(new.ty, relax.TensorType) and _has_halves(new.ty)
                known[old] = builder.emit(relax.op.astype(new, WIDE)) if halves else new
            for block in function.body.blocks:
                for binding in block.bindings:
                    value = binding.value
                    kernel = op_name(value) == TIR_CALL
                    made = _called(builder, value, known) if kernel else _rewritten(value, known)
                    known[binding.var] = builder.emit(made)
            result = builder.emit_output(_narrowed(builder, function.body.body, known))
        builder.emit_func_output(result)
    made = builder.get()[f"{name}_wide"].with_attr("global_symbol", name)
    brain = any(_has(HALF, one.ty) for one in _tensors(function))
    return made.with_attr(WIDENED, 1) if brain else made


def _called(builder: Any, call: Any, known: Mapping[Any, Any]) -> Any:
    """The call of a kernel on halves, its result widened."""
    kernel, operands = call.args[:2]
    given = [
        one if isinstance(one, GenericConst) else _as(builder, _rewritten(one, known), one.ty)
        for one in operands.fields
    ]
    args = [kernel, relax.Tuple(given), *call.args[2:]]
    made = relax.Call(call.op, args, call.attrs, call.ty_args)
    return relax.op.astype(builder.emit(made), WIDE) if _has_halves(call.ty) else made


def _rewritten(expr: Any, known: Mapping[Any, Any]) -> Any:
    """An expression on what has been widened."""
    if isinstance(expr, GenericConst) and _has_halves(expr.ty):
        return constant(array_of(expr.value).astype(WIDE))
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_rewritten(field, known) for field in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(_rewritten(expr.tuple_value, known), expr.index)
    if not isinstance(expr, relax.Call):
        return known.get(expr, expr) if isinstance(expr, relax.Var) else expr
    args = [_rewritten(arg, known) for arg in expr.args]
    if op_name(expr) == "relax.astype":
        wanted = WIDE if _has_halves(expr.ty) else _dtype(expr.ty)
        return args[0] if _dtype(args[0].ty) == wanted else relax.op.astype(args[0], wanted)
    return with_attrs(expr, args, **_halves_of(expr.attrs))


def _halves_of(attrs: Any) -> dict[str, str]:
    """The attributes that ask for halves, with what they ask for now."""
    if attrs is None:
        return {}
    names = [field.name for field in type(attrs).__tvm_ffi_type_info__.fields]
    return {name: WIDE for name in names if str(getattr(attrs, name)) in HALVES}


def _narrowed(builder: Any, result: Any, known: Mapping[Any, Any]) -> Any:
    """The results in their own types."""
    if isinstance(result, relax.Tuple):
        return relax.Tuple([_narrowed(builder, field, known) for field in result.fields])
    found = _rewritten(result, known)
    if isinstance(result.ty, ir.TupleType):
        fields = [
            _as(builder, builder.emit(relax.TupleGetItem(found, place)), ty)
            for place, ty in enumerate(result.ty.fields)
        ]
        return relax.Tuple(fields)
    return _as(builder, found, result.ty)


def _as(builder: Any, value: Any, ty: Any) -> Any:
    return builder.emit(relax.op.astype(value, _dtype(ty))) if _has_halves(ty) else value
