"""Several calls of a dataflow block as one function: what passes that merge kernels build on.

b = call_tir(f, x); c = call_tir(g, b, W)          →   c = call_tir(f_g, x, W)
b = call_tir(f, x); c = call_tir(g, b); d = h(b)   →   b, c = call_tir(f_g, x); d = h(b)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_ext.compute.open_attention import OpenAttention
from tvm_ext.graph.memory_order import type_bytes
from tvm_ext.tvm_api import (
    InternalError,
    IRModule,
    PrimFunc,
    ir,
    is_scheduled,
    op_name,
    relax,
    structural_walk,
    tirx,
    written_cycles,
)

_MERGED = "merged"
MOST_STEPS = 1000
"""Bindings that a way back is looked for in, before one is taken for granted."""
_NAMES = 6
"""Kernels that a region's name tells of."""


@dataclass(frozen=True)
class KernelCall:
    """A binding to the call of a kernel with one result."""

    number: int
    """Its place in the block."""
    var: Any
    value: Any

    @property
    def kernel(self) -> Any:
        """The GlobalVar of its PrimFunc."""
        return self.value.args[0]

    @property
    def operands(self) -> tuple[Any, ...]:
        """Variables and constants, in the order of the kernel's parameters."""
        return tuple(self.value.args[1].fields)


@dataclass(frozen=True)
class Calls:
    """The kernels that a dataflow block calls, and who reads what."""

    kernels: dict[int, KernelCall]
    """By their places in the block."""
    _places: dict[Any, int]
    """Of variables."""
    _vars: tuple[Any, ...]
    """By their places."""
    _users: dict[Any, set[int]]
    """By what they take."""

    @staticmethod
    def of(block: Any) -> Calls:
        """Reads a block."""
        kernels: dict[int, KernelCall] = {}
        places: dict[Any, int] = {}
        users: dict[Any, set[int]] = {}
        for number, binding in enumerate(block.bindings):
            used: list[Any] = []
            structural_walk(getattr(binding, "value", None), (relax.Var, used.append))
            for var in used:
                users.setdefault(var, set()).add(number)
            places[binding.var] = number
            users[binding.var] = set() if isinstance(binding.var, relax.DataflowVar) else {-1}
            if _is_kernel(binding):
                kernels[number] = KernelCall(number, binding.var, binding.value)
        return Calls(kernels, places, tuple(binding.var for binding in block.bindings), users)

    def producers(self, number: int) -> set[int]:
        """The calls whose results a call takes."""
        found = {self._places.get(operand, -1) for operand in self.kernels[number].operands}
        return found & self.kernels.keys()

    def readers(self, number: int) -> set[int]:
        """The places of bindings that take what one makes; -1 for what lies outside the block."""
        return self._users[self._vars[number]]

    def region(self, numbers: set[int]) -> Region:
        """Some of the calls with all their results that others take."""
        found = tuple(self.kernels[number] for number in sorted(numbers))
        others = (call for call in found[:-1] if not self.readers(call.number) <= numbers)
        return Region(found, tuple(call.var for call in others))

    def maker(self, variable: Any) -> set[int]:
        """The place of the binding of a variable; none for what comes from outside the block."""
        return {self._places[variable]} if variable in self._places else set()

    def users(self, variable: Any) -> set[int]:
        """The places of bindings that take what a variable stands for."""
        return self._users.get(variable, set())

    def leads_back(self, numbers: set[int], joined: Sequence[set[int]]) -> bool:
        """Whether a path from one of several calls to another goes by way of others; of those that
        are `joined` each set is one call."""
        last, before = max(numbers), -1
        while before != last:
            before = last
            last = max([last, *(max(one) for one in joined if min(one) < last)])
        seen = set(numbers)
        ahead = [reader for number in numbers for reader in self.readers(number) - numbers]
        while ahead:
            number = ahead.pop()
            if number in numbers or len(seen) > MOST_STEPS:
                return True
            if number in seen or not 0 <= number <= last:
                continue
            whole = next((one for one in joined if number in one), {number})
            seen |= whole
            ahead += [reader for one in whole for reader in self.readers(one) - whole]
        return False


def _is_kernel(binding: Any) -> bool:
    value: Any = getattr(binding, "value", None)
    return (
        op_name(value) == "relax.call_tir"
        and len(value.args) == 2
        and isinstance(value.args[0], ir.GlobalVar)
        and isinstance(value.args[1], relax.Tuple)
        and isinstance(binding.var.ty, relax.TensorType)
    )


@dataclass(frozen=True)
class Region:
    """Calls that become one, in the order of the block."""

    calls: tuple[KernelCall, ...]
    others: tuple[Any, ...] = ()
    """Variables of calls but the last that are results as well."""

    @property
    def results(self) -> tuple[Any, ...]:
        """The variables that the call in its place makes, in the order of the block."""
        return (*self.others, self.calls[-1].var)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """What comes from outside, each once, in the order in which it is first taken."""
        own = {call.var for call in self.calls}
        operands = (operand for call in self.calls for operand in call.operands)
        return tuple(dict.fromkeys(operand for operand in operands if operand not in own))

    @property
    def name(self) -> str:
        """The names of its first kernels, one after another."""
        names = [str(call.kernel.name_hint).removeprefix("fused_") for call in self.calls]
        return "_".join(("fused", *names[:_NAMES]))

    @property
    def key(self) -> tuple[Any, ...]:
        """Which kernels, and what each takes of whom: equal regions compute the same function."""
        numbers = {operand: place for place, operand in enumerate(self.inputs)}
        numbers |= {call.var: -1 - place for place, call in enumerate(self.calls)}
        return tuple(
            (
                str(call.kernel.name_hint),
                call.var in self.results,
                *(numbers[operand] for operand in call.operands),
            )
            for call in self.calls
        )

    @property
    def apart_bytes(self) -> int:
        """What its kernels read and write, each tensor once a kernel."""
        return sum(_bytes([*call.operands, call.var]) for call in self.calls)

    @property
    def together_bytes(self) -> int:
        """What one kernel in its place would."""
        return _bytes([*self.inputs, *self.results])

    def bindings(self, variable: Any) -> list[Any]:
        """What takes the region's place: the call of its function, and names for its results."""
        last = self.calls[-1].value
        types = [result.ty for result in self.results]
        kinds = [ir.TupleType(types)] if self.others else last.ty_args
        call = relax.Call(last.op, [variable, relax.Tuple(self.inputs)], last.attrs, kinds)
        if not self.others:
            return [relax.VarBinding(self.calls[-1].var, call)]
        whole = relax.DataflowVar(self.name, ir.TupleType(types))
        return [
            relax.VarBinding(whole, call),
            *(
                relax.VarBinding(result, relax.TupleGetItem(whole, place))
                for place, result in enumerate(self.results)
            ),
        ]

    def merged(self, mod: IRModule) -> PrimFunc | None:
        """One function of `inputs` that does what all do; None if TVM does not make it: the buffers
        of some kernels, of cumulative sums for one, have strides, and those of others, of scatters,
        an offset that nobody would know of a tensor inside."""
        builder = relax.BlockBuilder()
        own = {
            variable: builder.add_func(mod[variable], str(variable.name_hint))
            for variable in dict.fromkeys(call.kernel for call in self.calls)
        }
        known = {
            operand: relax.Var(f"p{place}", operand.ty) for place, operand in enumerate(self.inputs)
        }
        with builder.function(_MERGED, list(known.values()), attrs={"Primitive": 1}):
            with builder.dataflow():
                for call in self.calls:
                    operands = relax.Tuple([known[operand] for operand in call.operands])
                    arguments = [own[call.kernel], operands]
                    value = call.value
                    known[call.var] = builder.emit(
                        relax.Call(value.op, arguments, value.attrs, value.ty_args)
                    )
                results = [known[result] for result in self.results]
                made = builder.emit_output(relax.Tuple(results) if self.others else results[0])
            builder.emit_func_output(made)
        try:
            made = relax.transform.FuseTIR()(_called(builder))[_MERGED]
        except InternalError:
            return None
        inside = made.body.block.alloc_buffers
        return None if any(isinstance(one.elem_offset, tirx.Var) for one in inside) else made


def is_settled(func: PrimFunc) -> bool:
    """Whether a kernel takes in no others: it has a schedule, or is written or planned as what it
    is."""
    return is_scheduled(func) or bool(written_cycles(func)) or OpenAttention.of(func) is not None


def _bytes(tensors: Iterable[Any]) -> int:
    """Bytes of different tensors."""
    return sum(type_bytes(tensor.ty) for tensor in dict.fromkeys(tensors))


def _called(builder: Any) -> IRModule:
    """The module with a `main` that calls the merged function: FuseTIR sees no others."""
    function = builder.get().get_global_var(_MERGED)
    params = [relax.Var(str(one.name), one.ty) for one in builder.get()[_MERGED].params]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(function, params))
        builder.emit_func_output(result)
    return builder.get()
