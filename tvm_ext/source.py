"""What is compiled: an ONNX model or a Relax module, as a module of static shapes.

Extents may be left open, by names in place of their numbers in `shapes`, or as symbols in a Relax
module: it is read once for each choice of numbers that are put there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace as replace_info

from tvm_ext.errors import ModelError, ShapeError
from tvm_ext.extents import Shapes, as_shapes, assigned, names
from tvm_ext.garbage import look_for
from tvm_ext.graph.common_subexpr import eliminate_common
from tvm_ext.graph.open_extent import are_apart
from tvm_ext.graph.plan_memory import input_symbols
from tvm_ext.graph.share import Known, with_shared
from tvm_ext.graph.unify import EXTENTS, MOST, Pairs, Point, extent_text, pairs_for, with_extents
from tvm_ext.records.manifest import TensorInfo
from tvm_ext.tvm_api import (
    GenericConst,
    IRModule,
    constant_array,
    extents_of,
    in_map_order,
    relax,
    static_extents,
    tirx,
)
from tvm_ext.without_sympy import without_sympy

LONG = 4096
"""What constants are known for that are worked out from positions."""
GROWN_BYTES = 1 << 29
"""What constants may take that follow an open extent: for 982 images Swin's masks take 3 GB."""
Infos = tuple[TensorInfo, ...]


@dataclass(frozen=True)
class Source:
    """A model, read."""

    mod: IRModule
    name: str
    inputs: Infos
    outputs: Infos
    notes: tuple[str, ...] = ()
    unbounded: str = ""
    """Its first node that makes as much as data say, without a bound."""
    constant_bytes: float = inf
    """Of its weights, where that is known."""


def open_extents(model: Any, shapes: Shapes | None) -> tuple[str, ...]:
    """The names of what is left open, in the order of the inputs. Raises ShapeError if more than
    MOST are, or for shapes that are none."""
    given = as_shapes(shapes).values()
    texts = [extent for shape in given for extent in shape if isinstance(extent, str)]
    found = tuple(dict.fromkeys(name for text in texts for name in sorted(names(text))))
    if isinstance(model, IRModule) and "main" in _functions(model):
        found = tuple(str(symbol.name) for symbol in input_symbols(model["main"]))
    if len(found) > MOST:
        how = "give numbers for others"
        if isinstance(model, IRModule):
            how = "bind others with relax.transform.BindSymbolicVars"
        raise ShapeError(f"shapes: {', '.join(found)} are left open, {MOST} can be; {how}")
    return found


def read_source(
    model: Any, shapes: Shapes | None, extents: Mapping[str, int] | None = None
) -> Source:
    """Reads a model, with numbers for what is left open. Raises ModelError, ShapeError."""
    if isinstance(model, IRModule):
        if extents:
            model = with_extents(model, extents)
        inputs, outputs = _signature_of(model)
        return Source(model, "module", inputs, outputs)
    with without_sympy():
        import onnx_ir  # noqa: F401
    from tvm_ext.frontend.from_onnx import import_onnx

    try:
        imported = import_onnx(model, shapes, extents or 1)
    except ModelError as error:
        where = f"with {assigned(extents)}: " if extents else ""
        raise ModelError(f"{where}{error}") from error
    name = Path(model).name if isinstance(model, str | os.PathLike) else "model"
    inputs = tuple(TensorInfo(i.name, i.dtype, i.shape) for i in imported.inputs)
    outputs = tuple(TensorInfo(o.name, o.dtype, o.shape) for o in imported.outputs)
    return Source(
        imported.mod,
        name,
        inputs,
        outputs,
        imported.notes,
        imported.unbounded,
        imported.constant_bytes,
    )


def read_open(
    model: Any, shapes: Shapes | None, opened: Sequence[str]
) -> Iterator[dict[Point, Source]]:
    """The sources of a model by what stands for extents that are left open, for each choice of
    two numbers for each that it takes: positions, say, are counted up to some length. Those that
    may be taken for what the model has so many of come last. Raises what it raises for the least
    ones, if it takes none."""
    failed: ModelError | None = None
    taken = False
    most = _most(model, shapes, opened[0]) if len(opened) == 1 else inf
    choices = list(pairs_for(len(opened)))
    left = [pairs for pairs in choices if pairs[0][1] <= most or pairs == choices[-1]]
    mistakable: list[Pairs] = []
    known: set[int] | None = None
    while left or mistakable:
        pairs, careful = (left.pop(0), True) if left else (mistakable.pop(0), False)
        points = list(product(*pairs))
        if careful and known and not are_apart(known, points):
            mistakable.append(pairs)
            continue
        sources: dict[Point, Source] = {}
        weights: Known = {}
        held_bytes = inf
        try:
            for point in (points[-1], *points[:-1]):  # the largest may be what fails
                source = read_source(model, shapes, dict(zip(opened, point, strict=True)))
                sources[point] = replace(source, mod=merged(source.mod, weights))
                held_bytes = source.constant_bytes
                del source
                look_for(held_bytes)  # its weights are in cycles
                if len(sources) == 2 and known is None:
                    known = set.intersection(*(_lengths(own.mod) for own in sources.values()))
                    if not are_apart(known, points):
                        break
        except ModelError as error:
            sources, failed = {}, error
        look_for(held_bytes)  # what a model that failed was read to is in cycles
        if len(sources) == len(points):
            taken = True
            yield {point: sources[point] for point in points}
        elif sources:
            mistakable.append(pairs)
    if failed and not taken:
        raise failed


def _lengths(mod: IRModule) -> set[int]:
    """The extents of all tensors of `main`."""
    found: set[int] = set()

    def look(node: Any) -> None:
        if isinstance(node, relax.Expr):
            found.update(int(e) for e in extents_of(node.ty) if isinstance(e, tirx.IntImm))

    relax.analysis.post_order_visit(mod["main"], look)
    return found


def _most(model: Any, shapes: Shapes | None, name: str) -> float:
    """The largest extent for which constants that follow it, masks of each image say, have room.

    What is read for it is let go: kept, its weights would lie beside two copies.
    """
    few, more = EXTENTS[-1]
    try:
        before = _sizes(read_source(model, shapes, {name: few}), few)
        if sum(size for size, grows in before if grows) / few * EXTENTS[0][1] <= GROWN_BYTES:
            return inf
        after = _sizes(read_source(model, shapes, {name: more}), more)
    except ModelError:
        return inf
    grown = sum(size for size, _ in after) - sum(size for size, _ in before)
    return GROWN_BYTES * (more - few) / grown if grown > 0 else inf


def _sizes(source: Source, extent: int) -> list[tuple[int, bool]]:
    """Bytes of each constant of a source, and whether it may have grown with the extent."""
    return [
        (array.nbytes, any(not length % extent for length in array.shape))
        for array in tables(source.mod)
    ]


def merged(mod: IRModule, known: Known) -> IRModule:
    """The module with equal calls once, whatever the extents: of what is worked out from these,
    onnxscript merges small constants only."""
    shared = eliminate_common(with_shared(mod, known))
    return relax.transform.CanonicalizeBindings()(shared)


def tables(model: Any) -> Iterator[np.ndarray]:
    """The weights of a model, as they are before anything is worked out of them."""
    if isinstance(model, IRModule):
        for function in model.functions.values():
            if isinstance(function, relax.Function):
                found = map(constant_array, in_map_order(function, GenericConst))
                yield from (array for array in found if array is not None)
        return
    from tvm_ext.frontend.load import load_onnx
    from tvm_ext.frontend.weights import arrays

    yield from arrays(load_onnx(model))


class Beginnings:
    """Makes arrays of which constants may be the beginning, that grow with what is left open: the
    weights of a model, and what a longer one is worked out to have, cosines of positions say."""

    def __init__(self, model: Any, shapes: Shapes | None, opened: Sequence[str]) -> None:
        self._model, self._shapes, self._opened = model, shapes, opened

    def __call__(self) -> Iterator[np.ndarray]:
        yield from tables(self._model)
        yield from self._longer

    @cached_property
    def _longer(self) -> list[np.ndarray]:
        """Constants that follow an extent, of models with many for it and one for all others."""
        found: list[np.ndarray] = []
        for name in self._opened:
            with suppress(ModelError):  # of what has no more
                extents = dict.fromkeys(self._opened, 1) | {name: LONG}
                mod = read_source(self._model, self._shapes, extents).mod
                found += [array for array in tables(mod) if LONG in array.shape]
        return found


def left_open(sources: Mapping[Point, Source], opened: Sequence[str]) -> Source:
    """What sources that were read with those numbers for what is open have in common; their module
    is the first one's. Raises ShapeError unless a run can tell each of these numbers by an extent
    of some input."""
    read = list(sources.values())

    def merged(infos: Sequence[TensorInfo]) -> TensorInfo:
        shape = tuple(
            extent_text(dict(zip(sources, extents, strict=True)), opened)
            for extents in zip(*(info.shape for info in infos), strict=True)
        )
        return replace_info(infos[0], shape=shape)

    def each(kind: str) -> Infos:
        infos = [getattr(source, kind) for source in read]
        return tuple(map(merged, zip(*infos, strict=True)))

    inputs = each("inputs")
    texts = {own: info.name for info in inputs for own in info.shape if isinstance(own, str)}
    for name in opened:
        if name not in texts:
            within = [
                f"{own} of input {text!r}" for own, text in texts.items() if name in names(own)
            ]
            where = ", only in " + ", ".join(within) if within else ""
            raise ShapeError(
                f"shapes: {name} is nowhere an extent by itself{where}; give such an extent a name "
                "of its own"
            )
    return replace(read[0], inputs=inputs, outputs=each("outputs"))


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
