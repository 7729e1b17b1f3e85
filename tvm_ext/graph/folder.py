"""What the passes share that fold convolutions for Winograd's sake (`FoldDepth`, `FoldDilation`,
`FoldWindow`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.graph.legalise_conv import CONVOLUTIONS
from tvm_ext.graph.legalise_norm import static_shape
from tvm_ext.tvm_api import IRModule, constant, relax

IMAGES = "relax.nn.conv2d"


class Folder(relax.PyExprMutator):
    """Rewrites convolutions with a pass's options; equal ones are predicted once."""

    def __init__(self, mod: IRModule, options: Any) -> None:
        super().__init__(mod)
        self._options = options
        self._predicted: dict[Any, bool] = {}

    def _once(self, pays: Callable[..., bool], *what: Any) -> bool:
        """Whether what is asked about pays, by the pass's options."""
        if what not in self._predicted:
            self._predicted[what] = pays(*what, self._options)
        return self._predicted[what]

    def _convolved(
        self, operator: str, x: Any, weight: np.ndarray, geometry: ConvGeometry, dtype: Any
    ) -> Any:
        """The channels-last convolution of x by weight [O, k.., C], which is not bound yet: where
        another name stands for a result, what follows it is not fused with it."""
        data, kernel, _ = CONVOLUTIONS[operator]
        return getattr(relax.op.nn, operator.rpartition(".")[2])(
            x,
            constant(weight.reshape(len(weight), *geometry.kernel, -1)),
            strides=geometry.strides,
            padding=(*geometry.pad_before, *geometry.pad_after),
            dilation=geometry.dilation,
            data_layout=data,
            kernel_layout=kernel,
            out_dtype=dtype,
        )

    def _reshaped(self, x: Any, shape: tuple[int, ...]) -> Any:
        if static_shape(x) == tuple(shape):
            return x
        return self.builder_.emit(relax.op.reshape(x, shape))
