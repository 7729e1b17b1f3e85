"""What the files that export networks by tracing share: the exporter, and the command line."""

from __future__ import annotations

import argparse
import io
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

OPSET = 14


def traced(
    build: Callable[[], nn.Module],
    inputs: tuple[torch.Tensor, ...],
    symbolic: Mapping[str, Mapping[int, str]] | None = None,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """The network that `build` makes, in ONNX; `symbolic` names all inputs, and axes of them."""
    file = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            build().eval(),
            inputs,
            file,
            opset_version=opset,
            dynamo=False,
            input_names=list(symbolic or ()) or None,
            dynamic_axes=symbolic,
        )
    return onnx.load_from_string(file.getvalue())


def exported(
    build: Callable[[], nn.Module], inputs: tuple[torch.Tensor, ...], **options: Any
) -> onnx.ModelProto:
    """The same by the newer exporter, with options of `torch.onnx.export`."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(build().eval(), inputs, dynamo=True, verbose=False, **options)
    proto: onnx.ModelProto = program.model_proto
    for node in proto.graph.node:  # stack traces of the exporting machine
        del node.metadata_props[:]
    return proto


def write_models(
    description: str | None, known: Collection[str], export: Callable[[str, int], onnx.ModelProto]
) -> None:
    """Writes the models that the command line names, by default all; `export` takes a name and a
    seed."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"from: {', '.join(known)}")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in known]:
        parser.error(f"no model to export named {', '.join(unknown)}; see --help")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or known:
        model = export(name, args.seed)
        path = args.out / f"{name}.onnx"
        onnx.save(model, path)
        print(f"{name:16}{len(model.graph.node):7} nodes {path.stat().st_size / 1e6:8.1f} MB")
