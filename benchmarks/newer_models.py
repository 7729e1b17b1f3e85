"""Exports small models of twenty-four newer or rarer families, random weights, by either exporter.

    python benchmarks/newer_models.py --out newer_models                # all of them
    python benchmarks/newer_models.py --out newer_models rt_detr mamba2
    python benchmarks/compare.py newer_models/*.onnx --engines tvm_ext,onnxruntime

Detection by deformable attention, mattes, depth by bins, experts, recurrent decoders: two layers or
so of each. What the tracing exporter cannot write goes by the other one. Nobody tuned tvm_ext for
them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import onnx
import torch
import transformers as tf
from export_command import exported, traced, write_models
from family_models import (
    DECODER,
    ENCODER,
    OLDER,
    SEEING,
    UNTRAINED,
    Inputs,
    as_,
    image,
    of,
    words,
)
from more_models import VOCABULARY
from torch import nn

Network = tuple[Callable[[], nn.Module], Inputs, tuple[str, ...]]

OPSET = 17
"""Of the tracing exporter: the first with grid sampling is 16."""
LAST = ("last_hidden_state",)
FOUND = ("logits", "pred_boxes")
HEADS: dict[str, Any] = {
    "d_model": 128,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "decoder_layers": 2,
}
LEVELS: dict[str, Any] = {
    **HEADS,
    "encoder_in_channels": [128, 256, 512],
    "feat_strides": [8, 16, 32],
    "encoder_hidden_dim": 128,
    "decoder_in_channels": [128, 128, 128],
    "num_queries": 100,
    "anchor_image_size": [256, 256],
    "eval_size": None,
}
RESNET: dict[str, Any] = {
    "embedding_size": 64,
    "hidden_sizes": [64, 128, 256, 512],
    "depths": [2, 2, 2, 2],
    "layer_type": "basic",
}
WINDOWS: dict[str, Any] = {"embed_dim": 48, "depths": [1, 1, 2, 1], "num_heads": [2, 4, 8, 16]}


class Fields(nn.Module):
    """A model with some of its results, by name."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Those results."""
        made = self.model(*inputs)
        return tuple(getattr(made, name) for name in self.names)


def page(count: int = 64) -> Inputs:
    """Numbers of words, and where each stands."""
    corner = torch.randint(0, 400, (1, count, 2))
    return (*words(count), torch.cat([corner, corner + 90], dim=2))


def _detector(family: str, *stages: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: as_(
        f"{family}ForObjectDetection",
        family,
        backbone_config=tf.ResNetConfig(**RESNET, out_features=list(stages)),
        num_queries=100,
        encoder_layers=2,
        **UNTRAINED,
        **HEADS,
        **options,
    )()


def _rt_detr() -> nn.Module:
    backbone = tf.RTDetrResNetConfig(**RESNET, out_features=["stage2", "stage3", "stage4"])
    return as_("RTDetrForObjectDetection", "RTDetr", backbone_config=backbone, **LEVELS)()


def _d_fine() -> nn.Module:
    backbone = tf.HGNetV2Config(
        stem_channels=[3, 16, 16],
        embedding_size=16,
        hidden_sizes=[64, 128, 256, 512],
        depths=[1, 1, 1, 1],
        stage_in_channels=[16, 64, 128, 256],
        stage_mid_channels=[16, 32, 64, 128],
        stage_out_channels=[64, 128, 256, 512],
        stage_num_blocks=[1, 1, 1, 1],
        stage_numb_of_layers=[3, 3, 3, 3],
        out_features=["stage2", "stage3", "stage4"],
    )
    return as_("DFineForObjectDetection", "DFine", backbone_config=backbone, **LEVELS)()


def _zoedepth() -> nn.Module:
    backbone = tf.BeitConfig(
        **{**SEEING, "num_hidden_layers": 4},
        image_size=256,
        use_relative_position_bias=True,
        reshape_hidden_states=False,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    return as_(
        "ZoeDepthForDepthEstimation",
        "ZoeDepth",
        backbone_config=backbone,
        neck_hidden_sizes=[48, 96, 192, 192],
        fusion_hidden_size=64,
        bottleneck_features=64,
        num_relative_features=32,
    )()


def _vitmatte() -> nn.Module:
    backbone = tf.VitDetConfig(**SEEING, num_channels=4, image_size=256, out_features=["stage3"])
    return as_(
        "VitMatteForImageMatting",
        "VitMatte",
        backbone_config=backbone,
        hidden_size=192,
        fusion_hidden_sizes=[128, 64, 32, 16],
        convstream_hidden_sizes=[24, 48, 96],
    )()


def _clipseg() -> nn.Module:
    text = {**ENCODER, "hidden_size": 128, "intermediate_size": 256, "eos_token_id": 2}
    seen = {**SEEING, "num_hidden_layers": 4, "image_size": 224, "patch_size": 16}
    return as_(
        "CLIPSegForImageSegmentation",
        "CLIPSeg",
        text_config=text,
        vision_config=seen,
        projection_dim=128,
        reduce_dim=64,
        extract_layers=[1, 2, 3],
    )()


TRACED: dict[str, Network] = {
    "bloom": (of("Bloom", **OLDER, hidden_size=256, use_cache=False), words(), LAST),
    "clipseg": (_clipseg, (*words(16), *image(224)), ("logits",)),
    "d_fine": (_d_fine, image(256), FOUND),
    "dab_detr": (_detector("DabDetr", "stage4", hidden_size=128), image(256), FOUND),
    "deberta_v2": (
        of(
            "DebertaV2",
            **ENCODER,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=32,
        ),
        words(),
        LAST,
    ),
    "donut_swin": (of("DonutSwin", **WINDOWS, image_size=224, window_size=7), image(224), LAST),
    "layoutlmv3": (
        of(
            "LayoutLMv3",
            **{**SEEING, "vocab_size": VOCABULARY, "num_hidden_layers": 2},
            visual_embed=False,
            coordinate_size=32,
            shape_size=32,
        ),
        page(),
        LAST,
    ),
    "mpt": (
        of("Mpt", d_model=256, n_layers=2, n_heads=4, vocab_size=VOCABULARY, use_cache=False),
        words(),
        LAST,
    ),
    "rt_detr": (_rt_detr, image(256), FOUND),
    "rwkv": (
        of("Rwkv", hidden_size=128, num_hidden_layers=2, vocab_size=VOCABULARY, use_cache=False),
        words(32),
        LAST,
    ),
    "switch": (
        as_(
            "SwitchTransformersEncoderModel",
            "SwitchTransformers",
            d_model=256,
            d_ff=512,
            d_kv=64,
            num_layers=2,
            num_heads=4,
            num_experts=4,
            vocab_size=VOCABULARY,
        ),
        words(),
        LAST,
    ),
    "vitdet": (
        of(
            "VitDet",
            **{**SEEING, "num_hidden_layers": 4},
            image_size=256,
            pretrain_image_size=256,
            window_size=4,
            window_block_indices=[0, 2],
            use_relative_position_embeddings=True,
        ),
        image(256),
        LAST,
    ),
    "vitmatte": (_vitmatte, (torch.randn(1, 4, 256, 256),), ("alphas",)),
    "zoedepth": (_zoedepth, image(256), ("predicted_depth",)),
}
"""What the tracing exporter writes: how to build it, what it takes, and which results it gives."""
EXPORTED: dict[str, Network] = {
    "deformable_detr": (
        _detector("DeformableDetr", "stage2", "stage3", "stage4", disable_custom_kernels=True),
        image(256),
        FOUND,
    ),
    "dinov3": (of("DINOv3ViT", **SEEING, image_size=224), image(224), LAST),
    "falcon": (of("Falcon", **DECODER), words(), LAST),
    "gptj": (of("GPTJ", **OLDER, n_embd=256, rotary_dim=32, use_cache=False), words(), LAST),
    "lilt": (of("Lilt", **{**SEEING, "vocab_size": VOCABULARY}), page(), LAST),
    "mamba2": (
        of(
            "Mamba2",
            hidden_size=128,
            num_hidden_layers=2,
            num_heads=8,
            head_dim=32,
            state_size=32,
            vocab_size=VOCABULARY,
            n_groups=1,
            chunk_size=32,
            use_cache=False,
        ),
        words(),
        LAST,
    ),
    "persimmon": (of("Persimmon", **DECODER), words(), LAST),
    "recurrent_gemma": (
        of(
            "RecurrentGemma",
            **{**DECODER, "num_hidden_layers": 3},
            lru_width=256,
            attention_window_size=32,
        ),
        words(32),
        LAST,
    ),
    "stablelm": (of("StableLm", **DECODER, num_key_value_heads=4), words(), LAST),
    "tapas": (of("Tapas", **{**SEEING, "vocab_size": VOCABULARY}), words(), LAST),
}
"""The same of what the newer exporter writes."""


def export(name: str, seed: int) -> onnx.ModelProto:
    """One model in ONNX."""
    torch.manual_seed(seed)
    build, inputs, results = (TRACED | EXPORTED)[name]
    write = partial(traced, opset=OPSET) if name in TRACED else exported
    return write(lambda: Fields(build(), results), inputs)


if __name__ == "__main__":
    write_models(__doc__, [*TRACED, *EXPORTED], export)
