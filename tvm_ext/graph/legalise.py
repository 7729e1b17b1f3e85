"""`Legalise`: Relax operators to tensor programs, with weights packed in numpy on the way.

    conv2d(x, W, NHWC)        →  call_tir(conv, x, W packed [O/B, kh, kw, C, B])
    conv2d_transpose(x, W)    →  call_tir(conv_transpose, x, W packed by phase)
    matmul(x, W)              →  call_tir(dense, x, W packed [N/B, K, B])
    nn.attention(q, k, v)     →  call_tir(attention, q, k, v)
    softmax, *_norm, exp, …   →  our own stages and vector maths

Everything else takes TVM's own legalisation. A rule that does not apply returns None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.compute.blocking import lanes_along
from tvm_ext.compute.dense import dense, matmul, pack_matrix
from tvm_ext.compute.norm import reduction, softmax
from tvm_ext.compute.winograd import OUTPUT_TILES
from tvm_ext.graph.concat_places import CONCAT_AXIS, cuts_vectors
from tvm_ext.graph.layout_rules import RULES as LAYOUTS
from tvm_ext.graph.layout_rules import elementwise
from tvm_ext.graph.legalise_arg import ARGS
from tvm_ext.graph.legalise_attention import ATTENTION, legalise_attention
from tvm_ext.graph.legalise_byte_weights import legalise_byte_weights
from tvm_ext.graph.legalise_conv import CONVOLUTIONS, legalise_conv
from tvm_ext.graph.legalise_conv_transpose import TRANSPOSED, legalise_conv_transpose
from tvm_ext.graph.legalise_maths import POINTWISE
from tvm_ext.graph.legalise_norm import (
    FUSES_PROLOGUE,
    NORMS,
    STANDS_ALONE,
    ints,
    known_extents,
)
from tvm_ext.graph.legalise_places import PLACES
from tvm_ext.graph.legalise_quantised import BYTES, QUANTISED
from tvm_ext.graph.open_extent import follows
from tvm_ext.graph.programs import FUSES_EPILOGUE, Programs
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    constant,
    constant_array,
    default_legalise,
    op_name,
    relax,
    static_extents,
    topi,
    tvm,
)
from tvm_ext.tvm_pairs import HALF_BITS

Rule = Callable[[Any, Any, Any], Any]
"""Called with `Programs`, a block builder, the call and the `Legalise` pass."""
POINTS = frozenset(name for name, rule in LAYOUTS.items() if rule is elementwise)
"""Operators that work element by element."""


@tvm.transform.module_pass(opt_level=0, name="Legalise")
@dataclass(frozen=True)
class Legalise:
    """Lowers every operator of a module.

    hardware    the machine: its vector width decides packing
    fast_math   special functions become polynomials with the bounds of `compute.maths`
    predict_us  predicted time of a PrimFunc; with it the fastest convolution algorithm is chosen,
                without it convolution is direct
    winograd    output tiles of Winograd's algorithm that may be chosen (see `compute.winograd` for
                their rounding errors); empty to keep convolution direct
    extents     stand for some that are not known, if given: nothing that follows one is padded to
                whole vectors or summed up by them
    """

    hardware: HardwareModel
    fast_math: bool = True
    predict_us: Callable[[PrimFunc], float] | None = None
    winograd: tuple[int, ...] = OUTPUT_TILES
    extents: tuple[int, ...] = ()

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module with call_tir in place of operators."""
        rules = dict(RULES)
        if self.fast_math:
            rules |= MATHS
        rules = dict.fromkeys(POINTS, _as_tvm_does) | rules
        made: dict[Any, Any] = {}

        def with_default(name: str, rule: Rule) -> Callable[[Any, Any], Any]:
            def legalise(builder: Any, call: Any) -> Any:
                programs = Programs(builder, made)
                result = rule(programs, call, self)
                if result is None:
                    result = programs.of_operator(default_legalise(name), call)
                return result

            return legalise

        return relax.transform.LegalizeOps({n: with_default(n, r) for n, r in rules.items()})(mod)

    def known(self, expr: Any) -> list[int | None] | None:
        """The extents of a tensor, None for one that is not known, or stands for such; None if
        there is no telling how many it has."""
        extents = known_extents(expr)
        if extents is None:
            return None
        return [
            None if e is not None and any(follows(e, own) for own in self.extents) else e
            for e in extents
        ]

    @property
    def lanes(self) -> int:
        """Float32 elements in a vector."""
        return self.hardware.lanes(4)


def _as_tvm_does(builder: Any, call: Any, options: Legalise) -> None:
    """TVM's own legalisation."""


def legalise_matmul(builder: Any, call: Any, options: Legalise) -> Any:
    """Product with a constant matrix on the right, or of two tensors with equal batch axes."""
    weight = constant_array(call.args[1])
    shape = options.known(call.args[0])
    if shape is None or len(shape) < 2:
        return None
    if weight is not None and weight.ndim == 2:
        shape[-1] = weight.shape[0]  # which is known for certain
    if shape[-1] is None:
        return None
    if weight is None or weight.ndim != 2 or weight.dtype != np.float32:
        return _legalise_product(builder, call, options)
    rows = tuple(extent for extent in shape[:-1] if extent is not None)
    if len(rows) == len(shape) - 1:
        by_bytes = legalise_byte_weights(builder, call, rows, weight, options)
        if by_bytes is not None:
            return by_bytes
    return builder.call_te(
        lambda data, matrix: dense(data, matrix, weight.shape[1]),
        call.args[0],
        constant(pack_matrix(weight, lanes_along(weight.shape[1], options.hardware))),
        key=weight.shape[1],  # a packed matrix does not tell how many columns are padding
        primfunc_name_hint="dense",
        primfunc_attrs=FUSES_EPILOGUE,
    )


def _legalise_product(builder: Any, call: Any, options: Legalise) -> Any:
    left, right = options.known(call.args[0]), options.known(call.args[1])
    if left is None or right is None or len(right) < 2 or right[-1] in (None, 1):
        return None
    if left[-1] is None or right[-2] is None:
        return None
    return builder.call_te(
        lambda a, b: matmul(a, b, options.lanes),
        *call.args,
        key="matmul",
        primfunc_name_hint="matmul",
        primfunc_attrs=FUSES_EPILOGUE,
    )


def legalise_softmax(builder: Any, call: Any, options: Legalise) -> Any:
    """Softmax and log-softmax with vector exponentials."""
    shape = options.known(call.args[0])
    if not shape:
        return None
    axis = int(call.attrs.axis) % len(shape)
    if shape[axis] is None:
        return None
    log = str(call.op.name).endswith("log_softmax")
    return builder.call_te(
        lambda data: softmax(data, axis, options.lanes, log),
        call.args[0],
        key=axis,
        primfunc_name_hint="log_softmax" if log else "softmax",
        primfunc_attrs=FUSES_PROLOGUE,
    )


def legalise_reduction(builder: Any, call: Any, options: Legalise) -> Any:
    """Sum, mean, max and min."""
    shape = options.known(call.args[0])
    if not shape:
        return None
    given = call.attrs.axis
    axes = sorted(axis % len(shape) for axis in (ints(given) if given else range(len(shape))))
    if any(shape[axis] is None for axis in axes):
        return None
    how = str(call.op.name).rsplit(".", 1)[-1]
    keepdims = bool(call.attrs.keepdims)
    return builder.call_te(
        lambda x: reduction(x, axes, how, keepdims, options.lanes),
        call.args[0],
        key=(*axes, keepdims),
        primfunc_name_hint=how,
    )


def legalise_concat(builder: Any, call: Any, options: Legalise) -> Any:
    """TVM's concatenation, marked as one for `ConcatInPlace`: what makes its operands is not fused
    into it then, but told where to write."""
    shape = static_extents(call.ty)
    if str(call.ty.dtype.dtype) not in ("float32", HALF_BITS, *BYTES):
        return None
    if not shape or not isinstance(call.args[0], relax.Tuple) or call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % len(shape)
    parts = call.args[0].fields
    made_here = all(
        isinstance(part, relax.Var) and builder.lookup_binding(part) is not None for part in parts
    )
    extents = [static_extents(part.ty) or () for part in parts]
    in_place = made_here and not cuts_vectors(extents, axis, options.lanes // 2)
    return builder.call_te(
        lambda *tensors: topi.concatenate(tensors, axis),
        *parts,
        primfunc_name_hint="concatenate",
        primfunc_attrs={CONCAT_AXIS: axis} | (STANDS_ALONE if in_place else {}),
    )


def legalise_equality(builder: Any, call: Any, options: Legalise) -> Any:
    """Whether booleans are equal, as small integers: of one bit TVM 0.27 compares them as numbers
    with a point, which LLVM refuses."""
    if any(str(operand.ty.dtype.dtype) != "bool" for operand in call.args):
        return None
    name = op_name(call).removeprefix("relax.")
    compare = topi.equal if name == "equal" else topi.not_equal
    return builder.call_te(
        lambda x, y: compare(topi.cast(x, "int8"), topi.cast(y, "int8")),
        *call.args,
        key=name,
        primfunc_name_hint=name,
    )


RULES: dict[str, Rule] = {
    **PLACES,
    **dict.fromkeys(("relax.equal", "relax.not_equal"), legalise_equality),
    "relax.concat": legalise_concat,
    **dict.fromkeys(CONVOLUTIONS, legalise_conv),
    **dict.fromkeys(TRANSPOSED, legalise_conv_transpose),
    "relax.matmul": legalise_matmul,
    **NORMS,
    **ARGS,
    **QUANTISED,
    **dict.fromkeys(("relax.sum", "relax.mean", "relax.max", "relax.min"), legalise_reduction),
}
MATHS: dict[str, Rule] = {
    "relax.nn.softmax": legalise_softmax,
    "relax.nn.log_softmax": legalise_softmax,
    **dict.fromkeys(ATTENTION, legalise_attention),
    **POINTWISE,
}
