"""Between which numbers a model with open extents is what the numbers that stood for them said.

What is cut to a length, or looks back so far, is linear in the extent on either side of it only. So
a model is read for as few of everything as there can be, and for many of each: where it is for both
what it was for the numbers between, it is so for all. Else the numbers are looked for from which on
it is, and to which. For one of something importers leave out what repeats it: there only what comes
out is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from math import log
from typing import NamedTuple

from tvm_ext.errors import ModelError
from tvm_ext.extents import Shapes, at_extents, evaluated, names
from tvm_ext.graph.limits import agrees
from tvm_ext.graph.share import Known
from tvm_ext.graph.unify import Point
from tvm_ext.source import Source, left_open, merged, read_source, tables
from tvm_ext.tvm_api import IRModule

FAR = 5000
"""More than what language models look back on, or cut to."""
ROOM_BYTES = 1 << 27
"""What constants may take that a model is read with to see that."""
STEPS = 64
"""In which several extents are raised together where what matters is their sum."""


SHIFT = 17
"""By which one extent is less and another more where their sum may be what is limited."""


class Bounds(NamedTuple):
    """By the names of extents, and sums of several, the least numbers and the largest; 1 and any
    for others."""

    fewest: dict[str, int]
    most: dict[str, int]


def bounds(
    model: object,
    shapes: Shapes | None,
    sources: Mapping[Point, Source],
    opened: Sequence[str],
    told: Bounds,
) -> Bounds | None:
    """Those of a model that was read for these numbers; None if it is not the same between them.

    told  what is known: fewer leave no elements, more there are no values for
    """
    reads = _Reads(model, shapes, sources, opened)
    last = dict(zip(opened, max(sources), strict=True))
    low, least = _low(reads, dict(zip(opened, min(sources), strict=True)), told.fewest)
    most: dict[str, int] = {}
    for axis, name in enumerate(opened):
        far = min(told.most.get(name, FAR), _room(reads.modules, axis))
        if far <= last[name] or reads.agree(low | {name: far}):
            continue
        if not reads.agree(low | {name: last[name]}):
            return None

        def parts(number: int, name: str = name) -> bool:
            return not reads.agree(low | {name: number})

        largest = _least(parts, last[name], far) - 1
        text, number = _with_another(reads, low, name, largest) or (name, largest)
        most[text] = number
    return Bounds({name: few for name, few in least.items() if few > 1}, most)


def _with_another(
    reads: _Reads, low: Mapping[str, int], name: str, most: int
) -> tuple[str, int] | None:
    """The sum of an extent and another one that is limited where it is not the one alone that is:
    words kept and new ones, all of which have places in a table. None if there is no such."""
    for other, few in low.items():
        less = {**low, name: most - SHIFT, other: few + SHIFT}
        more = less | {other: few + SHIFT + 1}
        if other != name and reads.agree(less) and not reads.agree(more):
            return "+".join(sorted((name, other))), most + few
    return None


class _Reads:
    """What a model is for other numbers, beside those it was read for."""

    def __init__(
        self,
        model: object,
        shapes: Shapes | None,
        sources: Mapping[Point, Source],
        opened: Sequence[str],
    ) -> None:
        self._model, self._shapes, self._opened = model, shapes, opened
        self.modules = {point: source.mod for point, source in sources.items()}
        self._outputs = left_open(sources, opened).outputs
        self._known: Known = {}

    def agree(self, extents: Mapping[str, int]) -> bool:
        """Whether it is what those it was read for say."""
        try:
            source = read_source(self._model, self._shapes, extents)
        except ModelError:
            return False
        point = tuple(extents[name] for name in self._opened)
        return agrees(self.modules, point, merged(source.mod, self._known))

    def fit(self, extents: Mapping[str, int]) -> bool:
        """Whether at least what comes out has the shapes that they say."""
        try:
            read = read_source(self._model, self._shapes, extents).outputs
        except ModelError:
            return False
        said = [tuple(at_extents(own, extents) for own in info.shape) for info in self._outputs]
        return said == [info.shape for info in read]


def _low(
    reads: _Reads, first: Mapping[str, int], fewest: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """The least numbers of each extent for which a model is what it is for the first ones, no two
    alike, for as many texts as words it is another one by chance; and those to be allowed."""
    sums = [text for text in fewest if text not in first]
    asked: dict[str, int] = {}
    for name in first:
        own = count(max(2, fewest.get(name, 1)))
        asked[name] = next(number for number in own if number not in asked.values())
    for text in sums:
        while (evaluated(text, asked) or 0) < fewest[text]:
            asked |= {name: asked[name] + 1 for name in names(text)}
    low = dict(asked)
    if not reads.agree(low):
        for name in first:

            def enough(number: int, name: str = name) -> bool:
                return reads.agree({**first, name: number})

            if not enough(asked[name]):
                low[name] = _least(enough, asked[name], first[name])
        start = dict(low)

        def raised(step: int) -> dict[str, int]:
            return {n: few + (first[n] - few) * step // STEPS for n, few in start.items()}

        if not reads.agree(low):
            low = raised(_least(lambda step: reads.agree(raised(step)), 0, STEPS))
    as_told = {name for name, number in low.items() if number == asked[name]}
    told = as_told & {*fewest, *(name for text in sums for name in names(text))}
    least = low | {name: fewest.get(name, 1) for name in told}
    single = dict.fromkeys(as_told - told, 1)
    if not reads.fit(low | single):
        single = {name: 1 for name in single if reads.fit(low | {name: 1})}
        if not reads.fit(low | single):
            single = {}
    return low, least | {text: fewest[text] for text in sums} | single


def _least(holds: Callable[[int], bool], without: int, with_it: int) -> int:
    """The least number for which something holds, that does for one and does not for another, and
    for all beyond if for one."""
    while with_it - without > 1:
        between = (without + with_it) // 2
        without, with_it = (without, between) if holds(between) else (between, with_it)
    return with_it


def _room(modules: Mapping[Point, IRModule], axis: int) -> int:
    """The largest number up to which constants that grow with an extent have room, masks of each
    image say."""
    start = min(modules)
    one, more = (modules[p] for p in sorted(modules) if _beside(p, start, axis))
    extents = start[axis], max(modules)[axis]
    sizes = zip(*([array.nbytes for array in tables(mod)] for mod in (one, more)), strict=False)
    grown = [(small, large) for small, large in sizes if small < large]
    if not grown:
        return FAR
    before, after = map(sum, zip(*grown, strict=True))
    power = log(after / before) / log(extents[1] / extents[0])
    return int(min(FAR, extents[1] * (ROOM_BYTES / after) ** (1 / power)))


def _beside(point: Point, start: Point, axis: int) -> bool:
    """Whether points differ along no other axis."""
    return all(a == b for i, (a, b) in enumerate(zip(point, start, strict=True)) if i != axis)
