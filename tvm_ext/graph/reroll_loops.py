"""`RerollLoops`: kernels that are called again and again become one, with the loop inside.

    product(h0, w, p[0], s0); cell(s0, c0, c1, h[1])
    product(h[1], w, p[1], s1); cell(s1, c1, c2, h[2])       →    loop(w, p, h, c, s)
    ...

A recurrent layer of a hundred steps is two hundred calls of a microsecond's work each, and a call
costs as much. What is left between kernels is a barrier (`tvm_steal`), and weights stay in their
cores' caches from one step to the next: Cocktailer (Zhang et al., "Cocktailer: Analyzing and
Optimizing Dynamic Control Flow in Deep Learning", OSDI 2023), section 4, has control flow scheduled
to the processor with what it controls; LLVM calls finding the loop rerolling.

After CallTIRRewrite: kernels are scheduled, and say themselves what they write to. Tensors that a
turn makes and the next one reads become two that take turns; of what is needed later every one is
kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_ffi import StructuralKey

from tvm_ext.errors import PlanError
from tvm_ext.graph.loop_kernel import LoopKernel
from tvm_ext.graph.memory_order import ALLOC, VIEWS
from tvm_ext.graph.straight import Straight
from tvm_ext.tir.roll import Rolled
from tvm_ext.tvm_api import IRModule, Target, op_name, relax, structural_walk, tvm

Accepts = Callable[[Sequence[tuple[str, Rolled]]], Collection[str]]
"""Given the loops that there can be, with what each is called, equal ones alike: the names of those
that may be some."""


def _all_of_them(loops: Sequence[tuple[str, Rolled]]) -> Collection[str]:
    return {name for name, _ in loops}


@tvm.transform.module_pass(opt_level=0, name="RerollLoops")
@dataclass(frozen=True)
class RerollLoops:
    """Rerolls functions that run straight through, for CPUs.

    least    turns that are worth a loop
    accepts  asked which loops may be some
    """

    least: int = 4
    accepts: Accepts = _all_of_them

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module, after CallTIRRewrite and before memory is planned, with loops as kernels; as
        it is for another target than a CPU."""
        target = Target.current(allow_none=True)
        if target is None or str(target.kind) != "llvm":
            return mod
        builder = relax.BlockBuilder(mod)
        for variable, function in mod.functions.items():
            if isinstance(function, relax.Function):
                changed = self._rerolled(mod, function, builder)
                if not changed.same_as(function):
                    builder.update_func(variable, changed)
        return builder.get()

    def _rerolled(self, mod: IRModule, function: Any, builder: Any) -> Any:
        straight = Straight(mod, function)
        names: dict[StructuralKey, str] = {}
        made: dict[int, list[Any]] = {}
        gone: set[int] = set()
        instead: dict[Any, Any] = {}
        rooms: dict[int, list[Any]] = defaultdict(list)
        places = {binding.var: place for place, binding in enumerate(straight.bindings)}
        found: list[tuple[str, Rolled]] = []
        kernels = []
        for loop, calls in straight.loops(self.least):
            kernel = LoopKernel(mod, builder, loop, calls, straight)
            try:
                rolled = kernel.rolled()
            except PlanError:
                continue
            first = f"loop_{calls[0].kernel.name_hint}_{calls[0].binding}"
            found.append((names.setdefault(StructuralKey(rolled.func), first), rolled))
            kernels.append((kernel, loop, calls))
        accepted = self.accepts(found) if found else ()
        for (name, rolled), (kernel, loop, calls) in zip(found, kernels, strict=True):
            if name not in accepted:
                continue
            made[calls[-1].binding] = kernel.call(name, rolled.func)
            gone |= {one.binding for one in calls}
            instead |= kernel.instead
            for room, members in zip(kernel.allocations, loop.rooms, strict=True):
                place = min(places[one] for one in members if one is not None)
                rooms[place].append(room)
        bindings: list[Any] = []
        for place, binding in enumerate(straight.bindings):
            bindings += rooms[place]
            if place in made:
                bindings += made[place]
            elif place not in gone:
                bindings.append(instead.get(binding.var, binding))
        return _with_bindings(function, bindings) if made else function


def _with_bindings(function: Any, bindings: Sequence[Any]) -> Any:
    """The function with other bindings, but for names and room for tensors that nobody uses."""
    used: set[Any] = set()
    structural_walk(function.body.body, (relax.Var, used.add))
    kept: list[Any] = []
    for binding in reversed(bindings):
        value = getattr(binding, "value", None)
        makes = isinstance(value, relax.Var) or op_name(value) in VIEWS | {ALLOC}
        if makes and binding.var not in used:
            continue
        kept.append(binding)
        structural_walk(value, (relax.Var, used.add))
    body = relax.SeqExpr([relax.BindingBlock(kept[::-1])], function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)
