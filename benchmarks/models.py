"""Exports the benchmark models to ONNX, with random weights, without downloading anything.

    python benchmarks/models.py --out bench_models                     # all of them
    python benchmarks/models.py --out bench_models resnet18 --dynamic  # resnet18_dynamic.onnx
    python benchmarks/models.py --out bench_models bert_base_128 --dynamic length
    python benchmarks/models.py --out bench_models bert_base_128 --dynamic both
    python benchmarks/models.py --out bench_models --missing           # those not there yet

Each model is checked with ONNX Runtime: outputs finite, of a sane scale, and driven by the input.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import math
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import onnx
import onnxruntime
import torch
import transformers as tf
from export_command import exported
from peers import random_inputs
from torch import nn
from transformers.pytorch_utils import Conv1D

OPSET = 18  # the oldest that torch's current exporter writes without converting down
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
STD_RANGE = (1e-3, 1e3)  # of every floating-point output
# How far two inputs' outputs must differ, in units of their std: a thousand roundings. Averages of
# noise differ little (ShuffleNet 9e-3), dead layers not at all.
MIN_RESPONSE = 1e-3
MAX_PROBABILITY = 0.99  # a softmax beyond this says nothing about the other classes
MAX_DENORMALS = 1e-4  # share of the weights; light_densenet121 ships four, of dead channels


@dataclass(frozen=True)
class Network:
    """How to build one model, the inputs it takes (without the batch axis) and its outputs."""

    build: Callable[[], nn.Module]
    inputs: dict[str, tuple[int, ...]]
    outputs: tuple[str, ...] = ("logits",)


def _resnet(layer_type: str, widths: list[int], depths: list[int]) -> nn.Module:
    config = tf.ResNetConfig(
        hidden_sizes=widths, depths=depths, layer_type=layer_type, num_labels=1000
    )
    return tf.ResNetForImageClassification(config)


class UNet(nn.Module):
    """Ronneberger et al. 2015 at half its width and with three of its four levels, with batch norms
    and padding: transposed convolutions on the way up, each beside what was kept on the way down.
    """

    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        ups = list(zip(widths[1:], widths, strict=False))[::-1]
        self.down = nn.ModuleList(map(self._block, [3, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, stride=2) for i, o in ups)
        self.join = nn.ModuleList(self._block(i, o) for i, o in ups)
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        def layer(inputs: int) -> list[nn.Module]:
            conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            conv.gain = math.sqrt(2.0)
            return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]

        return nn.Sequential(*layer(inputs), *layer(outputs))

    def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        x, kept = pixel_values, []
        for block in self.down:
            x = block(x if not kept else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([up(x), skip], dim=1))
        return {"logits": self.head(x)}


DYNAMIC = {
    "batch": {0: "batch"},
    "length": {1: "length"},
    "both": {0: "batch", 1: "length"},
}
"""Axes that may be symbolic, and their names."""
IMAGE: dict[str, tuple[int, ...]] = {"pixel_values": (3, 224, 224)}
NETWORKS = {
    "mobilenet_v2": Network(
        lambda: tf.MobileNetV2ForImageClassification(tf.MobileNetV2Config(num_labels=1000)), IMAGE
    ),
    "resnet18": Network(lambda: _resnet("basic", [64, 128, 256, 512], [2, 2, 2, 2]), IMAGE),
    "resnet50": Network(lambda: _resnet("bottleneck", [256, 512, 1024, 2048], [3, 4, 6, 3]), IMAGE),
    "bert_base_128": Network(
        lambda: tf.BertModel(tf.BertConfig(attn_implementation="eager")),
        {"input_ids": (128,), "attention_mask": (128,), "token_type_ids": (128,)},
        ("last_hidden_state", "pooler_output"),
    ),
    "vit_b16": Network(
        lambda: tf.ViTForImageClassification(
            tf.ViTConfig(num_labels=1000, attn_implementation="eager")
        ),
        IMAGE,
    ),
    "convnext_tiny": Network(
        lambda: tf.ConvNextForImageClassification(tf.ConvNextConfig(num_labels=1000)), IMAGE
    ),
    "segformer_b0": Network(
        lambda: tf.SegformerForSemanticSegmentation(tf.SegformerConfig(num_labels=150)), IMAGE
    ),
    "unet": Network(UNet, IMAGE),
    "gpt2_64": Network(
        lambda: tf.GPT2LMHeadModel(tf.GPT2Config(use_cache=False, attn_implementation="eager")),
        {"input_ids": (64,), "attention_mask": (64,)},
    ),
}


def initialise(model: nn.Module, seed: int) -> None:
    """Sets every parameter and buffer of `model` so that the signal keeps its scale through depth.

    A convolution followed by a rectifier gets variance 2/fan_in (He et al. 2015, section 2.2), one
    that ends a residual branch 1/2/fan_in, every other matrix 1/fan_in. Batch-norm statistics,
    layer-norm weights and biases are perturbed around their neutral values: left neutral they would
    hide errors in whatever folds or fuses them.
    """
    rng = torch.Generator().manual_seed(seed)

    def normal(tensor: torch.Tensor, std: float, mean: float = 0.0) -> None:
        tensor.copy_(mean + std * torch.randn(tensor.shape, generator=rng))

    with torch.no_grad():
        for module in model.modules():
            # A convolution's gain depends on the activation its parent applies after it.
            conv = getattr(module, "convolution", None)
            if conv is not None:
                rectified = not isinstance(getattr(module, "activation", None), nn.Identity | None)
                conv.gain = math.sqrt(2.0 if rectified else 0.5)
            own = dict(module.named_parameters(recurse=False))
            weight, bias = own.pop("weight", None), own.pop("bias", None)
            if isinstance(module, nn.BatchNorm2d):
                normal(module.running_mean, 0.1)
                module.running_var.copy_(0.5 + torch.rand(module.num_features, generator=rng))
            if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
                normal(weight, 0.1, mean=1.0)
            elif isinstance(module, nn.Conv2d):
                normal(weight, getattr(module, "gain", 1.0) / math.sqrt(weight[0].numel()))
            elif isinstance(module, nn.ConvTranspose2d):
                seen = weight.shape[0] * weight[0, 0].numel() / math.prod(module.stride)
                normal(weight, 1 / math.sqrt(seen))
            elif isinstance(module, nn.Linear | nn.Embedding):
                normal(weight, 1 / math.sqrt(weight.shape[1]))
            elif isinstance(module, Conv1D):
                normal(weight, 1 / math.sqrt(weight.shape[0]))
            if bias is not None:
                normal(bias, 0.1)
            for name, parameter in own.items():
                if name.startswith("layer_scale"):  # 1e-6 by default: the branch would vanish
                    normal(parameter, 0.05, mean=0.5)
                else:  # class token, position embeddings
                    normal(parameter, 0.5)


class _Positional(nn.Module):
    """Presents a transformers model as a function of positional tensors returning a tuple."""

    def __init__(self, model: nn.Module, network: Network) -> None:
        super().__init__()
        self.model = model
        self.network = network

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fields = self.model(**dict(zip(self.network.inputs, tensors, strict=True)))
        return tuple(fields[name] for name in self.network.outputs)


def export(name: str, *, dynamic: str, seed: int) -> onnx.ModelProto:
    """One of NETWORKS as ONNX: of batch 1 and the length it is known by, but for what is `dynamic`,
    the axes of inputs in `DYNAMIC`."""
    network = NETWORKS[name]
    model = network.build().eval()
    initialise(model, seed)
    # torch.export would take an example of 1 for a constant
    batch = 2 if dynamic in ("batch", "both") else 1
    examples = tuple(
        torch.ones(batch, *shape, dtype=torch.float32 if network.inputs is IMAGE else torch.int64)
        for shape in network.inputs.values()
    )
    named = {axis: torch.export.Dim(name) for axis, name in DYNAMIC.get(dynamic, {}).items()}
    axes = tuple(named for _ in examples)
    return exported(
        lambda: _Positional(model, network),
        examples,
        input_names=list(network.inputs),
        output_names=list(network.outputs),
        opset_version=OPSET,
        dynamic_shapes=(axes,) if dynamic else None,
    )


def randomised_light(name: str, seed: int) -> onnx.ModelProto:
    """A model shipped in the onnx wheel, its constant weights replaced by random ones."""
    from tvm_ext.frontend.randomise import randomise

    return randomise(onnx.load(LIGHT / f"{name}.onnx"), seed=seed)


def check(path: Path, model: onnx.ModelProto) -> tuple[list[float], float, list[str]]:
    """Runs the model at batch 1 on two inputs; returns output stds, the response and what is wrong.

    The response is std(y1 - y2) / std(y1), the least over the outputs. A softmax's output is looked
    at through its logarithm, which has the std of the logits.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    runs = [session.run(None, random_inputs(model, seed=seed)) for seed in (0, 1)]
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    problems = []
    for index, output in enumerate(model.graph.output):
        if makers[output.name] == "Softmax":
            if max(run[index].max() for run in runs) > MAX_PROBABILITY:
                problems.append("softmax saturated")
            with np.errstate(divide="ignore"):
                for run in runs:
                    run[index] = np.log(run[index])
    if not all(np.isfinite(y).all() for run in runs for y in run):
        return [], 0.0, [*problems, "outputs not finite"]
    stds = [float(y.std()) for y in runs[0]]
    response = min(
        float((y1 - y2).std()) / std if std else 0.0
        for y1, y2, std in zip(*runs, stds, strict=True)
    )
    if not all(STD_RANGE[0] <= std <= STD_RANGE[1] for std in stds):
        problems.append(f"output std outside {STD_RANGE[0]:g}..{STD_RANGE[1]:g}")
    if response < MIN_RESPONSE:
        problems.append(f"outputs hardly depend on the input ({response:.1e} of their std)")
    if (share := _denormal_share(model)) > MAX_DENORMALS:
        problems.append(f"{share:.1e} of the weights are denormal")
    return stds, response, problems


def _denormal_share(model: onnx.ModelProto) -> float:
    denormals = total = 0
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            magnitude = np.abs(onnx.numpy_helper.to_array(tensor))
            denormals += int(((magnitude > 0) & (magnitude < np.finfo(np.float32).tiny)).sum())
            total += magnitude.size
    return denormals / max(1, total)


def main() -> int:
    light = sorted(path.stem for path in LIGHT.glob("light_*.onnx"))
    known = [*NETWORKS, *light]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"from: {', '.join(known)}")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument(
        "--dynamic",
        nargs="?",
        const="batch",
        default="",
        choices=list(DYNAMIC),
        help="symbolic batch, or length of texts, or both; not for light_*",
    )
    parser.add_argument("--missing", action="store_true", help="leave files that exist alone")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    texts = [name for name, network in NETWORKS.items() if network.inputs is not IMAGE]
    known = {"": known, "batch": list(NETWORKS)}.get(args.dynamic, texts)
    names = args.names or known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no model to export named {', '.join(unknown)}; see --help")
    if not set(names) <= NETWORKS.keys() and importlib.util.find_spec("tvm_ext") is None:
        parser.error("light_* models need tvm_ext: install it here, or set PYTHONPATH=.")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
    args.out.mkdir(parents=True, exist_ok=True)

    suffix = {"": "", "batch": "_dynamic"}.get(args.dynamic, f"_{args.dynamic}")
    files = {name: args.out / f"{name}{suffix}.onnx" for name in names}
    if args.missing:
        files = {name: path for name, path in files.items() if not path.exists()}
    if not files:
        return 0
    bad = 0
    print(f"{'name':26}{'nodes':>7}{'opset':>7}{'MB':>8}{'response':>10}  output std")
    for name, path in files.items():
        if name in NETWORKS:
            model = export(name, dynamic=args.dynamic, seed=args.seed)
        else:
            model = randomised_light(name, args.seed)
        # whole or not at all: a file cut short would count as made
        draft = path.with_suffix(".part")
        onnx.save(model, draft)
        draft.replace(path)
        stds, response, problems = check(path, model)
        bad += bool(problems)
        print(
            f"{path.stem:26}{len(model.graph.node):7}{model.opset_import[0].version:7}"
            f"{path.stat().st_size / 1e6:8.1f}{response:10.2f}  "
            + " ".join(f"{std:.3g}" for std in stds)
            + (f"  BAD: {'; '.join(problems)}" if problems else ""),
            flush=True,
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
