"""A function that runs straight through, after CallTIRRewrite: what its kernels are given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tvm_ext.graph.common_subexpr import LEAST_BYTES
from tvm_ext.graph.memory_order import ALLOC, VIEWS, type_bytes
from tvm_ext.graph.turns import Called, Given, Loop, find_loop
from tvm_ext.tir.read import written_places
from tvm_ext.tvm_api import (
    GenericConst,
    IRModule,
    PrimFunc,
    constant_array,
    is_scheduled,
    op_name,
    relax,
    static_extents,
    structural_walk,
    tirx,
    tvm,
)

VIEW = "relax.memory.view"


class Straight:
    """A function that runs straight through: its bindings, and what its kernels are given."""

    def __init__(self, mod: IRModule, function: Any) -> None:
        self._mod = mod
        blocks = getattr(function.body, "blocks", ())
        self.bindings = [binding for block in blocks for binding in block.bindings]
        self._places: dict[Any, tuple[Any, int]] = {}
        """For each variable that lies in a tensor which, and how many bytes come before."""
        self._allocated: dict[Any, int] = {}
        self._written: dict[Any, frozenset[int]] = {}
        self._constants: dict[Any, Any] = {}
        self._alike_bits: dict[tuple[Any, ...], Any] = {}
        self._used: dict[Any, list[int]] = defaultdict(list)
        """Where each tensor is used by calls."""
        self._leaving: set[Any] = set()
        """Tensors that are used by anything else."""
        self._runs: list[list[Called]] = [[]]
        for number, binding in enumerate(self.bindings):
            self._take(number, binding.var, getattr(binding, "value", None))
        self._leave(function.body.body)

    def _take(self, number: int, var: Any, value: Any) -> None:
        """One binding."""
        if isinstance(value, relax.Var):
            self._places[var] = self._place(value)
        elif op_name(value) == ALLOC:
            self._allocated[var] = type_bytes(var.ty)
        elif op_name(value) in VIEWS and (offset := _offset(value)) is not None:
            base, before = self._place(value.args[0])
            self._places[var] = (base, before + offset)
        elif (call := self._call(number, value)) is not None:
            self._runs[-1].append(call)
            for given in call.given:
                self._used[given.base].append(number)
        else:
            self._runs.append([])
            self._leave(value)

    def _leave(self, value: Any) -> None:
        structural_walk(value, (relax.Var, lambda var: self._leaving.add(self._place(var)[0])))

    def _place(self, expr: Any) -> tuple[Any, int]:
        return self._places.get(expr, (expr, 0))

    def _call(self, number: int, value: Any) -> Called | None:
        """A call of a scheduled kernel with tensors of known shapes; None of anything else."""
        kernel = getattr(value, "op", None)
        if not isinstance(kernel, tvm.ir.GlobalVar):
            return None
        func = self._mod[kernel]
        if not (isinstance(func, PrimFunc) and is_scheduled(func)):
            return None
        if any(static_extents(one.ty) is None for one in value.args):
            return None
        self._written.setdefault(kernel, written_places(func))
        places = (self._place(self._alike(one)) for one in value.args)
        given = [
            Given(*place, type_bytes(one.ty), dtype_of(one))
            for place, one in zip(places, value.args, strict=True)
        ]
        return Called(number, kernel, tuple(given))

    def _alike(self, expr: Any) -> Any:
        """Of small constants of the same bits always the first, which others were not worth
        (`share`)."""
        if not isinstance(expr, GenericConst) or type_bytes(expr.ty) >= LEAST_BYTES:
            return expr
        if expr not in self._constants:
            array = constant_array(expr)
            key = (array.shape, dtype_of(expr), array.tobytes())
            self._constants[expr] = self._alike_bits.setdefault(key, expr)
        return self._constants[expr]

    def loops(self, least: int) -> Iterator[tuple[Loop, list[Called]]]:
        """The loops, in order, each with its calls."""
        for run in self._runs:
            start = 0
            while start < len(run):
                loop = find_loop(run, start, self._written, self._allocated, least)
                loop = loop and self._kept_apart(loop)
                if loop is None or loop.turns < least:
                    start += 1
                    continue
                end = start + loop.turns * loop.period
                yield loop, run[start:end]
                for tensor in (one for room in loop.rooms for one in room):
                    self._allocated.pop(tensor, None)  # it lies in a room, and in no other
                start = end

    def _kept_apart(self, loop: Loop) -> Loop | None:
        """The loop without its last turn if what that one makes leaves the function: it has to lie
        where its memory begins. None if what others make leaves it."""
        if any(room[-1] in self._leaving for room in loop.rooms):
            rooms = tuple(room[:-1] for room in loop.rooms)
            loop = loop._replace(turns=loop.turns - 1, rooms=rooms)
        leave = any(one in self._leaving for room in loop.rooms for one in room)
        return None if leave else loop

    def uses_from(self, tensor: Any, number: int) -> int:
        """How many calls from a binding on are given a tensor."""
        return sum(place >= number for place in self._used[tensor])


def _offset(view: Any) -> int | None:
    """The bytes before a view; None if it is not known."""
    if op_name(view) != VIEW:
        return 0 if op_name(view) == "relax.reshape" else None
    if len(view.args) < 4:
        return 0
    offset = getattr(view.args[3], "value", view.args[3])
    return int(offset) if isinstance(offset, tirx.IntImm | int) else None


def dtype_of(expr: Any) -> str:
    return str(expr.ty.dtype.dtype)
