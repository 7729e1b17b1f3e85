"""torch.compile as an engine: an ONNX file by way of onnx2torch, weights frozen, fp32."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import ModuleType

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch._inductor import config


def load(
    path: str, inputs: Mapping[str, np.ndarray], threads: int
) -> Callable[[], list[np.ndarray]]:
    """The model compiled for these inputs; it has run once, which is when torch compiles."""
    torch.set_num_threads(threads)
    call = compiled(path, inputs)

    def run() -> list[np.ndarray]:
        return [output.numpy() for output in call()]

    run()
    return run


def compiled(
    path: str, inputs: Mapping[str, np.ndarray], device: str = "cpu"
) -> Callable[[], list[torch.Tensor]]:
    """A call of the model with inputs that lie on the device, where its outputs stay.

    Freezing lets inductor fold and pack weights as the other engines do; it is off by default. On a
    GPU launches are captured as a graph.
    """
    config.freezing = True
    proto = _readable(onnx.load(path))
    weights = {tensor.name for tensor in proto.graph.initializer}
    names = [value.name for value in proto.graph.input if value.name not in weights]
    converted = _with_fixed_shapes(_onnx2torch().convert(proto).eval()).to(device)
    module = torch.compile(converted, mode=None if device == "cpu" else "reduce-overhead")
    tensors = [torch.from_numpy(np.array(inputs[name])).to(device) for name in names]

    def call() -> list[torch.Tensor]:
        with torch.inference_mode():
            outputs = module(*tensors)
        return list(outputs) if isinstance(outputs, list | tuple) else [outputs]

    return call


def _readable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model in the forms of opset 17, the newest onnx2torch reads: axes of a reduction as
    attributes, equal splits unsaid; no `allowzero` where a shape has no zeros; no dropout."""
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        second = weights.get(node.input[1]) if len(node.input) > 1 else None
        values = [] if second is None else numpy_helper.to_array(second).reshape(-1)
        if node.op_type in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd") and len(values):
            node.attribute.append(onnx.helper.make_attribute("axes", values.tolist()))
            del node.input[1:]
        nonzero = node.op_type == "Reshape" and len(values) and all(values)
        unsaid = "allowzero" if nonzero else "num_outputs" if node.op_type == "Split" else None
        for attribute in [entry for entry in node.attribute if entry.name == unsaid]:
            node.attribute.remove(attribute)
    for node in [node for node in proto.graph.node if node.op_type == "Dropout"]:
        for reader in proto.graph.node:
            for place, name in enumerate(reader.input):
                if name == node.output[0]:
                    reader.input[place] = node.input[0]
        proto.graph.node.remove(node)
    for entry in proto.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = min(entry.version, 17)
    return proto


def _onnx2torch() -> ModuleType:
    """onnx2torch, with a blank torchvision if that is not installed.

    It imports torchvision for non-maximum suppression and RoI alignment alone, and torchvision
    comes built for one torch only, with CUDA. A model that needs it fails when it runs.
    """
    if importlib.util.find_spec("torchvision") is not None:
        return importlib.import_module("onnx2torch")
    blank, ops = ModuleType("torchvision"), ModuleType("torchvision.ops")
    blank.ops = ops  # type: ignore[attr-defined]
    ops.roi_align = None  # type: ignore[attr-defined]
    sys.modules |= {"torchvision": blank, "torchvision.ops": ops}
    try:
        return importlib.import_module("onnx2torch")
    finally:  # others ask whether torchvision is there, and would take the blank one for it
        del sys.modules["torchvision"], sys.modules["torchvision.ops"]


def _with_fixed_shapes(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Reshapes to constant shapes, and reads at a constant index, as plain calls. onnx2torch keeps
    both numbers as tensors; torch.compile then cuts its graph there, and runs the pieces slowly or
    fails."""
    for node in list(module.graph.nodes):
        called = module.get_submodule(node.target) if node.op == "call_module" else None
        kind = type(called).__name__
        if kind not in ("OnnxReshape", "OnnxGather") or node.args[1].op != "get_attr":
            continue
        constant = attrgetter(node.args[1].target)(module)
        if kind == "OnnxReshape":
            replacement, arguments = _reshape, (constant.tolist(),)
        elif constant.dim() == 0:
            replacement, arguments = torch.select, (called._axis, int(constant))
        else:
            continue
        with module.graph.inserting_before(node):
            plain = module.graph.call_function(replacement, (node.args[0], *arguments))
        node.replace_all_uses_with(plain)
        module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _reshape(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """ONNX's Reshape: a 0 keeps the extent of the input."""
    return tensor.reshape([tensor.shape[i] if n == 0 else n for i, n in enumerate(shape)])
