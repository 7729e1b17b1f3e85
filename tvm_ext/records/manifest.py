"""The manifest: what a compiled artifact says of itself. It travels inside the artifact."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tvm_ext.errors import ArtifactError
from tvm_ext.extents import at_extents, evaluated, names
from tvm_ext.tile.plan import TilePlan

MANIFEST_VERSION = 1


class TensorInfo(msgspec.Struct, frozen=True):
    """An input or output: its name in the model, numpy dtype and shape, with a name for an extent
    that every run may choose, or a sum with it (`tvm_ext.extents`)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def at(self, extents: int | Mapping[str, int]) -> tuple[int, ...]:
        """The shape with numbers for what is left open, or one for all of it."""
        return tuple(at_extents(own, extents) for own in self.shape)


class Stage(msgspec.Struct, frozen=True):
    """One stage of a kernel: how many bytes it makes, and the memory level where they lie until
    others of the kernel read them; no level for a result of the kernel."""

    name: str
    level: str
    size_bytes: int


class Read(msgspec.Struct, frozen=True):
    """What a call takes of an earlier one, or of the inputs (-1), and the memory level that still
    holds it by all that is touched in between."""

    step: int
    size_bytes: int
    level: str


class Step(msgspec.Struct, frozen=True):
    """One call of a kernel in a run; constants are no reads."""

    kernel: str
    reads: tuple[Read, ...]


class Group(msgspec.Struct, frozen=True):
    """One kernel of the artifact and how it came about.

    source    `log` (a record), `picker` (the analytical model), `written` (loop by loop, nothing
              to plan), `loop` (others, turn by turn; their `calls` are those outside of loops),
              `loose` (parallel and vector loops only), or `none` (as TVM wrote it)
    bound     the roof the model expects: `compute` or a memory level
    flops     of one call, a special function counting 10; in all figures what is left open counts
              as 1, and the plan is that of one slice
    multiply_flops  those of the reduction that is tiled: of a GEMM or convolution its
              multiply-adds (those on padding too), without epilogue and Winograd's
              transforms; 0 if there is none
    fallback  why better plans were not used, one reason each, in the order they were tried
    """

    name: str
    kind: str
    signature: str
    source: str
    plan: TilePlan | None = None
    bound: str = ""
    predicted_us: float = 0.0
    measured_us: float = 0.0
    flops: float = 0.0
    multiply_flops: float = 0.0
    io_bytes: int = 0
    calls: int = 1
    verified: bool = False
    fallback: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()


class Fusion(msgspec.Struct, frozen=True):
    """What a fusion pass made of memory-bound kernels: one of several, or one that stayed alone.

    by        the pass
    kernels   as the pass met them, in order
    stopped   the first reason why it is no larger; empty if there was nothing more to take in
    apart_us, together_us  predicted; 0 where that is unknown
    apart_bytes, together_bytes  what the kernels read and write, each tensor once a kernel
    times     how often this was decided
    """

    by: str
    kernels: tuple[str, ...]
    stopped: str = ""
    apart_us: float = 0.0
    together_us: float = 0.0
    apart_bytes: int = 0
    together_bytes: int = 0
    times: int = 1


class Manifest(msgspec.Struct, frozen=True):
    """An artifact's inputs and outputs, kernels, target and origin.

    fusions      what fusion passes decided; equal decisions once
    anywhere     whether inputs may begin at any address, not at cache lines only
    own_outputs  places of the outputs that each run makes in memory of their own
    fewest       what is left open, by name, or a sum of several, is at least this, or 1: for fewer
                 the model is another one, or some tensor would have no elements
    most         and at most this: for more the model is another one
    steps        the calls of a run in order; none of a model with branches
    isa          the instruction sets that its kernels may be made of
    precision    of what products and convolutions multiply
    """

    version: int
    model: str
    hardware: str
    hardware_name: str
    target: str
    num_threads: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    groups: tuple[Group, ...]
    code_hash: str
    versions: dict[str, str]
    notes: tuple[str, ...] = ()
    anywhere: bool = False
    own_outputs: tuple[int, ...] = ()
    fusions: tuple[Fusion, ...] = ()
    fewest: dict[str, int] = {}
    most: dict[str, int] = {}
    steps: tuple[Step, ...] = ()
    isa: tuple[str, ...] = ()
    precision: str = "float32"

    def extents(self, least: int = 1) -> dict[str, int]:
        """Numbers for what is left open: so much, or as much as the model needs."""
        shapes = [extent for info in self.inputs for extent in info.shape]
        texts = [extent for extent in shapes if isinstance(extent, str)]
        named = sorted({name for text in texts for name in names(text)})
        found = {name: max(least, self.fewest.get(name, 1)) for name in named}
        for text, fewest in self.fewest.items():
            while (evaluated(text, found) or fewest) < fewest:
                found |= {name: found[name] + 1 for name in names(text)}
        return found

    def limits(self) -> tuple[str, ...]:
        """What is left open, or sums of it, and how much of each a run may ask for, in words."""
        named = self.extents()
        found = []
        for text in dict.fromkeys((*named, *self.fewest, *self.most)):
            least = self.fewest.get(text, 1 if text in named else None)
            most = self.most.get(text)
            words = f"{least} to {most}" if most else f"{least} or more"
            found.append(f"{text} {words if least is not None else f'{most} at most'}")
        return tuple(found)

    @property
    def device(self) -> str:
        """What its kernels run on: `cpu` or `cuda`."""
        return "cuda" if '"kind":"cuda"' in self.target else "cpu"


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes) -> Manifest:
    """The manifest written by `encode_manifest`. Raises ArtifactError for anything else."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise ArtifactError(f"artifact manifest: {error}; compile the model again") from error
    if manifest.version > MANIFEST_VERSION:
        raise ArtifactError(
            f"artifact manifest: version {manifest.version}, this tvm_ext reads up to "
            f"{MANIFEST_VERSION}; upgrade tvm_ext"
        )
    return manifest
