"""The operators of `workloads.py` as torch's own functions, on the same data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from workloads import Workload

from tvm_ext.tvm_api import PrimFunc

Run = Callable[[], torch.Tensor]
CONVOLUTIONS = {"C1D": 1, "C2D": 2, "C3D": 3, "GRP": 2, "DIL": 2}
KNOWN = [*CONVOLUTIONS, "DEP", "T2D", "CBR", "GMM", "TBG", "NRM", "SFM"]


def shapes(func: PrimFunc) -> list[tuple[int, ...]]:
    """Shapes of a function's arguments, its result last."""
    return [tuple(int(extent) for extent in parameter.shape) for parameter in func.params]


def twin(workload: Workload, inputs: list[torch.Tensor]) -> Run:
    """The operator as torch computes it. Weights are put in torch's layout ahead; activations stay
    as they are, channels last, which cuDNN takes as such. Raises KeyError for an unknown one."""
    if workload.operator in CONVOLUTIONS:
        return convolution(CONVOLUTIONS[workload.operator], workload.parameters, *inputs)
    return OTHERS[workload.operator](workload.parameters, *inputs)


def channels_first(tensor: torch.Tensor) -> torch.Tensor:
    """A view: (n, ..., c) → (n, c, ...)."""
    return tensor.movedim(-1, 1)


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """A view: (n, c, ...) → (n, ..., c)."""
    return tensor.movedim(1, -1)


def ahead(weight: torch.Tensor) -> torch.Tensor:
    """(..., in, out) → (out, in, ...), laid out with channels last."""
    moved = weight.movedim((-1, -2), (0, 1))
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return moved.contiguous(memory_format=formats.get(moved.dim(), torch.contiguous_format))


def convolution(rank: int, parameters: Any, x: torch.Tensor, weight: torch.Tensor) -> Run:
    """One to three dimensions, groups and dilation among its parameters."""
    stride, padding, dilation, groups = [*parameters[rank + 4 :], 1, 1][:4]
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
    moved, kept = channels_first(x), ahead(weight)
    return lambda: channels_last(function(moved, kept, None, stride, padding, dilation, groups))


def depthwise(parameters: Any, x: torch.Tensor, weight: torch.Tensor) -> Run:
    """A window of its own for every channel."""
    stride, padding = parameters[5:7]
    moved, kept = channels_first(x), weight.permute(3, 0, 1, 2).contiguous()
    groups = len(kept)
    return lambda: channels_last(functional.conv2d(moved, kept, None, stride, padding, 1, groups))


def transposed(parameters: Any, x: torch.Tensor, weight: torch.Tensor) -> Run:
    """A transposed convolution."""
    stride, padding = parameters[6:8]
    moved = channels_first(x)
    kept = weight.permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)
    return lambda: channels_last(functional.conv_transpose2d(moved, kept, None, stride, padding))


def conv_bn_relu(
    parameters: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    offset: torch.Tensor,
    scale: torch.Tensor,
) -> Run:
    """What follows the convolution is folded into its weights ahead, as every engine does."""
    stride, padding = parameters[6:8]
    moved, kept = channels_first(x), ahead(weight * scale)
    shift = bias * scale + offset
    return lambda: channels_last(functional.conv2d(moved, kept, shift, stride, padding).relu_())


def product(_parameters: Any, x: torch.Tensor, y: torch.Tensor) -> Run:
    """A batch of products."""
    return lambda: torch.bmm(x, y)


def scores(_parameters: Any, query: torch.Tensor, value: torch.Tensor) -> Run:
    """Products of every head, heads inside."""
    q, v = query.permute(0, 2, 1, 3), value.permute(0, 2, 3, 1)
    return lambda: torch.matmul(q, v)


def norm(_parameters: Any, x: torch.Tensor) -> Run:
    """The Frobenius norm of every matrix."""
    return lambda: torch.linalg.vector_norm(x, dim=(1, 2))


def softmax(_parameters: Any, x: torch.Tensor) -> Run:
    """Along rows."""
    return lambda: functional.softmax(x, 1)


OTHERS: dict[str, Callable[..., Run]] = {
    "DEP": depthwise,
    "T2D": transposed,
    "CBR": conv_bn_relu,
    "GMM": product,
    "TBG": scores,
    "NRM": norm,
    "SFM": softmax,
}
