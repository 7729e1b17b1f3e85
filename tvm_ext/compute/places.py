"""Elements read and written where indices say (ONNX's `Gather` and `Scatter` and their kin).

    result[i] = data[places[i]]                              gathers
    result = data;  result[places[i]] = updates[i]           scatters, for each i in turn

Indices count from either end. Data may say such as are out of range, which ONNX forbids and nobody
looks for: a gather then reads the nearest element there is, a scatter leaves the update out, and no
memory beside the tensor's own is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from math import prod
from typing import Any

from tvm_ext.tvm_api import Build, IRBuilder, te, tirx

Tensor = Any
Expr = Any

COMBINE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "update": lambda _, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "mean": lambda old, new: (old + new) / 2,
    "min": tirx.min,
    "max": tirx.max,
}
"""What a scatter makes of an element and an update of it."""
ONE = tirx.const(1, "int64")


def take(data: Tensor, places: Tensor, axis: int) -> Tensor:
    """data [a.., n, b..] along an axis at places [p..]: [a.., p.., b..]."""
    end = axis + len(places.shape)

    def element(*at: Expr) -> Expr:
        place = _nearest(places(*at[axis:end]), data.shape[axis])
        return _read(data, [*at[:axis], place, *at[end:]])

    shape = [*data.shape[:axis], *places.shape, *data.shape[axis + 1 :]]
    return te.compute(shape, element, name="take")


def gather_elements(data: Tensor, places: Tensor, axis: int) -> Tensor:
    """data [a.., n, b..] at places [p..] of as many axes: [p..], each element's other coordinates
    its own."""

    def element(*at: Expr) -> Expr:
        place = _nearest(places(*at), data.shape[axis])
        return _read(data, [*at[:axis], place, *at[axis + 1 :]])

    return te.compute(places.shape, element, name="gather_elements")


def gather_nd(data: Tensor, places: Tensor, batch: int) -> Tensor:
    """data [a.., n.., b..] at places [a.., p.., m], coordinates along m axes after the `batch`
    first: [a.., p.., b..]."""
    rank, count = len(places.shape) - 1, int(places.shape[-1])

    def element(*at: Expr) -> Expr:
        found = [
            _nearest(places(*at[:rank], tirx.const(number, "int64")), data.shape[batch + number])
            for number in range(count)
        ]
        return _read(data, [*at[:batch], *found, *at[rank:]])

    shape = [*places.shape[:-1], *data.shape[batch + count :]]
    return te.compute(shape, element, name="gather_nd")


def slice_extents(data: Tensor, begin: Tensor, end: Tensor, stride: Tensor) -> Tensor:
    """How many elements of data [n..] a slice has along each axis, int64 [axes]: from `begin` up to
    `end` by `stride`, int64 [axes] each, as ONNX's `Slice` reads them."""

    def extent(axis: Expr) -> Expr:
        whole = reduce(
            lambda rest, own: tirx.Select(axis == own[0], own[1], rest),
            enumerate(data.shape),
            tirx.const(0, "int64"),
        )
        first, last = (_end(each(axis), whole, stride(axis)) for each in (begin, end))
        span = tirx.Select(stride(axis) < 0, first - last, last - first)
        step = tirx.max(tirx.Select(stride(axis) < 0, -stride(axis), stride(axis)), 1)
        return tirx.max((span + step - 1) // step, 0)

    return te.compute((len(data.shape),), extent, name="slice_extents")


def strided_slice(data: Tensor, begin: Tensor, stride: Tensor, extents: Sequence[Expr]) -> Tensor:
    """The slice of those extents, which `slice_extents` says."""

    def element(*at: Expr) -> Expr:
        found = []
        for axis, (step, extent) in enumerate(zip(at, data.shape, strict=True)):
            by = stride(tirx.const(axis, "int64"))
            first = _end(begin(tirx.const(axis, "int64")), extent, by)
            found.append(_kept(first + step * by, extent))
        return _read(data, found)

    return te.compute(extents, element, name="strided_slice")


def scatter_elements(
    data: Tensor, places: Tensor, updates: Tensor, axis: int, how: str, threads: int = 0
) -> Tensor:
    """data [a.., n, b..] with updates [p..] at places [p..] of as many axes along one of them, each
    update's other coordinates its own. Cores share out lines along the axis.

    how      of `COMBINE`
    threads  of a block of a GPU; 0 for cores
    """

    def program(data: Any, places: Any, updates: Any, result: Any) -> None:
        _copy(data, result, threads)
        others = [*places.shape[:axis], ONE, *places.shape[axis + 1 :]]
        with _spread(prod(others, start=ONE), threads) as line:
            before = _coordinates(line, others)
            with Build.serial(0, places.shape[axis]) as step:
                own = [*before[:axis], step, *before[axis + 1 :]]
                place = Build.bind(from_the_front(_at(places, own), data.shape[axis]))
                with Build.If(is_inside(place, data.shape[axis])), Build.Then():
                    at = [*before[:axis], place, *before[axis + 1 :]]
                    _combine(result, at, _at(updates, own), how)

    return _written(program, data, places, updates, "scatter_elements")


def scatter_nd(
    data: Tensor, places: Tensor, updates: Tensor, how: str, parts: int, threads: int = 0
) -> Tensor:
    """data [n.., b..] with updates [p.., b..] at places [p.., m], coordinates along the first m
    axes. Cores share out what an update has elements of, so that none meets another's.

    how      of `COMBINE`
    parts    of an update
    threads  of a block of a GPU, which has a part for each element; 0 for cores
    """
    count = int(places.shape[-1])

    def program(data: Any, places: Any, updates: Any, result: Any) -> None:
        _copy(data, result, threads)
        inner = data.shape[count:]
        width = prod(inner, start=ONE)
        shares = width if threads else tirx.const(parts if inner else 1, "int64")
        with _spread(shares, threads) as share:
            begin = Build.bind(share * width // shares)
            end = Build.bind((share + ONE) * width // shares)
            with Build.serial(0, prod(places.shape[:-1], start=ONE)) as step:
                own = _coordinates(step, places.shape[:-1])
                found = [
                    Build.bind(from_the_front(_at(places, [*own, number]), data.shape[number]))
                    for number in range(count)
                ]
                inside = map(is_inside, found, data.shape)
                whether = Build.If(reduce(tirx.all, inside, tirx.const(True, "bool")))
                with whether, Build.Then(), Build.serial(begin, end) as column:
                    behind = _coordinates(column, inner)
                    _combine(result, [*found, *behind], _at(updates, [*own, *behind]), how)

    return _written(program, data, places, updates, "scatter_nd")


def _written(
    program: Callable[..., None], data: Tensor, places: Tensor, updates: Tensor, name: str
) -> Tensor:
    def body(given: Sequence[Any], made: Sequence[Any]) -> Any:
        with IRBuilder() as builder:
            with Build.serial(0, 1):  # a builder takes one statement
                program(*given, *made)
            return builder.get()

    return te.extern([data.shape], [data, places, updates], body, dtype=[data.dtype], name=name)


def _copy(data: Any, result: Any, threads: int) -> None:
    with _spread(prod(data.shape, start=ONE), threads) as step:
        at = _coordinates(step, data.shape)
        Build.buffer_store(result, _at(data, at), at)


def _combine(result: Any, at: Sequence[Expr], update: Expr, how: str) -> None:
    Build.buffer_store(result, COMBINE[how](_at(result, at), update), list(at))


@contextmanager
def _spread(count: Expr, threads: int) -> Iterator[Expr]:
    """So many steps, shared out among cores or, in blocks, among the threads of a GPU."""
    if not threads:
        with Build.parallel(0, count) as step:
            yield step
        return
    block, thread = (te.thread_axis(f"{which}Idx.x") for which in ("block", "thread"))
    blocks = tirx.ceildiv(count, threads).astype("int32")
    extents = [(block, blocks), (thread, tirx.const(threads, "int32"))]
    with Build.frame_scope([Build.attr(axis, "thread_extent", own) for axis, own in extents]):
        step = block * threads + thread
        with Build.If(step < count), Build.Then():
            yield step


def _at(buffer: Any, at: Sequence[Expr]) -> Expr:
    return buffer[tuple(at)]


def _coordinates(place: Expr, shape: Sequence[Expr]) -> list[Expr]:
    """Of an element by its place in a tensor of that shape."""
    found: list[Expr] = []
    for extent in reversed(shape[1:]):
        found.append(place % extent)
        place = place // extent
    return [*([place] if len(shape) else []), *reversed(found)]


def from_the_front(place: Expr, extent: Expr) -> Expr:
    """An index that may count from the end, int64."""
    place = place.astype("int64")
    return place + (place < 0).astype("int64") * extent  # of a choice TVM takes both sides for read


def is_inside(place: Expr, extent: Expr) -> Expr:
    """Whether there is such an element, counted from the front."""
    return tirx.all(place >= 0, place < extent)


def _nearest(place: Expr, extent: Expr) -> Expr:
    return _kept(from_the_front(place, extent), extent)


def _kept(place: Expr, extent: Expr) -> Expr:
    return tirx.max(tirx.min(place, extent - 1), 0)


def _end(place: Expr, extent: Expr, stride: Expr) -> Expr:
    """Where a slice begins or ends, one before or behind all elements if it has none."""
    back = (stride < 0).astype("int64")
    return tirx.max(tirx.min(from_the_front(place, extent), extent - back), -back)


def _read(data: Tensor, at: Sequence[Expr]) -> Expr:
    """An element; 0 of a tensor that has none."""
    empty = any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in data.shape)
    return tirx.const(0, data.dtype) if empty else data(*at)
