"""`MultiplyQuarters`: products by constants as seven products of quarters (`compute.strassen`).

matmul(x, W)         →  call_tir(strassen, x, sums of quarters of W [q, N/2/B, K/2, B])
conv2d(x, W [O, 1, 1, C], NHWC)    likewise, of an image's points
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tvm_ext.compute.blocking import choose_block, padded
from tvm_ext.compute.dense import dense
from tvm_ext.compute.strassen import applies, pack_quarters, packed_shape, strassen
from tvm_ext.graph.legalise_conv import CONVOLUTIONS, read_call
from tvm_ext.graph.legalise_norm import static_shape
from tvm_ext.graph.open_extent import follows
from tvm_ext.graph.programs import FUSES_EPILOGUE, Programs
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    constant,
    constant_array,
    op_name,
    relax,
    rewritten,
    te,
    tvm,
)

SMALLEST = 96
"""Rows, steps and columns below which sums of quarters take what they save."""
HELD = 0.5
"""Part of a core's cache that weights of one of two layers in strips take at most."""
WORTH = 0.97
"""Part of the direct product's time from which less is worth weights of 1.75 times the size, and
errors of a neighbour's size."""


@tvm.transform.module_pass(opt_level=0, name="MultiplyQuarters")
@dataclass(frozen=True)
class MultiplyQuarters:
    """Rewrites products of many rows where that is predicted to take less time, on CPUs.

    predict_us  predicted time of a PrimFunc
    extents     stand for some that are not known, if given: what follows one stays direct
    """

    hardware: HardwareModel
    predict_us: Callable[[PrimFunc], float]
    extents: tuple[int, ...] = ()

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module before `Legalise`."""
        if self.hardware.kind == "cuda":
            return mod
        return rewritten(mod, _Rewriter(mod, self))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule, options: MultiplyQuarters) -> None:
        super().__init__(mod)
        self._options = options
        self._made: dict[Any, Any] = {}

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) == "relax.matmul":
            shape, weight = static_shape(call.args[0]), constant_array(call.args[1])
            if weight is not None and weight.ndim == 2 and not self._strips_hold(weight):
                return self._by_quarters(call, shape, weight)
        if op_name(call) in CONVOLUTIONS and (known := read_call(call)):
            geometry, shape, weight, planes = known
            if geometry.takes_points and not planes:
                return self._by_quarters(call, shape, weight.reshape(len(weight), -1).T)
        return call

    def _strips_hold(self, weight: np.ndarray) -> bool:
        """Whether a layer is so narrow that a core's cache holds its weights and another's: what it
        makes may then stay there as well, strip by strip (`FuseTiles`), which takes no quarters.
        That saves more (784 rows of 128 by 1024 and back 3.9 ms of a core, apart and by quarters
        4.1)."""
        return weight.nbytes <= self._options.hardware.own_cache_bytes * HELD

    def _by_quarters(self, call: Any, shape: tuple[int, ...] | None, weight: np.ndarray) -> Any:
        """The product of the call's data, of that shape, with [K, N], or the call as it is."""
        options, x = self._options, call.args[0]
        if shape is None or len(shape) < 2 or weight.dtype != np.float32:
            return call
        if any(follows(extent, own) for extent in shape for own in options.extents):
            return call
        (inner, columns), lanes = weight.shape, options.hardware.lanes(4)
        rows = prod(shape[:-1])
        if not pays(rows, inner, columns, lanes, options.predict_us):
            return call
        if len(shape) > 2:
            x = self.builder_.emit(relax.op.reshape(x, (rows, inner)))
        return Programs(self.builder_, self._made).call_te(
            lambda data, sums: strassen(data, sums, (*shape[:-1], columns)),
            x,
            constant(pack_quarters(weight, lanes)),
            key=shape,
            primfunc_name_hint="strassen",
            primfunc_attrs=FUSES_EPILOGUE,
        )


@lru_cache(maxsize=1024)
def pays(
    rows: int,
    inner: int,
    columns: int,
    lanes: int,
    predict_us: Callable[[PrimFunc], float],
) -> bool:
    """Whether a product of so many rows, steps and columns is predicted to be faster so."""
    if not applies(inner, columns, lanes) or min(rows, inner, columns) < SMALLEST:
        return False
    block = choose_block(columns, lanes)
    x = te.placeholder((rows, inner), "float32", name="x")
    plain = te.placeholder((padded(columns, block) // block, inner, block), "float32", name="w")
    sums = te.placeholder(packed_shape(inner, columns, lanes), "float32", name="w")
    direct = te.create_prim_func([x, plain, dense(x, plain, columns)])
    by_quarters = te.create_prim_func([x, sums, strassen(x, sums, (rows, columns))])
    return predict_us(by_quarters) < WORTH * predict_us(direct)
