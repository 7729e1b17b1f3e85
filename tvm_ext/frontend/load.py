"""Reading an ONNX file into a checked `ModelProto`; one clear line for every way it can fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tvm_ext.arguments import is_path
from tvm_ext.errors import ModelError
from tvm_ext.frontend.node_order import in_order
from tvm_ext.frontend.weights import check_data, detach_weights, tensors

STANDARD = ("", "ai.onnx")
"""Names of ONNX's own operator domain."""

EXPORT = "export it again, e.g. with torch.onnx.export"

# What people pass by mistake, by the first bytes of the file.
FOREIGN = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"PK\x03\x04": "a zip archive (a PyTorch checkpoint?)",
    b"\x89HDF": "an HDF5 file (a Keras model?)",
    b"\x93NUMPY": "a NumPy array",
    b"\x80": "a Python pickle",
    b"version https://git-lfs": "a Git LFS pointer; fetch the real file with `git lfs pull`",
}


def load_onnx(source: str | os.PathLike[str] | onnx.ModelProto) -> onnx.ModelProto:
    """The model in `source`, complete (external data read) and valid.

    source  path of a binary .onnx file, external data beside it, or a `ModelProto`, which is
            checked and returned as it is, or a copy with its nodes in order. There is no limit on
            the total size.

    Raises ModelError: the path is missing, no file, unreadable, empty, truncated or not ONNX;
    external data is missing or short; the model is newer than the installed onnx, has no
    outputs, or fails onnx's checker.
    """
    if isinstance(source, onnx.ModelProto):
        source = in_order(source)
        _check(source, "the model")
        return source
    if not is_path(source):
        raise ModelError(
            f"model {str(source)[:40]!r}: {type(source).__name__} is neither a path nor a model; "
            "give the path of an ONNX file, an onnx.ModelProto or a Relax module"
        )
    path = Path(source)
    model = in_order(_parse(path, _read(path)))
    for tensor in tensors(model):
        _read_external(path, tensor)
    _check(model, str(path))
    return model


def _read(path: Path) -> bytes:
    if path.is_dir():
        inside = sorted(path.glob("*.onnx"))
        hint = f"give the file in it, e.g. {inside[0]}" if inside else "give a .onnx file"
        raise ModelError(f"{path} is a directory; {hint}")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; check the path") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    if not data:
        raise ModelError(f"{path} is empty (0 bytes); {EXPORT}")
    return data


def _parse(path: Path, data: bytes) -> onnx.ModelProto:
    for magic, what in FOREIGN.items():
        if data.startswith(magic):
            raise ModelError(f"{path} is not an ONNX model but {what}")
    if all(byte >= 32 or byte in b"\t\r\n" for byte in data[:256]):
        raise ModelError(f"{path} is not an ONNX model but a text file; {EXPORT}")
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        needed = _declared_bytes(data)
        if needed is None:
            raise ModelError(f"{path} is not an ONNX model; {EXPORT}") from None
        if needed > len(data):
            raise ModelError(
                f"{path} is truncated: it holds {len(data)} bytes of at least {needed}; "
                "copy or download it again"
            ) from None
        raise ModelError(f"{path} is damaged; copy or download it again") from None
    if not model.HasField("graph"):
        raise ModelError(f"{path} is not an ONNX model: it holds no graph; {EXPORT}")
    return model


def _declared_bytes(data: bytes) -> int | None:
    """Size that the top-level fields of a serialised ModelProto declare; None if it is none."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        for byte in data[position : position + 10]:
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
        # The number goes on behind the end of the file.
        position += 1
        return value

    fields = onnx.ModelProto.DESCRIPTOR.fields_by_number
    while position < len(data):
        number, wire_type = divmod(varint(), 8)
        if number not in fields or wire_type not in (0, 2):
            return None
        value = varint()
        if wire_type == 2:
            position += value
    return position


def _read_external(path: Path, tensor: onnx.TensorProto) -> None:
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return
    info = onnx.external_data_helper.ExternalDataInfo(tensor)
    file = path.parent / info.location
    need = (info.offset or 0) + (info.length or 0)
    if not file.is_file():
        raise ModelError(
            f"{path}: external data file {file} is missing (it holds {tensor.name!r}); "
            "put it beside the model"
        )
    if file.stat().st_size < need:
        raise ModelError(
            f"{path}: external data file {file} is truncated: it holds {file.stat().st_size} "
            f"bytes, {tensor.name!r} ends at {need}; copy or download it again"
        )
    try:
        onnx.external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{path}: external data file {file}: {one_line(error)}") from None
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def one_line(error: BaseException | str) -> str:
    """The message of `error` up to onnx's trailing context, without line breaks or full stop."""
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        # onnx quotes a damaged name and then fails to hand its message over.
        text = error.object.decode(errors="replace")
    return " ".join(text.split("==>")[0].split()).rstrip(".")


def _check(model: onnx.ModelProto, subject: str) -> None:
    if model.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{subject} has ONNX IR version {model.ir_version}, but onnx {onnx.__version__} knows "
            f"up to {onnx.IR_VERSION}; upgrade onnx, or export with an older version"
        )
    known = onnx.defs.onnx_opset_version()
    opset = onnx_opset(model)
    if opset > known:
        raise ModelError(
            f"{subject} uses ONNX opset {opset}, but onnx {onnx.__version__} knows up to {known}; "
            "upgrade onnx, or export with a lower opset"
        )
    if not model.graph.output:
        raise ModelError(f"{subject} has no outputs, so there is nothing to compute; {EXPORT}")
    broken = next((name for name in _names(model.graph) if isinstance(name, bytes)), None)
    if broken is not None:
        raise ModelError(f"{subject} is damaged: {broken!r} is no name; copy or download it again")
    for tensor in tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ModelError(
                f"{subject}: external data of {tensor.name!r} is not loaded; give the path of the "
                ".onnx file instead, or load it with onnx.load"
            )
    if model.graph.sparse_initializer:
        raise ModelError(f"{subject} has sparse initialisers; export it with dense ones")
    if not all(onnx.defs.has(node.op_type) for node in standard_nodes(model.graph)):
        # The checker stops at the first unknown operator; the importer's message has them all.
        return
    light, _ = detach_weights(model)
    for value in [*light.graph.input, *light.graph.output]:
        if value.type.HasField("tensor_type"):
            # The checker, unlike ONNX Runtime, wants a rank; which one does not matter to it.
            value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(light)
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{subject} is not a valid ONNX model: {one_line(error)}; {EXPORT}"
        ) from None
    for tensor in tensors(model):
        check_data(tensor)


def _names(graph: onnx.GraphProto) -> Iterator[str | bytes]:
    """Every name in the graph; protobuf gives one that is no UTF-8 as bytes."""
    for value in [*graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        yield value.name
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)


def standard_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of ONNX's own operators, outside subgraphs."""
    return [node for node in graph.node if node.domain in STANDARD]


def onnx_opset(model: onnx.ModelProto) -> int:
    """Version of the standard operator set the model uses; 1 where it says nothing."""
    return max((o.version for o in model.opset_import if o.domain in STANDARD), default=1)
