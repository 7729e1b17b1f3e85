"""The chains of `chains.py` as torch's own functions, compiled by torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional

Weights = list[torch.Tensor]


def layer_norm(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Scaled and shifted."""
    return functional.layer_norm(x, (x.shape[-1],), scale, shift)


def rms_norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Scaled."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * scale


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Over the last axis."""
    return functional.softmax(x, -1)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """The approximation by tanh."""
    return functional.gelu(x, approximate="tanh")


def whole(x: torch.Tensor, add: torch.Tensor, *norm: torch.Tensor) -> torch.Tensor:
    """add → layer norm → GELU → softmax."""
    return softmax(gelu_tanh(layer_norm(x + add, *norm)))


def residual_norm(x: torch.Tensor, *norm: torch.Tensor) -> torch.Tensor:
    """A residual sum, its layer norm, and the sum once more."""
    total = torch.tanh(x) + x
    return torch.relu(layer_norm(total, *norm)) + total


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Scaled dot-product attention."""
    return functional.scaled_dot_product_attention(q, k, v)


CHAINS: dict[str, Callable[..., torch.Tensor]] = {
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "softmax": softmax,
    "gelu_tanh": gelu_tanh,
    "whole": whole,
    "residual_norm": residual_norm,
    "attention": attention,
}


def load(
    path: str, inputs: Mapping[str, np.ndarray], threads: int
) -> Callable[[], list[np.ndarray]]:
    """The chain that an ONNX file of `chains.py` holds, on the vectors of weights in the file; it
    has run once, which is when torch compiles."""
    torch.set_num_threads(threads)
    proto = onnx.load(path)
    vectors = [torch.tensor(numpy_helper.to_array(t)) for t in proto.graph.initializer]
    weights = [vector for vector in vectors if vector.dim() == 1 and vector.is_floating_point()]
    tensors = [torch.from_numpy(np.array(value)) for value in inputs.values()]
    compiled = torch.compile(CHAINS[Path(path).stem.rpartition("_")[0]])

    def run() -> list[np.ndarray]:
        with torch.inference_mode():
            return [compiled(*tensors, *weights).numpy()]

    run()
    return run
