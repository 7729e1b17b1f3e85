"""`Share`: constants of equal content once, and calls that are then the same. A layer used twice,
or the embedding that is also the output matrix, was packed for each use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_ext.graph.common_subexpr import LEAST_BYTES, eliminate_common
from tvm_ext.tvm_api import IRModule, Tensor, constant_array, relax, rewritten, tvm

Known = dict[tuple[object, ...], list[Any]]
"""Constants by their types and a few of their elements."""
SAMPLES = 64
"""Elements that are looked at before whole arrays are compared."""


@tvm.transform.module_pass(opt_level=0, name="Share")
@dataclass(frozen=True)
class Share:
    """Constants of one type with the same bits become one, and so do equal calls.

    least_bytes  smaller constants are left alone: they cost less than looking at them
    known        those of other modules, which take part, and of this one afterwards; by default its
                 own alone do
    """

    least_bytes: int = LEAST_BYTES
    known: Known | None = field(default=None, compare=False)

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """f(x, A); f(y, B); f(x, B) with A = B  →  f(x, A); f(y, A)."""
        known = {} if self.known is None else self.known
        return eliminate_common(with_shared(mod, known, self.least_bytes))


def with_shared(mod: IRModule, known: Known, least_bytes: int = LEAST_BYTES) -> IRModule:
    """The module with constants that are `known`, to which its others are added."""
    return rewritten(mod, _Sharing(mod, least_bytes, known))


@relax.expr_functor.mutator
class _Sharing(relax.PyExprMutator):
    def __init__(self, mod: IRModule, least_bytes: int, known: Known) -> None:
        super().__init__(mod)
        self._least_bytes, self._known = least_bytes, known

    def visit_generic_const_(self, constant: Any) -> Any:
        if not isinstance(constant.value, Tensor):
            return constant
        array = constant_array(constant)
        if array.nbytes < self._least_bytes:
            return constant
        bits = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        sample = bits[:: max(1, bits.size // SAMPLES)].tobytes()
        alike = self._known.setdefault((array.shape, str(constant.value.dtype), sample), [])
        for other in alike:
            same = constant_array(other)
            lies_there = same.ctypes.data == array.ctypes.data
            if lies_there or np.array_equal(same.reshape(-1).view(np.uint8), bits):
                return other
        alike.append(constant)
        return constant
