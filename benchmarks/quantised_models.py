"""What ONNX Runtime's own tools make of exported models: quantised, and in 16 bits.

    python benchmarks/models.py --out bench_models --missing
    python benchmarks/quantised_models.py bench_models --out quantised_models          # all of them
    python benchmarks/quantised_models.py bench_models --out quantised_models resnet18_qdq
    python benchmarks/compare.py quantised_models/*.onnx --rounds 3

A name is that of the exported model and of the recipe, with `_` between. Scales of activations are
calibrated on random inputs, as are the inputs that engines are compared on.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16
from peers import random_inputs

CALIBRATION_RUNS = 4

Recipe = Callable[[Path, Path], None]
"""Reads the exported model, writes what becomes of it."""


class RandomInputs(CalibrationDataReader):  # type: ignore[misc]
    """The inputs of a few runs, drawn as `compare.py` draws its own."""

    def __init__(self, path: Path) -> None:
        model = onnx.load(path)
        self.runs = iter([random_inputs(model, seed=seed) for seed in range(CALIBRATION_RUNS)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.runs, None)


def _static(**options: Any) -> Recipe:
    options = {"activation_type": QuantType.QInt8, "per_channel": True} | options

    def recipe(source: Path, target: Path) -> None:
        quantize_static(
            source, target, RandomInputs(source), weight_type=QuantType.QInt8, **options
        )

    return recipe


def _dynamic(weight_type: QuantType) -> Recipe:
    def recipe(source: Path, target: Path) -> None:
        quantize_dynamic(source, target, weight_type=weight_type)

    return recipe


def _float16(source: Path, target: Path) -> None:
    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


UNSIGNED = {"activation_type": QuantType.QUInt8}

RECIPES: dict[str, Recipe] = {
    "qdq": _static(),
    "qdq_unsigned": _static(**UNSIGNED),
    "qdq_tensors": _static(**UNSIGNED, per_channel=False),
    "qlinear": _static(quant_format=QuantFormat.QOperator),
    "dynamic": _dynamic(QuantType.QInt8),
    "dynamic_unsigned": _dynamic(QuantType.QUInt8),
    "float16": _float16,
}

MODELS: dict[str, tuple[str, ...]] = {
    "resnet18": ("qdq", "qlinear", "dynamic", "dynamic_unsigned", "qdq_unsigned", "float16"),
    "resnet50": ("qdq", "qdq_unsigned"),
    "mobilenet_v2": ("qdq", "qdq_unsigned", "dynamic", "float16"),
    "bert_base_128": ("qdq", "qdq_unsigned", "dynamic", "dynamic_unsigned", "float16"),
    "vit_b16": ("qdq", "qdq_unsigned", "dynamic"),
    "gpt2_64": ("dynamic",),
    "convnext_tiny": ("qdq", "dynamic"),
    "unet": ("qdq_tensors",),
    "segformer_b0": ("qdq_tensors",),
    "light_squeezenet": ("qdq_tensors",),
    "light_shufflenet": ("qdq_tensors",),
}
KNOWN = {
    f"{model}_{recipe}": (model, RECIPES[recipe])
    for model, recipes in MODELS.items()
    for recipe in recipes
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, help="folder of the exported models")
    parser.add_argument("names", nargs="*", metavar="name", help=f"from: {', '.join(KNOWN)}")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in KNOWN]:
        parser.error(f"no model to make named {', '.join(unknown)}; see --help")
    logging.disable(logging.WARNING)  # the quantiser's advice to do what is done here
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or KNOWN:
        model, recipe = KNOWN[name]
        target = args.out / f"{name}.onnx"
        with tempfile.TemporaryDirectory() as folder:
            prepared = Path(folder) / "prepared.onnx"
            quant_pre_process(args.models / f"{model}.onnx", prepared, skip_symbolic_shape=True)
            recipe(prepared, target)
        print(f"{name:28}{target.stat().st_size / 1e6:8.1f} MB")


if __name__ == "__main__":
    main()
