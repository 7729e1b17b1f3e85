"""`PlanMemory`: intermediate tensors take turns in a few blocks of memory, by their lifetimes.

    a = alloc(100); f(x, a); b = alloc(60); g(a, b); c = alloc(90); h(b, c)
        →
    s = storage(128); t = storage(64); a = s; f(x, a); b = t; g(a, b); c = s; h(b, c)

TVM's planner takes tensors in the order of calls, and blocks of about their size. Here the largest
come first, each into the smallest block that is free all its life: Pisarchyk and Lee, "Efficient
memory management for deep neural net inference" (2020), greedy by size.

A tensor lies in the middle of its block:

    block   |=======================|        Of all tensors the first half is written and read by
    tensor  |    ===========        |        one half of the cores, the second by the other, so
    tensor  |         ===           |        what they wrote last in a block lies in their caches.

From the front of the block a smaller tensor would lie where the first cores alone have been; where
cores do not share their last cache the others fetch each line from there before they overwrite it.

Where extents are not known sizes are for 1 in their place, and a block is as many times as large
as those turn out to be together that its tensors grow with.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from tvm_ext.graph.memory_order import ALLOC, VIEWS
from tvm_ext.graph.name_fields import name_fields
from tvm_ext.tir.affine import monomial
from tvm_ext.tir.symbolic import symbols_of
from tvm_ext.tvm_api import IRModule, element_bytes, extents_of, ir, op_name, relax, tirx, tvm

ALIGNED = 64
"""Sizes are whole cache lines."""
PAGE = 4096
"""What TVM's pool rounds sizes to."""


class Life(NamedTuple):
    """How large a tensor is, and the first and the last moment it is needed."""

    bytes: int
    """With 1 for each of its symbols."""
    first: int
    last: int
    symbols: frozenset[Any] = frozenset()
    """Extents that are not known, that it grows with."""

    def holds(self, other: Life) -> bool:
        """Whether another tensor fits into this one's memory, even if an extent is 0."""
        return other.bytes <= self.bytes and other.symbols == self.symbols


class Place(NamedTuple):
    """Where a tensor lies: the block, and how many bytes of it come before."""

    block: int
    offset: int


def share(lives: Sequence[Life]) -> tuple[list[int], list[Life]]:
    """For each tensor the block it lies in, and for every block the tensor it was made for; tensors
    of one block are never alive at the same moment."""
    blocks = [0] * len(lives)
    owners: list[Life] = []
    tenants: list[list[tuple[int, int]]] = []

    def order(place: int) -> tuple[int, int, int]:
        own = lives[place]
        return -len(own.symbols), -own.bytes, own.first

    for place in sorted(range(len(lives)), key=order):
        own = lives[place]
        free = [
            number
            for number, others in enumerate(tenants)
            if owners[number].holds(own) and _is_free(others, own.first, own.last)
        ]
        if not free:
            free = [len(tenants)]
            tenants.append([])
            owners.append(own._replace(bytes=-(-own.bytes // ALIGNED) * ALIGNED))
        blocks[place] = free[-1]  # they come ever smaller
        insort(tenants[blocks[place]], (own.first, own.last))
    return blocks, owners


def apart(owners: Sequence[Life], others: Sequence[int]) -> list[Life]:
    """The blocks, no two of which take as many pages, nor as many as tensors with memory of their
    own, of `others` bytes, while that takes less than twice the memory.

    TVM's pool hands out what was given back last of as many pages. Blocks of one size would change
    places from run to run, and lie in the caches of other cores than of those that write them
    (three of 1.2 MB around a depthwise convolution: 221 → 209 us on two cores that share their last
    cache, 521 → 381 where they do not).
    """
    taken = {-(-size // PAGE) for size in others}
    found = []
    for owner in owners:
        least = pages = -(-owner.bytes // PAGE)
        while pages in taken and pages < 2 * least and not owner.symbols:
            pages += 1
        taken.add(pages)
        found.append(owner._replace(bytes=max(owner.bytes, (pages - 1) * PAGE + ALIGNED)))
    return found


def middle(size: int, block: int) -> int:
    """Bytes of a block before a tensor of that size, whole cache lines."""
    return (block - size) // 2 // ALIGNED * ALIGNED


def _is_free(tenants: Sequence[tuple[int, int]], first: int, last: int) -> bool:
    """Whether none of the tenants, in the order of their lives, is alive from `first` to `last`."""
    place = bisect(tenants, (first, last))
    before = place == 0 or tenants[place - 1][1] < first
    return before and (place == len(tenants) or last < tenants[place][0])


@tvm.transform.module_pass(opt_level=0, name="PlanMemory")
@dataclass(frozen=True)
class PlanMemory:
    """Plans functions that run straight through; tensors that grow faster than what is not known,
    and those that leave the function or are given to anything but kernels, keep memory of their
    own.

    offsets  whether kernels take tensors that have one, as `TIR_PIPELINE` lowers them; TVM's own
             pipelines do not, and every tensor then begins where its block does
    """

    offsets: bool = True

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module, after CallTIRRewrite, with tensors that share storage."""
        mod = name_fields(mod)
        planner = _Planner(mod)
        for variable, function in mod.functions.items():
            if isinstance(function, relax.Function) and (lives := lifetimes(function)):
                blocks, owners = share(list(lives.values()))
                places = {
                    var: Place(block, middle(lives[var].bytes, owners[block].bytes) * self.offsets)
                    for var, block in zip(lives, blocks, strict=True)
                }
                planner.begin(places, apart(owners, own_bytes(function, lives)))
                planner.builder_.update_func(variable, planner.visit_expr(function))
        return planner.builder_.get()


def lifetimes(function: Any) -> dict[Any, Life]:
    """Of each tensor to be placed its size, the binding that makes it and the last to use it."""
    symbols = input_symbols(function)
    blocks = getattr(function.body, "blocks", ())
    bindings = [binding for block in blocks for binding in block.bindings]
    made: dict[Any, int] = {}
    owners: dict[Any, frozenset[Any]] = {}
    last: dict[Any, int] = {}
    leaving: set[Any] = set()

    def behind(expr: Any) -> frozenset[Any]:
        if isinstance(expr, relax.Tuple):
            return frozenset[Any]().union(*map(behind, expr.fields))
        if isinstance(expr, relax.TupleGetItem):
            return behind(expr.tuple_value)
        return owners.get(expr, frozenset()) if isinstance(expr, relax.Var) else frozenset()

    for moment, binding in enumerate(bindings):
        value = getattr(binding, "value", None)
        if isinstance(value, relax.If):
            return {}
        name = op_name(value)
        used = frozenset[Any]().union(*map(behind, getattr(value, "args", ())), behind(value))
        last.update(dict.fromkeys(used, moment))
        if name == ALLOC and unit_bytes(binding.var.ty, symbols) is not None:
            made[binding.var] = last[binding.var] = moment
            owners[binding.var] = frozenset({binding.var})
        elif not isinstance(value, relax.Call) or name in VIEWS:
            owners[binding.var] = used
        elif not isinstance(value.op, ir.GlobalVar):
            leaving |= used
    leaving |= behind(function.body.body)
    return {
        var: Life(size[0], moment, last[var], size[1])
        for var, moment in made.items()
        if var not in leaving and (size := unit_bytes(var.ty, symbols))
    }


def own_bytes(function: Any, placed: Collection[Any]) -> list[int]:
    """Of the tensors of a function that are not placed, as far as it is known."""
    blocks = getattr(function.body, "blocks", ())
    made = [
        binding.var
        for block in blocks
        for binding in block.bindings
        if op_name(getattr(binding, "value", None)) == ALLOC and binding.var not in placed
    ]
    sizes = [unit_bytes(var.ty, ()) for var in made]
    return [size[0] for size in sizes if size]


def input_symbols(function: Any) -> tuple[Any, ...]:
    """The extents of a function's inputs that are not known."""
    return symbols_of(e for param in function.params for e in extents_of(param.ty))


def unit_bytes(ty: Any, symbols: Sequence[Any]) -> tuple[int, frozenset[Any]] | None:
    """Bytes of a tensor with 1 for each of the symbols, and those it grows with; None where it
    grows otherwise than with some of them once, has no elements, or its shape is not known."""
    if not hasattr(ty, "shape"):
        return None
    parts = [monomial(extent) for extent in extents_of(ty)]
    used = [variable for part in parts if part for variable in part[1]]
    if None in parts or len(set(used)) < len(used) or not set(used) <= set(symbols):
        return None
    size = prod(part[0] for part in parts if part) * element_bytes(ty.dtype)
    return (size, frozenset(used)) if size else None


@relax.expr_functor.mutator
class _Planner(relax.PyExprMutator):
    def begin(self, places: dict[Any, Place], owners: Sequence[Life]) -> None:
        """Whom the blocks of the next function were made for, and where in them its tensors lie."""
        self._tensors, self._sizes = places, [owner.bytes for owner in owners]
        self._times = [
            prod(sorted(owner.symbols, key=str), start=tirx.const(1, "int64")) for owner in owners
        ]
        self._storages: dict[int, Any] = {}
        self._shapes: dict[Any, Any] = {}
        """Shapes that are worked out at run time, each once."""

    def visit_var_binding_(self, binding: Any) -> None:
        if binding.var not in self._tensors:
            super().visit_var_binding_(binding)
            return
        block, offset = self._tensors[binding.var]
        if block not in self._storages:
            size = relax.ShapeExpr([self._sizes[block] * self._times[block]])
            storage = relax.op.memory.alloc_storage(size, 0, "global", "uint8")
            self._storages[block] = self.builder_.emit(storage, "storage")
        shape, dtype, *_ = binding.value.args
        if not all(isinstance(extent, tirx.IntImm) for extent in shape.values):
            key = str(shape)
            if key not in self._shapes:
                self._shapes[key] = self.builder_.emit(shape, "shape")
            shape = self._shapes[key]
        begin = offset * self._times[block]
        tensor = relax.op.memory.alloc_tensor(self._storages[block], begin, shape, dtype)
        self.builder_.emit_normalized(
            relax.VarBinding(binding.var, self.builder_.normalize(tensor))
        )
