"""Exports models as they are served: a word at a time behind a cache, in batches, long inputs.

    python benchmarks/served_models.py --out served_models             # all of them
    python benchmarks/served_models.py --out served_models gpt2_step
    python benchmarks/compare.py served_models/*.onnx --rounds 3

A step of a decoder reads the keys and values of the words before and returns them with one more;
its products have a single row. Of `_length` there may be any number of words before. Networks are
shorter than published, or small; weights are random.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import onnx
import torch
import transformers as tf
from export_command import traced, write_models
from more_models import VOCABULARY, FirstOutput
from torch import nn

from tvm_ext.frontend.randomise import randomise


class Step(nn.Module):
    """One word of a decoder: its logits, then the keys and values of all words so far."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, word: torch.Tensor, place: torch.Tensor, *kept: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """`kept` are keys and values by turns, layer by layer, of the words before `place`."""
        cache = tf.DynamicCache()
        for layer, (key, value) in enumerate(zip(kept[::2], kept[1::2], strict=True)):
            cache.update(key, value, layer)
        found = self.model(input_ids=word, past_key_values=cache, position_ids=place)
        layers = found.past_key_values.layers
        return (
            found.logits,
            *(tensor for layer in layers for tensor in (layer.keys, layer.values)),
        )


def step(layers: int, heads: int, size: int, before: int) -> tuple[torch.Tensor, ...]:
    """A word, its place, and keys and values of those before."""
    kept = (torch.randn(1, heads, before, size) for _ in range(2 * layers))
    return torch.randint(1, VOCABULARY, (1, 1)), torch.full((1, 1), before), *kept


def kept_open(inputs: tuple[torch.Tensor, ...]) -> dict[str, dict[int, str]]:
    """The inputs of a step, of which the words before may be any number."""
    kept = {f"kept{place}": {2: "before"} for place in range(len(inputs) - 2)}
    return {"word": {}, "place": {}} | kept


def words(batch: int, count: int) -> tuple[torch.Tensor, ...]:
    """Sentences of one length."""
    return (torch.randint(1, VOCABULARY, (batch, count)),)


def _gpt2() -> nn.Module:
    config = tf.GPT2Config(n_layer=4, vocab_size=VOCABULARY, attn_implementation="eager")
    return Step(tf.GPT2LMHeadModel(config))


def _llama(hidden: int, inner: int, layers: int) -> nn.Module:
    config = tf.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 256,
        vocab_size=VOCABULARY,
        attn_implementation="eager",
    )
    return tf.LlamaForCausalLM(config)


def _llama_step() -> nn.Module:
    return Step(_llama(1024, 2816, 4))


def _llama_prompt() -> nn.Module:
    """As wide as Llama 3.2's smallest, which has 16 layers."""
    return FirstOutput(_llama(2048, 8192, 2))


def _bert(layers: int) -> nn.Module:
    config = tf.BertConfig(
        num_hidden_layers=layers, vocab_size=VOCABULARY, attn_implementation="eager"
    )
    return FirstOutput(tf.BertModel(config))


def _resnet() -> nn.Module:
    return FirstOutput(tf.ResNetModel(tf.ResNetConfig(depths=[2, 2, 2, 2])))


def _mobilenet() -> nn.Module:
    return FirstOutput(tf.MobileNetV2Model(tf.MobileNetV2Config()))


class Speech(nn.Module):
    """Residual blocks of dilated convolutions over frames (Bai et al., 2018), for a sequence."""

    def __init__(self, channels: int = 256) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, channels, 1)
        self.layers = nn.ModuleList(
            nn.Conv1d(channels, channels, 3, padding=2**i, dilation=2**i) for i in range(6)
        )
        self.last = nn.Conv1d(channels, 40, 1)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        x = self.first(frames)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.last(x)


class Volumes(nn.Module):
    """A small 3-D U-Net (Çiçek et al., 2016) over scans."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def block(inner: int, outer: int) -> nn.Module:
            layers = [nn.Conv3d(inner, outer, 3, padding=1), nn.BatchNorm3d(outer), nn.ReLU()]
            return nn.Sequential(*layers, nn.Conv3d(outer, outer, 3, padding=1), nn.ReLU())

        self.down = nn.ModuleList([block(1, width), block(width, 2 * width)])
        self.middle = block(2 * width, 4 * width)
        self.up = nn.ModuleList(
            nn.ConvTranspose3d(2 * inner, inner, 2, stride=2) for inner in (2 * width, width)
        )
        self.join = nn.ModuleList(block(2 * inner, inner) for inner in (2 * width, width))
        self.last = nn.Conv3d(width, 3, 1)

    def forward(self, scan: torch.Tensor) -> torch.Tensor:
        x, kept = scan, []
        for level in self.down:
            x = level(x)
            kept.append(x)
            x = nn.functional.max_pool3d(x, 2)
        x = self.middle(x)
        for up, join, beside in zip(self.up, self.join, reversed(kept), strict=True):
            x = join(torch.cat([up(x), beside], 1))
        return self.last(x)


def _scores() -> nn.Module:
    """Of rows of a table: a multi-layer perceptron."""
    sizes = (256, 512, 512, 256)
    layers: list[nn.Module] = []
    for inner, outer in pairwise(sizes):
        layers += [nn.Linear(inner, outer), nn.BatchNorm1d(outer), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 1), nn.Sigmoid())


Build = Callable[[], nn.Module]
NETWORKS: dict[str, tuple[Build, tuple[torch.Tensor, ...]]] = {
    "gpt2_step": (_gpt2, step(4, 12, 64, 255)),
    "llama_prompt": (_llama_prompt, words(1, 128)),
    "llama_step": (_llama_step, step(4, 4, 64, 511)),
    "bert_512": (lambda: _bert(4), words(1, 512)),
    "bert_batch": (lambda: _bert(4), words(8, 64)),
    "resnet18_batch": (_resnet, (torch.randn(8, 3, 224, 224),)),
    "mobilenet_batch": (_mobilenet, (torch.randn(8, 3, 224, 224),)),
    "gpt2_step_length": (_gpt2, step(4, 12, 64, 255)),
    "llama_step_length": (_llama_step, step(4, 4, 64, 511)),
    "speech": (Speech, (torch.randn(1, 80, 400),)),
    "volumes": (Volumes, (torch.randn(1, 1, 32, 64, 64),)),
    "scores": (_scores, (torch.randn(512, 256),)),
}
"""How to build each model, and what it takes."""
NORMED = frozenset({"resnet18_batch", "mobilenet_batch", "volumes", "scores"})
"""Models of batch norms, whose first weights would let activations vanish."""


def export(name: str, seed: int) -> onnx.ModelProto:
    """One model in ONNX."""
    torch.manual_seed(seed)
    build, inputs = NETWORKS[name]
    proto = traced(build, inputs, kept_open(inputs) if name.endswith("_length") else None)
    return randomise(proto, seed=seed) if name in NORMED else proto


if __name__ == "__main__":
    write_models(__doc__, NETWORKS, export)
