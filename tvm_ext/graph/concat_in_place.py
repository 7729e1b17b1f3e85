"""`ConcatInPlace`: kernels write where the concatenation of their results will be.

    a = alloc(8); f(x, a); b = alloc(8); g(y, b); c = alloc(16); concat(a, b, c); h(c)
        →
    c = alloc(16); a = view(c, 0); f'(x, a); b = view(c, 8); g'(y, b); h(c)

f' writes rows as far apart as those of c (`tir.slices`). Nothing is copied, and a kernel that no
longer exists need not be compiled. Concatenations of concatenations (DenseNet) share one tensor.
OpenVINO and TensorRT do the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm_ext.errors import PlanError
from tvm_ext.tir.slices import Strides, sliced, span, with_slices
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    element_bytes,
    ir,
    relax,
    structural_walk,
    tirx,
    tvm,
)

CONCAT_AXIS = "tvm_ext.concat_axis"
"""Attribute of a function that does nothing but concatenate, by `Legalise`."""


@tvm.transform.module_pass(opt_level=0, name="ConcatInPlace")
@dataclass(frozen=True)
class ConcatInPlace:
    """Lowers call_tir to kernels and memory, and removes the concatenations whose operands kernels
    make.

    lanes  a slice must be whole vectors of so many elements wide, or rows would cut them
    """

    lanes: int = 16

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module after CallTIRRewrite, with fewer concatenations."""
        transform = relax.transform
        mod = transform.ToNonDataflow()(mod)
        mod = transform.RemovePurityChecking()(mod)
        mod = transform.CallTIRRewrite()(mod)
        kernels = _Kernels(mod)
        placer = _Placer(mod, kernels)
        for variable, function in mod.functions.items():
            if isinstance(function, relax.Function):
                found = places(function, kernels, self.lanes)
                if found:
                    placer.begin(found)
                    placer.builder_.update_func(variable, placer.visit_expr(function))
        placed = placer.builder_.get()
        return relax.transform.DeadCodeElimination()(placed) if kernels.variants else mod


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: in which other one, from which element, with which strides."""

    root: Any
    begin: int
    strides: Strides


@dataclass
class Places:
    """What becomes of the tensors of one function."""

    of: dict[Any, Place] = field(default_factory=dict)
    """The place of each allocated tensor that gets none of its own."""
    names: dict[Any, Any] = field(default_factory=dict)
    """For each variable the allocated tensor that it is another name of."""
    dropped: set[Any] = field(default_factory=set)
    """The variables bound to concatenations that are not needed."""

    def __bool__(self) -> bool:
        return bool(self.of)

    def find(self, var: Any) -> Place | None:
        """The place of a tensor by any of its names."""
        return self.of.get(self.names.get(var))


def places(function: Any, kernels: _Kernels, lanes: int) -> Places:
    """The tensors of a function that can be made where they will be concatenated."""
    found = Places()
    shapes: dict[Any, tuple[int, ...]] = {}
    calls: list[tuple[Any, Any]] = []
    readers: dict[Any, list[tuple[Any, int]]] = {}
    held: set[Any] = set()
    """Tensors that more than kernels see."""
    for block in getattr(function.body, "blocks", ()):
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if getattr(getattr(value, "op", None), "name", "") == "relax.builtin.alloc_tensor":
                if shape := static_extents(binding.var.ty):
                    found.names[binding.var] = binding.var
                    shapes[binding.var] = shape
            elif isinstance(value, relax.Var) and value in found.names:
                found.names[binding.var] = found.names[value]
            elif isinstance(value, relax.Call) and kernels.get(value.op):
                calls.append((binding.var, value))
                for place, argument in enumerate(value.args):
                    if argument in found.names:
                        readers.setdefault(found.names[argument], []).append((value.op, place))
                    else:
                        held |= _seen(argument, found.names)
            else:
                held |= _seen(value, found.names)
    held |= _seen(function.body.body, found.names)

    def movable(tensor: Any, strides: Strides) -> bool:
        uses = readers.get(tensor, [])
        written = sum(place in kernels.outputs(op) for op, place in uses)
        fits = all(kernels.takes(op, place, strides) for op, place in uses)
        return tensor not in held and tensor not in found.of and written == 1 and fits

    for bound, call in reversed(calls):
        axis = kernels.concat_axis(call.op)
        if axis is None:
            continue
        *operands, whole = [found.names.get(argument) for argument in call.args]
        if None in (*operands, whole) or len(set(operands)) < len(operands):
            continue
        own = Place(whole, 0, dense_strides(shapes[whole]))
        home = found.of.get(whole, own)
        widths = [shapes[operand][axis] for operand in operands]
        runs = [prod(shapes[operand][axis:]) for operand in operands]
        if any(run % lanes for run in runs):
            continue
        if all(movable(operand, home.strides) for operand in operands):
            for number, operand in enumerate(operands):
                begin = home.begin + sum(widths[:number]) * home.strides[axis]
                found.of[operand] = Place(home.root, begin, home.strides)
            found.dropped.add(bound)
    return found


def static_extents(ty: Any) -> tuple[int, ...]:
    """The extents of a tensor; empty where they are not known, or there are none."""
    extents = getattr(getattr(ty, "shape", None), "values", None) or ()
    known = all(isinstance(extent, tirx.IntImm) for extent in extents)
    return tuple(int(extent) for extent in extents) if known else ()


def dense_strides(shape: Sequence[int]) -> Strides:
    """Strides of a tensor without gaps, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _seen(expr: Any, names: Mapping[Any, Any]) -> set[Any]:
    found: set[Any] = set()
    if expr is not None:
        structural_walk(expr, (relax.Var, lambda v: found.add(names[v]) if v in names else None))
    return found


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
            func = self._functions[variable]
            written: set[Any] = set()
            structural_walk(func.body, (tirx.BufferStore, lambda s: written.add(s.buffer)))
            self._outputs[variable] = frozenset(
                place for place, param in enumerate(func.params) if param in written
            )
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

    def begin(self, found: Places) -> None:
        """What is to become of the next function."""
        self._places = found
        self._roots: dict[Any, Any] = {}
        self._allocs: dict[Any, Any] = {}

    def visit_function_(self, function: Any) -> Any:
        for block in function.body.blocks:
            for binding in block.bindings:
                self._allocs[binding.var] = binding
        return super().visit_function_(function)

    def visit_var_binding_(self, binding: Any) -> None:
        var = binding.var
        roots = {place.root for place in self._places.of.values()}
        if var in self._places.dropped:
            return
        if self._places.names.get(var) is None:
            super().visit_var_binding_(binding)
        elif (place := self._places.of.get(var)) is not None:
            self._allocate(place.root)
            self.set_var_remap(var, self.builder_.emit(self._view(var, place), var.name))
        elif self._places.find(var) is not None:
            self.set_var_remap(var, self.visit_expr(binding.value))
        elif var in roots:
            self._allocate(var)
        else:
            super().visit_var_binding_(binding)

    def _allocate(self, root: Any) -> None:
        """The whole tensor, where the first of its parts is needed."""
        if root not in self._roots:
            self._roots[root] = True
            super().visit_var_binding_(self._allocs[root])

    def _view(self, var: Any, place: Place) -> Any:
        shape = static_extents(var.ty)
        length = span(shape, place.strides)
        begin_bytes = place.begin * element_bytes(var.ty.dtype)
        return relax.op.memory.view(
            self.visit_expr(place.root), relax.ShapeExpr([length]), None, begin_bytes
        )

    def visit_call_(self, call: Any) -> Any:
        if self._kernels.get(call.op) is None:
            return super().visit_call_(call)
        found = {place: self._places.find(arg) for place, arg in enumerate(call.args)}
        slices = {place: where.strides for place, where in found.items() if where is not None}
        if not slices:
            return super().visit_call_(call)
        args = [self.visit_expr(arg) for arg in call.args]
        return relax.Call(self._variant(call.op, slices), args, call.attrs, call.ty_args)

    def _variant(self, variable: Any, slices: dict[int, Strides]) -> Any:
        """The kernel that takes these slices."""
        key = (variable, tuple(sorted(slices.items())))
        if key not in self._kernels.variants:
            func = sliced(self._kernels.get(variable), slices)
            name = f"{variable.name_hint}_sliced"
            self._kernels.variants[key] = self.builder_.add_func(func, name)
        return self._kernels.variants[key]
