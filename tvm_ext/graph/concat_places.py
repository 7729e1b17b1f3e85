"""Where tensors may lie that are concatenated, for `ConcatInPlace`: which of them, in which others,
how far apart their rows are, and what has to be copied there after all.

    a = alloc(8); b = alloc(8); c = alloc(16); concat(a, b, c)   →   a: c from 0; b: c from 8
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from tvm_ext.errors import PlanError
from tvm_ext.graph.memory_order import ALLOC
from tvm_ext.tir.read import written_places
from tvm_ext.tir.slices import Strides, with_slices
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    extents_of,
    ir,
    op_name,
    relax,
    static_extents,
    structural_walk,
    tirx,
)

Shape = tuple[int, ...]
COPIED = 4096
"""Elements of each operand from which copies of one after another take less time than one kernel
that asks of every vector which operand it is of."""
CONCAT_AXIS = "tvm_ext.concat_axis"
"""Attribute of a function that does nothing but concatenate, by `Legalise`."""


class Kernels:
    """The functions of a module that are kernels, and what they do with their parameters."""

    def __init__(self, mod: IRModule) -> None:
        self._functions = {
            variable: function
            for variable, function in mod.functions.items()
            if isinstance(function, PrimFunc)
        }
        self._outputs: dict[Any, frozenset[int]] = {}
        self._taken: dict[tuple[Any, int], bool] = {}
        self.variants: dict[tuple[Any, tuple[tuple[int, Strides], ...]], Any] = {}

    def add(self, variable: Any, func: PrimFunc) -> None:
        """A kernel that was not in the module."""
        self._functions[variable] = func

    def get(self, variable: Any) -> PrimFunc | None:
        """The kernel of that name; None for anything else."""
        return self._functions.get(variable) if isinstance(variable, ir.GlobalVar) else None

    def concat_axis(self, variable: Any) -> int | None:
        """The axis of a kernel that concatenates; None for others."""
        attrs = self._functions[variable].attrs
        axis = attrs.get(CONCAT_AXIS) if attrs else None
        return None if axis is None else int(axis)

    def outputs(self, variable: Any) -> frozenset[int]:
        """The places of the parameters that a kernel writes."""
        if variable not in self._outputs:
            self._outputs[variable] = written_places(self._functions[variable])
        return self._outputs[variable]

    def takes(self, variable: Any, place: int) -> bool:
        """Whether a parameter may be a slice."""
        key = (variable, place)
        if key not in self._taken:
            func = self._functions[variable]
            try:  # with whatever strides
                with_slices(func, {place: (1,) * len(func.params[place].shape)})
                self._taken[key] = True
            except PlanError:
                self._taken[key] = False
        return self._taken[key]


class Place(NamedTuple):
    """Where a tensor lies: in which other one, from which element, with which strides."""

    root: Any
    begin: int
    strides: Strides


@dataclass
class Uses:
    """What a function does with the tensors it allocates."""

    names: dict[Any, Any] = field(default_factory=dict)
    """For each variable the allocated tensor that it is a name of."""
    shapes: dict[Any, Shape] = field(default_factory=dict)
    calls: list[tuple[Any, Any]] = field(default_factory=list)
    """Calls of kernels, in order, with the variables they are bound to."""
    readers: dict[Any, list[tuple[Any, int, Shape]]] = field(default_factory=dict)
    """For each tensor the kernels that are given it, in which place, and in which shape."""
    held: set[Any] = field(default_factory=set)
    """Tensors that more than kernels see."""


@dataclass
class Places:
    """What becomes of the tensors of one function."""

    names: dict[Any, Any]
    shapes: dict[Any, Shape]
    of: dict[Any, Place] = field(default_factory=dict)
    """The place of each allocated tensor that gets no memory of its own."""
    copies: dict[Any, list[tuple[Any, Place]]] = field(default_factory=dict)
    """The variables bound to concatenations that are not needed, with what of each has to be copied
    after all, and where to."""

    def find(self, var: Any) -> Place | None:
        """The place of a tensor by any of its names, with the strides of what that name stands
        for."""
        tensor = self.names.get(var)
        place = self.of.get(tensor)
        if place is None or var is tensor:
            return place
        strides = strides_as(unit_extents(var.ty) or (), self.shapes[tensor], place.strides)
        assert strides is not None
        return place._replace(strides=strides)


def uses(function: Any, kernels: Kernels) -> Uses:
    """Reads a function after CallTIRRewrite; what is not understood counts as seen by others."""
    found = Uses()

    def seen(expr: Any) -> None:
        if expr is not None:
            structural_walk(expr, (relax.Var, lambda var: found.held.add(found.names.get(var))))

    for block in getattr(function.body, "blocks", ()):
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            shape = unit_extents(binding.var.ty)
            if op_name(value) == ALLOC and shape:
                found.names[binding.var] = binding.var
                found.shapes[binding.var] = shape
            elif another_name(value) in found.names:
                found.names[binding.var] = found.names[another_name(value)]
            elif isinstance(value, relax.Call) and kernels.get(value.op):
                found.calls.append((binding.var, value))
                for place, argument in enumerate(value.args):
                    if argument in found.names:
                        readers = found.readers.setdefault(found.names[argument], [])
                        readers.append((value.op, place, unit_extents(argument.ty) or ()))
                    else:
                        seen(argument)
            else:
                seen(value)
    seen(function.body.body)
    return found


def another_name(value: Any) -> Any:
    """The tensor that a binding only gives another name, or another shape."""
    shaped = op_name(value) == "relax.reshape" and static_extents(value.ty) is not None
    return value.args[0] if shaped else value


def places(function: Any, kernels: Kernels, lanes: int) -> Places:
    """The tensors of a function that can be made where they will be concatenated: the last
    concatenation first, so that the place of a whole is known before those of its parts."""
    known = uses(function, kernels)
    found = Places(known.names, known.shapes)

    def movable(tensor: Any, shape: Shape, strides: Strides) -> bool:
        if tensor is None:
            return False
        given = known.readers.get(tensor, [])
        written = sum(place in kernels.outputs(op) for op, place, _ in given)
        seen = [(op, place, strides_as(own, shape, strides)) for op, place, own in given]
        fits = all(own is not None and kernels.takes(op, place) for op, place, own in seen)
        fits &= strides_as(known.shapes[tensor], shape, strides) is not None
        return tensor not in known.held and tensor not in found.of and written == 1 and fits

    for bound, call in reversed(known.calls):
        axis = kernels.concat_axis(call.op)
        *operands, target = call.args
        whole = known.names.get(target)
        if axis is None or whole is None:
            continue
        shapes = [unit_extents(operand.ty) or () for operand in operands]
        untold = any(static_extents(operand.ty) is None for operand in operands[:-1])
        if not all(shapes) or (axis == 0 and untold):
            continue  # where the next one begins is not known
        home = found.of.get(whole) or Place(whole, 0, dense_strides(known.shapes[whole]))
        tensors = [known.names.get(operand) for operand in operands]
        in_place = [
            tensor not in tensors[:place] and movable(tensor, shapes[place], home.strides)
            for place, tensor in enumerate(tensors)
        ]
        if cuts_vectors(shapes, axis, lanes):
            in_place = [False] * len(operands)
        moved = sum(prod(shape) for shape, fits in zip(shapes, in_place, strict=True) if fits)
        size = prod(known.shapes[whole])
        if 2 * moved >= size or size - moved >= COPIED * in_place.count(False):
            begin = home.begin
            copies = found.copies.setdefault(bound, [])
            for place, shape in enumerate(shapes):
                here = Place(home.root, begin, home.strides)
                tensor = tensors[place]
                own = strides_as(known.shapes.get(tensor, ()), shape, home.strides)
                if in_place[place] and own is not None:
                    found.of[tensor] = here._replace(strides=own)
                else:
                    copies.append((operands[place], here))
                begin += shape[axis] * home.strides[axis]
    return found


def unit_extents(ty: Any) -> tuple[int, ...] | None:
    """The extents of a tensor, 1 for the outermost if that is not known: strides do not depend on
    it, and it does not decide but for what lies behind one another along it."""
    known, inner = static_extents(ty), extents_of(ty)[1:]
    if known is not None or not extents_of(ty):
        return known
    static = all(isinstance(extent, tirx.IntImm) for extent in inner)
    return (1, *map(int, inner)) if static else None


def cuts_vectors(shapes: Sequence[Sequence[int]], axis: int, lanes: int) -> bool:
    """Whether rows of what is concatenated are no whole vectors, where there is more than one."""
    several = any(prod(shape[:axis]) > 1 for shape in shapes)
    return several and any(prod(shape[axis:]) % lanes for shape in shapes)


def dense_strides(shape: Sequence[int]) -> Strides:
    """Strides of a tensor without gaps, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def strides_as(shape: Shape, other: Shape, strides: Strides) -> Strides | None:
    """The strides of a tensor that lies as one of another shape does with some strides; None where
    it has none: rows that lie apart stay rows. Axes of one element may come and go."""
    if shape == other:
        return strides
    gaps = zip(other, strides, dense_strides(other), strict=True)
    if all(step == close for size, step, close in gaps if size > 1):
        return dense_strides(shape)
    long = [(size, step) for size, step in zip(other, strides, strict=True) if size > 1]
    if [size for size, _ in long] != [size for size in shape if size > 1]:
        return None
    steps = iter(step for _, step in long)
    return tuple(next(steps) if size > 1 else 1 for size in shape)
