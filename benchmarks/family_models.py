"""Exports small models of seventy-nine families of `transformers`, random weights.

    python benchmarks/family_models.py --out family_models                # all of them
    python benchmarks/family_models.py --out family_models bart detr sew
    python benchmarks/compare.py family_models/*.onnx --engines tvm_ext,onnxruntime --rounds 2

Two layers or so of each, by the tracing exporter: what is asked is whether a family's operators
are all read, fused and planned, not how fast a large one is. Nobody tuned tvm_ext for them.
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
from more_models import VOCABULARY, FirstOutput
from torch import nn

Inputs = tuple[torch.Tensor, ...]
Family = tuple[Callable[[], nn.Module], Inputs]

ENCODER: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": VOCABULARY,
}
DECODER: dict[str, Any] = {
    **ENCODER,
    "intermediate_size": 688,
    "use_cache": False,
    "pad_token_id": 0,
}
FEW_KEYS: dict[str, Any] = {**DECODER, "num_key_value_heads": 2}
OLDER: dict[str, Any] = {"n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY}
BOTH: dict[str, Any] = {
    "d_model": 256,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 1024,
    "decoder_ffn_dim": 1024,
    "vocab_size": VOCABULARY,
}
SEEING: dict[str, Any] = {
    "hidden_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 768,
}
IMAGE: dict[str, Any] = {**SEEING, "image_size": 224}
HEARING: dict[str, Any] = {**SEEING, "num_hidden_layers": 2}
FRAMES: dict[str, Any] = {**IMAGE, "num_frames": 4}
UNTRAINED: dict[str, Any] = {
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
}
DETECTOR: dict[str, Any] = {
    **BOTH,
    **UNTRAINED,
    "d_model": 128,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
    "num_queries": 50,
}


def words(count: int = 64) -> Inputs:
    """One sentence."""
    return (torch.randint(1, VOCABULARY, (1, count)),)


def masked(count: int = 64) -> Inputs:
    """One sentence and its mask."""
    return (*words(count), torch.ones(1, count, dtype=torch.long))


def pair(source: int = 32, target: int = 16) -> Inputs:
    """A sentence, its mask, and what has been said of another."""
    return (*masked(source), *words(target))


def image(height: int = 224, width: int = 0) -> Inputs:
    """One picture."""
    return (torch.randn(1, 3, height, width or height),)


def sound(samples: int = 8000) -> Inputs:
    """Half a second."""
    return (torch.randn(1, samples),)


def spectrum(frames: int, bands: int, last: bool = True) -> Inputs:
    """Bands of a sound, as one likes them, its mask, and a few words."""
    shape = (1, frames, bands) if last else (1, bands, frames)
    return (torch.randn(shape), torch.ones(1, frames, dtype=torch.long), *words(8))


def of(family: str, **config: Any) -> Callable[[], nn.Module]:
    """What makes a family's base model."""
    return as_(f"{family}Model", family, **config)


def as_(model: str, family: str, **config: Any) -> Callable[[], nn.Module]:
    """What makes a model of a family."""
    return lambda: getattr(tf, model)(getattr(tf, f"{family}Config")(**config))


def _detector(family: str) -> Callable[[], nn.Module]:
    backbone = {
        "embedding_size": 32,
        "hidden_sizes": [64, 128, 256, 512],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
        "out_features": ["stage4"],
    }
    return lambda: of(family, **DETECTOR, backbone_config=tf.ResNetConfig(**backbone))()


def _depth(neck: list[int]) -> dict[str, Any]:
    return {"neck_hidden_sizes": neck, "fusion_hidden_size": 64}


def _depth_anything() -> nn.Module:
    stages = [f"stage{place}" for place in range(1, 5)]
    backbone = tf.Dinov2Config(
        **{**IMAGE, "num_hidden_layers": 4}, out_features=stages, reshape_hidden_states=False
    )
    config = tf.DepthAnythingConfig(
        backbone_config=backbone, reassemble_hidden_size=192, **_depth([48, 96, 192, 384])
    )
    return tf.DepthAnythingForDepthEstimation(config)


def _vitpose() -> nn.Module:
    backbone = tf.VitPoseBackboneConfig(
        **{**IMAGE, "image_size": [256, 192]}, out_features=["stage3"]
    )
    return tf.VitPoseForPoseEstimation(tf.VitPoseConfig(backbone_config=backbone))


def _codec(part: str) -> nn.Module:
    found: nn.Module = getattr(tf.EncodecModel(tf.EncodecConfig()), part)
    return found


NETWORKS: dict[str, Family] = {
    # texts
    "bigbird": (of("BigBird", **ENCODER, attention_type="original_full"), masked()),
    "convbert": (of("ConvBert", **ENCODER, embedding_size=256), masked()),
    "esm": (
        of("Esm", **ENCODER, pad_token_id=0, mask_token_id=1, position_embedding_type="rotary"),
        masked(),
    ),
    "funnel": (
        of(
            "Funnel",
            vocab_size=VOCABULARY,
            d_model=256,
            n_head=4,
            d_head=64,
            d_inner=1024,
            block_sizes=[2, 2],
        ),
        masked(),
    ),
    "ibert": (of("IBert", **ENCODER), masked()),
    "layoutlm": (of("LayoutLM", **ENCODER), words()),
    "longformer": (of("Longformer", **ENCODER, attention_window=32), masked(128)),
    "mobilebert": (of("MobileBert", vocab_size=VOCABULARY, num_hidden_layers=4), masked()),
    "modernbert": (
        of(
            "ModernBert",
            **{**ENCODER, "num_hidden_layers": 4, "intermediate_size": 512},
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=2,
            cls_token_id=3,
            sep_token_id=4,
            attn_implementation="eager",
        ),
        masked(),
    ),
    "mpnet": (of("MPNet", **ENCODER), masked()),
    "nystromformer": (of("Nystromformer", **ENCODER), masked()),
    "rembert": (of("RemBert", **ENCODER), masked()),
    "roformer": (of("RoFormer", **ENCODER), masked()),
    "squeezebert": (of("SqueezeBert", **ENCODER, embedding_size=256), masked()),
    "xlm": (of("XLM", emb_dim=256, n_layers=2, n_heads=4, vocab_size=VOCABULARY), words()),
    "xlnet": (
        of("XLNet", d_model=256, d_inner=1024, **OLDER),
        words(),
    ),
    "bart": (of("Bart", **BOTH), pair()),
    "marian": (of("Marian", **BOTH, pad_token_id=0), pair()),
    "pegasus": (of("Pegasus", **BOTH), pair()),
    "t5": (
        of("T5", d_model=256, d_kv=64, d_ff=1024, num_layers=2, num_heads=4, vocab_size=VOCABULARY),
        pair(),
    ),
    "gemma": (of("Gemma", **{**DECODER, "num_key_value_heads": 1}, head_dim=64), masked()),
    "gemma3": (
        of(
            "Gemma3Text",
            **{**DECODER, "num_key_value_heads": 1},
            head_dim=64,
            layer_types=["sliding_attention", "full_attention"],
        ),
        masked(),
    ),
    "granite": (of("Granite", **DECODER), masked()),
    "imagegpt": (of("ImageGPT", n_embd=256, use_cache=False, **OLDER), words()),
    "mamba": (
        of("Mamba", hidden_size=128, num_hidden_layers=1, vocab_size=VOCABULARY, use_cache=False),
        words(16),
    ),
    "mistral": (of("Mistral", **FEW_KEYS), masked()),
    "olmo2": (of("Olmo2", **DECODER), masked()),
    "openaigpt": (of("OpenAIGPT", n_embd=256, **OLDER), words()),
    "phi": (of("Phi", **DECODER), masked()),
    "phi3": (of("Phi3", **DECODER), masked()),
    "qwen3": (of("Qwen3", **FEW_KEYS, head_dim=64), masked()),
    "smollm3": (of("SmolLM3", **FEW_KEYS), masked()),
    "starcoder2": (of("Starcoder2", **DECODER), masked()),
    # images
    "beit": (of("Beit", **IMAGE), image()),
    "blip_vision": (as_("BlipVisionModel", "BlipVision", **IMAGE), image()),
    "conditional_detr": (_detector("ConditionalDetr"), image(320)),
    "cvt": (of("Cvt"), image()),
    "data2vec_vision": (of("Data2VecVision", **IMAGE), image()),
    "deit": (of("DeiT", **IMAGE), image()),
    "depth_anything": (_depth_anything, image()),
    "detr": (_detector("Detr"), image(320)),
    "dpt": (
        as_(
            "DPTForDepthEstimation",
            "DPT",
            **{**SEEING, "num_hidden_layers": 4},
            backbone_out_indices=[0, 1, 2, 3],
            **_depth([48, 96, 192, 384]),
        ),
        image(384),
    ),
    "glpn": (as_("GLPNForDepthEstimation", "GLPN", depths=[1, 1, 1, 1]), image()),
    "hiera": (of("Hiera", embed_dim=48, depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8]), image()),
    "ijepa": (of("IJepa", **IMAGE), image()),
    "maskformer_swin": (
        as_("MaskFormerSwinBackbone", "MaskFormerSwin", embed_dim=48, depths=[2, 2, 2, 2]),
        image(),
    ),
    "mobilenet_v2_segments": (
        as_("MobileNetV2ForSemanticSegmentation", "MobileNetV2"),
        image(),
    ),
    "owlvit": (as_("OwlViTVisionModel", "OwlViTVision", **IMAGE), image()),
    "pix2struct": (
        as_(
            "Pix2StructVisionModel",
            "Pix2StructVision",
            hidden_size=192,
            d_ff=512,
            d_kv=64,
            num_hidden_layers=2,
            num_attention_heads=3,
        ),
        (torch.rand(1, 128, 770),),
    ),
    "pvt_v2": (of("PvtV2"), image()),
    "regnet_y": (
        of(
            "RegNet",
            embedding_size=32,
            hidden_sizes=[48, 96, 192, 384],
            depths=[1, 2, 2, 1],
            groups_width=24,
            layer_type="y",
        ),
        image(),
    ),
    "sam_vision": (
        as_(
            "SamVisionModel",
            "SamVision",
            hidden_size=192,
            num_hidden_layers=4,
            num_attention_heads=3,
            mlp_dim=768,
            image_size=512,
            global_attn_indexes=[3],
        ),
        image(512),
    ),
    "siglip": (as_("SiglipVisionModel", "SiglipVision", **IMAGE), image()),
    "swiftformer": (of("SwiftFormer"), image()),
    "swin": (of("Swin", depths=[2, 2, 2, 2], embed_dim=48), image()),
    "swin2sr": (
        of("Swin2SR", image_size=64, embed_dim=60, depths=[2, 2], num_heads=[6, 6]),
        image(64),
    ),
    "textnet": (of("TextNet"), image(320)),
    "timesformer": (of("Timesformer", **FRAMES), (torch.randn(1, 4, 3, 224, 224),)),
    "videomae": (of("VideoMAE", **FRAMES), (torch.randn(1, 4, 3, 224, 224),)),
    "vit_msn": (of("ViTMSN", **IMAGE), image()),
    "vitpose": (_vitpose, image(256, 192)),
    "vivit": (of("Vivit", **FRAMES), (torch.randn(1, 4, 3, 224, 224),)),
    "yolos_wide": (of("Yolos", **{**IMAGE, "image_size": [224, 320]}), image(224, 320)),
    # sounds
    "ast": (of("AST", **HEARING, max_length=256), (torch.randn(1, 256, 128),)),
    "clap_audio": (
        as_(
            "ClapAudioModel",
            "ClapAudio",
            patch_embeds_hidden_size=48,
            hidden_size=384,
            depths=[1, 1, 1, 1],
            num_attention_heads=[2, 4, 8, 16],
            enable_fusion=False,
        ),
        (torch.randn(1, 1, 1001, 64),),
    ),
    "conformer": (of("Wav2Vec2Conformer", **HEARING), sound()),
    "dac": (
        lambda: tf.DacModel(tf.DacConfig(decoder_hidden_size=256)).decoder,
        (torch.randn(1, 1024, 20),),
    ),
    "encodec_decoder": (lambda: _codec("decoder"), (torch.randn(1, 128, 30),)),
    "encodec_encoder": (lambda: _codec("encoder"), (torch.randn(1, 1, 4800),)),
    "hifigan": (
        as_("SpeechT5HifiGan", "SpeechT5HifiGan", upsample_initial_channel=128),
        (torch.randn(40, 80),),
    ),
    "hubert": (of("Hubert", **HEARING), sound()),
    "sew": (of("SEW", **HEARING), sound()),
    "speech2text": (of("Speech2Text", **BOTH, max_source_positions=400), spectrum(200, 80)),
    "unispeech": (of("UniSpeechSat", **HEARING), sound()),
    "w2v_bert": (of("Wav2Vec2Bert", **HEARING), (torch.randn(1, 100, 160),)),
    "wavlm": (of("WavLM", **HEARING), sound()),
    "whisper": (
        of("Whisper", **BOTH, max_source_positions=200, num_mel_bins=80, pad_token_id=0),
        spectrum(400, 80, last=False),
    ),
    # several at once, and others
    "clip_text": (as_("CLIPTextModel", "CLIPText", **ENCODER), words(77)),
    "perceiver": (
        of(
            "Perceiver",
            num_latents=64,
            d_latents=256,
            d_model=128,
            num_blocks=1,
            num_self_attends_per_block=2,
        ),
        (torch.randn(1, 200, 128),),
    ),
}
"""How to build each model, and what it takes."""


def export(name: str, seed: int) -> onnx.ModelProto:
    """One model in ONNX."""
    torch.manual_seed(seed)
    build, inputs = NETWORKS[name]
    return traced(lambda: FirstOutput(build()), inputs)


if __name__ == "__main__":
    write_models(__doc__, NETWORKS, export)
