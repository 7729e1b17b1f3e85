"""Two modules that differ by one extent as one module in which that extent is not known.

    f(x: [461, 28, 28, 64])   and   f(x: [982, 28, 28, 64])   →   f(x: [n, 28, 28, 64])

So a model goes through every pass with static shapes, twice, and what comes out is lifted
(`tir.generalise`): numbers that are `a * 461 + b` in the one and `a * 982 + b` in the other are
`a * n + b`, all else must be equal. What was made of the two is made of the one again and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from math import gcd, prod
from operator import add
from typing import Any

import numpy as np

from tvm_ext.errors import ModelError
from tvm_ext.extents import assigned
from tvm_ext.graph.constant_form import Length
from tvm_ext.graph.constant_forms import Tables
from tvm_ext.graph.grown_constants import grown_constants
from tvm_ext.graph.open_extent import of_slice
from tvm_ext.shield import first_line
from tvm_ext.tir.generalise import are_alike, fractions, generalised, numbers
from tvm_ext.tir.symbolic import instance, substituted, symbols, tells, tensors
from tvm_ext.tvm_api import (
    Call,
    GenericConst,
    InternalError,
    IRModule,
    PrimFunc,
    ir,
    mark_written,
    op_name,
    relax,
    structural_equal,
    structural_map,
    tirx,
    uses,
    written_cycles,
)

Point = tuple[int, ...]
"""A number for each extent that is not known."""
Pairs = tuple[tuple[int, int], ...]
"""Two numbers for each of them."""
EXTENTS = ((461, 982), (307, 458), (31, 74))
"""Pairs to choose from, for models that take no more: a prime and two times one, with no number
near that models are made of, so that what is a multiple of them or nearly one is so because of the
extent, or by rare chance. What lies between them is a prime, so that what is rounded up to whole
vectors, or blocks of them, is no linear function of both."""
SEVERAL = (
    ((307, 458), (41, 94), (233, 346)),
    ((307, 458), (43, 86), (223, 422)),
    ((307, 458), (73, 134), (227, 334)),
    ((307, 458), (53, 106), (233, 346)),
    ((37, 74), (47, 94), (59, 118)),
)
"""Likewise of several extents: a length, how many texts, and another length; masks of as many texts
of as many words as there are have to be made. None is, one or two more or less or with the spare
rows of a bias, a multiple of another, nor is the sum of two; heads of 64 numbers, or rows of 96,
are far from those of some."""
MOST = len(SEVERAL[0])
"""Extents that may be unknown at once: each doubles the modules that are made."""
UNLIKE = 139
"""What other extents are where kernels are compared: nothing that anything else is."""
TIR_CALL = "relax.call_tir"


def pairs_for(count: int) -> Iterator[Pairs]:
    """Pairs for so many extents, to be tried in turn. Of several each may be the length, the last
    one first."""
    if count == 1:
        yield from ((pair,) for pair in EXTENTS)
        return
    for length, *others in SEVERAL:
        for place in reversed(range(count)):
            yield (*others[:place], length, *others[place : count - 1])


def unify_all(
    modules: Mapping[Point, IRModule], names: Sequence[str], tables: Tables = tuple
) -> IRModule | None:
    """The module of which all are instances, with those numbers for extents of those names; None if
    they differ by more. One extent after another:

        [41 * 307, 64]  [94 * 307, 64]    →    [b * 307, 64]
                                                                →    [b * n, 64]
        [41 * 458, 64]  [94 * 458, 64]    →    [b * 458, 64]

    tables  as in `grown_constants`
    """
    name, *others = names
    groups: dict[Point, dict[int, IRModule]] = {}
    for (extent, *rest), mod in modules.items():
        groups.setdefault(tuple(rest), {})[extent] = mod
    made: dict[Point, IRModule] = {}
    for point, group in groups.items():
        one = unify(list(group.values()), name, list(group), tables)
        if one is None:
            return None
        made[point] = one
    return unify_all(made, others, tables) if others else made[()]


def unify(
    modules: Sequence[IRModule], name: str, extents: Sequence[int], tables: Tables = tuple
) -> IRModule | None:
    """The module of which two are instances, with those numbers for an extent of that name; None if
    they differ by more.

    tables  as in `grown_constants`
    """
    first, second = ({str(v.name_hint): f for v, f in mod.functions.items()} for mod in modules)
    if first.keys() != second.keys():
        return None
    symbol = tirx.Var(name, "int64")
    taken = _operands(modules[0])
    builder = relax.BlockBuilder()  # whose variables know the new types
    kernels: dict[str, Any] = {}
    untold: dict[str, Length | None] = {}
    for own, one in first.items():
        if isinstance(one, PrimFunc):
            found = _program((one, second[own]), extents, name, taken.get(own))
            if found is None:
                return None
            kernels[own] = builder.add_func(found[0], own)
            untold[own] = found[1]
    functions: dict[str, Any] = {}
    for own, one in first.items():
        if not isinstance(one, PrimFunc):
            other = second[own]
            constants = grown_constants(one, other, symbol, extents, builder, tables)
            if constants is None or calls_of(one) != calls_of(other):
                return None
            in_turn = (GenericConst, constants.in_turn())
            made = generalised((one, other), [[e] for e in extents], [symbol], [in_turn])
            kinds = (_lengths(kind, (one, other), extents) for kind in (numbers, fractions))
            if made is None or None in kinds:
                return None
            functions[own] = _calling(constants.made_in(made), kernels, untold, symbol)
    result = builder.get()
    for own, function in functions.items():
        result[own] = function
    return result.with_attrs(modules[0].attrs) if modules[0].attrs else result


def with_extents(mod: IRModule, extents: Mapping[str, int]) -> IRModule:
    """The module with numbers for its symbols. Raises ModelError if it does not take so many."""
    try:
        return relax.transform.BindSymbolicVars(dict(extents))(mod)
    except (ValueError, InternalError) as error:
        reason = first_line(error)
        raise ModelError(f"module: it does not take {assigned(extents)}: {reason}") from error


def extent_text(values: Mapping[Point, int], names: Sequence[str]) -> int | str:
    """An extent that is these numbers where the names have those, as a number, or as a text: the
    name, what is worked out of it or of several, or ? if it is nothing simple."""
    parts = [part for size in range(len(names) + 1) for part in combinations(names, size)]
    rows = [
        [prod(own[name] for name in part) for part in parts]
        for own in (dict(zip(names, point, strict=True)) for point in values)
    ]
    wanted = np.array(list(values.values()), np.int64)
    solved = np.linalg.solve(np.array(rows, float), wanted.astype(float))
    factors = np.rint(solved).astype(np.int64)
    if (np.array(rows, np.int64) @ factors != wanted).any():
        return "?"
    offset, *rest = map(int, factors)
    if not any(rest):
        return offset
    terms = [
        "*".join([*([str(abs(factor))] if abs(factor) != 1 else []), *part])
        for part, factor in zip(parts[1:], rest, strict=True)
        if factor
    ]
    signs = ["-" if factor < 0 else "+" for factor in rest if factor]
    text = "".join(map(add, signs, terms)).removeprefix("+")
    return f"{text}{offset:+d}" if offset else text


def _calling(
    function: Any, kernels: Mapping[str, Any], untold: Mapping[str, Length | None], symbol: Any
) -> Any:
    """A function that calls kernels by their new variables, and tells some the extent, as they
    count it."""

    def renamed(variable: Any) -> Any:
        return kernels.get(str(variable.name_hint), variable)

    def telling(call: Any) -> Any:
        own = untold.get(str(call.args[0].name_hint)) if op_name(call) == TIR_CALL else None
        if own is None:
            return call
        kernel, operands = call.args
        told = relax.Tuple([*operands.fields, own.at(symbol)])
        return relax.Call(call.op, [kernel, told], call.attrs, call.ty_args)

    return structural_map(function, [(ir.GlobalVar, renamed), (Call, telling)], order="post")


def of_one(func: PrimFunc, extents: Point) -> PrimFunc:
    """A function of static shapes made with those numbers for some extents, with 1 for each."""

    def valued(number: Any) -> Any:
        value = of_slice(int(number), extents)
        return number if value == int(number) else tirx.const(value, str(number.ty.dtype))

    return structural_map(func, [(tirx.IntImm, valued)], order="post") if extents else func


def calls_of(function: Any) -> list[tuple[str, str]]:
    """The operators that a function calls, and their kernels."""
    found: list[tuple[str, str]] = []

    def look(node: Any) -> None:
        if isinstance(node, Call):
            kernel = node.args[0] if op_name(node) == TIR_CALL else node.op
            found.append((op_name(node), str(getattr(kernel, "name_hint", ""))))

    relax.analysis.post_order_visit(function, look)
    return found


def _operands(mod: IRModule) -> dict[str, int]:
    """How many operands the calls of each kernel have that is called by `call_tir`."""
    found: dict[str, int] = {}

    def look(node: Any) -> None:
        if op_name(node) == TIR_CALL:
            found[str(node.args[0].name_hint)] = len(node.args[1].fields)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, look)
    return found


def _lengths(
    kind: Callable[[Any], Sequence[int | float]], pair: Sequence[Any], extents: Sequence[int]
) -> set[Length] | None:
    """What the numbers of a kind that differ between two functions are of the extent; None if some
    are no such function of it, or of its square."""
    one, other = map(kind, pair)
    if len(one) != len(other):
        return None
    found: set[Length] = set()
    for a, b in zip(one, other, strict=True):
        if a == b:
            continue
        whole = isinstance(a, int) and isinstance(b, int)
        length = Length.of((abs(int(a)), abs(int(b))), extents) if whole else None
        if length is None:
            return None
        found.add(length)
    return found


def _plain(func: PrimFunc) -> PrimFunc:
    """The function with tensors that begin where their memory does, if it asks for no more: TVM's
    sums of what comes before take others."""
    begins = {
        param.elem_offset: param
        for param in func.params
        if hasattr(param, "shape") and isinstance(param.elem_offset, tirx.Var)
    }
    if not begins:
        return func
    plain = {
        param: tirx.decl_buffer(param.shape, param.dtype, param.name) for param in begins.values()
    }
    body = substituted(func.body, plain)
    if any(uses(body, offset) for offset in begins):
        return func
    return PrimFunc([plain.get(param, param) for param in func.params], body, attrs=func.attrs)


def _index_type(func: PrimFunc) -> str:
    """The type of the extents of a function's tensors, those of 64 bits if there are any."""
    types = {str(extent.ty.dtype) for param in tensors(func) for extent in param.shape}
    return types.pop() if len(types) == 1 else "int64"


def _program(
    pair: Sequence[PrimFunc], extents: Sequence[int], name: str, operands: int | None
) -> tuple[PrimFunc, Length | None] | None:
    """A kernel, and what its symbol is of the extent if it is a parameter of its own, after its
    operands; None if the extents of its tensors tell it. It is what grows by the largest steps by
    which all do, so that most extents are multiples of it."""
    pair = [_plain(func) for func in pair]
    if cycles := written_cycles(pair[0]):  # which, rounded, are no linear function of the extent
        pair = [mark_written(func, cycles / extents[0]) for func in pair]
    grown, shares = (_lengths(kind, pair, extents) for kind in (numbers, fractions))
    if grown is None or shares is None:
        return None
    if not grown:
        return (pair[0], None) if structural_equal(*pair) else None
    size = gcd(*(length.step for length in grown))
    steps = [length for length in grown if length.step == size]
    shown = _lengths(_extents, pair, extents) or set()
    told = [length for length in steps if length in shown]  # its tensors may tell what it is
    own = min(told or steps, key=lambda length: abs(length.offset), default=Length(size, 0))
    symbol = tirx.Var(name, _index_type(pair[0]))
    points = [own.at(extent) for extent in extents]
    made = generalised(pair, [[point] for point in points], [symbol])
    if made is None:
        return None
    is_told = tells(made, symbol)
    if not is_told and operands is None:
        return None
    if not is_told:
        params = [*made.params[:operands], symbol, *made.params[operands:]]
        made = PrimFunc(params, made.body, attrs=made.attrs)
    if shares:
        return (made, None if is_told else own) if are_alike(*pair) else None
    for func, point in zip(pair, points, strict=True):
        others = dict.fromkeys(symbols(func), UNLIKE)
        again = instance(made, dict.fromkeys(symbols(made), UNLIKE) | {symbol: point})
        if not structural_equal(again, instance(func, others)):
            return None
    return made, None if is_told else own


def _extents(func: PrimFunc) -> list[int]:
    """The known extents of a function's tensors."""
    return [
        int(extent)
        for param in tensors(func)
        for extent in param.shape
        if isinstance(extent, tirx.IntImm)
    ]
