"""`SinkConcats`: concatenations go behind what works element by element.

    y = relu(concat(conv(a), pool(b)))               the concatenation is a kernel of its own
        →
    y = concat(relu(conv(a)), relu(pool(b)))         none: each kernel writes in its place

A map that is fused to a concatenation keeps it from vanishing (`ConcatInPlace`); in front of it,
the map is an epilogue of whatever makes each part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_ext.graph.layout_rules import RULES, elementwise, with_attrs
from tvm_ext.tvm_api import (
    Call,
    IRModule,
    bound,
    constant_array,
    count_uses,
    op_name,
    relax,
    rewritten,
    tvm,
)

VIEWS = {"relax.reshape", "relax.permute_dims", "relax.strided_slice"}
"""What takes no map behind it as an epilogue."""


@tvm.transform.module_pass(opt_level=0, name="SinkConcats")
@dataclass(frozen=True)
class SinkConcats:
    """Moves maps of one tensor in front of the concatenation that makes it, if nobody else reads
    that, nor its parts, each of which some operator computes."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module; concatenations that nothing uses are dead."""
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Sinker(mod)))


@relax.expr_functor.mutator
class _Sinker(relax.PyExprMutator):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._uses = count_uses(mod)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if RULES.get(op_name(call)) is not elementwise:
            return call
        moving = [arg for arg in call.args if isinstance(arg, relax.Var)]
        known = [constant_array(arg) for arg in call.args]
        if len(moving) != 1 or any(array is not None and array.size > 1 for array in known):
            return call
        if op_name(self._made_once(moving[0])) != "relax.concat" or not self._takes(moving[0]):
            return call
        return self._mapped(call, moving[0])

    def _takes(self, part: Any) -> bool:
        """Whether a map may go in front of what is concatenated, to where it is an epilogue."""
        made = self._made_once(part)
        if op_name(made) == "relax.concat":
            return all(map(self._takes, bound(self, made.args[0]).fields))
        return made is not None and op_name(made) not in VIEWS

    def _mapped(self, call: Any, part: Any) -> Any:
        """The map of a part; of a concatenation, that of the maps of its parts."""
        made = self._made_once(part)
        if op_name(made) != "relax.concat":
            return with_attrs(call, [part if isinstance(a, relax.Var) else a for a in call.args])
        fields = bound(self, made.args[0]).fields
        parts = [self.builder_.emit(self._mapped(call, field)) for field in fields]
        self._uses.update(parts)
        return relax.op.concat(parts, int(made.attrs.axis))

    def _made_once(self, expr: Any) -> Any:
        """The call that makes a tensor which has one reader."""
        made = bound(self, expr)
        return made if isinstance(made, Call) and self._uses[expr] == 1 else None
