"""`MultiplyBytes`: products and convolutions of quantised tensors by constants, in bytes.

    matmul(astype(x, float32) - point, W)       →  call_tir(dense_bytes, x as int32, w packed, …)
    conv2d(dequantize(x, scale, point), W)      →  call_tir(conv_bytes, x as int32, w packed, …)
                                                     * (scale * step)

where x is a tensor of bytes and the elements of W are integers of eight bits times a step, which
may be another one in each column (`weight_steps`): what `quantised.dequantised` makes of operators
of integers, and quantised weights when they are folded. Signed bytes that are quantised here are so
without a sign:

    quantize(x, scale, -3, int8)                →  quantize(x, scale, 125, uint8)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tvm_ext.compute.byte_products import (
    column_sums,
    conv_bytes,
    conv_transpose_bytes,
    dense_bytes,
    in_fours,
    matmul_bytes,
    planes_in_fours,
    row_sums,
    rows_in_fours,
    turned_in_fours,
)
from tvm_ext.compute.conv import pack_weight
from tvm_ext.compute.conv_transpose import by_phase, pack_transposed
from tvm_ext.compute.dense import pack_matrix
from tvm_ext.graph.legalise_conv import CONVOLUTIONS, geometry_of, reads_planes
from tvm_ext.graph.legalise_conv_transpose import TRANSPOSED, geometry_of_call, with_holes
from tvm_ext.graph.legalise_norm import ints
from tvm_ext.graph.programs import FUSES_EPILOGUE
from tvm_ext.graph.quantise_early import MOVES
from tvm_ext.graph.weight_steps import Stepped, steps_of
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import (
    IRModule,
    bound,
    call_of,
    constant,
    constant_array,
    op_name,
    relax,
    rewritten,
    static_extents,
    tvm,
)
from tvm_ext.tvm_dots import BYTES, ISA

MOST_TERMS = (2**31 - 1) // (255 * 128)
"""Of a sum that 32 bits hold, whatever the bytes."""
SIGN = 128
"""Between a byte without a sign and the signed one."""


BY_CONSTANTS = frozenset(("relax.matmul", *CONVOLUTIONS, *TRANSPOSED))
"""Operators that may be done in bytes."""


@tvm.transform.module_pass(opt_level=0, name="MultiplyBytes")
@dataclass(frozen=True)
class MultiplyBytes:
    """Rewrites such products where the machine has an instruction for dot products of bytes."""

    hardware: HardwareModel

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module before `Legalise`."""
        if not ISA & set(self.hardware.isa):
            return mod
        changed = rewritten(mod, _Rewriter(mod, self.hardware.lanes(4)))
        return relax.transform.DeadCodeElimination()(changed)


class _Bytes(NamedTuple):
    """A tensor of floats as (given - point) * scale."""

    given: Any
    shape: tuple[int, ...]
    point: Any
    """A number if it is known, else an expression."""
    scale: float


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule, lanes: int) -> None:
        super().__init__(mod)
        self._lanes = lanes
        self._unsigned: dict[Any, Any] = {}
        """Signed tensors that are quantised here, and the same without a sign."""

    def visit_var_binding_(self, binding: Any) -> None:
        super().visit_var_binding_(binding)
        made = self.lookup_binding(binding.var)
        if op_name(made) in MOVES and made.args[0] in self._unsigned:
            same = call_of(made, self._unsigned[made.args[0]])
            self._unsigned[binding.var] = self.builder_.emit(same)
        if op_name(made) == "relax.quantize" and str(binding.var.ty.dtype.dtype) == "int8":
            x, scale, point = made.args
            moved = _moved(point)
            if moved is not None:
                axis = int(made.attrs.axis)
                same = relax.op.quantize(x, scale, moved, axis=axis, out_dtype="uint8")
                self._unsigned[binding.var] = self.builder_.emit(same)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        name = op_name(call)
        if name == "relax.dequantize" and call.args[0] in self._unsigned:
            moved = _moved(call.args[2])
            if moved is not None:
                given, axis = self._unsigned[call.args[0]], int(call.attrs.axis)
                return relax.op.dequantize(given, call.args[1], moved, axis=axis)
        if name not in BY_CONSTANTS or str(call.ty.dtype.dtype) != "float32":
            return call
        if name in TRANSPOSED:
            return self._transposed(call)
        return self._product(call) if name == "relax.matmul" else self._convolution(call)

    def _product(self, call: Any) -> Any:
        weight, data = constant_array(call.args[1]), self._bytes(call.args[0])
        if weight is None:
            return self._of_two(call)
        if data is None or weight.ndim != 2 or len(weight) > MOST_TERMS:
            return call
        stepped = steps_of(weight.T)
        if stepped is None:
            return call
        packed = pack_matrix(in_fours(stepped.integers).T, self._lanes)
        fours = self._in_fours(data)
        steps, sums = stepped.steps, _sums(stepped)
        y = self._called(dense_bytes, data, fours, packed, steps, sums, "dense_bytes")
        if not stepped.middles.any():
            return y
        return self._with_middles(y, relax.op.sum(call.args[0], [-1], keepdims=True), stepped)

    def _of_two(self, call: Any) -> Any:
        """A product of two tensors that a run makes, whose numbers are known:

        sum (a - p) * (b - q) = sum a * b' - q' * sum a - (p * sum b' - K * p * q')
            with b' = b - 128 and q' = q - 128
        """
        a, b = (self._bytes(one) for one in call.args)
        if a is None or b is None or not isinstance(a.point, int) or not isinstance(b.point, int):
            return call
        terms, rank = a.shape[-1], len(a.shape)
        if len(b.shape) != rank or rank < 2 or terms > MOST_TERMS or a.shape[:-2] != b.shape[:-2]:
            return call
        point, other = a.point, b.point - SIGN
        emit_te, words = self.builder_.emit_te, self._in_fours(a)
        columns = self._columns_in_fours(b)
        sums = []
        if other:
            sums.append(emit_te(row_sums, words, _integer(other), primfunc_name_hint="row_sums"))
        if point:
            numbers = _integer(point), _integer(terms * point * other)
            sums.append(emit_te(column_sums, columns, *numbers, primfunc_name_hint="column_sums"))
        return self.builder_.call_te(
            partial(matmul_bytes, lanes=self._lanes, of_rows=bool(other), of_columns=bool(point)),
            words,
            columns,
            constant(np.asarray(a.scale * b.scale, np.float32)),
            *sums,
            primfunc_name_hint="matmul_bytes",
            primfunc_attrs=FUSES_EPILOGUE,
        )

    def _columns_in_fours(self, data: _Bytes) -> Any:
        """A tensor of bytes with a sign, four of its rows side by side. Of one that was turned
        round they lie so already."""
        made, terms = bound(self, data.given), data.shape[-2]
        axes = _axes(made)
        if axes and axes[-2] == len(axes) - 1 and terms % BYTES == 0:
            words = self._words(made.args[0])
            name = "turned_in_fours"
            return self.builder_.emit_te(
                partial(turned_in_fours, axes=axes), words, primfunc_name_hint=name
            )
        return self.builder_.emit_te(rows_in_fours, data.given, primfunc_name_hint="rows_in_fours")

    def _convolution(self, call: Any) -> Any:
        attrs, name = call.attrs, op_name(call)
        weight, data = constant_array(call.args[1]), self._bytes(call.args[0])
        planes = reads_planes(call)
        if data is None or weight is None or planes is None or int(attrs.groups) != 1:
            return call
        if prod(weight.shape[1:]) > MOST_TERMS or (planes and weight.shape[-1] > BYTES):
            return call
        stepped = steps_of(weight)
        if stepped is None:
            return call
        filters = in_fours(stepped.integers)
        geometry = geometry_of(attrs, filters.shape[1:-1], filters.shape[-1], len(filters))

        def body(x: Any, weight: Any, sums: Any, point: Any = data.point) -> Any:
            return conv_bytes(x, weight, sums, point, geometry, self._lanes)

        fours = self._in_fours(data, planes)
        packed = pack_weight(filters, geometry, self._lanes)
        kind = name.rpartition(".")[2]
        steps, sums = stepped.steps, _sums(stepped)
        y = self._called(body, data, fours, packed, steps, sums, f"{kind}_bytes")
        if not stepped.middles.any():
            return y
        layout, kernel, planar = CONVOLUTIONS[name]
        total = self.builder_.emit(relax.op.sum(call.args[0], [1 if planes else -1], keepdims=True))
        one_plane = [data.shape[0], 1, *(data.shape[2:] if planes else data.shape[1:-1])]
        windows = getattr(relax.op.nn, kind)(
            self.builder_.emit(relax.op.reshape(total, one_plane)),
            constant(np.ones((1, *geometry.kernel, 1), np.float32)),
            strides=list(attrs.strides),
            padding=list(attrs.padding),
            dilation=list(attrs.dilation),
            data_layout=planar,
            kernel_layout=kernel,
            out_layout=layout,
        )
        return self._with_middles(y, windows, stepped)

    def _transposed(self, call: Any) -> Any:
        """Each phase of the output has columns of its own. Weights without a sign stay floats."""
        data, whole = self._bytes(call.args[0]), geometry_of_call(call)
        if data is None or whole is None or whole.groups != 1 or set(whole.strides) == {1}:
            return call
        weight = with_holes(constant_array(call.args[1]), ints(call.attrs.dilation))
        stepped = steps_of(np.moveaxis(weight, 1, 0))
        terms = whole.in_channels * prod(map(whole.taps, range(len(whole.kernel))))
        if stepped is None or stepped.middles.any() or terms > MOST_TERMS:
            return call
        apart = in_fours(np.moveaxis(stepped.integers, 1, -1))
        geometry = msgspec.structs.replace(whole, in_channels=apart.shape[-1])
        packed = pack_transposed(np.moveaxis(apart, -1, 0), geometry, self._lanes)
        spread = by_phase(np.moveaxis(stepped.integers, 1, 0).astype(np.int32), whole)
        rank = len(whole.kernel)
        of_phases = spread.sum(axis=(0, *range(3, 3 + 2 * rank, 2)), dtype=np.int32)

        def body(x: Any, weight: Any, sums: Any, point: Any = data.point) -> Any:
            return conv_transpose_bytes(x, weight, sums, point, geometry)

        name = f"{op_name(call).rpartition('.')[2]}_bytes"
        sums = np.moveaxis(of_phases, 0, -1)
        return self._called(body, data, self._in_fours(data), packed, stepped.steps, sums, name)

    def _with_middles(self, y: Any, windows: Any, stepped: Stepped) -> Any:
        """What the middles of weights add: times the sum of what each result is made of."""
        middles = constant((stepped.middles * stepped.steps).astype(np.float32))
        beside = self.builder_.emit(relax.op.multiply(self.builder_.emit(windows), middles))
        return relax.op.add(self.builder_.emit(y), beside)

    def _called(
        self,
        body: Any,
        data: _Bytes,
        fours: Any,
        packed: np.ndarray,
        steps: np.ndarray,
        sums: np.ndarray,
        name: str,
    ) -> Any:
        """The kernel's result, times the steps of both sides."""
        known = isinstance(data.point, int)
        made = self.builder_.call_te(
            body,
            fours,
            constant(packed),
            constant(sums * np.int32(data.point) if known else sums),
            *(() if known else (data.point,)),
            primfunc_name_hint=name,
            primfunc_attrs=FUSES_EPILOGUE,
        )
        factors = (steps * data.scale).astype(np.float32)
        if (factors == 1.0).all():
            return made
        return relax.op.multiply(self.builder_.emit(made), constant(factors))

    def _in_fours(self, data: _Bytes, planes: bool = False) -> Any:
        """A tensor of bytes with four of its channels in an int32 each."""
        given, shape = data.given, data.shape
        if planes:
            return self.builder_.emit_te(planes_in_fours, given, primfunc_name_hint="fours")
        missing = -shape[-1] % BYTES
        made = bound(self, given)
        if not missing and _keeps_last(made):
            source = made.args[0]
            return self.builder_.emit(relax.op.permute_dims(self._words(source), made.attrs.axes))
        if missing:
            after = [0] * (2 * len(shape) - 1) + [missing]
            given = self.builder_.emit(relax.op.nn.pad(given, after))
        return self._words(given)

    def _words(self, given: Any) -> Any:
        """Bytes four by four along the last axis, which is as long as some of them."""
        *outer, last = static_extents(given.ty) or ()
        fours = relax.ShapeExpr([*outer, last // BYTES])
        return self.builder_.emit(relax.op.memory.view(given, fours, "int32"))

    def _bytes(self, data: Any) -> _Bytes | None:
        """What bytes some data is; None if it is made of no such tensor."""
        made, point, scale = bound(self, data), 0, 1.0
        if op_name(made) in MOVES:
            inner, shape = self._bytes(made.args[0]), static_extents(made.ty)
            if inner is None or shape is None:
                return None
            moved = call_of(made, inner.given)
            return inner._replace(given=self.builder_.emit(moved), shape=shape)
        if op_name(made) == "relax.dequantize":
            known = [constant_array(one) for one in made.args[1:]]
            if any(one is None or one.size != 1 for one in known):
                return None
            scale, point = known[0].item(), int(known[1].item())
        elif op_name(made) == "relax.subtract" and self._is_whole(made.args[1]):
            made, point = bound(self, made.args[0]), made.args[1]
        if op_name(made) not in ("relax.astype", "relax.dequantize"):
            return None
        given = made.args[0]
        if not isinstance(given, relax.Var) or str(given.ty.dtype.dtype) != "uint8":
            return None
        shape = static_extents(given.ty)
        return _Bytes(given, shape, point, scale) if shape else None

    def _is_whole(self, point: Any) -> bool:
        """Whether an expression is one number, and that an integer."""
        extents, known = static_extents(point.ty), constant_array(point)
        if extents is None or prod(extents) != 1:
            return False
        if known is not None:
            return bool(known == np.rint(known))
        made = bound(self, point)
        return op_name(made) == "relax.astype" and "int" in str(made.args[0].ty.dtype.dtype)


def _axes(made: Any) -> tuple[int, ...]:
    """Those of a permutation; none of anything else."""
    if op_name(made) != "relax.permute_dims" or made.attrs.axes is None:
        return ()
    return tuple(int(axis) for axis in made.attrs.axes)


def _keeps_last(made: Any) -> bool:
    """Whether what made a tensor permutes other axes than the last."""
    axes = _axes(made)
    return bool(axes) and axes[-1] == len(axes) - 1


def _sums(stepped: Stepped) -> np.ndarray:
    """Those of each column's integers."""
    integers = stepped.integers
    return integers.reshape(len(integers), -1).sum(axis=1, dtype=np.int32)


def _integer(value: int) -> Any:
    """A number as an operand: equal kernels are one, whatever theirs."""
    return constant(np.asarray(value, np.int32))


def _moved(point: Any) -> Any:
    """The zero point without its sign; None if it is not one known number."""
    array = constant_array(point)
    if array is None or array.size != 1 or array.dtype != np.int8:
        return None
    return relax.const(array.item() + SIGN, "uint8")
