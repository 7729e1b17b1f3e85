"""Exports further architectures of `transformers`, many smaller than published, random weights.

    python benchmarks/more_models.py --out more_models                # all of them
    python benchmarks/more_models.py --out more_models llama efficientnet
    python benchmarks/compare.py more_models/*.onnx --rounds 3

The tracing exporter writes operator set 14, in which layer norm and GELU are primitives, masked
softmax is guarded against NaN, and shapes are computed: what most exported models look like. Nobody
tuned tvm_ext for these; they are here to find what it does badly.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import onnx
import torch
import transformers as tf
from export_command import traced, write_models
from torch import nn

from tvm_ext.frontend.randomise import randomise

VOCABULARY = 1000
SMALL = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
TINY = {"num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}
DECODER = {**SMALL, "intermediate_size": 1376, "vocab_size": VOCABULARY, "use_cache": False}


def image(size: int = 224) -> tuple[torch.Tensor, ...]:
    """One picture."""
    return (torch.randn(1, 3, size, size),)


def words(count: int, masked: bool = False) -> tuple[torch.Tensor, ...]:
    """One sentence, perhaps with its mask."""
    ids = torch.randint(1, VOCABULARY, (1, count))
    return (ids, torch.ones_like(ids)) if masked else (ids,)


def _regnet() -> nn.Module:
    widths, depths = [64, 144, 320, 784], [1, 3, 5, 2]
    return tf.RegNetModel(tf.RegNetConfig(hidden_sizes=widths, depths=depths, groups_width=16))


def _efficientnet() -> nn.Module:
    """Its batch norms have the statistics of what meets them: under random ones its gates multiply
    activations until rounding decides the result."""
    size = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280}
    model = tf.EfficientNetModel(tf.EfficientNetConfig(image_size=224, **size)).eval()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
        if isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
            module.train()
            module.momentum = 1.0
    model(*image())
    return model


def _convnextv2() -> nn.Module:
    widths, depths = [40, 80, 160, 320], [2, 2, 6, 2]
    return tf.ConvNextV2Model(tf.ConvNextV2Config(hidden_sizes=widths, depths=depths))


def _swinv2() -> nn.Module:
    config = tf.Swinv2Config(image_size=224, window_size=7, depths=[2, 2, 2, 2], embed_dim=96)
    return tf.Swinv2Model(config)


def _dinov2() -> nn.Module:
    size = {"hidden_size": 384, "num_attention_heads": 6, "num_hidden_layers": 6}
    return tf.Dinov2Model(tf.Dinov2Config(image_size=224, patch_size=14, **size))


def _yolos() -> nn.Module:
    size = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
    config = tf.YolosConfig(
        image_size=[224, 224], num_detection_tokens=10, num_hidden_layers=6, **size
    )
    return tf.YolosModel(config)


def _albert() -> nn.Module:
    config = tf.AlbertConfig(
        hidden_size=768, num_attention_heads=12, intermediate_size=3072, num_hidden_layers=4
    )
    return tf.AlbertModel(config)


def _opt() -> nn.Module:
    size = {**SMALL, "ffn_dim": 2048, "word_embed_proj_dim": 512, "vocab_size": VOCABULARY}
    return tf.OPTModel(tf.OPTConfig(use_cache=False, **size))


Build = Callable[[], nn.Module]
NETWORKS: dict[str, tuple[Build, tuple[torch.Tensor, ...]]] = {
    "albert": (_albert, words(128)),
    "clip": (lambda: tf.CLIPVisionModel(tf.CLIPVisionConfig(num_hidden_layers=4)), image()),
    "convnextv2": (_convnextv2, image()),
    "deberta": (
        lambda: tf.DebertaV2Model(
            tf.DebertaV2Config(hidden_size=384, vocab_size=VOCABULARY, **TINY)
        ),
        words(64),
    ),
    "dinov2": (_dinov2, image()),
    "efficientnet": (_efficientnet, image()),
    "electra": (lambda: tf.ElectraModel(tf.ElectraConfig(num_hidden_layers=6)), words(128)),
    "focalnet": (lambda: tf.FocalNetModel(tf.FocalNetConfig()), image()),
    "gptneox": (lambda: tf.GPTNeoXModel(tf.GPTNeoXConfig(**DECODER)), words(64, masked=True)),
    "levit": (lambda: tf.LevitModel(tf.LevitConfig()), image()),
    "llama": (
        lambda: tf.LlamaModel(tf.LlamaConfig(num_key_value_heads=2, **DECODER)),
        words(64, masked=True),
    ),
    "mobilenet_v1": (lambda: tf.MobileNetV1Model(tf.MobileNetV1Config()), image()),
    "mobilevit": (lambda: tf.MobileViTModel(tf.MobileViTConfig(image_size=256)), image(256)),
    "opt": (_opt, words(64, masked=True)),
    "poolformer": (lambda: tf.PoolFormerModel(tf.PoolFormerConfig()), image()),
    "pvt": (lambda: tf.PvtModel(tf.PvtConfig()), image()),
    "qwen2": (
        lambda: tf.Qwen2Model(tf.Qwen2Config(num_key_value_heads=8, **DECODER)),
        words(64, masked=True),
    ),
    "regnet": (_regnet, image()),
    "roberta": (lambda: tf.RobertaModel(tf.RobertaConfig(num_hidden_layers=4)), words(128)),
    "swinv2": (_swinv2, image()),
    "t5_encoder": (lambda: tf.T5EncoderModel(tf.T5Config(num_layers=4)), words(128)),
    "wav2vec2": (
        lambda: tf.Wav2Vec2Model(tf.Wav2Vec2Config(hidden_size=384, **TINY)),
        (torch.randn(1, 8000),),
    ),
    "yolos": (_yolos, image()),
}
"""How to build each model, and what it takes."""
NORMED = frozenset({"levit", "mobilenet_v1", "mobilevit", "poolformer", "regnet"})
"""Models of batch norms, whose first weights would let activations vanish."""


class FirstOutput(nn.Module):
    """A model without what it returns beside its main result."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Its main result."""
        made = self.model(*inputs)
        return made if isinstance(made, torch.Tensor) else made[0]


def exporter(
    networks: dict[str, tuple[Build, tuple[torch.Tensor, ...]]], normed: frozenset[str]
) -> Callable[[str, int], onnx.ModelProto]:
    """What exports one of the networks, weights of those with batch norms drawn anew."""

    def export(name: str, seed: int) -> onnx.ModelProto:
        torch.manual_seed(seed)
        build, inputs = networks[name]
        proto = traced(lambda: FirstOutput(build()), inputs)
        return randomise(proto, seed=seed) if name in normed else proto

    return export


if __name__ == "__main__":
    write_models(__doc__, NETWORKS, exporter(NETWORKS, NORMED))
