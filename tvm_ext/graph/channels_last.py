"""Channels-last layout for convolutional models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tvm_ext.graph.layout_perm import Perm, identity
from tvm_ext.graph.layout_rules import RULES, Placed, is_plain_conv, reshape
from tvm_ext.graph.layout_values import Layouts, Value, known_shape
from tvm_ext.graph.legalise_conv import stays_in_planes
from tvm_ext.graph.legalise_conv_transpose import TRANSPOSED
from tvm_ext.tvm_api import Call, IRModule, ir, relax, tvm

CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")
ALL_CONVOLUTIONS = (*CONVOLUTIONS, *TRANSPOSED)


@tvm.transform.module_pass(opt_level=0, name="ChannelsLast")
@dataclass(frozen=True)
class ChannelsLast:
    """Moves every function with convolutions from NCHW to NHWC (NCW to NWC, NCDHW to NDHWC).

    rewrite:
        conv2d(x, w, NCHW, OIHW)
        -> permute_dims(conv2d(permute_dims(x), w', NHWC, OHWI)), w' permuted at compile time

    Operators between convolutions follow (`layout_rules.RULES`), so conversions stay only at the
    borders and around operators without a rule; each value is converted at most once each way,
    and only where it is used. Signatures keep their layout; the branches of an `If` and local
    functions are left as they are, and so are functions without a convolution in the plain
    layout, or already grouped for a back end. The pass is idempotent.

    It does the work of TVM's `ConvertLayout`, which fails on models that reshape or expand a
    four-dimensional tensor to another rank.

    convolutions: the operators that ask for channels-last; others stay in NCHW. Transposed
    convolutions do so in `ALL_CONVOLUTIONS`, for `Legalise`: TVM lowers them in NCHW only.

    lanes: float32 elements in a vector; a convolution to so few channels that half of one would be
    empty stays in NCHW if its data is (`legalise_conv.stays_in_planes`). 0: none does.
    """

    convolutions: tuple[str, ...] = CONVOLUTIONS
    lanes: int = 0

    def transform_module(self, mod: IRModule, ctx: tvm.transform.PassContext) -> IRModule:
        rewriter = _Rewriter(mod, frozenset(self.convolutions), self.lanes)
        for name, func in mod.functions_items():
            if isinstance(func, relax.Function) and self._applies(func):
                rewriter.builder_.update_func(name, rewriter.rewrite(func))
        return _without_unused(rewriter.builder_.get(), rewriter.replaced)

    def _applies(self, func: relax.Function) -> bool:
        attrs = func.attrs or {}
        if any(key in attrs for key in ("Primitive", "Composite", "Codegen")):
            return False
        return any(
            _op_name(binding.value) in self.convolutions and is_plain_conv(binding.value)
            for block in func.body.blocks
            for binding in block.bindings
        )


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    """Rebuilds a function binding by binding, keeping for each value the layouts it exists in."""

    def __init__(self, mod: IRModule, convolutions: frozenset[str], lanes: int) -> None:
        super().__init__(mod)
        self.lanes = lanes
        self.rules = {
            name: rule
            for name, rule in RULES.items()
            if name in convolutions or name not in ALL_CONVOLUTIONS
        }
        self.nested = False
        self.replaced: set[ir.GlobalVar] = set()

    def rewrite(self, func: relax.Function) -> relax.Function:
        self.layouts = Layouts(self.builder_, self.visit_expr)
        self.crossing = _used_across_blocks(func.body)
        self.returned = set(relax.analysis.free_vars(func.body.body))
        rewritten = self.visit_expr(func)
        self.replaced |= {name for (name, _), new in self.layouts.programs.items() if new}
        return rewritten

    def visit_var_(self, op: relax.Var) -> relax.Expr:
        entry = self.layouts.entries.get(op)
        if entry is None:
            return super().visit_var_(op)
        if isinstance(entry, list):
            return relax.Tuple([self._plain(value) for value in entry])
        return self._plain(entry)

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        return self.visit_var_(op)

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        with self.layouts.dataflow_block():
            return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if self.nested:
            super().visit_var_binding_(binding)
        elif isinstance(binding.value, (relax.If, relax.Function)):
            self._visit_scope(binding)
        elif not (self._bind_view(binding) or self._bind_call(binding)):
            super().visit_var_binding_(binding)

    def _visit_scope(self, binding: relax.VarBinding) -> None:
        """Leaves a branch or a local function as it is, on plain values made outside of it."""
        for var in relax.analysis.free_vars(binding.value):
            self.visit_expr(var)
        self.nested = True
        super().visit_var_binding_(binding)
        self.nested = False

    def _bind_view(self, binding: relax.VarBinding) -> bool:
        """A binding that moves no data: another name, a field, a tuple, a permutation.

        Nor does a reshape of a constant, such as the bias an importer spells as (1, C, 1, 1).
        """
        value = binding.value
        entries = self.layouts.entries
        seen: Value | list[Value] | None = None
        if isinstance(value, relax.Var):
            seen = entries.get(value)
        elif isinstance(value, ir.TupleGetItem):
            fields = entries.get(value.tuple_value)
            seen = fields[value.index] if isinstance(fields, list) else None
        elif isinstance(value, relax.Tuple):
            fields = self.layouts.fields(value)
            seen = fields if fields and not all(field.is_plain for field in fields) else None
        elif _op_name(value) == "relax.permute_dims":
            data = self.layouts.value(value.args[0])
            seen = None if data is None else data.permute(_permutation(value))
        elif self.rules.get(_op_name(value)) is reshape:
            data, shape = self.layouts.value(value.args[0]), known_shape(value.ty)
            seen = None if data is None or shape is None else data.reshape_constant(shape)
        if seen is None or (isinstance(seen, list) and self._is_output(binding.var)):
            return False
        self._record(binding.var, seen)
        return True

    def _bind_call(self, binding: relax.VarBinding) -> bool:
        """A call that has a rule which applies."""
        if self._stays(binding.value):
            return False
        rule = self.rules.get(_op_name(binding.value))
        output = self._is_output(binding.var)
        if rule is None or (output and isinstance(binding.var.ty, ir.TupleType)):
            return False
        placed = rule(self.layouts, binding.value)
        if placed is None:
            return False
        output = output and placed.perm in self._output_layouts(binding.var, placed.perm, False)
        emit = self.builder_.emit_output if output else self.builder_.emit
        self._record(binding.var, _results(emit(placed.call, binding.var.name), placed))
        return True

    def _stays(self, call: relax.Expr) -> bool:
        if _op_name(call) not in CONVOLUTIONS or not stays_in_planes(call, self.lanes):
            return False
        data = self.layouts.value(call.args[0])
        return data is None or data.is_plain

    def _record(self, var: relax.Var, seen: Value | list[Value]) -> None:
        """Remembers what a variable holds, and hands what leaves a dataflow block out of it."""
        self.layouts.entries[var] = seen
        if isinstance(seen, Value) and self._is_output(var):
            emit = partial(self.builder_.emit_output, name_hint=var.name)
            for perm in self._output_layouts(var, seen.perm, seen.axes in seen.twins):
                held = self.layouts.to(seen, perm, emit)
                if isinstance(held, relax.DataflowVar):
                    seen.twins[tuple(seen.axes[axis] for axis in perm)] = emit(held)

    def _output_layouts(self, var: relax.Var, perm: Perm, has_plain: bool) -> list[Perm]:
        """Plain for what the function returns; as it lies for what only later blocks use."""
        plain = identity(len(perm))
        if var not in self.crossing or perm == plain:
            return [plain]
        return [perm, plain] if has_plain or var in self.returned else [perm]

    def _is_output(self, var: relax.Var) -> bool:
        return self.builder_.current_block_is_dataflow() and not isinstance(var, relax.DataflowVar)

    def _plain(self, value: Value) -> relax.Expr:
        return self.layouts.to(value, identity(value.rank))


def _results(var: relax.Var, placed: Placed) -> Value | list[Value]:
    """What a rewritten call returns; only the fields that have the rank of its input moved."""
    if not isinstance(var.ty, ir.TupleType):
        return Value.of(var, placed.perm)
    rank = len(placed.perm)
    return [
        Value.of(ir.TupleGetItem(var, i), placed.perm if ty.ndim == rank else identity(ty.ndim))
        for i, ty in enumerate(var.ty.fields)
    ]


def _used_across_blocks(body: relax.SeqExpr) -> set[relax.Var]:
    """The variables that a block defines and a later block uses."""
    home: dict[relax.Var, int] = {}
    crossing: set[relax.Var] = set()
    for index, block in enumerate(body.blocks):
        for binding in block.bindings:
            used = relax.analysis.free_vars(binding.value)
            crossing.update(var for var in used if home.get(var, index) != index)
            home[binding.var] = index
    return crossing


def _without_unused(mod: IRModule, names: set[ir.GlobalVar]) -> IRModule:
    """The module less those of the named private functions that nothing calls any more."""
    called = {
        name
        for func in mod.functions.values()
        if isinstance(func, relax.Function)
        for name in relax.analysis.all_global_vars(func)
    }
    for name in names - called:
        if not (mod[name].attrs and "global_symbol" in mod[name].attrs):
            del mod[name]
    return mod


def _op_name(expr: relax.Expr) -> str:
    return expr.op.name if isinstance(expr, Call) and isinstance(expr.op, ir.Op) else ""


def _permutation(call: Call) -> list[int]:
    """The axes of a `permute_dims`; none given means all of them reversed."""
    rank = call.ty.ndim
    axes = call.attrs.axes
    return list(range(rank))[::-1] if axes is None else [int(axis) % rank for axis in axes]
