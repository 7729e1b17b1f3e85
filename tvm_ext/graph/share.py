"""`Share`: constants of equal content once, and calls that are then the same. A layer used twice,
or the embedding that is also the output matrix, was packed for each use."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.graph.common_subexpr import LEAST_BYTES, eliminate_common
from tvm_ext.tvm_api import IRModule, Tensor, constant_array, relax, rewritten, tvm

SAMPLES = 64
"""Elements that are looked at before whole arrays are compared."""


@tvm.transform.module_pass(opt_level=0, name="Share")
@dataclass(frozen=True)
class Share:
    """Constants of one type with the same bits become one, and so do equal calls.

    least_bytes  smaller constants are left alone: they cost less than looking at them
    """

    least_bytes: int = LEAST_BYTES

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """f(x, A); f(y, B); f(x, B) with A = B  →  f(x, A); f(y, A)."""
        mod = rewritten(mod, _Sharing(mod, self.least_bytes))
        return eliminate_common(mod)


@relax.expr_functor.mutator
class _Sharing(relax.PyExprMutator):
    def __init__(self, mod: IRModule, least_bytes: int) -> None:
        super().__init__(mod)
        self._least_bytes = least_bytes
        self._known: dict[tuple[object, ...], list[Any]] = defaultdict(list)

    def visit_generic_const_(self, constant: Any) -> Any:
        if not isinstance(constant.value, Tensor):
            return constant
        array = constant_array(constant)
        if array.nbytes < self._least_bytes:
            return constant
        bits = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        sample = bits[:: max(1, bits.size // SAMPLES)].tobytes()
        alike = self._known[(array.shape, str(constant.value.dtype), sample)]
        for other in alike:
            same = constant_array(other)
            lies_there = same.ctypes.data == array.ctypes.data
            if lies_there or np.array_equal(same.reshape(-1).view(np.uint8), bits):
                return other
        alike.append(constant)
        return constant
