"""`SplitPhases`: a transposed convolution as several, each of which makes some of its phases.

    y = conv_transpose(x, W 3 x 3, strides 2)
        →
    a, b, c, d = conv(x, 1 x 1), conv(x, 1 x 2), conv(x, 2 x 1), conv(x, 2 x 2)
    y = reshape(concat(concat(a, b), concat(c, d)))

Where the stride does not divide the kernel, outputs of different phases see different numbers of
its taps; one kernel for all of them multiplies by zeros (9 taps become 16). Phases of the last axis
that see the same inputs are channels of one convolution. Concatenations along the axis behind that
of the phases put everything where the output has it, and each convolution writes there
(`ConcatInPlace`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.compute.conv_transpose import TransposedGeometry
from tvm_ext.graph.legalise_conv import CONVOLUTIONS, DIRECT, programs_of
from tvm_ext.graph.legalise_conv_transpose import TRANSPOSED, geometry_of_call
from tvm_ext.graph.legalise_conv_transpose import programs_of as transposed_programs
from tvm_ext.graph.legalise_norm import static_shape
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    bound,
    constant,
    constant_array,
    count_uses,
    op_name,
    relax,
    rewritten,
    tvm,
)

CONVOLVE = {
    1: (relax.op.nn.conv1d, "relax.nn.conv1d"),
    2: (relax.op.nn.conv2d, "relax.nn.conv2d"),
    3: (relax.op.nn.conv3d, "relax.nn.conv3d"),
}
MOST_PARTS = 16


@tvm.transform.module_pass(opt_level=0, name="SplitPhases")
@dataclass(frozen=True)
class SplitPhases:
    """Rewrites dense channels-last transposed convolutions by constants, the addition of a bias
    behind them with them, where one kernel would multiply by zeros and the model says that several
    are faster.

    lanes       float32 elements in a vector; what is concatenated has to be whole ones
    predict_us  predicted time of a PrimFunc
    """

    lanes: int
    predict_us: Callable[[PrimFunc], float]

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The module; what is not worth it stays as it is."""
        return relax.transform.DeadCodeElimination()(rewritten(mod, _Splitter(mod, self)))


class Run(NamedTuple):
    """Neighbouring phases of an axis that see the same inputs."""

    taps: tuple[tuple[int, ...], ...]
    """For each phase, the kernel's elements that its outputs see, in the order of inputs."""
    before: int
    """Padding in front of the data, and behind it."""
    after: int


def runs(geometry: TransposedGeometry, axis: int, size: int) -> list[Run]:
    """The phases of an axis whose data has `size` elements; neighbours are put together on the last
    axis only. A phase may see nothing, or the data cropped: its padding is negative then."""
    stride, kernel = geometry.strides[axis], geometry.kernel[axis]
    found = []
    for phase in range(stride):
        late, first = divmod(phase + geometry.pad[axis], stride)
        taps = tuple(reversed(range(first, kernel, stride)))
        after = geometry.out_size[axis] // stride - size + late
        found.append(Run((taps,), len(taps) - 1 - late, after))
    if axis < len(geometry.kernel) - 1:
        return found
    alike = groupby(found, key=lambda run: (len(run.taps[0]), *run[1:]))
    return [
        Run(tuple(run.taps[0] for run in group), before, after)
        for (_, before, after), group in alike
    ]


def convolution(geometry: TransposedGeometry, chosen: Sequence[Run]) -> ConvGeometry:
    """The convolution that makes one run of phases of each axis."""
    ones = (1,) * len(chosen)
    return ConvGeometry(
        kernel=tuple(len(run.taps[0]) for run in chosen),
        strides=ones,
        pad_before=tuple(run.before for run in chosen),
        pad_after=tuple(run.after for run in chosen),
        dilation=ones,
        groups=1,
        in_channels=geometry.in_channels,
        out_channels=geometry.out_channels * prod(len(run.taps) for run in chosen),
    )


def weight_of(weight: np.ndarray, chosen: Sequence[Run]) -> np.ndarray:
    """[C, O, k..]  →  [(phase, O), taps.., C], the weight of `convolution`."""
    each = [
        weight[np.ix_(range(weight.shape[0]), range(weight.shape[1]), *taps)]
        for taps in product(*(run.taps for run in chosen))
    ]
    return np.concatenate([np.moveaxis(part, 0, -1) for part in each])


@relax.expr_functor.mutator
class _Splitter(relax.PyExprMutator):
    def __init__(self, mod: IRModule, options: SplitPhases) -> None:
        super().__init__(mod)
        self._options = options
        self._var: Any = None
        self._uses = count_uses(mod)
        self._values: dict[Any, Any] = {}
        self._biased: set[Any] = set()
        """Results that only the addition of a bias reads."""
        for function in mod.functions.values():
            for block in getattr(getattr(function, "body", None), "blocks", ()):
                for binding in block.bindings:
                    value: Any = getattr(binding, "value", None)
                    self._values[binding.var] = value
                    if op_name(value) == "relax.add" and self._bias(*value.args) is not None:
                        self._biased.add(value.args[0])

    def _bias(self, data: Any, bias: Any) -> np.ndarray | None:
        """A constant for each channel, if that is what is added to a tensor with one reader."""
        known, shape = constant_array(self._values.get(bias, bias)), static_shape(data)
        if known is None or not shape or self._uses[data] != 1:
            return None
        along_channels = known.shape[-1:] == shape[-1:] and known.size == shape[-1]
        return known.reshape(-1) if along_channels else None

    def visit_var_binding_(self, binding: Any) -> None:
        self._var = binding.var
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call) in TRANSPOSED and self._var not in self._biased:
            return self._apart(call, call, None)
        made = bound(self, call.args[0]) if op_name(call) == "relax.add" else None
        if made is not None and call.args[0] in self._biased and op_name(made) in TRANSPOSED:
            return self._apart(made, call, self._bias(*call.args))
        return call

    def _apart(self, call: Any, whole: Any, bias: np.ndarray | None) -> Any:
        """The output of several convolutions, `bias` added; `whole` if that is not worth it."""
        geometry, shape = geometry_of_call(call), static_shape(call.args[0])
        weight = constant_array(call.args[1])
        if geometry is None or shape is None or weight.shape[2:] != geometry.kernel:
            return whole
        axes = [runs(geometry, axis, size) for axis, size in enumerate(shape[1:-1])]
        if not applies(geometry, axes, self._options.lanes):
            return whole
        if not pays(geometry, axes, shape, self._options):
            return whole
        made = self._joined(call, weight, bias, geometry, axes, [])
        return relax.op.reshape(made, static_shape(call))

    def _joined(
        self,
        call: Any,
        weight: np.ndarray,
        bias: np.ndarray | None,
        geometry: TransposedGeometry,
        axes: Sequence[Sequence[Run]],
        chosen: Sequence[Run],
    ) -> Any:
        """The phases of all axes but those of which one is `chosen`."""
        axis = len(chosen)
        if axis < len(axes):
            parts = [
                self._joined(call, weight, bias, geometry, axes, [*chosen, run])
                for run in axes[axis]
            ]
            return (
                parts[0]
                if len(parts) == 1
                else self.builder_.emit(relax.op.concat(parts, axis + 2))
            )
        plain = convolution(geometry, chosen)
        convolve, name = CONVOLVE[len(axes)]
        data_layout, kernel_layout, _ = CONVOLUTIONS[name]
        made = self.builder_.emit(
            convolve(
                call.args[0],
                constant(weight_of(weight, chosen)),
                padding=(*plain.pad_before, *plain.pad_after),
                data_layout=data_layout,
                kernel_layout=kernel_layout,
            )
        )
        if bias is None:
            return made
        every = np.tile(bias, plain.out_channels // len(bias)).reshape(*(1,) * (axis + 1), -1)
        return self.builder_.emit(relax.op.add(made, constant(every)))


def applies(geometry: TransposedGeometry, axes: Sequence[Sequence[Run]], lanes: int) -> bool:
    """Whether one kernel would multiply by zeros, and several write whole vectors in place."""
    taps = prod(s * geometry.taps(axis) for axis, s in enumerate(geometry.strides))
    whole = all(o % s == 0 for o, s in zip(geometry.out_size, geometry.strides, strict=True))
    every = [run for axis in axes for run in axis]
    return (
        geometry.groups == 1
        and taps > prod(geometry.kernel)
        and whole
        and geometry.out_channels % lanes == 0
        and all(run.taps[0] and min(run.before, run.after) >= 0 for run in every)
        and prod(map(len, axes)) <= MOST_PARTS
    )


def pays(
    geometry: TransposedGeometry,
    axes: Sequence[Sequence[Run]],
    shape: tuple[int, ...],
    options: SplitPhases,
) -> bool:
    """Whether the convolutions are predicted to take less time than one kernel."""
    direct, _ = transposed_programs(geometry, shape, options.lanes)
    apart_us = sum(
        options.predict_us(func)
        for chosen in product(*axes)
        for func in programs_of(convolution(geometry, chosen), shape, options.lanes, DIRECT)
    )
    return apart_us < options.predict_us(direct)
