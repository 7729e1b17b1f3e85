"""`ReadPlanes`: a convolution of few channels takes its data plane by plane, as models give images.

    conv2d(permute_dims(x, NCHW → NHWC), W, NHWC)   →   conv2d(x, W, NCHW → NHWC)

A dense convolution reads its data element by element, so the order of channels costs it nothing; an
image of three channels takes longer to interleave than any later layer takes to be copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_ext.graph.legalise_conv import CONVOLUTIONS
from tvm_ext.graph.legalise_norm import static_shape
from tvm_ext.tvm_api import Call, IRModule, constant_array, relax, rewritten, tvm


@tvm.transform.module_pass(opt_level=0, name="ReadPlanes")
@dataclass(frozen=True)
class ReadPlanes:
    """Takes the transposition in front of a dense channels-last convolution by a constant away.

    most_channels  of more channels than this the transposition stays: rows of them are read whole
    """

    most_channels: int = 4

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module; transpositions that nothing else uses are dead."""
        return rewritten(mod, _Rewriter(mod, self.most_channels))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule, most_channels: int) -> None:
        super().__init__(mod)
        self._most_channels = most_channels

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        if name not in CONVOLUTIONS or int(call.attrs.groups) != 1:
            return call
        if static_shape(call.args[0]) is None or constant_array(call.args[1]) is None:
            return call  # `Legalise` leaves it to TVM, which knows one layout for all
        layout, kernel_layout, planes = CONVOLUTIONS[name]
        given = (str(call.attrs.data_layout), str(call.attrs.kernel_layout))
        if given != (layout, kernel_layout) or str(call.attrs.out_layout) not in ("", layout):
            return call
        source = self._planes(call.args[0])
        if source is None or int(source.ty.shape[1]) > self._most_channels:
            return call
        attrs = call.attrs
        return getattr(relax.op.nn, name.rpartition(".")[2])(
            source,
            call.args[1],
            strides=list(attrs.strides),
            padding=list(attrs.padding),
            dilation=list(attrs.dilation),
            groups=1,
            data_layout=planes,
            kernel_layout=attrs.kernel_layout,
            out_layout=layout,
            out_dtype=attrs.out_dtype,
        )

    def _planes(self, data: Any) -> Any:
        """What is made channels-last to be the data; None if that is not how it comes about."""
        made = self.lookup_binding(data) if isinstance(data, relax.Var) else None
        if not isinstance(made, Call) or getattr(made.op, "name", "") != "relax.permute_dims":
            return None
        rank = len(made.args[0].ty.shape)
        axes = [int(axis) % rank for axis in made.attrs.axes or ()]
        return made.args[0] if axes == [0, *range(2, rank), 1] else None
