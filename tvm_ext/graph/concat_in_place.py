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
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm_ext.errors import PlanError
from tvm_ext.graph.memory_order import ALLOC
from tvm_ext.graph.name_fields import name_fields
from tvm_ext.tir.read import linear, written_places
from tvm_ext.tir.slices import Strides, sliced, span, with_slices
from tvm_ext.tir.symbolic import symbols
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    element_bytes,
    extents_of,
    ir,
    op_name,
    relax,
    static_extents,
    structural_walk,
    te,
    tirx,
    tvm,
)

COPIED = 4096
"""Elements of each operand from which copies of one after another take less time than one kernel
that asks of every vector which operand it is of."""
CONCAT_AXIS = "tvm_ext.concat_axis"
"""Attribute of a function that does nothing but concatenate, by `Legalise`."""


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
        kernels = _Kernels(mod)
        placer = _Placer(mod, kernels)
        for variable, function in mod.functions.items():
            if isinstance(function, relax.Function):
                found = places(function, kernels, self.lanes)
                if found.copies:
                    placer.begin(function, found)
                    placer.builder_.update_func(variable, placer.visit_expr(function))
        return transform.DeadCodeElimination()(placer.builder_.get()) if kernels.variants else mod


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: in which other one, from which element, with which strides."""

    root: Any
    begin: int
    strides: Strides


@dataclass
class Uses:
    """What a function does with the tensors it allocates."""

    names: dict[Any, Any] = field(default_factory=dict)
    """For each variable the allocated tensor that it is a name of."""
    shapes: dict[Any, tuple[int, ...]] = field(default_factory=dict)
    calls: list[tuple[Any, Any]] = field(default_factory=list)
    """Calls of kernels, in order, with the variables they are bound to."""
    readers: dict[Any, list[tuple[Any, int]]] = field(default_factory=dict)
    """For each tensor the kernels that are given it, and in which place."""
    held: set[Any] = field(default_factory=set)
    """Tensors that more than kernels see."""


@dataclass
class Places:
    """What becomes of the tensors of one function."""

    names: dict[Any, Any]
    of: dict[Any, Place] = field(default_factory=dict)
    """The place of each allocated tensor that gets no memory of its own."""
    copies: dict[Any, list[tuple[Any, Place]]] = field(default_factory=dict)
    """The variables bound to concatenations that are not needed, with what of each has to be copied
    after all, and where to."""

    def find(self, var: Any) -> Place | None:
        """The place of a tensor by any of its names."""
        return self.of.get(self.names.get(var))


def uses(function: Any, kernels: _Kernels) -> Uses:
    """Reads a function after CallTIRRewrite; what is not understood counts as seen by others."""
    found = Uses()

    def seen(expr: Any) -> None:
        if expr is not None:
            structural_walk(expr, (relax.Var, lambda var: found.held.add(found.names.get(var))))

    for block in getattr(function.body, "blocks", ()):
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            shape = unit_extents(binding.var.ty)
            if op_name(value) == ALLOC and shape:
                found.names[binding.var] = binding.var
                found.shapes[binding.var] = shape
            elif isinstance(value, relax.Var) and value in found.names:
                found.names[binding.var] = found.names[value]
            elif isinstance(value, relax.Call) and kernels.get(value.op):
                found.calls.append((binding.var, value))
                for place, argument in enumerate(value.args):
                    if argument in found.names:
                        readers = found.readers.setdefault(found.names[argument], [])
                        readers.append((value.op, place))
                    else:
                        seen(argument)
            else:
                seen(value)
    seen(function.body.body)
    return found


def places(function: Any, kernels: _Kernels, lanes: int) -> Places:
    """The tensors of a function that can be made where they will be concatenated: the last
    concatenation first, so that the place of a whole is known before those of its parts."""
    known = uses(function, kernels)
    found = Places(known.names)

    def movable(tensor: Any, strides: Strides) -> bool:
        if tensor is None:
            return False
        given = known.readers.get(tensor, [])
        written = sum(place in kernels.outputs(op) for op, place in given)
        fits = all(kernels.takes(op, place, strides) for op, place in given)
        return tensor not in known.held and tensor not in found.of and written == 1 and fits

    for bound, call in reversed(known.calls):
        axis = kernels.concat_axis(call.op)
        *operands, target = call.args
        whole = known.names.get(target)
        if axis is None or whole is None:
            continue
        shapes = [unit_extents(operand.ty) or () for operand in operands]
        if not all(shapes):
            continue
        home = found.of.get(whole) or Place(whole, 0, dense_strides(known.shapes[whole]))
        tensors = [known.names.get(operand) for operand in operands]
        in_place = [
            tensor not in tensors[:place] and movable(tensor, home.strides)
            for place, tensor in enumerate(tensors)
        ]
        if cuts_vectors(shapes, axis, lanes):
            in_place = [False] * len(operands)
        moved = sum(prod(shape) for shape, fits in zip(shapes, in_place, strict=True) if fits)
        size = prod(known.shapes[whole])
        if 2 * moved >= size or size - moved >= COPIED * in_place.count(False):
            begin = home.begin
            copies = found.copies.setdefault(bound, [])
            for place, shape in enumerate(shapes):
                here = Place(home.root, begin, home.strides)
                if in_place[place]:
                    found.of[tensors[place]] = here
                else:
                    copies.append((operands[place], here))
                begin += shape[axis] * home.strides[axis]
    return found


def unit_extents(ty: Any) -> tuple[int, ...] | None:
    """The extents of a tensor, 1 for the outermost if that is not known: strides do not depend on
    it, and it does not decide."""
    known, inner = static_extents(ty), extents_of(ty)[1:]
    if known is not None or not extents_of(ty):
        return known
    static = all(isinstance(extent, tirx.IntImm) for extent in inner)
    return (1, *map(int, inner)) if static else None


def cuts_vectors(shapes: Sequence[Sequence[int]], axis: int, lanes: int) -> bool:
    """Whether rows of what is concatenated are no whole vectors, where there is more than one."""
    several = any(prod(shape[:axis]) > 1 for shape in shapes)
    return several and any(prod(shape[axis:]) % lanes for shape in shapes)


def dense_strides(shape: Sequence[int]) -> Strides:
    """Strides of a tensor without gaps, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


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


class _Kernels:
    """The functions of a module that are kernels, and what they do with their parameters."""

    def __init__(self, mod: IRModule) -> None:
        self._functions = {
            variable: function
            for variable, function in mod.functions.items()
            if isinstance(function, PrimFunc)
        }
        self._outputs: dict[Any, frozenset[int]] = {}
        self._taken: dict[tuple[Any, int, Strides], bool] = {}
        self.variants: dict[tuple[Any, tuple[tuple[int, Strides], ...]], Any] = {}

    def add(self, variable: Any, func: PrimFunc) -> None:
        """A kernel that was not in the module."""
        self._functions[variable] = func

    def get(self, variable: Any) -> PrimFunc | None:
        """The kernel of that name; None for anything else."""
        return self._functions.get(variable) if isinstance(variable, ir.GlobalVar) else None

    def concat_axis(self, variable: Any) -> int | None:
        """The axis of a kernel that concatenates; None for others."""
        attrs = self._functions[variable].attrs
        axis = attrs.get(CONCAT_AXIS) if attrs else None
        return None if axis is None else int(axis)

    def outputs(self, variable: Any) -> frozenset[int]:
        """The places of the parameters that a kernel writes."""
        if variable not in self._outputs:
            self._outputs[variable] = written_places(self._functions[variable])
        return self._outputs[variable]

    def takes(self, variable: Any, place: int, strides: Strides) -> bool:
        """Whether a parameter may be a slice."""
        key = (variable, place, strides)
        if key not in self._taken:
            try:
                with_slices(self._functions[variable], {place: strides})
                self._taken[key] = True
            except PlanError:
                self._taken[key] = False
        return self._taken[key]


@relax.expr_functor.mutator
class _Placer(relax.PyExprMutator):
    def __init__(self, mod: IRModule, kernels: _Kernels) -> None:
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
            self.set_var_remap(var, self.visit_expr(binding.value))
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
