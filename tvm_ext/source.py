"""What is compiled: an ONNX model or a Relax module, as a module of static shapes.

An extent may be left open, by a name in place of its number in `shapes`, or as a symbol in a Relax
module: it is read once for each number that is put there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.errors import ModelError, ShapeError
from tvm_ext.extents import names
from tvm_ext.graph.plan_memory import input_symbols
from tvm_ext.graph.unify import EXTENTS, agrees, with_extent
from tvm_ext.records.manifest import TensorInfo
from tvm_ext.tvm_api import (
    GenericConst,
    IRModule,
    array_of,
    in_map_order,
    relax,
    static_extents,
)

SMALL = 5
"""What no length that a model cuts to is larger than."""
GROWN_BYTES = 1 << 29
"""What constants may take that follow an open extent: for 982 images Swin's masks take 3 GB."""
Shapes = Mapping[str, Sequence[int | str]]
"""By the name of an input, or of a symbolic dimension; a text is the name of an open extent."""
Infos = tuple[TensorInfo, ...]


@dataclass(frozen=True)
class Source:
    """A model, read."""

    mod: IRModule
    name: str
    inputs: Infos
    outputs: Infos
    notes: tuple[str, ...] = ()


def open_extent(model: Any, shapes: Shapes | None) -> str:
    """The name of what is left open; empty if nothing is. Raises ShapeError if several are, or for
    a text that is no extent."""
    given = [shape for shape in (shapes or {}).values() if not isinstance(shape, str)]
    texts = [extent for shape in given for extent in shape if isinstance(extent, str)]
    for text in texts:
        if not names(text):
            raise ShapeError(
                f"shapes: {text!r} is no extent; give a number, a name such as n, or a sum with one"
            )
    found = {name for text in texts for name in names(text)}
    if isinstance(model, IRModule) and "main" in _functions(model):
        found = {str(symbol.name) for symbol in input_symbols(model["main"])}
    if len(found) > 1:
        listed = ", ".join(sorted(found))
        how = "give numbers for the others"
        if isinstance(model, IRModule):
            how = "bind the others with relax.transform.BindSymbolicVars"
        raise ShapeError(f"shapes: {listed} are left open, one can be; {how}")
    return found.pop() if found else ""


def read_source(model: Any, shapes: Shapes | None, extent: int = 0) -> Source:
    """Reads a model, with a number for what is left open. Raises ModelError, ShapeError."""
    if isinstance(model, IRModule):
        if extent:
            model = with_extent(model, input_symbols(model["main"]), extent)
        inputs, outputs = _signature_of(model)
        return Source(model, "module", inputs, outputs)
    from tvm_ext.frontend.from_onnx import import_onnx

    try:
        imported = import_onnx(model, shapes, extent or 1)
    except ModelError as error:
        where = f"with {extent} for {open_extent(model, shapes)}: " if extent else ""
        raise ModelError(f"{where}{error}") from error
    name = Path(model).name if isinstance(model, str | os.PathLike) else "model"
    inputs = tuple(TensorInfo(i.name, i.dtype, i.shape) for i in imported.inputs)
    outputs = tuple(TensorInfo(o.name, o.dtype, o.shape) for o in imported.outputs)
    return Source(imported.mod, name, inputs, outputs, imported.notes)


def read_open(model: Any, shapes: Shapes | None) -> Iterator[dict[int, Source]]:
    """The sources of a model by what stands for an extent that is left open, for each pair of
    numbers that it takes: positions, say, are counted up to some length. Raises what it raises for
    the least ones, if it takes none."""
    taken = False
    most = _most(model, shapes)
    for extents in EXTENTS:
        if extents[1] > most and extents != EXTENTS[-1]:
            continue
        try:
            larger = read_source(model, shapes, extents[1])  # which it is that fails, if one does
            sources = {extents[0]: read_source(model, shapes, extents[0]), extents[1]: larger}
        except ModelError:
            if extents == EXTENTS[-1] and not taken:
                raise
            continue
        taken = True
        yield sources


def _most(model: Any, shapes: Shapes | None) -> float:
    """The largest extent for which constants that follow it, masks of each image say, have room.

    What is read for it is let go: kept for `says_more`, its weights would lie beside two copies.
    """
    number = EXTENTS[-1][0]
    try:
        before = _sizes(read_source(model, shapes, SMALL))
        if sum(size for size, grows in before if grows) / SMALL * EXTENTS[0][1] <= GROWN_BYTES:
            return inf
        after = _sizes(read_source(model, shapes, number))
    except ModelError:
        return inf
    grown = sum(size for size, _ in after) - sum(size for size, _ in before)
    return GROWN_BYTES * (number - SMALL) / grown if grown > 0 else inf


def _sizes(source: Source) -> list[tuple[int, bool]]:
    """Bytes of each constant of a source, and whether it may have grown with the small extent."""
    return [
        (array.nbytes, any(not extent % SMALL for extent in array.shape))
        for array in tables(source.mod)
    ]


def says_more(model: Any, shapes: Shapes | None, sources: Mapping[int, Source]) -> bool:
    """Whether a model is another one for a small extent than the sources say."""
    try:
        small = read_source(model, shapes, SMALL)
    except ModelError:
        return False  # it has to be larger
    modules = [source.mod for source in sources.values()]
    return not agrees(modules, list(sources), small.mod, SMALL)


def tables(model: Any) -> Iterator[np.ndarray]:
    """The weights of a model, as they are before anything is worked out of them."""
    if isinstance(model, IRModule):
        for function in model.functions.values():
            if isinstance(function, relax.Function):
                yield from (array_of(one.value) for one in in_map_order(function, GenericConst))
        return
    from tvm_ext.frontend.load import load_onnx
    from tvm_ext.frontend.weights import arrays

    yield from arrays(load_onnx(model))


def left_open(sources: Sequence[Source], extents: Sequence[int], name: str) -> Source:
    """What two sources that were read with those extents have in common; their module is the
    first one's."""
    first, second = sources

    def merged(one: TensorInfo, other: TensorInfo) -> TensorInfo:
        pairs = zip(one.shape, other.shape, strict=True)
        return TensorInfo(
            one.name, one.dtype, tuple(_extent(*pair, extents, name) for pair in pairs)
        )

    return replace(
        first,
        inputs=tuple(map(merged, first.inputs, second.inputs)),
        outputs=tuple(map(merged, first.outputs, second.outputs)),
    )


def _extent(one: Any, other: Any, extents: Sequence[int], name: str) -> int | str:
    """An extent as a number, the name, or what is worked out of it, as a text."""
    if one == other:
        return int(one)
    step, left = divmod(other - one, extents[1] - extents[0])
    offset = one - step * extents[0]
    if left:
        return "?"
    scaled = name if step == 1 else f"{step}*{name}"
    return f"{scaled}{offset:+d}" if offset else scaled


def _functions(mod: IRModule) -> list[str]:
    return [str(variable.name_hint) for variable in mod.get_global_vars()]


def _signature_of(mod: IRModule) -> tuple[Infos, Infos]:
    """Inputs and outputs of a Relax module's `main`. Raises ModelError without static shapes."""
    if "main" not in _functions(mod):
        raise ModelError("module: has no function main; name the entry function main")
    main = mod["main"]

    def info(name: str, ty: Any) -> TensorInfo:
        extents = static_extents(ty)
        if extents is None:
            raise ModelError(
                f"module: {name} has no static shape; bind it with relax.transform.BindSymbolicVars"
            )
        return TensorInfo(name, str(ty.dtype.dtype), extents)

    inputs = tuple(info(parameter.name, parameter.ty) for parameter in main.params)
    returned = main.ret_ty
    fields = list(returned.fields) if hasattr(returned, "fields") else [returned]
    outputs = tuple(info(f"output{place}", ty) for place, ty in enumerate(fields))
    return inputs, outputs
