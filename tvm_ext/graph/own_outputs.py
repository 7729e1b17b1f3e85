"""Which results of a function lie in memory that every call makes anew.

Those can be handed to the caller as they are, and so can views of them. An input, a constant, a
view of one, and a tensor that is returned twice cannot: what the caller writes there would show
elsewhere.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.graph.memory_order import ALLOC, VIEWS
from tvm_ext.tvm_api import op_name, relax

MAKES_ANEW = frozenset({ALLOC, "relax.call_tir"})


def own_outputs(function: Any) -> tuple[int, ...]:
    """Places of the results, before or after CallTIRRewrite, that are the caller's alone."""
    values = {
        binding.var: getattr(binding, "value", None)
        for block in getattr(function.body, "blocks", ())
        for binding in block.bindings
    }

    def origin(expr: Any) -> tuple[Any, ...]:
        """The variable a result comes from, and its place in a tuple of results."""
        if isinstance(expr, relax.TupleGetItem):
            whole = origin(expr.tuple_value)
            if isinstance(whole[0], relax.Tuple):
                return origin(whole[0].fields[expr.index])
            return (*whole, expr.index)
        value: Any = values.get(expr)
        if isinstance(value, relax.Var | relax.Tuple | relax.TupleGetItem):
            return origin(value)
        return origin(value.args[0]) if op_name(value) in VIEWS else (expr,)

    returned = origin(getattr(function.body, "body", function.body))
    results = returned[0].fields if isinstance(returned[0], relax.Tuple) else [returned[0]]
    seen: set[tuple[Any, ...]] = set()
    own = []
    for place, result in enumerate(results):
        source = origin(result)
        if source not in seen and op_name(values.get(source[0])) in MAKES_ANEW:
            own.append(place)
        seen.add(source)
    return tuple(own)
