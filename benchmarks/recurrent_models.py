"""Exports recurrent layers of usual sizes, as PyTorch has them; random weights.

    python benchmarks/recurrent_models.py --out recurrent_models               # all of them
    python benchmarks/recurrent_models.py --out recurrent_models lstm_128
    python benchmarks/compare.py recurrent_models/*.onnx --rounds 3

Inputs are [steps, batch, features]; what is returned are the states of all steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from export_command import write_models
from more_models import exporter
from torch import nn


def _layer(
    kind: Callable[..., nn.Module], shape: tuple[int, int, int], hidden: int, **options: Any
) -> tuple[Callable[[], nn.Module], tuple[torch.Tensor]]:
    return lambda: kind(shape[-1], hidden, **options), (torch.randn(*shape),)


BOTH: dict[str, Any] = {"bidirectional": True}
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...]]] = {
    "gru_100": _layer(nn.GRU, (80, 1, 80), 100),
    "gru_128": _layer(nn.GRU, (100, 1, 128), 128),
    "gru_192_both": _layer(nn.GRU, (60, 2, 192), 192, **BOTH),
    "gru_300": _layer(nn.GRU, (40, 1, 300), 300),
    "lstm_50_twice": _layer(nn.LSTM, (60, 3, 50), 50, num_layers=2),
    "lstm_64_long": _layer(nn.LSTM, (300, 1, 64), 64),
    "lstm_128": _layer(nn.LSTM, (100, 1, 128), 128),
    "lstm_128_both": _layer(nn.LSTM, (60, 4, 128), 128, **BOTH),
    "lstm_128_of_16": _layer(nn.LSTM, (64, 16, 128), 128),
    "lstm_256_of_8_both": _layer(nn.LSTM, (50, 8, 256), 256, **BOTH),
    "lstm_256_twice_both": _layer(nn.LSTM, (50, 1, 256), 256, num_layers=2, **BOTH),
    "lstm_512": _layer(nn.LSTM, (300, 1, 256), 512),
    "rnn_50_both": _layer(nn.RNN, (60, 2, 50), 50, **BOTH),
    "rnn_128": _layer(nn.RNN, (100, 1, 128), 128),
}
"""How to build each model, and what it takes."""


if __name__ == "__main__":
    write_models(__doc__, NETWORKS, exporter(NETWORKS, frozenset()))
