"""A loop as one kernel, and the call of it: where each tensor lies while it runs.

    turn t: f(x, a[t]); g(a[t], c[t - 1], c[t], y[8 * t : 8 * t + 8])
        →  loop(x, a, c, y)       a: one tensor again and again; c: two that take turns; y as it is

Of what others read after the loop every turn's is kept, side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tvm_ext.errors import PlanError
from tvm_ext.graph.memory_order import type_bytes
from tvm_ext.graph.plan_memory import ALIGNED
from tvm_ext.graph.straight import Straight, dtype_of
from tvm_ext.graph.turns import Apart, Called, Form, Given, Going, Loop, Room
from tvm_ext.tir.roll import Part, Rolled, roll
from tvm_ext.tvm_api import (
    GenericConst,
    IRModule,
    PrimFunc,
    constant,
    constant_array,
    element_bytes,
    relax,
    static_extents,
    tirx,
)


class LoopKernel:
    """One loop as a kernel and its call."""

    def __init__(
        self, mod: IRModule, builder: Any, loop: Loop, calls: list[Called], function: Straight
    ) -> None:
        self._mod, self._builder, self._loop, self._calls = mod, builder, loop, calls
        self._function = function
        self.allocations: list[Any] = []
        """What makes each room."""
        self.instead: dict[Any, Any] = {}
        """Bindings of the tensors that lie in rooms now."""
        self._arguments: list[Any] = []
        self._buffers: list[Any] = []
        self._views: list[Any] = []
        self._known: dict[Any, int] = {}

    def rolled(self) -> Rolled:
        """The kernel. Raises PlanError where one of its kernels cannot be a part of it."""
        rooms = [self._room(number) for number in range(len(self._loop.rooms))]
        turn = self._calls[: self._loop.period]
        kernels: list[tuple[PrimFunc, tuple[Part | int, ...]]] = []
        for call, forms in zip(turn, self._loop.forms, strict=True):
            func = self._mod[call.kernel]
            places = zip(func.params, forms, call.given, strict=True)
            kernels.append((func, tuple(self._part(*place, rooms) for place in places)))
        return Rolled(
            roll(kernels, self._buffers, self._loop.turns),
            self._loop.turns,
            tuple((str(call.kernel.name_hint), self._mod[call.kernel]) for call in turn),
            tuple(parts for _, parts in kernels),
            tuple(map(constant_array, self._arguments)),
        )

    def call(self, name: str, func: PrimFunc) -> list[Any]:
        """Bindings in place of the loop's last call."""
        variable = self._builder.add_func(func, name)
        call = self._builder.normalize(relax.Call(variable, self._arguments))
        return [*self._views, relax.VarBinding(relax.Var("_", call.ty), call)]

    def _bind(self, name: str, value: Any) -> Any:
        value = self._builder.normalize(value)
        return relax.VarBinding(relax.Var(name, value.ty), value)

    def _room(self, number: int) -> tuple[Part, Part]:
        """Makes a room; where in it lies what a turn makes, and what it is given from the one
        before."""
        before, *made = self._loop.rooms[number]
        first, last = self._calls[0].binding, self._calls[-1].binding
        sizes = static_extents(made[0].ty)
        dtype = str(made[0].ty.dtype.dtype)
        width = element_bytes(made[0].ty.dtype)
        assert sizes is not None
        size = -(-prod(sizes) * width // ALIGNED) * ALIGNED // width
        formed = [form for forms in self._loop.forms for form in forms]
        later = any(self._function.uses_from(one, last + 1) for one in made[:-1])
        later |= self._function.uses_from(before, first) > formed.count(Room(number, 1))
        slots = len(made) + 1 if later else 1 + (Room(number, 1) in formed)
        place = len(self._arguments)
        room = relax.op.builtin.alloc_tensor(relax.ShapeExpr([slots * size]), dtype, 0)
        self.allocations.append(self._bind("room", room))
        self._add(self.allocations[-1].var, tirx.decl_buffer((slots * size,), dtype, "room"))
        for turn, one in enumerate([before, *made], -1):
            if one is not None:
                begin = (turn + 1 if later else turn % slots) * size * width
                self.instead[one] = self._view(one, self.allocations[-1].var, begin)
        if later:
            return Part(place, size, size), Part(place, 0, size)
        return Part(place, 0, size, 0, slots), Part(place, 0, size, 1, slots)

    def _part(self, param: Any, form: Form, given: Given, rooms: Sequence[Any]) -> Part | int:
        """Where in the loop's tensors one of a kernel's lies."""
        if isinstance(form, Room):
            return rooms[form.number][form.ago]
        if isinstance(form, Apart):
            arrays = [constant_array(one).reshape(-1) for one in form.constants]
            whole = np.concatenate(arrays[: self._loop.turns])
            buffer = tirx.decl_buffer(whole.shape, param.dtype, param.name)
            return Part(self._add(constant(whole, given.dtype), buffer), 0, arrays[0].size)
        base = given.base
        if self._is_whole(base):
            if base not in self._known:
                buffer = tirx.decl_buffer(param.shape, param.dtype, param.name)
                self._known[base] = self._add(base, buffer)
            return self._known[base]
        width = element_bytes(param)
        if isinstance(base, GenericConst) or base.ty.dtype != param.dtype or form.step % width:
            raise PlanError("slice", "loop: parts of a tensor are of several types")
        if base not in self._known:
            size = type_bytes(base.ty) // width
            flat = relax.op.memory.view(base, [size], given.dtype, 0)
            self._views.append(self._bind("flat", flat))
            buffer = tirx.decl_buffer((size,), param.dtype, param.name)
            self._known[base] = self._add(self._views[-1].var, buffer)
        return Part(self._known[base], form.first.offset // width, form.step // width)

    def _is_whole(self, base: Any) -> bool:
        """Whether kernels take a tensor as it is."""
        for call, forms in zip(self._calls, self._loop.forms, strict=False):
            params = self._mod[call.kernel].params
            for param, form, given in zip(params, forms, call.given, strict=True):
                if isinstance(form, Going) and given.base.same_as(base):
                    shape = tuple(map(int, param.shape))
                    if form.step or given.offset or shape != static_extents(base.ty):
                        return False
        return True

    def _add(self, argument: Any, buffer: Any) -> int:
        """Hands the kernel a tensor; which one it is."""
        self._arguments.append(argument)
        self._buffers.append(buffer)
        return len(self._buffers) - 1

    def _view(self, tensor: Any, room: Any, begin: int) -> Any:
        """The binding of a tensor that lies in a room."""
        shape = static_extents(tensor.ty)
        value = relax.op.memory.view(room, shape, dtype_of(tensor), begin)
        return relax.VarBinding(tensor, self._builder.normalize(value))
