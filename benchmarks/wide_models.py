"""Exports models as wide as published, of few layers; random weights.

    python benchmarks/wide_models.py --out wide_models               # all of them
    python benchmarks/wide_models.py --out wide_models mistral
    python benchmarks/compare.py wide_models/*.onnx --rounds 3

Layers repeat, so a few tell what a whole model does: sums of 4096 to 14 336 steps, 1500 positions,
4096 channels.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as tf
from export_command import write_models
from more_models import VOCABULARY, exporter, image
from served_models import words
from torch import nn

EAGER: dict[str, Any] = {"attn_implementation": "eager", "vocab_size": VOCABULARY}


def _whisper() -> nn.Module:
    config = tf.WhisperConfig(
        d_model=1280,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=20,
        decoder_attention_heads=20,
        encoder_ffn_dim=5120,
        decoder_ffn_dim=5120,
        num_mel_bins=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        **EAGER,
    )
    return tf.WhisperModel(config).encoder


def _bert() -> nn.Module:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
    return tf.BertModel(tf.BertConfig(num_hidden_layers=2, **sizes, **EAGER))


def _convnext() -> nn.Module:
    config = tf.ConvNextConfig(hidden_sizes=[192, 384, 768, 1536], depths=[1, 1, 2, 1])
    return tf.ConvNextModel(config)


def _gptj() -> nn.Module:
    sizes = {"n_embd": 2048, "n_head": 16, "rotary_dim": 64}
    return tf.GPTJModel(tf.GPTJConfig(n_layer=1, **sizes, **EAGER))


def _mistral() -> nn.Module:
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}
    config = tf.MistralConfig(num_hidden_layers=1, num_key_value_heads=8, **sizes, **EAGER)
    return tf.MistralModel(config)


def _regnet() -> nn.Module:
    sizes = [224, 448, 1232, 3024]
    config = tf.RegNetConfig(hidden_sizes=sizes, depths=[1, 2, 2, 1], groups_width=112)
    return tf.RegNetModel(config)


def _resnet() -> nn.Module:
    config = tf.ResNetConfig(hidden_sizes=[512, 1024, 2048, 4096], depths=[1, 2, 3, 1])
    return tf.ResNetModel(config)


def _swin() -> nn.Module:
    config = tf.SwinConfig(
        embed_dim=192, num_heads=[6, 12, 24, 48], depths=[2] * 4, attn_implementation="eager"
    )
    return tf.SwinModel(config)


def _t5() -> nn.Module:
    sizes = {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "num_layers": 2}
    return tf.T5EncoderModel(tf.T5Config(vocab_size=VOCABULARY, **sizes))


def _vit() -> nn.Module:
    sizes = {"hidden_size": 1280, "intermediate_size": 5120, "patch_size": 14}
    config = tf.ViTConfig(
        num_attention_heads=16, num_hidden_layers=2, attn_implementation="eager", **sizes
    )
    return tf.ViTModel(config)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...]]] = {
    "bert_large": (_bert, words(1, 384)),
    "convnext_large": (_convnext, image()),
    "gptj": (_gptj, words(1, 100)),
    "lstm": (lambda: nn.LSTM(256, 512), (torch.randn(300, 1, 256),)),
    "mistral": (_mistral, words(1, 128)),
    "regnet_16gf": (_regnet, image()),
    "resnet_4096": (_resnet, image()),
    "swin_large": (_swin, image()),
    "t5_large": (_t5, words(1, 200)),
    "vit_huge": (_vit, image()),
    "whisper_large": (_whisper, (torch.randn(1, 128, 3000),)),
}
"""How to build each model, and what it takes."""
NORMED = frozenset({"regnet_16gf", "resnet_4096"})
"""Models of batch norms, whose first weights would let activations vanish."""


if __name__ == "__main__":
    write_models(__doc__, NETWORKS, exporter(NETWORKS, NORMED))
