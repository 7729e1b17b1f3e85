"""`MultiplyHalves`: products and convolutions by constants in bfloat16, summed up in float32.

    matmul(x, W)   →  call_tir(dense_pairs, x as bfloat16 in pairs, W packed, …)
    conv2d(x, W)   →  call_tir(conv_pairs, x as bfloat16 in pairs, W packed, …)
    attention(q, k, v)  →  call_tir(attention_pairs, q and k in pairs, v in bfloat16)

An instruction multiplies two elements where it multiplies one of float32, and weights take half of
the memory; bfloat16 keeps 8 bits of each factor, so this is done on request. All else stays as it
is: sums, what is added to them, and what operators hand on to each other but to products. What is
only moved between its maker and a product is rounded where it is made. A convolution stays in
float32 where Winograd's algorithm is predicted to be faster, and so does a product of few rows by
weights that are bytes (`legalise_byte_weights`).

Models in bfloat16, whose weights are that already, are multiplied so unless they are asked not to
be (`Widen` has made float32 of the rest).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from tvm_ext.compute.attention import padded_queries
from tvm_ext.compute.conv import ConvGeometry, pack_weight
from tvm_ext.compute.conv_transpose import pack_transposed
from tvm_ext.compute.dense import pack_matrix
from tvm_ext.compute.half_attention import attention_pairs
from tvm_ext.compute.half_products import (
    conv_pairs,
    conv_transpose_pairs,
    dense_pairs,
    halves,
    in_pairs,
    planes_in_pairs,
    points_in_pairs,
)
from tvm_ext.compute.winograd import OUTPUT_TILES
from tvm_ext.graph.legalise_attention import ATTENTION, GUARDED, biases_by_keys, static_attention
from tvm_ext.graph.legalise_byte_weights import by_bytes
from tvm_ext.graph.legalise_conv import (
    CONVOLUTIONS,
    choose_algorithm,
    direct_program,
    programs_of,
    read_call,
)
from tvm_ext.graph.legalise_conv_transpose import TRANSPOSED, geometry_of_call, with_holes
from tvm_ext.graph.legalise_conv_transpose import programs_of as transposed_programs
from tvm_ext.graph.legalise_norm import ints, static_shape
from tvm_ext.graph.programs import FUSES_EPILOGUE
from tvm_ext.graph.quantise_early import MOVES
from tvm_ext.graph.widen import WIDENED
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.hardware.roofline import peak_gflops
from tvm_ext.tile.amx import HALVES_ISA, SIDE
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    bound,
    call_of,
    constant,
    constant_array,
    op_name,
    relax,
    rewritten,
    static_extents,
    te,
    tvm,
)
from tvm_ext.tvm_pairs import HALF, ISA, PAIR, WORD

Precision = Literal["float32", "bfloat16"]
SLICE = "relax.strided_slice"
ROUNDS = "tvm_ext.rounds"
"""Attribute of functions that round a tensor, and do nothing else."""
WORTH = 1.5
"""Times float32's peak that bfloat16's has to be: some machines do its instruction at half rate,
but for the matrix unit's."""


def multiplies_halves(hardware: HardwareModel) -> bool:
    """Whether a machine multiplies bfloat16 faster than float32."""
    return ISA in hardware.isa and (HALVES_ISA in hardware.isa or _vectors_are_faster(hardware))


def _vectors_are_faster(hardware: HardwareModel) -> bool:
    peaks = hardware.peak_gflops
    return peaks.get(HALF, 0.0) >= WORTH * peaks["float32"]


@tvm.transform.module_pass(opt_level=0, name="MultiplyHalves")
@dataclass(frozen=True)
class MultiplyHalves:
    """Rewrites such products where the machine multiplies bfloat16 faster.

    predict_us  predicted time of a PrimFunc
    precision   of what products multiply; by default that of the model
    winograd    output tiles of Winograd's algorithm that may be chosen instead
    """

    hardware: HardwareModel
    predict_us: Callable[[PrimFunc], float]
    precision: Precision | None = None
    winograd: tuple[int, ...] = OUTPUT_TILES

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module before `Legalise`."""
        own = any(one.attrs and WIDENED in one.attrs for one in mod.functions.values())
        wanted = self.precision or (HALF if own else "float32")
        if wanted != HALF or not multiplies_halves(self.hardware):
            return mod
        changed = rewritten(mod, _Rewriter(mod, self))
        return relax.transform.DeadCodeElimination()(changed)


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule, options: MultiplyHalves) -> None:
        super().__init__(mod)
        self._options = options
        self._lanes = options.hardware.lanes(4)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) == "relax.matmul":
            return self._product(call)
        if op_name(call) in TRANSPOSED:
            return self._transposed(call)
        if op_name(call) in ATTENTION:
            return self._attention(call)
        if op_name(call) == "relax.call_tir":
            return self._guarded(call)
        return self._convolution(call) if op_name(call) in CONVOLUTIONS else call

    def _product(self, call: Any) -> Any:
        data, weight = call.args[0], constant_array(call.args[1])
        shape = static_shape(data)
        if weight is None or weight.ndim != 2 or weight.dtype != np.float32 or shape is None:
            return call
        predict_us, columns = self._options.predict_us, weight.shape[1]
        words = in_pairs(weight.T)
        packed = pack_matrix(words.T, self._lanes)
        bytes_ = by_bytes(weight, shape[:-1], self._lanes, predict_us)
        if bytes_ is not None:
            x = te.placeholder((*shape[:-1], words.shape[1]), WORD, "x")
            w = te.placeholder(packed.shape, WORD, "w")
            program = te.create_prim_func([x, w, dense_pairs(x, w, columns)])
            if bytes_.predicted_us < predict_us(program):
                return call
        return self.builder_.call_te(
            dense_pairs,
            self._pairs(data),
            constant(packed),
            columns,
            primfunc_name_hint="dense_pairs",
            primfunc_attrs=FUSES_EPILOGUE,
        )

    def _convolution(self, call: Any) -> Any:
        known = read_call(call)
        if known is None or known[0].depthwise:
            return call
        geometry, shape, weight, planes = known
        if geometry.groups > 1 and weight.shape[-1] % PAIR:
            return call
        way = self._best_way(geometry, shape, planes)
        if way is None:
            return call
        x = call.args[0]
        if way.planes:
            words = self.builder_.emit_te(planes_in_pairs, x)
        elif planes:
            words = self.builder_.emit_te(points_in_pairs, x)
        else:
            words = self._pairs(x)
        if geometry.groups > 1 or way.folded:
            words = self.builder_.emit(relax.op.reshape(words, way.shape))
        filters = in_pairs(weight)
        if way.folded:
            filters = filters.reshape(*filters.shape[:-2], -1, 1)

        def body(x: Any, filters: Any) -> Any:
            return conv_pairs(x, filters, way.geometry, self._lanes, way.planes)

        return self.builder_.call_te(
            body,
            words,
            constant(pack_weight(filters, way.geometry, self._lanes)),
            primfunc_name_hint=f"{op_name(call).rpartition('.')[2]}_pairs",
            primfunc_attrs=FUSES_EPILOGUE,
        )

    def _transposed(self, call: Any) -> Any:
        """One by a stride of 1 is left to `Legalise`, for which it is a convolution."""
        geometry, shape = geometry_of_call(call), static_shape(call.args[0])
        if geometry is None or shape is None or geometry.groups != 1 or shape[-1] % PAIR:
            return call
        if set(geometry.strides) == {1}:
            return call
        weight = with_holes(constant_array(call.args[1]), ints(call.attrs.dilation))
        words = np.moveaxis(in_pairs(np.moveaxis(weight, 0, -1)), -1, 0)
        paired = msgspec.structs.replace(geometry, in_channels=len(words))
        packed = pack_transposed(words, paired, self._lanes)
        data = te.placeholder((*shape[:-1], len(words)), WORD, name="data")
        filters = te.placeholder(packed.shape, WORD, name="filters")
        result = conv_transpose_pairs(data, filters, paired)
        program = te.create_prim_func([data, filters, result])
        predict_us = self._options.predict_us
        direct, by_taps = transposed_programs(geometry, shape, self._lanes)
        floats_us = min(predict_us(direct), sum(map(predict_us, by_taps)))
        if predict_us(program) >= floats_us:
            return call
        return self.builder_.call_te(
            lambda x, filters: conv_transpose_pairs(x, filters, paired),
            self._pairs(call.args[0]),
            constant(packed),
            primfunc_name_hint=f"{op_name(call).rpartition('.')[2]}_pairs",
            primfunc_attrs=FUSES_EPILOGUE,
        )

    def _attention(self, call: Any) -> Any:
        """Both products of attention between tensors that a run makes."""
        known = static_attention(call)
        if known is None or not self._attends(known.operands):
            return call
        columns = padded_queries(int(known.operands[0].ty.shape[1]), self._lanes)
        biases = biases_by_keys(self.builder_, known.bias, columns)
        return self._attention_pairs(known.operands, biases, known.scale)

    def _guarded(self, call: Any) -> Any:
        """Attention that `FuseAttention` has made a kernel of."""
        scale = (self.builder_.get()[call.args[0]].attrs or {}).get(GUARDED)
        if scale is None or not self._attends(call.args[1].fields[:3]):
            return call
        q, k, v, *biases = call.args[1].fields
        return self._attention_pairs((q, k, v), biases, float(scale.value), guarded=True)

    def _attends(self, operands: Sequence[Any]) -> bool:
        """Whether heads are of whole pairs, and the machine's vectors faster in bfloat16."""
        whole = int(operands[0].ty.shape[3]) % PAIR == 0
        return whole and _vectors_are_faster(self._options.hardware)

    def _attention_pairs(
        self, operands: Sequence[Any], biases: Sequence[Any], scale: float, guarded: bool = False
    ) -> Any:
        q, k, v = operands
        columns = padded_queries(int(q.ty.shape[1]), self._lanes)

        def body(q: Any, k: Any, v: Any, *bias: Any) -> Any:
            return attention_pairs(q, k, v, bias[0] if bias else None, scale, guarded, columns)

        return self.builder_.call_te(
            body,
            self._words(q),
            self._words(k),
            self._rounded(v, MOVES | {SLICE}),
            *biases,
            primfunc_name_hint="attention_pairs",
            primfunc_attrs=FUSES_EPILOGUE,
        )

    def _best_way(self, geometry: ConvGeometry, shape: tuple[int, ...], planes: bool) -> Way | None:
        """How a convolution takes least time so; None if the best algorithm in float32 does."""
        options, lanes, predict_us = self._options, self._lanes, self._options.predict_us
        data = te.placeholder(_laid_out(shape, geometry, planes), "float32", name="data")

        def taken_us(way: Way) -> float:
            pairs = te.placeholder(way.shape, WORD, name="data")
            programs = [direct_program(pairs, way.geometry, lanes, way.planes, conv_pairs)]
            if planes:
                arrange = planes_in_pairs if way.planes else points_in_pairs
                programs.append(te.create_prim_func([data, arrange(data)]))
            return sum(map(predict_us, programs))

        if planes or geometry.groups > 1:
            in_floats = [direct_program(data, geometry, lanes, planes)]
        else:
            peak = peak_gflops(options.hardware)
            m = choose_algorithm(geometry, shape, lanes, options.winograd, predict_us, peak)
            in_floats = programs_of(geometry, shape, lanes, m)
        best = min(ways_of_pairs(geometry, shape, planes), key=taken_us)
        return best if taken_us(best) < sum(map(predict_us, in_floats)) else None

    def _pairs(self, data: Any) -> Any:
        """A tensor rounded, two elements along its last axis in a word."""
        *outer, last = static_extents(data.ty) or ()
        if last % PAIR:
            after = [0] * (2 * len(outer) + 1) + [1]
            data = self.builder_.emit(relax.op.nn.pad(data, after))
        words = relax.ShapeExpr([*outer, -(-last // PAIR)])
        return self.builder_.emit(relax.op.memory.view(self._rounded(data), words, WORD))

    def _words(self, data: Any) -> Any:
        """The same of whole pairs, before slices were taken of them."""
        made = bound(self, data)
        if op_name(made) == SLICE and data.ty.ndim - 1 not in ints(made.args[1].fields):
            return self.builder_.emit(call_of(made, self._words(made.args[0])))
        return self._pairs(data)

    def _rounded(self, data: Any, through: frozenset[str] = MOVES) -> Any:
        """A tensor in bfloat16, rounded before it was moved by such operators."""
        made = bound(self, data)
        if op_name(made) in through:
            return self.builder_.emit(call_of(made, self._rounded(made.args[0], through)))
        return self.builder_.emit(rounded(self.builder_, data))


def rounded(builder: Any, data: Any) -> Any:
    """The call that rounds a tensor."""
    return builder.call_te(halves, data, primfunc_name_hint="halves", primfunc_attrs={ROUNDS: True})


class Way(NamedTuple):
    """A convolution of pairs, and the shape of its data."""

    geometry: ConvGeometry
    shape: tuple[int, ...]
    planes: bool = False
    folded: bool = False
    """Whether a row's points and their channels are one axis."""


def ways_of_pairs(geometry: ConvGeometry, shape: tuple[int, ...], planes: bool) -> Iterator[Way]:
    """Of channels, and of few channels also of the taps of a row with all theirs, which a matrix
    unit adds up at once (7 x 7 taps of 3 channels: 7 times 14 pairs, not 49 times 2)."""
    pairs = -(-geometry.in_channels // PAIR)
    paired = msgspec.structs.replace(geometry, in_channels=pairs)
    yield Way(paired, _laid_out(shape, paired, planes), planes)
    one_row = geometry.kernel[-1] > 1 and geometry.dilation[-1] == 1
    if geometry.groups > 1 or pairs >= SIDE or not one_row:
        return
    along = {
        name: (*getattr(geometry, name)[:-1], getattr(geometry, name)[-1] * pairs)
        for name in ("kernel", "strides", "pad_before", "pad_after")
    }
    folded = msgspec.structs.replace(geometry, in_channels=1, **along)
    yield Way(folded, (*shape[:-2], shape[-2] * pairs, 1), folded=True)


def _laid_out(shape: Sequence[int], geometry: ConvGeometry, planes: bool) -> tuple[int, ...]:
    """The shape of a convolution's data: its channels last, on two axes if they are in several
    groups, or in planes."""
    images, *spatial, _ = shape
    channels, groups = geometry.in_channels, geometry.groups
    if planes:
        return (images, channels, *spatial)
    own = (channels,) if groups == 1 else (groups, channels // groups)
    return (images, *spatial, *own)
