"""`AddBytes`: what sums and depthwise windows take from quantised tensors they read as bytes, and
take back themselves.

    add(dequantize(q, s, z), y)             →  call_tir(dequantize_add, q, s, z, y)
    conv2d(dequantize(q, s, z), W)          →  call_tir(dequantize_conv2d, q, s, z, W packed)
    dequantize(quantize(x, s, z), s', z')   →  dequantize(quantize(x, s, z), s, z)   equal numbers

A kernel that ends with `q`, whose only reader is the sum, would otherwise be fused with what takes
it back and hand on floats, four times the memory. A window has to copy what it takes back, for its
elements are read several times: only of tensors beyond the cores' own caches that is worth it. With
one operand for both numbers a kernel that quantises and takes back only rounds (`tvm_rounding`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm_ext.compute.conv import conv, pack_weight
from tvm_ext.graph.keep_bytes import is_same_number
from tvm_ext.graph.legalise_conv import CONVOLUTIONS, read_conv
from tvm_ext.graph.legalise_norm import known_extents
from tvm_ext.graph.legalise_quantised import BYTES, as_integer, dequantised, is_one_number
from tvm_ext.graph.programs import FUSES_EPILOGUE
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import (
    Call,
    IRModule,
    bound,
    constant,
    op_name,
    relax,
    rewritten,
    te,
    topi,
    tvm,
)

FLOAT_BYTES = 4
SUMS = {"relax.add": topi.add, "relax.subtract": topi.subtract}


@tvm.transform.module_pass(opt_level=0, name="AddBytes")
@dataclass(frozen=True)
class AddBytes:
    """Moves dequantising into sums and windows."""

    hardware: HardwareModel

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module before `Legalise`."""
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Rewriter(mod, self.hardware)))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule, hardware: HardwareModel) -> None:
        super().__init__(mod)
        self._lanes = hardware.lanes(FLOAT_BYTES)
        self._held_bytes = hardware.own_cache_bytes * hardware.cores

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) == "relax.dequantize":
            return self._by_one_number(call)
        if op_name(call) in CONVOLUTIONS:
            return self._window(call)
        return self._sum(call) if op_name(call) in SUMS else call

    def _by_one_number(self, call: Any) -> Any:
        quantised = bound(self, call.args[0])
        if op_name(quantised) != "relax.quantize":
            return call
        pairs = list(zip(quantised.args[1:], call.args[1:], strict=True))
        if not all(is_same_number(one, other) for one, other in pairs):
            return call
        return Call(call.op, [call.args[0], *quantised.args[1:]], call.attrs)

    def _sum(self, call: Any) -> Any:
        made = [bound(self, operand) for operand in call.args]
        taken = [_is_plain(one) for one in made]
        if not any(taken):
            return call
        given: list[Any] = []
        for operand, one, own in zip(call.args, made, taken, strict=True):
            given += [one.args[0], one.args[1], as_integer(one.args[2])] if own else [operand]
        combine, name = SUMS[op_name(call)], op_name(call).removeprefix("relax.")

        def body(*tensors: te.Tensor) -> te.Tensor:
            left = iter(tensors)
            sides = [
                dequantised(next(left), next(left), next(left), 0) if own else next(left)
                for own in taken
            ]
            return combine(*sides)

        return self.builder_.call_te(body, *given, primfunc_name_hint=f"dequantize_{name}")

    def _window(self, call: Any) -> Any:
        """A depthwise convolution of channels last."""
        data, kernel, _ = CONVOLUTIONS[op_name(call)]
        made, known = bound(self, call.args[0]), read_conv(call, data, kernel)
        if known is None or not _is_plain(made):
            return call
        geometry, shape, weight = known
        if not geometry.depthwise or prod(shape) * FLOAT_BYTES <= self._held_bytes:
            return call
        lanes = self._lanes

        def body(x: te.Tensor, scale: te.Tensor, point: te.Tensor, weight: te.Tensor) -> te.Tensor:
            return conv(dequantised(x, scale, point, 0), weight, geometry, lanes)

        return self.builder_.call_te(
            body,
            made.args[0],
            made.args[1],
            as_integer(made.args[2]),
            constant(pack_weight(weight, geometry, lanes)),
            primfunc_name_hint=f"dequantize_{op_name(call).rpartition('.')[2]}_depthwise",
            primfunc_attrs=FUSES_EPILOGUE,
        )


def _is_plain(made: Any) -> bool:
    """Whether an operand is made of bytes of a known shape, by one scale and one zero point."""
    if op_name(made) != "relax.dequantize" or str(made.args[0].ty.dtype.dtype) not in BYTES:
        return False
    extents = known_extents(made)
    return extents is not None and None not in extents and all(map(is_one_number, made.args[1:]))
