"""What a module with extents that are not known takes, and whether one for known numbers is what
others say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd
from typing import Any

from tvm_ext.graph.constant_form import LIMITS, Length
from tvm_ext.graph.grown_constants import is_said_of
from tvm_ext.graph.plan_memory import input_symbols
from tvm_ext.graph.unify import Point, calls_of
from tvm_ext.tir.affine import linear
from tvm_ext.tir.generalise import numbers
from tvm_ext.tir.symbolic import substituted
from tvm_ext.tvm_api import (
    Analyzer,
    GenericConst,
    IRModule,
    extents_of,
    in_map_order,
    relax,
    tirx,
    variables,
)


def fewest(mod: IRModule) -> dict[str, int]:
    """By the names of the symbols of `main`, and sums of several, the least numbers that leave no
    tensor without elements, where ones for all would leave some so."""
    found: dict[str, int] = {}
    for extent in _extents_in(mod["main"]):
        symbols = sorted(set(variables(extent)), key=lambda symbol: str(symbol.name))
        form = linear(extent, {symbol: place for place, symbol in enumerate(symbols)})
        if form is None or min(form[0], default=0) <= 0:
            continue
        common = gcd(*form[0])
        counts, least = [count // common for count in form[0]], -(-(1 - form[1]) // common)
        if least > sum(counts):
            terms = zip(counts, symbols, strict=True)
            text = "+".join(
                f"{count}*{own.name}" if count > 1 else str(own.name) for count, own in terms
            )
            found[text] = max(least, found.get(text, least))
    return found


def may_be_none(mod: IRModule) -> list[str]:
    """The symbols of `main` of which there may be none at all: nothing but inputs is then without
    elements, words kept of a text that begins."""
    main = mod["main"]
    results = getattr(main.ret_ty, "fields", [main.ret_ty])
    made = dict.fromkeys(extent for ty in results for extent in extents_of(ty))
    made |= _extents_in(main, but=main.params)
    symbols = input_symbols(main)
    found = []
    for symbol in symbols:
        values = {own: tirx.const(int(own is not symbol), "int64") for own in symbols}
        least = [Analyzer().simplify(substituted(extent, values)) for extent in made]
        if all(isinstance(one, tirx.IntImm) and int(one) > 0 for one in least):
            found.append(str(symbol.name))
    return found


def _extents_in(function: Any, but: Iterable[Any] = ()) -> dict[Any, None]:
    """The extents of a function's tensors, but for those of some."""
    left_out = set(but)
    found: dict[Any, None] = {}

    def look(node: Any) -> None:
        if isinstance(node, relax.Var) and node not in left_out:
            found.update(dict.fromkeys(extents_of(node.ty)))

    relax.analysis.post_order_visit(function, look)
    return found


def most(mod: IRModule) -> dict[str, int]:
    """By the names of symbols of `main` the largest numbers that there are values for, where there
    are not for all."""
    found: dict[str, int] = {}
    for function in mod.functions.values():
        limits = function.attrs.get(LIMITS) if function.attrs else None
        for name, number in (limits or {}).items():
            found[str(name)] = min(int(number), found.get(str(name), int(number)))
    return found


def agrees(modules: Mapping[Point, IRModule], point: Point, module: IRModule) -> bool:
    """Whether a module for other numbers of the extents is what those for some say, as far as they
    say anything: what is cut to a length that all exceed would be taken for that length."""
    known, own = {at: mod["main"] for at, mod in modules.items()}, module["main"]
    steps = calls_of(own)
    if any(calls_of(function) != steps for function in known.values()):
        return False
    for kind, is_said in ((numbers, _is_number_said), (_tensors, is_said_of)):
        found, wanted = {at: kind(function) for at, function in known.items()}, kind(own)
        if any(len(each) != len(wanted) for each in found.values()):
            return False
        for place, value in enumerate(wanted):
            if not is_said({at: each[place] for at, each in found.items()}, point, value):
                return False
    return True


def _is_number_said(values: Mapping[Point, int], point: Point, value: int) -> bool:
    """Whether a number is that for a point which others are for others, if they grow evenly."""
    if len(set(values.values())) == 1:
        return value in values.values()
    (extent, *rest), said = point, dict[Point, int]()
    for others in dict.fromkeys(tuple(more) for _, *more in values):
        extents = [at[0] for at in values if at[1:] == others]
        a, b = (number for at, number in values.items() if at[1:] == others)
        length = Length.of((a, b), extents) if a != b else Length(0, a)
        if length is None:
            return True
        said[others] = int(length.at(extent))
    return _is_number_said(said, tuple(rest), value)


def _tensors(function: Any) -> list[Any]:
    """What the constants of a function hold."""
    return [one.value for one in in_map_order(function, GenericConst)]
