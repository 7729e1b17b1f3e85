"""Two modules that differ by one extent as one module in which that extent is not known.

    f(x: [499, 28, 28, 64])   and   f(x: [1006, 28, 28, 64])   →   f(x: [n, 28, 28, 64])

So a model goes through every pass with static shapes, twice, and what comes out is lifted (the
least general generalisation of two terms, Plotkin 1970): numbers that are `a * 499 + b` in the one
and `a * 1006 + b` in the other are `a * n + b`, all else must be equal. What was made of the two is
made of the one again and compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

from tvm_ext.graph.grown_constants import GrownConstants, grown_constants
from tvm_ext.tir.symbolic import instance
from tvm_ext.tvm_api import (
    Call,
    GenericConst,
    IRModule,
    PrimFunc,
    in_map_order,
    ir,
    op_name,
    relax,
    structural_equal,
    structural_map,
    tirx,
)

EXTENTS = (499, 1006)
"""A prime and two times one: what is a multiple of them is so because of the extent, or by rare
chance. Between them lie 3 * 13 * 13, so that what is rounded up to whole vectors, or blocks of
them, is no linear function of both."""


def unify(modules: Sequence[IRModule], name: str) -> IRModule | None:
    """The module of which two are instances, with `EXTENTS` for an extent of that name; None if
    they differ by more."""
    first, second = ({str(v.name_hint): f for v, f in mod.functions.items()} for mod in modules)
    if first.keys() != second.keys():
        return None
    symbol = tirx.Var(name, "int64")
    taken = _operands(modules[0])
    builder = relax.BlockBuilder()  # whose variables know the new types
    kernels: dict[str, Any] = {}
    untold: dict[str, int] = {}
    for own, one in first.items():
        if isinstance(one, PrimFunc):
            found = _program(one, second[own], name, taken.get(own))
            if found is None:
                return None
            kernels[own] = builder.add_func(found[0], own)
            untold[own] = found[1]
    functions: dict[str, Any] = {}
    for own, one in first.items():
        if not isinstance(one, PrimFunc):
            other = second[own]
            constants = grown_constants(one, other, symbol, EXTENTS, builder)
            made = None
            pairs = _pairs(one, other)
            if constants is not None and pairs is not None and _steps(one) == _steps(other):
                made = _unified(one, pairs, symbol, 1, constants)
            if made is None:
                return None
            made = constants.made_in(made) if constants else made
            functions[own] = _calling(made, kernels, untold, symbol)
    result = builder.get()
    for own, function in functions.items():
        result[own] = function
    return result.with_attrs(modules[0].attrs) if modules[0].attrs else result


def _calling(
    function: Any, kernels: Mapping[str, Any], untold: Mapping[str, int], symbol: Any
) -> Any:
    """A function that calls kernels by their new variables, and tells some the extent, in steps
    of theirs."""

    def renamed(variable: Any) -> Any:
        return kernels.get(str(variable.name_hint), variable)

    def telling(call: Any) -> Any:
        if op_name(call) != "relax.call_tir" or not untold.get(str(call.args[0].name_hint)):
            return call
        kernel, operands = call.args
        extent = symbol * tirx.const(untold[str(kernel.name_hint)], "int64")
        told = relax.Tuple([*operands.fields, extent])
        return relax.Call(call.op, [kernel, told], call.attrs, call.ty_args)

    return structural_map(function, [(ir.GlobalVar, renamed), (Call, telling)], order="post")


def at_extent(func: PrimFunc, was: int, extent: int) -> PrimFunc:
    """A function of static shapes made with `was` for an extent, with another."""

    def valued(number: Any) -> Any:
        value = int(number)
        grows = value and value % was == 0
        return tirx.const(value // was * extent, str(number.ty.dtype)) if grows else number

    return structural_map(func, [(tirx.IntImm, valued)], order="post")


def _steps(function: Any) -> list[tuple[str, str]]:
    """The operators that a function calls, and their kernels."""
    found: list[tuple[str, str]] = []

    def look(node: Any) -> None:
        if isinstance(node, Call):
            kernel = node.args[0] if op_name(node) == "relax.call_tir" else node.op
            found.append((op_name(node), str(getattr(kernel, "name_hint", ""))))

    relax.analysis.post_order_visit(function, look)
    return found


def _operands(mod: IRModule) -> dict[str, int]:
    """How many operands the calls of each kernel have that is called by `call_tir`."""
    found: dict[str, int] = {}

    def look(node: Any) -> None:
        if op_name(node) == "relax.call_tir":
            found[str(node.args[0].name_hint)] = len(node.args[1].fields)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, look)
    return found


def _program(
    one: PrimFunc, other: PrimFunc, name: str, operands: int | None
) -> tuple[PrimFunc, int] | None:
    """A kernel, and the steps of the extent that its symbol counts if that is a parameter of its
    own, after its operands; 0 if the extents of its tensors tell it. The steps are the largest by
    which they grow, so that most do."""
    pairs = _pairs(one, other)
    if pairs is None:
        return None
    size = gcd(*(abs(b - a) // _APART for a, b in pairs))
    if not size:
        return (one, 0) if structural_equal(one, other) else None
    symbol = tirx.Var(name, "int64")
    made = _unified(one, pairs, symbol, size)
    if made is None:
        return None
    told = instance(made, {symbol: 1}) is not None
    if not told and operands is None:
        return None
    if not told:
        params = [*made.params[:operands], symbol, *made.params[operands:]]
        made = PrimFunc(params, made.body, attrs=made.attrs)
    for func, extent in zip((one, other), EXTENTS, strict=True):
        again = instance(made, {symbol: extent * size})
        if again is None or not structural_equal(again, func):
            return None
    return made, 0 if told else size


def _unified(
    one: Any,
    pairs: list[tuple[int, int]],
    symbol: Any,
    size: int,
    constants: GrownConstants | None = None,
) -> Any:
    """A function with `a // size * symbol + b` for numbers that are `a * extent + b`, beside those
    of the other function; None if they are not."""
    if any((b - a) % _APART or b < a for a, b in pairs):
        return None
    place = iter(pairs)

    def lifted(number: Any) -> Any:
        a, b = next(place)
        if a == b:
            return number
        step = (b - a) // _APART
        offset = a - step * EXTENTS[0]
        dtype = str(number.ty.dtype)
        own = symbol if dtype == str(symbol.ty.dtype) else symbol.astype(dtype)
        grown = own if step == size else own * tirx.const(step // size, dtype)
        return grown + tirx.const(offset, dtype) if offset else grown

    kinds: list[tuple[Any, Any]] = [(tirx.IntImm, lifted)]
    if constants is not None:
        kinds.append((GenericConst, constants.in_turn()))
    return structural_map(one, kinds, order="post")


def _pairs(one: Any, other: Any) -> list[tuple[int, int]] | None:
    """The numbers of two functions side by side; None if one has more."""
    numbers = [list(map(int, in_map_order(func, tirx.IntImm))) for func in (one, other)]
    return list(zip(*numbers, strict=True)) if len(numbers[0]) == len(numbers[1]) else None


_APART = EXTENTS[1] - EXTENTS[0]
