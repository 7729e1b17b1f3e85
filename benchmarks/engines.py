"""Inference engines: from an ONNX file to a function that runs it on CPU threads, in fp32 but for
those that say otherwise."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Inputs = Mapping[str, np.ndarray]


@dataclass
class Loaded:
    """A model in an engine.

    run    one inference on the inputs it was loaded with; outputs in model order
    facts  what the engine knows of its own code
    save   writes what it compiled as a file to load later, if it can
    """

    run: Callable[[], list[np.ndarray]]
    facts: dict[str, Any] = field(default_factory=dict)
    save: Callable[[Path], object] | None = None


Load = Callable[[str, Inputs, int], Loaded]


def _load_onnxruntime(optimise: bool) -> Load:
    def load(path: str, inputs: Inputs, threads: int) -> Loaded:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = (
            level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
        )
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return Loaded(lambda: session.run(None, dict(inputs)))

    return load


def _load_openvino(precision: str) -> Load:
    def load(path: str, inputs: Inputs, threads: int) -> Loaded:
        import openvino

        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": precision,  # by default bf16, where the CPU has it
        }
        request = openvino.compile_model(path, "CPU", settings).create_infer_request()

        def run() -> list[np.ndarray]:
            request.infer(dict(inputs), share_inputs=True, share_outputs=True)
            return [output.data for output in request.output_tensors]

        return Loaded(run)

    return load


def _load_torch(path: str, inputs: Inputs, threads: int) -> Loaded:
    from torch_engine import load

    return Loaded(load(path, inputs, threads))


def _load_torch_chain(path: str, inputs: Inputs, threads: int) -> Loaded:
    from chains_torch import load

    return Loaded(load(path, inputs, threads))


def _load_without(*passes: str) -> Load:
    def load(path: str, inputs: Inputs, threads: int) -> Loaded:
        import tvm

        with tvm.transform.PassContext(disabled_pass=list(passes)):
            return _load_tvm_ext(path, inputs, threads)

    return load


def _load_halves(path: str, inputs: Inputs, threads: int) -> Loaded:
    return _load_tvm_ext(path, inputs, threads, precision="bfloat16")


def _load_tvm_ext(path: str, inputs: Inputs, threads: int, **options: Any) -> Loaded:
    import tvm_ext

    if path.endswith(".so"):  # what a deployment does: nothing else may be imported
        loaded = tvm_ext.load(path, num_threads=threads)
        return Loaded(lambda: list(loaded(dict(inputs))))
    shapes = {name: tuple(value.shape) for name, value in inputs.items()}
    compiled = tvm_ext.compile(path, shapes=shapes, num_threads=threads, **options)
    return Loaded(
        lambda: list(compiled(dict(inputs))), _kernel_facts(compiled.manifest), compiled.save
    )


def _kernel_facts(manifest: Any) -> dict[str, Any]:
    """How many kernels there are, how many fell back, and the time of the model's roofline: the sum
    over its kernels of arithmetic at peak or traffic at full bandwidth, whichever takes longer."""
    import msgspec

    from tvm_ext.hardware import resolve
    from tvm_ext.hardware.roofline import roof

    hardware = msgspec.structs.replace(resolve("cpu"), cores=manifest.num_threads)
    groups = manifest.groups
    return {
        "roof_us": sum(
            group.calls * roof(group.flops, group.io_bytes, hardware).latency_us for group in groups
        ),
        "kernels": len(groups),
        "fallbacks": sum(group.source in ("loose", "none") for group in groups),
    }


ACROSS = (
    "FuseAttention",
    "SplitReductions",
    "Stitch",
    "AbsorbViews",
    "FuseTiles",
    "FuseMultiOutput",
)
FORMS = {"fuseops": ACROSS, "unfused": (*ACROSS, "Fuse")}
"""Passes that are left out, by the form that a model then has."""
LOADERS: dict[str, Load] = {
    "tvm_ext": _load_tvm_ext,
    "tvm_ext-bfloat16": _load_halves,
    "tvm_ext-fuseops": _load_without(*FORMS["fuseops"]),
    "tvm_ext-unfused": _load_without(*FORMS["unfused"]),
    "onnxruntime": _load_onnxruntime(optimise=True),
    "onnxruntime-noopt": _load_onnxruntime(optimise=False),
    "openvino": _load_openvino("f32"),
    "openvino-bfloat16": _load_openvino("bf16"),
    "torch": _load_torch,
    "torch-chain": _load_torch_chain,
}
_PACKAGES = {"torch": ("torch", "onnx2torch")}


def installed(engine: str) -> bool:
    """Whether the engine's packages can be imported here."""
    packages = _PACKAGES.get(engine, (engine.partition("-")[0],))
    return all(importlib.util.find_spec(package) is not None for package in packages)
