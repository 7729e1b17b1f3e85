"""Several calls of a dataflow block as one function: what passes that merge kernels build on.

b = call_tir(f, x); c = call_tir(g, b, W)   →   c = call_tir(f_g, x, W)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, ClassVar

from tvm_ext.compute.open_attention import OpenAttention
from tvm_ext.graph.memory_order import type_bytes
from tvm_ext.records.manifest import Fusion
from tvm_ext.tir.read import uses_again
from tvm_ext.tvm_api import (
    InternalError,
    IRModule,
    PrimFunc,
    ir,
    is_scheduled,
    op_name,
    relax,
    structural_walk,
    with_blocks,
)

Predict = Callable[..., float]
"""Called with a PrimFunc and perhaps the rule that it is to be planned by: its predicted time,
infinite where it has no such plan."""
Explain = Callable[[Fusion], object]
"""Called with each decision."""

NO_FUNCTION = "TVM makes no function of them"
_MERGED = "merged"
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
    _readers: dict[int, set[int]]

    @staticmethod
    def of(block: Any) -> Calls:
        """Reads a block."""
        kernels: dict[int, KernelCall] = {}
        places: dict[Any, int] = {}
        readers: dict[int, set[int]] = {}
        for number, binding in enumerate(block.bindings):
            used: list[Any] = []
            structural_walk(getattr(binding, "value", None), (relax.Var, used.append))
            for var in used:
                if var in places:
                    readers[places[var]].add(number)
            places[binding.var] = number
            readers[number] = set() if isinstance(binding.var, relax.DataflowVar) else {-1}
            if _is_kernel(binding):
                kernels[number] = KernelCall(number, binding.var, binding.value)
        return Calls(kernels, places, readers)

    def producers(self, number: int) -> set[int]:
        """The calls whose results a call takes."""
        found = {self._places.get(operand, -1) for operand in self.kernels[number].operands}
        return found & self.kernels.keys()

    def readers(self, number: int) -> set[int]:
        """The places of bindings that take what one makes; -1 for what lies outside the block."""
        return self._readers[number]


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
    """Calls that become one, in the order of the block; the last one makes the only result."""

    calls: tuple[KernelCall, ...]

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
            (str(call.kernel.name_hint), *(numbers[operand] for operand in call.operands))
            for call in self.calls
        )

    @property
    def apart_bytes(self) -> int:
        """What its kernels read and write, each tensor once a kernel."""
        return sum(_bytes([*call.operands, call.var]) for call in self.calls)

    @property
    def together_bytes(self) -> int:
        """What one kernel in its place would."""
        return _bytes([*self.inputs, self.calls[-1].var])

    def call(self, variable: Any) -> Any:
        """The call of the function that takes the region's place."""
        last = self.calls[-1].value
        return relax.Call(last.op, [variable, relax.Tuple(self.inputs)], last.attrs, last.ty_args)

    def merged(self, mod: IRModule) -> PrimFunc | None:
        """One function of `inputs` that does what all do; None if TVM does not make it: the buffers
        of some kernels, of cumulative sums for one, have strides."""
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
                    emit = builder.emit_output if call is self.calls[-1] else builder.emit
                    known[call.var] = emit(
                        relax.Call(value.op, arguments, value.attrs, value.ty_args)
                    )
            builder.emit_func_output(known[self.calls[-1].var])
        try:
            return relax.transform.FuseTIR()(_called(builder))[_MERGED]
        except InternalError:
            return None


def is_settled(func: PrimFunc) -> bool:
    """Whether a kernel takes in no others: it has a schedule, or is planned as what it is."""
    return is_scheduled(func) or OpenAttention.of(func) is not None


def _bytes(tensors: Iterable[Any]) -> int:
    """Bytes of different tensors."""
    return sum(type_bytes(tensor.ty) for tensor in dict.fromkeys(tensors))


def _known_us(us: float) -> float:
    """A predicted time as a manifest has it: 0 where there is no plan to predict."""
    return round(us, 2) if isfinite(us) else 0.0


def _called(builder: Any) -> IRModule:
    """The module with a `main` that calls the merged function: FuseTIR sees no others."""
    function = builder.get().get_global_var(_MERGED)
    params = [relax.Var(str(one.name), one.ty) for one in builder.get()[_MERGED].params]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(function, params))
        builder.emit_func_output(result)
    return builder.get()


@dataclass
class Merger(ABC):
    """Merges regions of a module's kernels; equal ones are looked at once."""

    name: ClassVar[str]
    """Of the pass."""

    mod: IRModule
    predict_us: Predict | None
    explain: Explain | None
    builder: Any = field(init=False)
    stopped: dict[int, str] = field(default_factory=dict, init=False)
    """Why the region that ends with a call, perhaps the call alone, is no larger."""
    refused: dict[Any, str] = field(default_factory=dict, init=False)
    """Why regions, by their keys, did not become one kernel."""
    together_us: dict[Any, float] = field(default_factory=dict, init=False)
    _us: dict[str, float] = field(default_factory=dict, init=False)
    _products: dict[str, bool] = field(default_factory=dict, init=False)
    _merged: dict[Any, Any] = field(default_factory=dict, init=False)
    """For each region, by its key, the variable of the function in its place; None if it stays."""

    def __post_init__(self) -> None:
        functions = self.mod.functions.items()
        kernels = {v: func for v, func in functions if isinstance(func, PrimFunc)}
        # a builder compares functions by hash, with weights: it is given those that have none
        self.builder = relax.BlockBuilder(IRModule(kernels))

    def run(self) -> IRModule:
        """The module with regions as single calls; what nobody calls any more is gone."""
        result = with_blocks(self.mod, self._block)
        result.update(self.builder.get())
        return relax.transform.DeadCodeElimination()(result)

    @abstractmethod
    def chosen(self, calls: Calls, taken: set[int]) -> Iterator[tuple[Region, Any]]:
        """The regions of a block to merge, with the variables of their functions; `taken` are the
        places of the calls of all regions so far."""

    @abstractmethod
    def refusal(self, region: Region, func: PrimFunc) -> str:
        """Why a function that does what a region does should not take its place; empty if it
        should."""

    def variable(self, region: Region) -> Any:
        """The variable of a region's function; None if it can be no kernel, or does not pay."""
        key = region.key
        if key not in self._merged:
            func = region.merged(self.mod)
            self.refused[key] = NO_FUNCTION if func is None else self.refusal(region, func)
            pays = not self.refused[key]
            self._merged[key] = self.builder.add_func(func, region.name) if pays else None
        return self._merged[key]

    def is_product(self, call: KernelCall) -> bool:
        """Whether a kernel is unscheduled and reads elements for several results."""
        name = str(call.kernel.name_hint)
        if name not in self._products:
            func = self.mod[call.kernel]
            self._products[name] = not is_settled(func) and uses_again(func)
        return self._products[name]

    def slower(self, region: Region, func: PrimFunc, **asked: str) -> str:
        """Why a function is no faster than the region apart; empty if it is."""
        if self.predict_us is None:
            return ""
        apart_us, together_us = self.apart_us(region), self.predict_us(func, **asked)
        self.together_us[region.key] = together_us
        if together_us < apart_us:
            return ""
        if together_us == inf:
            return "no plan for one kernel"
        return f"slower: {together_us:.1f} us, {apart_us:.1f} us apart"

    def apart_us(self, region: Region) -> float:
        """Predicted time of a region's kernels one after another."""
        return sum(self._predicted_us(call) for call in region.calls)

    def _tell(self, region: Region) -> None:
        if self.explain is None:
            return
        several = len(region.calls) > 1 and self.predict_us is not None
        numbers = [call.number for call in region.calls]
        self.explain(
            Fusion(
                by=self.name,
                kernels=tuple(str(call.kernel.name_hint) for call in region.calls),
                stopped=next(filter(None, map(self.stopped.get, numbers)), ""),
                apart_us=_known_us(self.apart_us(region)) if several else 0.0,
                together_us=_known_us(self.together_us.get(region.key, 0.0)) if several else 0.0,
                apart_bytes=region.apart_bytes,
                together_bytes=region.together_bytes,
            )
        )

    def _predicted_us(self, call: KernelCall) -> float:
        name = str(call.kernel.name_hint)
        if name not in self._us and self.predict_us is not None:
            self._us[name] = self.predict_us(self.mod[call.kernel])
        return self._us[name]

    def _block(self, block: Any) -> Any:
        calls = Calls.of(block)
        taken: set[int] = set()
        placed: dict[int, Any] = {}
        for region, variable in self.chosen(calls, taken):
            taken |= {call.number for call in region.calls}
            placed[region.calls[-1].number] = region.call(variable)
            self._tell(region)
        for number in sorted(self.stopped.keys() - taken):
            self._tell(Region((calls.kernels[number],)))
        self.stopped.clear()
        if not placed:
            return block
        bindings = [
            relax.VarBinding(binding.var, placed[number]) if number in placed else binding
            for number, binding in enumerate(block.bindings)
            if number in placed or number not in taken
        ]
        return relax.DataflowBlock(bindings)
