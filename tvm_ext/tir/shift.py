"""Tails without loops of their own (`tile.shift`): a predicate becomes an index that never leaves
the axis, and a branch around tiles that lie outside.

    for o < 2: for t < 6: for i < 48 (unrolled, vectors):
        if o * 288 + t * 48 + i < 500: y[o * 288 + t * 48 + i] = ..
            →
    for o < 2: for t < 6: if o * 288 + t * 48 < 500: for i < 48 (unrolled, vectors):
        y[min(o * 288 + t * 48, 452) + i] = ..

Of an index, the loops that are unrolled or vectors say where in the tile, the others which tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm_ext.errors import PlanError
from tvm_ext.tir.read import terms
from tvm_ext.tvm_api import (
    Analyzer,
    PrimFunc,
    ir,
    loop_with,
    s_tir,
    structural_map,
    structural_walk,
    substitute,
    sums_up,
    tirx,
    uses,
)

SHIFT = "tvm_ext.shift"
"""Annotation of a loop in which no tail has a loop of its own."""
PARTITION = "pragma_loop_partition_hint"
"""Annotation of a loop whose tail TVM makes a loop of its own."""
TILE = "tvm_ext.tile"
"""Annotation of the innermost loop over its register tiles."""
_IN_A_TILE = (tirx.ForKind.VECTORIZED, tirx.ForKind.UNROLLED)


def with_shifts(func: PrimFunc) -> PrimFunc:
    """The scheduled function with the tiles inside every marked loop kept inside their axes.

    Raises PlanError `tail` if the blocks that share a register tile do not agree where it lies.
    """
    moved = {loop.loop_var: _rewritten(loop) for loop in _marked(func.body, SHIFT)}
    body = structural_map(
        func.body, [(tirx.For, lambda loop: moved.get(loop.loop_var, loop))], order="post"
    )
    return func.with_body(body) if moved else func


def _rewritten(loop: Any) -> Any:
    tiles = _marked(loop, TILE)[0]
    loops = _found(loop, tirx.For)
    inside = [inner for inner in loops if inner.kind in _IN_A_TILE]
    parted = [inner.loop_var for inner in _marked(loop, PARTITION)]
    analyzer = Analyzer()
    for inner in loops:
        analyzer.bind(inner.loop_var, ir.Range.from_min_extent(inner.min, inner.extent))
    moved: dict[Any, Any] = {}
    sharing = _found(tiles, s_tir.SBlockRealize)
    for block in _found(loop, s_tir.SBlockRealize):
        if not any(block.same_as(other) for other in sharing):
            moved[block.block] = _with(block, _bounds(block, inside, [], analyzer), analyzer)
    bounds = {block.block: _bounds(block, inside, parted, analyzer) for block in sharing}
    anchor = next((one for one in sharing if sums_up(one.block)), sharing[0])
    tile = [bound for bound in bounds[anchor.block] if bound.cuts_tile]
    reached = [bound.first < bound.extent for bound in tile]
    for block in sharing:
        own = bounds[block.block]
        pairs = [(b, other) for b in own for other in tile if _same(b, other, analyzer)]
        agreed = [b._replace(rest=o.rest, first=o.first, extent=o.extent) for b, o in pairs]
        if len(agreed) != len(tile):
            raise PlanError("tail", f"plan: {block.block.name_hint} leaves another tail")
        whole = [bound for bound in own if not bound.cuts_tile]
        moved[block.block] = _with(block, [*agreed, *whole], analyzer, guarded=True)
        reached += [bound.first < bound.extent for bound in whole]
    doubtful = {str(term): term for term in map(analyzer.simplify, reached) if not _holds(term)}

    def rewrite(inner: Any) -> Any:
        if TILE not in inner.annotations:
            return inner
        body = inner.body
        if doubtful:
            body = tirx.IfThenElse(tirx.all(*doubtful.values()), body, None)
        return _unmarked(inner, body, TILE)

    body = structural_map(
        loop.body, [(s_tir.SBlockRealize, lambda one: moved[one.block])], order="pre"
    )
    return _unmarked(loop, structural_map(body, [(tirx.For, rewrite)], order="post"), SHIFT)


def _holds(term: Any) -> bool:
    return isinstance(term, tirx.IntImm) and bool(term.value)


def _found(root: Any, kind: Any) -> list[Any]:
    found: list[Any] = []
    structural_walk(root, (kind, found.append))
    return found


def _marked(root: Any, mark: str) -> list[Any]:
    return [loop for loop in _found(root, tirx.For) if mark in loop.annotations]


def _unmarked(loop: Any, body: Any, mark: str) -> Any:
    """The loop with another body, without a mark."""
    return loop_with(loop, body, {k: v for k, v in loop.annotations.items() if k != mark})


class _Bound(NamedTuple):
    """A term of a block's predicate, `first + offset < extent`, on the index at `place`."""

    term: Any
    place: int
    """-1 for a bound that does not depend on the place in the tile."""
    rest: Any
    """What the index adds to what is bounded: where a strip begins that holds the tile."""
    first: Any
    """Where the tile begins."""
    offset: Any
    """Where in the tile."""
    size: int
    """Extent of the tile."""
    extent: int

    @property
    def cuts_tile(self) -> bool:
        """Whether the bound may fall inside a tile, not only between two."""
        return self.extent % self.size != 0


def _bounds(realize: Any, inside: list[Any], parted: list[Any], analyzer: Any) -> list[_Bound]:
    """The bounds on a tile's place in the predicate of a block, but for those on loops that will be
    parted from their tails."""
    found = []
    for term in terms(realize.predicate):
        if not isinstance(term, tirx.LT) or not isinstance(term.b, tirx.IntImm):
            continue
        if any(uses(term.a, variable) for variable in parted):
            continue
        own = [loop for loop in inside if uses(term.a, loop.loop_var)]
        rests = [analyzer.simplify(value - term.a) for value in realize.iter_values]
        places = [place for place, rest in enumerate(rests) if _is_zero(rest)] or [
            place
            for place, rest in enumerate(rests)
            if own and not any(uses(rest, loop.loop_var) for loop in inside)
        ]
        first = substitute(term.a, {loop.loop_var: loop.loop_var * 0 for loop in own})
        first = analyzer.simplify(first)
        offset = analyzer.simplify(term.a - first)
        last = substitute(offset, {loop.loop_var: loop.extent - 1 for loop in own})
        last = analyzer.simplify(last)
        if isinstance(last, tirx.IntImm) and (places or not own):
            place = (*places, -1)[0]
            rest = rests[place] if places else tirx.const(0, "int32")
            bound = _Bound(term, place, rest, first, offset, int(last) + 1, int(term.b))
            found.append(bound)
    return found


def _is_zero(expr: Any) -> bool:
    return isinstance(expr, tirx.IntImm) and not int(expr)


def _same(one: _Bound, other: _Bound, analyzer: Any) -> bool:
    """Whether two blocks' bounds are on the same tile. TVM bounds the axis for one block where for
    another it bounds the strip."""
    apart = one.rest + one.first - other.rest - other.first
    return one.size == other.size and _is_zero(analyzer.simplify(apart))


def _with(realize: Any, bounds: list[_Bound], analyzer: Any, guarded: bool = False) -> Any:
    """The block with bounds taken out of its predicate and put in its indices; unless it is
    `guarded` by a branch around its tile, what is left of them is one for whole tiles."""
    values = list(realize.iter_values)
    left = []
    for term in reversed(list(terms(realize.predicate))):
        bound = next((bound for bound in bounds if bound.term.same_as(term)), None)
        if bound is None:
            left.append(term)
        elif bound.cuts_tile:
            first = tirx.min(bound.first, bound.extent - bound.size)
            values[bound.place] = bound.rest + first + bound.offset
        elif not guarded:
            left.append(bound.first < bound.extent)
    predicate = tirx.all(*left) if left else tirx.const(True, "bool")
    return s_tir.SBlockRealize(values, predicate, realize.block)
