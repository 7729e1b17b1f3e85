"""`KeepHalves`: what is moved, joined or chosen for products in bfloat16 alone is rounded before.

    halves(max_pool2d(x))   →   largest_half(halves(x))
    halves(concat(x, y))    →   concat(halves(x), halves(y))

Rounding keeps order, so that these are the same bits, in half of the memory; and it ends kernels
that make the numbers, where it had been one of its own behind the concatenation (UNet's three took
580 of 7150 us). What anyone reads as float32 stays float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_ext.compute.half_pool import largest_half
from tvm_ext.graph.keep_bytes import CONCAT
from tvm_ext.graph.multiply_halves import ROUNDS, rounded
from tvm_ext.graph.pool_squares import windows_of
from tvm_ext.graph.quantise_early import MOVES
from tvm_ext.tvm_api import Call, IRModule, bound, call_of, op_name, relax, rewritten, tvm

POOLS = frozenset(f"relax.nn.max_pool{rank}d" for rank in (1, 2, 3))


@tvm.transform.module_pass(opt_level=0, name="KeepHalves")
@dataclass(frozen=True)
class KeepHalves:
    """Moves rounding in front of such operators."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module after `MultiplyHalves`."""
        readers = _Readers(mod)
        if not readers.rounded:
            return mod
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Rewriter(mod, readers)))


class _Readers:
    """Who reads each variable of a module."""

    def __init__(self, mod: IRModule) -> None:
        self._mod = mod
        self._by: dict[Any, list[tuple[Any, Any]]] = {}
        self._answers: dict[Any, bool] = {}
        self.rounded = False
        """Whether anything is."""
        for function in mod.functions.values():
            if isinstance(function, relax.Function):
                for block in function.body.blocks:
                    for binding in block.bindings:
                        self._read(binding.var, binding.value)
                self._read(None, function.body.body)

    def _read(self, var: Any, value: Any) -> None:
        self.rounded |= self.rounds(value)

        def look(node: Any) -> None:
            if isinstance(node, relax.Var):
                self._by.setdefault(node, []).append((var, value))

        relax.analysis.post_order_visit(value, look)

    def rounds(self, value: Any) -> bool:
        """Whether this is a call that rounds."""
        if op_name(value) != "relax.call_tir":
            return False
        return ROUNDS in (self._mod[value.args[0]].attrs or {})

    def only_rounded(self, var: Any) -> bool:
        """Whether all that is read of a tensor in the end are its elements, rounded."""
        if var not in self._answers:
            readers = self._by.get(var, [])
            self._answers[var] = bool(readers) and all(self._rounded_by(*one) for one in readers)
        return self._answers[var]

    def count(self, var: Any) -> int:
        """How many read a tensor."""
        return len(self._by.get(var, []))

    def _rounded_by(self, var: Any, value: Any) -> bool:
        if self.rounds(value):
            return True
        name = op_name(value)
        passes_on = name in MOVES or name == CONCAT or isinstance(value, relax.Tuple)
        return var is not None and (passes_on or _pools(value)) and self.only_rounded(var)


def _pools(value: Any) -> bool:
    return op_name(value) in POOLS and bool(windows_of(value))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule, readers: _Readers) -> None:
        super().__init__(mod)
        self._readers = readers

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        return self._halves(call.args[1].fields[0]) if self._readers.rounds(call) else call

    def _halves(self, data: Any) -> Any:
        """A tensor's elements, rounded; `Share` sees to it that they are once."""
        return self.builder_.emit(self._made(data))

    def _made(self, data: Any) -> Any:
        made = bound(self, data)
        if isinstance(data, relax.Var) and self._readers.only_rounded(data):
            if op_name(made) in MOVES:
                return call_of(made, self._halves(made.args[0]))
            if op_name(made) == CONCAT:
                parts = [self._halves(field) for field in bound(self, made.args[0]).fields]
                return Call(made.op, [relax.Tuple(parts)], made.attrs)
            if _pools(made) and self._pays(made.args[0]):
                given, windows = self._halves(made.args[0]), windows_of(made)
                return self.builder_.call_te(
                    lambda x: largest_half(x, windows), given, primfunc_name_hint="largest_half"
                )
        return rounded(self.builder_, data)

    def _pays(self, pooled: Any) -> bool:
        """Whether pooling halves takes less time. What is computed for a pool alone may never be in
        memory: strips of both take it as it is (64 channels of 111 x 111: 102 us, rounded first
        124)."""
        joined = op_name(bound(self, pooled)) == CONCAT
        shared = self._readers.count(pooled) > 1
        return (joined or shared) and self._readers.only_rounded(pooled)
