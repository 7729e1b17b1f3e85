"""`ConcatInPlace`: kernels write where the concatenation of their results will be.

    a = alloc(8); f(x, a); b = alloc(8); g(y, b); c = alloc(16); concat(a, b, c); h(c)
        →
    c = alloc(16); a = view(c, 0); f'(x, a); b = view(c, 8); g'(y, b); h(c)

f' writes rows as far apart as those of c (`tir.slices`). Nothing is copied, and a kernel that no
longer exists need not be compiled. Concatenations of concatenations (DenseNet) share one tensor.
OpenVINO and TensorRT do the same. What cannot be made in its place (an input, an output, what lies
in another tensor already) is copied there, if that is the lesser part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_ext.graph.concat_places import Kernels, Place, Places, another_name, places, unit_extents
from tvm_ext.graph.name_fields import name_fields
from tvm_ext.tir.affine import linear
from tvm_ext.tir.slices import Strides, sliced, span
from tvm_ext.tir.symbolic import symbols
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    element_bytes,
    extents_of,
    relax,
    static_extents,
    te,
    tirx,
    tvm,
)


@tvm.transform.module_pass(opt_level=0, name="ConcatInPlace")
@dataclass(frozen=True)
class ConcatInPlace:
    """Lowers call_tir to kernels and memory, and removes the concatenations whose operands are made
    by kernels for the most part.

    lanes  a slice must be whole vectors of so many elements wide, or rows would cut them
    """

    lanes: int = 16

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module after CallTIRRewrite, with fewer concatenations."""
        transform = relax.transform
        mod = transform.ToNonDataflow()(mod)
        mod = transform.RemovePurityChecking()(mod)
        mod = name_fields(transform.CallTIRRewrite()(mod))
        kernels = Kernels(mod)
        placer = _Placer(mod, kernels)
        for variable, function in mod.functions.items():
            if isinstance(function, relax.Function):
                found = places(function, kernels, self.lanes)
                if found.copies:
                    placer.begin(function, found)
                    placer.builder_.update_func(variable, placer.visit_expr(function))
        return transform.DeadCodeElimination()(placer.builder_.get()) if kernels.variants else mod


def untold(func: PrimFunc, slices: Mapping[int, Strides]) -> list[Any]:
    """The symbols of a kernel that none of its parameters tells: those that only the extents of
    slices do, which become flat."""
    found = symbols(func)
    told = {param for param in func.params if param in found}
    for place, param in enumerate(func.params):
        if place not in slices:
            told |= {extent for extent in getattr(param, "shape", ()) if extent in found}
    return [symbol for symbol in found if symbol not in told]


def value_of(symbol: Any, func: PrimFunc, args: Sequence[Any]) -> Any:
    """What a symbol of a kernel is where it is called with some tensors."""
    for param, arg in zip(func.params, args, strict=False):
        for own, given in zip(getattr(param, "shape", ()), extents_of(arg.ty), strict=False):
            form = linear(own, {symbol: 0})
            if form is not None and form[0][0]:
                return (given - form[1]) // form[0][0]
    raise AssertionError(f"{symbol} is no extent of a tensor")


@relax.expr_functor.mutator
class _Placer(relax.PyExprMutator):
    def __init__(self, mod: IRModule, kernels: Kernels) -> None:
        super().__init__(mod)
        self._kernels = kernels
        self._copies: dict[tuple[Any, bool, str], Any] = {}

    def begin(self, function: Any, found: Places) -> None:
        """What is to become of the next function."""
        self._places = found
        self._roots = {place.root for place in found.of.values()}
        self._waiting = {
            binding.var: binding
            for block in function.body.blocks
            for binding in block.bindings
            if binding.var in self._roots
        }
        """Whole tensors that are not allocated yet."""

    def visit_var_binding_(self, binding: Any) -> None:
        var = binding.var
        if var in self._places.copies:
            for operand, here in self._places.copies[var]:
                self._copy(operand, here, binding.value)
            return
        if place := self._places.of.get(var):
            self._allocate(place.root)
            self.set_var_remap(var, self.builder_.emit(self._view(var, place), var.name))
        elif self._places.find(var):
            self.set_var_remap(var, self.visit_expr(another_name(binding.value)))
        elif var in self._roots:
            self._allocate(var)
        else:
            super().visit_var_binding_(binding)

    def _allocate(self, root: Any) -> None:
        """The whole tensor, where the first of its parts is needed."""
        if binding := self._waiting.pop(root, None):
            super().visit_var_binding_(binding)

    def _copy(self, operand: Any, place: Place, concat: Any) -> None:
        """A kernel that puts one operand of a concatenation in its place."""
        self._allocate(place.root)
        source, shape = self._places.find(operand), unit_extents(operand.ty) or ()
        known, dtype = static_extents(operand.ty), str(operand.ty.dtype)
        key = (shape, known is None, dtype)
        if key not in self._copies:
            own = known or (tirx.Var("n", "int64"), *shape[1:])
            x = te.placeholder(own, dtype, name="x")
            func = te.create_prim_func([x, te.compute(own, lambda *at: x[at], name="copy")])
            func = func.without_attr("global_symbol")
            self._copies[key] = self.builder_.add_func(func, "copy")
            self._kernels.add(self._copies[key], func)
        slices = {1: place.strides} | ({0: source.strides} if source else {})
        target = self.builder_.emit(self._view(operand, place))
        args = [self.visit_expr(operand), target]
        variant, told = self._variant(self._copies[key], slices, [operand, operand])
        self.builder_.emit(relax.Call(variant, [*args, *told], concat.attrs, concat.ty_args))

    def _view(self, var: Any, place: Place) -> Any:
        length = span(static_extents(var.ty) or extents_of(var.ty), place.strides)
        begin_bytes = place.begin * element_bytes(var.ty.dtype)
        return relax.op.memory.view(
            self.visit_expr(place.root),
            relax.ShapeExpr([length]),
            str(var.ty.dtype.dtype),  # left out, it is a call to ask for it
            begin_bytes,
        )

    def visit_call_(self, call: Any) -> Any:
        if self._kernels.get(call.op) is None:
            return super().visit_call_(call)
        found = {place: self._places.find(arg) for place, arg in enumerate(call.args)}
        slices = {place: where.strides for place, where in found.items() if where is not None}
        if not slices:
            return super().visit_call_(call)
        args = [self.visit_expr(arg) for arg in call.args]
        variant, told = self._variant(call.op, slices, call.args)
        return relax.Call(variant, [*args, *told], call.attrs, call.ty_args)

    def _variant(
        self, variable: Any, slices: dict[int, Strides], args: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        """The kernel that takes these slices, and what it has to be told of the extents of its
        arguments, which flat memory does not tell."""
        key = (variable, tuple(sorted(slices.items())))
        func = self._kernels.get(variable)
        assert func is not None
        missing = untold(func, slices)
        if key not in self._kernels.variants:
            told = PrimFunc([*func.params, *missing], func.body, attrs=func.attrs)
            name = f"{variable.name_hint}_sliced"
            self._kernels.variants[key] = self.builder_.add_func(sliced(told, slices), name)
        return self._kernels.variants[key], [value_of(symbol, func, args) for symbol in missing]
