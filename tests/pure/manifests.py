"""A manifest around the groups a test is about."""

from __future__ import annotations

from tvm_ext.records.manifest import MANIFEST_VERSION, Group, Manifest


def manifest(
    *groups: Group, hardware_name: str = "cpu/host", notes: tuple[str, ...] = ()
) -> Manifest:
    """A manifest of `m.onnx` for some machine, two threads."""
    return Manifest(
        version=MANIFEST_VERSION,
        model="m.onnx",
        hardware="0123456789ab",
        hardware_name=hardware_name,
        target="llvm",
        num_threads=2,
        inputs=(),
        outputs=(),
        groups=groups,
        code_hash="feedc0de0000",
        versions={"tvm": "0.27"},
        notes=notes,
    )
