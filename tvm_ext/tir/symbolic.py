"""Functions with extents that are not known until they run: one tile, scheduled as if it were all,
in a loop over tiles.

    f(x[n, 768], w, y[n, 3072])
        →
    for i in range(n // 64):                  a schedule for 64 rows
        tile(x[64 * i :], w, y[64 * i :])
    for i in range(..):                       one for 16, one for 4, one for a single row; the last
        tile(x[min(.., n - 16) :], w, y[..])  tile may be moved back until it is whole

Of several such extents the last is cut into tiles, the others are loops; where they always lie side
by side, as the sentences of a batch and their words do, they are counted as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from tvm_ext.tile.independent import is_independent
from tvm_ext.tir.affine import affine, linear, loads
from tvm_ext.tir.read import read
from tvm_ext.tir.slices import Strides, of_rows, with_slices
from tvm_ext.tvm_api import (
    Analyzer,
    PrimFunc,
    TensorLoad,
    WalkResult,
    mark_scheduled,
    s_tir,
    structural_map,
    structural_walk,
    tirx,
    uses,
    variables,
)
from tvm_ext.tvm_steal import STEAL, mark_steal

TYPICAL = 64
"""What an extent that is not known is taken for where kernels are compared."""
INDEX = "int64"
_ZERO, _ONE = tirx.const(0, INDEX), tirx.const(1, INDEX)


def symbols(func: PrimFunc) -> tuple[Any, ...]:
    """The variables that the extents of a function's tensors depend on, those of its last tensor
    first, from the outermost axis on; none of a function of static shapes."""
    return symbols_of(e for param in reversed(tensors(func)) for e in param.shape)


def symbols_of(extents: Iterable[Any]) -> tuple[Any, ...]:
    """The variables in some extents, each once."""
    unknown = (extent for extent in extents if not isinstance(extent, tirx.IntImm))
    return tuple(dict.fromkeys(var for extent in unknown for var in variables(extent)))


def tensors(func: PrimFunc) -> list[Any]:
    """The parameters that are tensors; others are variables of extents."""
    return [param for param in func.params if hasattr(param, "shape")]


def ones(func: PrimFunc) -> dict[Any, int]:
    """Ones for the parameters that are variables of extents."""
    return {param: 1 for param in func.params if not hasattr(param, "shape")}


def instance(func: PrimFunc, sizes: Mapping[Any, int]) -> PrimFunc:
    """The function with values for all its `symbols`; its parameters are tensors only."""
    missing = [var for var in sizes if var not in func.params]
    told = PrimFunc([*func.params, *missing], func.body, attrs=func.attrs)
    return told.specialize(
        {var: tirx.const(size, str(var.ty.dtype)) for var, size in sizes.items()}
    )


def tells(func: PrimFunc, symbol: Any) -> bool:
    """Whether a function is told what a symbol is: by a parameter, or by the extent of a tensor."""
    extents = (extent for param in tensors(func) for extent in param.shape)
    return symbol in func.params or any(extent.same_as(symbol) for extent in extents)


def typical(func: PrimFunc, slices: int = TYPICAL) -> PrimFunc:
    """The function itself, or where there is one that of static shapes for so many slices along the
    last of what is not known, and one along the others."""
    found = symbols(func)
    if not found:
        return func
    sizes = dict.fromkeys(found[:-1], 1) | {found[-1]: slices}
    return instance(func, sizes)


@dataclass(frozen=True)
class Cut:
    """Extents counted as one, along which a function is cut."""

    symbols: tuple[Any, ...]
    """Outermost first."""
    dims: tuple[tuple[int, int] | None, ...]
    """For each tensor the axis of the last of them, and its elements in a slice; None of a tensor
    that has none."""

    @property
    def extent(self) -> Any:
        """How many slices there are."""
        return prod(self.symbols[1:], start=self.symbols[0])

    def sizes(self, slices: int) -> dict[Any, int]:
        """Values of the symbols for so many slices in a row."""
        return dict.fromkeys(self.symbols[:-1], 1) | {self.symbols[-1]: slices}


def tile_of(func: PrimFunc, found: Sequence[Cut], slices: int) -> PrimFunc:
    """The function of static shapes for so many slices along the last of its cuts, and one along
    the others."""
    one = dict.fromkeys((symbol for cut in found for symbol in cut.symbols), 1)
    return instance(func, one | found[-1].sizes(slices))


@lru_cache(maxsize=256)
def cuts(func: PrimFunc) -> tuple[Cut, ...] | None:
    """What a function can be cut along, outermost first; None if its slices depend on each other,
    or on their places."""
    found = symbols(func)
    if not found or not all(tells(func, symbol) for symbol in found):
        return None
    each: list[Cut] = []
    for symbol in found:
        dims = _dims(func, symbol)
        if dims is None:
            return None
        each.append(Cut((symbol,), dims))
        sizes = dict.fromkeys(found, 2)
        two, three = instance(func, sizes), instance(func, sizes | {symbol: 3})
        if not _are_alike(two, three):
            return None
        graphs = read(two), read(three)
        if graphs[0] is None or graphs[1] is None or not is_independent(graphs[0], graphs[1]):
            return None
    merged = [each[0]]
    for cut in each[1:]:
        if _side_by_side(merged[-1], cut):
            merged[-1] = Cut((*merged[-1].symbols, *cut.symbols), cut.dims)
        else:
            merged.append(cut)
    return tuple(merged)


class Sized(NamedTuple):
    """A kernel for tiles of one size."""

    size: int
    """Slices of a tile along the last of `cuts`; one along the others."""
    least: int
    """Of fewer slices than a tile, so many or more take one that is moved back until it is whole;
    what is less is left to smaller tiles."""
    func: PrimFunc
    """The `instance` of that size, scheduled."""


class Varying(NamedTuple):
    """A kernel for any number of slices from some on."""

    least: int
    """Slices of its tiles, of which it does whole ones."""
    func: PrimFunc
    symbol: Any
    """The variable in it that says how many there are."""
    slice_us: float
    """Predicted time of one."""
    beside: Varying | None = None
    """One behind it that it leaves to what that takes less time for."""


def in_tiles(
    func: PrimFunc, kernels: Sequence[Sized | Varying], slices: Mapping[int, Strides] | None = None
) -> PrimFunc:
    """The function as loops over tiles, the largest first, those of one slice last; marked as
    scheduled. Right behind the largest may be kernels that take all that are left. It must have
    `cuts`.

    slices  parameters that lie in larger tensors, as in `tir.slices`
    """
    *outer, last = cuts(func) or ()
    slices = slices or {}
    own = of_tensors(func, slices)
    whole = with_slices(func, slices)
    loops = [tirx.Var(f"slice_{place}", INDEX) for place in range(len(outer))]
    outside = list(zip(outer, loops, strict=True))
    extent = last.extent
    rest = extent % kernels[0].size if isinstance(kernels[0], Sized) else extent
    # slices done, kept in memory: what is bound to a variable TVM puts in its place, and its
    # simplifier then takes half a minute over the last loop
    memory = tirx.decl_buffer((1,), INDEX, "done", scope="local")
    body: list[Any] = [tirx.AllocBuffer(memory), tirx.BufferStore(memory, _ZERO, [_ZERO])]
    for kernel in kernels:
        done, count, tile = (tirx.Var(name, INDEX) for name in ("done", "count", "tile"))
        left = extent - done
        body.append(tirx.Bind(done, tirx.BufferLoad(memory, [_ZERO])))
        if isinstance(kernel, Varying):
            # once at most; how many there are is told without memory, and what they are at least:
            # else TVM would not see how small the buffers of register tiles are
            enough = left >= kernel.least
            if kernel.beside is not None:
                enough = tirx.all(enough, _is_faster(kernel, kernel.beside, left))
            times = tirx.Select(enough, _ONE, _ZERO)
            start, after = extent - rest, tirx.Select(enough, extent, done)
            one = substituted(kernel.func, {kernel.symbol: tirx.max(rest, kernel.least)})
        else:
            more = tirx.all(extent >= kernel.size, left % kernel.size >= kernel.least)
            times = left // kernel.size + tirx.Select(more, _ONE, _ZERO)
            start = tirx.min(done + tile * kernel.size, extent - kernel.size)
            after = tirx.min(done + count * kernel.size, extent)
            one = kernel.func
        inside = _tile(whole, of_rows(one, own), [*outside, (last, start)], own)
        body += [
            tirx.Bind(count, times),
            tirx.For(tile, _ZERO, count, tirx.ForKind.SERIAL, inside),
            tirx.BufferStore(memory, after, [_ZERO]),
        ]
    nest: Any = tirx.SeqStmt(body[:-1])
    for cut, var in reversed(outside):
        nest = tirx.For(var, _ZERO, cut.extent, tirx.ForKind.SERIAL, nest)
    attrs = dict(func.attrs.items()) if func.attrs else {}
    result = mark_scheduled(PrimFunc(whole.params, nest).with_attr(attrs))
    steals = any(kernel.func.attrs and STEAL in kernel.func.attrs for kernel in kernels)
    return mark_steal(result) if steals else result


def _is_faster(one: Varying, other: Varying, slices: Any) -> Any:
    """Whether a kernel takes no more time for so many slices than another, by the model, tiles that
    are not whole counted as such; an expression."""
    tenths = [
        (slices + (each.least - 1)) // each.least * round(10 * each.least * each.slice_us)
        for each in (one, other)
    ]
    return tenths[0] <= tenths[1]


def of_tensors(func: PrimFunc, slices: Mapping[int, Strides]) -> dict[int, Strides]:
    """Slices by their places among the tensors of a function, not among all its parameters."""
    places = [place for place, param in enumerate(func.params) if hasattr(param, "shape")]
    return {places.index(place): strides for place, strides in slices.items()}


def _tile(
    func: PrimFunc,
    kernel: PrimFunc,
    begins: Sequence[tuple[Cut, Any]],
    slices: Mapping[int, Strides],
) -> Any:
    """A kernel for one tile; `begins` are its first slices."""
    views: dict[Any, Any] = {}
    wholes = tensors(func)
    for place, (whole, part) in enumerate(zip(wholes, kernel.params, strict=True)):
        flat = place in slices
        strides: Sequence[Any] = slices.get(place, ()) or [
            prod(whole.shape[axis + 1 :], start=_ONE) for axis in range(len(whole.shape))
        ]
        offset = whole.elem_offset.astype(INDEX) if flat else _ZERO
        for cut, begin in begins:
            if (dim := cut.dims[place]) is not None:
                offset = offset + begin * (strides[dim[0]] * dim[1])
        known = all(isinstance(extent, tirx.IntImm) for extent in part.shape)
        views[part] = tirx.decl_buffer(
            part.shape if known or flat else whole.shape,  # of which nothing but strides is used
            part.dtype,
            part.name,
            strides=None if flat or _is_dense(part, begins[-1][0].dims[place]) else strides,
            elem_offset=offset,
            offset_factor=1,
            layout=None,
        )
    pairs = zip(views.values(), wholes, strict=True)
    declared = [tirx.DeclBuffer(view, data=whole.data) for view, whole in pairs]
    body = substituted(kernel.body, views)
    return tirx.SeqStmt([*declared, body])


def substituted(node: Any, values: Mapping[Any, Any]) -> Any:
    """A function or a part of one with others in place of some variables, tensors among them."""
    return structural_map(node, [(tirx.Var, lambda var: values.get(var, var))], order="post")


def _is_dense(part: Any, dim: tuple[int, int] | None) -> bool:
    """Whether a tile is memory without gaps: it is not if axes before the one it is cut along have
    several elements."""
    return dim is None or all(int(extent) == 1 for extent in part.shape[: dim[0]])


def _dims(func: PrimFunc, symbol: Any) -> tuple[tuple[int, int] | None, ...] | None:
    """For each tensor the one axis that grows with a symbol, and by how much; None if there are
    several, or an axis grows by something else."""
    found: list[tuple[int, int] | None] = []
    for param in tensors(func):
        grows = [place for place, extent in enumerate(param.shape) if uses(extent, symbol)]
        if len(grows) > 1:
            return None
        form = linear(param.shape[grows[0]], {symbol: 0}) if grows else ([0], 0)
        if form is None or form[1]:
            return None
        found.append((grows[0], form[0][0]) if grows else None)
    return tuple(found)


def _side_by_side(outer: Cut, inner: Cut) -> bool:
    """Whether the slices of one cut follow those of the other in every tensor that has any."""
    return all(
        a is None and b is None if a is None or b is None else a[1] == 1 and b[0] == a[0] + 1
        for a, b in zip(outer.dims, inner.dims, strict=True)
    )


def _are_alike(two: PrimFunc, three: PrimFunc) -> bool:
    """Whether slices differ by nothing but the elements they read, of a function of two and of
    three of them: no value follows from their number or from a slice's place, as in `x[i] + i`, and
    places are told from nothing else."""
    blocks, others = _blocks(two), _blocks(three)
    return len(blocks) == len(others) and all(map(_is_alike, blocks, others))


def _blocks(func: PrimFunc) -> list[Any]:
    found: list[Any] = []
    structural_walk(func.body, (s_tir.SBlock, found.append))
    return [block for block in found if block.iter_vars]


def _is_alike(two: Any, three: Any) -> bool:
    axes = list(zip(two.iter_vars, three.iter_vars, strict=False))
    moving = {b.var for a, b in axes if int(a.dom.extent) != int(b.dom.extent)}
    if not isinstance(three.body, tirx.BufferStore) or not isinstance(two.body, tirx.BufferStore):
        return False
    if _numbers(two.body.value) != _numbers(three.body.value):
        return False
    places = {iv.var: place for place, iv in enumerate(three.iter_vars)}
    bounds = Analyzer()
    for iv in three.iter_vars:
        bounds.bind(iv.var, iv.dom)
    value = three.body.value
    indices = [*three.body.indices, *(i for load in loads(value) for i in load.indices)]
    return not _uses_outside(value, moving) and not any(
        affine(index, places, bounds) is None and _uses_outside(index, moving) for index in indices
    )


def _numbers(expr: Any) -> list[str]:
    """The constants in an expression, but for those that index tensors; what is no number equals
    itself here (sines of infinities)."""
    return [repr(number.value) for number in _outside_loads(expr, (tirx.IntImm, tirx.FloatImm))]


def _uses_outside(expr: Any, moving: set[Any]) -> bool:
    """Whether an expression uses some variables other than to index tensors."""
    return any(var in moving for var in _outside_loads(expr, tirx.Var))


def _outside_loads(expr: Any, kind: Any) -> list[Any]:
    """The nodes of a kind in an expression, but for what indexes tensors."""
    found: list[Any] = []
    kinds = [(TensorLoad, lambda _: WalkResult.SKIP), (kind, found.append)]
    structural_walk(expr, kinds, order="pre")
    return found
