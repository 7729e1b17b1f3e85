"""Results of kernels that make several by their own names, where they were fields of a tuple.

    f(x, a, b); t = (a, b); y = t[1]   →   f(x, a, b); y = b

So what plans memory knows each of them apart: a field of a tuple lives as long as all of it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tvm_ext.tvm_api import IRModule, relax, structural_map, structural_walk


def name_fields(mod: IRModule) -> IRModule:
    """The module after CallTIRRewrite without tuples that are only made to be taken apart."""
    changed = {
        variable: _named(function)
        for variable, function in mod.functions.items()
        if isinstance(function, relax.Function)
    }
    result = IRModule(dict(mod.functions.items()) | changed)
    return result.with_attrs(mod.attrs) if mod.attrs else result


def _named(function: Any) -> Any:
    tuples: dict[Any, Any] = {}
    others: Counter[Any] = Counter()

    def made(binding: Any) -> None:
        if isinstance(binding.value, relax.Tuple):
            tuples[binding.var] = binding.value.fields
            others[binding.var] -= 1

    def taken(item: Any) -> None:
        others[item.tuple_value] -= 1

    def seen(variable: Any) -> None:
        others[variable] += 1

    kinds = [(relax.VarBinding, made), (relax.TupleGetItem, taken), (relax.Var, seen)]
    structural_walk(function, kinds)
    apart = {variable for variable in tuples if not others[variable]}

    def named(binding: Any) -> Any:
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in apart:
            return relax.VarBinding(binding.var, tuples[value.tuple_value][value.index])
        return binding

    def rewrite(block: Any) -> Any:
        kept = [
            named(binding) if isinstance(binding, relax.VarBinding) else binding
            for binding in block.bindings
            if binding.var not in apart
        ]
        return type(block)(kept)

    return structural_map(function, [(relax.BindingBlock, rewrite)]) if apart else function
