"""`ReadPlanes`: a convolution of few channels takes its data plane by plane, as models give images.

    conv2d(permute_dims(x, NCHW → NHWC), W, NHWC)   →   conv2d(x, W, NCHW → NHWC)

A dense convolution reads its data element by element, so the order of channels costs it nothing; an
image of three channels takes longer to interleave than any later layer takes to be copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_ext.graph.legalise_norm import static_shape
from tvm_ext.tvm_api import Call, IRModule, constant_array, relax, tvm

PLANES = {"relax.nn.conv1d": "NCW", "relax.nn.conv2d": "NCHW", "relax.nn.conv3d": "NCDHW"}
"""Convolutions, with the layout of data that lies in planes."""


@tvm.transform.module_pass(opt_level=0, name="ReadPlanes")
@dataclass(frozen=True)
class ReadPlanes:
    """Takes the transposition in front of a dense channels-last convolution by a constant away.

    most_channels  of more channels than this the transposition stays: rows of them are read whole
    """

    most_channels: int = 4

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module; transpositions that nothing else uses are dead."""
        rewriter = _Rewriter(mod, self.most_channels)
        for variable, function in mod.functions.items():
            if isinstance(function, relax.Function):
                rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
        return rewriter.builder_.get()


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: IRModule, most_channels: int) -> None:
        super().__init__(mod)
        self._most_channels = most_channels

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        if name not in PLANES or int(call.attrs.groups) != 1:
            return call
        if static_shape(call.args[0]) is None or constant_array(call.args[1]) is None:
            return call  # `Legalise` leaves it to TVM, which knows one layout for all
        layout = str(call.attrs.data_layout)
        source = self._planes(call.args[0])
        if source is None or str(call.attrs.out_layout) not in ("", layout):
            return call
        channels_last = layout == PLANES[name].replace("C", "") + "C"
        channels_last &= str(call.attrs.kernel_layout) == f"O{layout[1:-1]}I"
        if not channels_last or int(source.ty.shape[1]) > self._most_channels:
            return call
        attrs = call.attrs
        return getattr(relax.op.nn, name.rpartition(".")[2])(
            source,
            call.args[1],
            strides=list(attrs.strides),
            padding=list(attrs.padding),
            dilation=list(attrs.dilation),
            groups=1,
            data_layout=PLANES[name],
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
