"""Tile graphs: what each operator of a fused group touches, as affine maps (Welder §3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod

import msgspec

from tvm_ext.tile.axis import Axis, AxisKind
from tvm_ext.tile.remember import remembered


@remembered
def _terms(coeffs: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The axes an index depends on with the size of their steps; most indices have one."""
    return tuple((axis, abs(step)) for axis, step in enumerate(coeffs) if step)


class AffineDim(msgspec.Struct, frozen=True, cache_hash=True):
    """One index of an access: `((sum(coeffs * axes) + offset) // div) % mod`; mod 0 = none."""

    coeffs: tuple[int, ...]
    offset: int = 0
    div: int = 1
    mod: int = 0

    def span(self, extents: tuple[int, ...]) -> int:
        """How many distinct values the index takes while each axis runs over its extent.

        Exact for one axis or unit strides; an upper bound otherwise.
        """
        terms = _terms(self.coeffs)
        if self.div == 1 and not self.mod and len(terms) <= 1:
            return extents[terms[0][0]] if terms else 1
        points = prod(extents[axis] for axis, _ in terms)
        return min(self.hull(extents), points)

    def hull(self, extents: tuple[int, ...]) -> int:
        """Extent of the smallest range that holds every value the index takes, gaps included."""
        reach = sum(step * (extents[axis] - 1) for axis, step in _terms(self.coeffs))
        if self.div > 1:
            reach = (self.offset % self.div + reach) // self.div
        return min(reach + 1, self.mod) if self.mod else reach + 1

    def ends(self, extents: Sequence[int]) -> tuple[int, int]:
        """The least and the greatest value that the index takes, but for its `mod`."""
        reaches = [step * (size - 1) for step, size in zip(self.coeffs, extents, strict=True)]
        least = self.offset + sum(min(0, reach) for reach in reaches)
        greatest = self.offset + sum(max(0, reach) for reach in reaches)
        return least // self.div, greatest // self.div

    def uses(self, axis: int) -> bool:
        """Whether the index depends on the axis."""
        return self.coeffs[axis] != 0

    def is_axis(self) -> bool:
        """Whether the index is one axis as it is, or a number."""
        plain = self.div == 1 and not self.mod
        return plain and [step for _, step in _terms(self.coeffs)] in ([], [1])


class Access(msgspec.Struct, frozen=True, cache_hash=True):
    """A read or write of a tensor by a node. A dim of None is not affine: it spans the tensor."""

    tensor: int
    dims: tuple[AffineDim | None, ...]

    @remembered
    def uses(self, axis: int) -> bool:
        """Whether any index depends on the axis (a non-affine one is taken to)."""
        return any(dim is None or dim.uses(axis) for dim in self.dims)

    @remembered
    def box(self, extents: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
        """Elements of a tensor of that shape touched along each of its dims while each axis runs
        over its extent: `infer.region` without the gaps a stride leaves."""
        return tuple(
            size if dim is None else min(size, dim.span(extents))
            for dim, size in zip(self.dims, shape, strict=True)
        )

    @remembered
    def stride(self, axis: int, shape: tuple[int, ...]) -> int | None:
        """Elements between neighbours along the axis, row-major; None if not affine.

        Of an axis split into blocks (`w[o // 32, k, o % 32]`, or `x[o // 64, c]` for groups) the
        neighbours inside one block are meant.
        """
        step = 1
        total = 0
        for dim, extent in zip(reversed(self.dims), reversed(shape), strict=True):
            if dim is None:
                return None
            if dim.coeffs[axis] % dim.div == 0:
                total += dim.coeffs[axis] // dim.div * step
            step *= extent
        return total


class Tensor(msgspec.Struct, frozen=True, cache_hash=True):
    """A buffer of the group. `role`: `input`, `output` or `inner` (lives only inside the group)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    dtype_bytes: int
    role: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return prod(self.shape) * self.dtype_bytes


class Hole(msgspec.Struct, frozen=True, cache_hash=True):
    """A factor that is zero unless `step` divides the sum of a space and a reduce axis (and an
    offset): the zeros that a transposed convolution inserts between elements."""

    space: int
    reduce: int
    step: int


class TileNode(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """One operator (a TIR block): its axes, what it reads and writes, and its arithmetic.

    `kind`: `reduce` (has reduce axes), `map` (none), or `opaque` (not understood, left alone).
    `flops_per_point` counts floating-point operations of one iteration; a special function is 10.
    With `holes` it is what remains on average when products with their zeros are left out.
    `dots`: whether what it adds up are dot products of four bytes (`tvm_dots`), or, with `halves`,
    of two bfloat16 (`tvm_pairs`).
    """

    name: str
    kind: str
    axes: tuple[Axis, ...]
    reads: tuple[Access, ...]
    write: Access
    flops_per_point: float
    holes: tuple[Hole, ...] = ()
    dots: bool = False
    halves: bool = False

    @cached_property
    def space(self) -> tuple[int, ...]:
        """Indices of the space axes."""
        return self._of_kind("space")

    @cached_property
    def reduce(self) -> tuple[int, ...]:
        """Indices of the reduce axes."""
        return self._of_kind("reduce")

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Extents of all axes, in axis order."""
        return tuple(axis.extent for axis in self.axes)

    @property
    def flops(self) -> float:
        """Floating-point operations of the whole operator."""
        return prod(self.extents) * self.flops_per_point

    def _of_kind(self, kind: AxisKind) -> tuple[int, ...]:
        return tuple(place for place, axis in enumerate(self.axes) if axis.kind == kind)


class TileGraph(msgspec.Struct, frozen=True, cache_hash=True):
    """A fused group: nodes in topological order over shared tensors.

    An edge is a tensor written by one node and read by another; where it lives (its level) is the
    plan's choice, through `TilePlan.attach`.
    """

    name: str
    tensors: tuple[Tensor, ...]
    nodes: tuple[TileNode, ...]
    signature: str = ""

    def producer(self, tensor: int) -> int | None:
        """Index of the node that writes the tensor; None for an input."""
        for index, node in enumerate(self.nodes):
            if node.write.tensor == tensor:
                return index
        return None

    def sources(self, node: int) -> set[int]:
        """Indices of the nodes whose results `node` reads."""
        found = (self.producer(access.tensor) for access in self.nodes[node].reads)
        return {source for source in found if source is not None}

    def consumers(self, node: int) -> tuple[int, ...]:
        """Indices of the nodes that read what `node` writes."""
        written = self.nodes[node].write.tensor
        return tuple(
            i
            for i, other in enumerate(self.nodes)
            if i != node and any(access.tensor == written for access in other.reads)
        )

    @property
    @remembered
    def results(self) -> tuple[int, ...]:
        """Indices of the nodes that write what leaves the group."""
        return tuple(
            place
            for place, node in enumerate(self.nodes)
            if self.tensors[node.write.tensor].role == "output"
        )

    @property
    def flops(self) -> float:
        """Floating-point operations of the group."""
        return sum(node.flops for node in self.nodes)

    @property
    @remembered
    def io_bytes(self) -> int:
        """Bytes of all inputs and outputs that are touched: the least DRAM traffic the group can
        have."""
        elements = [0] * len(self.tensors)
        for node in self.nodes:
            for access in (*node.reads, node.write):
                box = access.box(node.extents, self.tensors[access.tensor].shape)
                # a gather touches no more than there are iterations
                elements[access.tensor] += min(prod(box), prod(node.extents))
        return sum(
            min(tensor.size_bytes, count * tensor.dtype_bytes)
            for tensor, count in zip(self.tensors, elements, strict=True)
            if tensor.role != "inner"
        )
