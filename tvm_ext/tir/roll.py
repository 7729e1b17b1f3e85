"""Scheduled kernels that are called again and again, as one with the loop inside.

    f(x[128], y[128]):  y[i] = 2 * x[i]              called 99 times, each time 128 elements on
        →  roll(x[12672], y[12672]):  for t < 99: y[128 * t + i] = 2 * x[128 * t + i]

What the kernels take are parts of a few tensors, in each turn of the loop another part. Schedules
stay what they are: a loop that was parallel is so in every turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

from tvm_ext.errors import PlanError
from tvm_ext.tir.slices import Place, relocated
from tvm_ext.tvm_api import PrimFunc, mark_scheduled, s_tir, tirx, with_own_names
from tvm_ext.tvm_steal import mark_steal


class Part(NamedTuple):
    """Where what a kernel is given in turn t lies: from element `begin + step * t` on, or, if parts
    take turns, from `begin + step * ((t + shift) % rooms)`."""

    tensor: int
    begin: int = 0
    step: int = 0
    shift: int = 0
    rooms: int = 0

    def at(self, turn: Any) -> Any:
        """The first element in a turn: of a number a number, of a variable an expression."""
        turn = (turn + self.shift) % self.rooms if self.rooms else turn
        return self.begin + self.step * turn


class Rolled(NamedTuple):
    """A loop as a kernel: `func` calls the kernels in order, in each of its turns."""

    func: PrimFunc
    turns: int
    kernels: tuple[tuple[str, PrimFunc], ...]
    parts: tuple[tuple[Part | int, ...], ...]
    """Where the parameters of each lie; a number is a tensor that it takes whole every time."""
    constants: tuple[Any, ...]
    """The tensors that the kernel is always given, as arrays; None for others."""


def roll(
    kernels: Sequence[tuple[PrimFunc, Sequence[Part | int]]], tensors: Sequence[Any], turns: int
) -> PrimFunc:
    """One function of the tensors that calls the kernels in order, in each of its turns.

    kernels  scheduled, each with where its parameters lie

    Raises PlanError with the reason `slice` where a parameter is used as anything but a tensor, and
    `structure` where a kernel is not one that was scheduled.
    """
    turn = tirx.Var("turn", "int32")
    allocated: list[Any] = []
    bodies: list[Any] = []
    for func, parts in kernels:
        if not isinstance(func.body, s_tir.SBlockRealize) or func.body.block.iter_vars:
            raise PlanError("structure", "roll: the kernel has no root block")
        root = func.body.block
        own = [_alike(buffer) for buffer in root.alloc_buffers]
        places: dict[Any, Place] = {
            old: (new, None, 0) for old, new in zip(root.alloc_buffers, own, strict=True)
        }
        for param, part in zip(func.params, parts, strict=True):
            if isinstance(part, Part):
                places[param] = tensors[part.tensor], _dense(param), part.at(turn)
            else:
                places[param] = tensors[part], None, 0
        allocated += own
        bodies.append(relocated(root.body, places))
    body = tirx.SeqStmt(bodies) if len(bodies) > 1 else bodies[0]
    zero, extent = tirx.const(0, "int32"), tirx.const(turns, "int32")
    loop = tirx.For(turn, zero, extent, tirx.ForKind.SERIAL, body)
    block = s_tir.SBlock([], [], [], "root", loop, alloc_buffers=allocated)
    whole = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
    func = PrimFunc(list(tensors), whole).with_attr({"tirx.noalias": True, "s_tir": True})
    return mark_steal(mark_scheduled(with_own_names(func)))


def _alike(buffer: Any) -> Any:
    """Another tensor of the same kind: a kernel may be called twice in a turn."""
    return tirx.decl_buffer(buffer.shape, buffer.dtype, buffer.name, scope=buffer.scope())


def _dense(buffer: Any) -> tuple[int, ...]:
    """Elements from one index of a tensor to the next, for each axis."""
    sizes = [int(extent) for extent in buffer.shape[1:]]
    return (*reversed(list(accumulate(reversed(sizes), mul))), 1) if buffer.shape else ()
