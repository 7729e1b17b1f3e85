"""Permutations of tensor axes: what a layout is, and how a reshape or a reduction changes it.

A layout of a tensor of rank r is a permutation of its axes: axis p of the tensor in memory is
axis `perm[p]` of the tensor the model speaks of. NHWC for an NCHW tensor is (0, 2, 3, 1), which
are also the `axes` of the `permute_dims` that takes the one to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm_ffi import structural_equal

Perm = tuple[int, ...]
Shape = Sequence[Any]
"""Extents: a Python int where known, a TVM expression where symbolic."""


def identity(rank: int) -> Perm:
    """The layout the model is written in."""
    return tuple(range(rank))


def channels_last(rank: int) -> Perm:
    """(N, C, spatial...) kept in memory as (N, spatial..., C)."""
    return (0, *range(2, rank), 1)


def between(source: Perm, target: Perm) -> Perm:
    """The axes of the `permute_dims` that takes layout `source` to layout `target`."""
    return tuple(source.index(axis) for axis in target)


def after_permute(perm: Perm, axes: Sequence[int]) -> Perm:
    """The layout of `permute_dims(x, axes)` when it is the same memory as x in layout `perm`."""
    return tuple(list(axes).index(axis) for axis in perm)


def after_drop(perm: Perm, dropped: set[int]) -> Perm:
    """The layout that is left once the axes `dropped` are reduced away."""
    kept = [axis for axis in range(len(perm)) if axis not in dropped]
    return tuple(kept.index(axis) for axis in perm if axis not in dropped)


def after_insert(perm: Perm, axis: int, place: int) -> Perm:
    """The layout once a new axis `axis` of the tensor stands at `place` in memory."""
    shifted = [old + (old >= axis) for old in perm]
    return (*shifted[:place], axis, *shifted[place:])


def moves_only_ones(axes: Perm, shape: Shape) -> bool:
    """True when `permute_dims(x, axes)` leaves the data as it lies: only extents of 1 move."""
    moved = [axis for axis in axes if not _is_int(shape[axis], 1)]
    return moved == sorted(moved)


def reshape_layout(perm: Perm, old: Shape, new: Shape) -> tuple[Perm, Perm] | None:
    """How to reshape a tensor of shape `old`, kept in layout `perm`, to shape `new`.

    Returns the layout its data must be in first (`perm` itself unless axes that merge lie apart)
    and the layout of the result; None when symbolic extents hide which axes belong together.
    """
    groups = _reshape_groups(old, new)
    if groups is None:
        return None
    kept = [(ins, outs) for ins, outs in groups if ins and outs]
    owner = {axis: group for group, (ins, _) in enumerate(kept) for axis in ins}
    sequence: list[int] = []
    for axis in perm:
        group = owner.get(axis)
        if group is None or group in sequence:
            continue
        if not _is_int(old[axis], 1) or len(kept[group][0]) == 1:
            sequence.append(group)

    gathered = [axis for group in sequence for axis in kept[group][0]]
    gathered += [axis for axis in perm if axis not in owner]
    unmoved = moves_only_ones(between(perm, tuple(gathered)), [old[axis] for axis in perm])
    result = [axis for group in sequence for axis in kept[group][1]]
    _place_new_ones(result, [outs[0] for ins, outs in groups if not ins], len(new))
    return (perm if unmoved else tuple(gathered)), tuple(result)


def _reshape_groups(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]] | None:
    """The smallest runs of axes of `old` and `new` with equal products, in order.

    An extent of 1 without a partner is a group of its own, with an empty other side.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and j < len(new) and _same(old[i], new[j]):
            groups.append(([i], [j]))
            i, j = i + 1, j + 1
        elif i < len(old) and _is_int(old[i], 1):
            groups.append(([i], []))
            i += 1
        elif j < len(new) and _is_int(new[j], 1):
            groups.append(([], [j]))
            j += 1
        else:
            ends = _equal_products(old[i:], new[j:])
            if ends is None:
                return None
            groups.append((list(range(i, i + ends[0])), list(range(j, j + ends[1]))))
            i, j = i + ends[0], j + ends[1]
    return groups


def _equal_products(old: Shape, new: Shape) -> tuple[int, int] | None:
    """How many leading extents of each side make the first equal product above 1."""
    i, j, left, right = 0, 0, 1, 1
    while left != right or i == 0:
        side, at = (old, i) if left <= right else (new, j)
        if at == len(side) or not isinstance(side[at], int) or side[at] == 0:
            return None
        if left <= right:
            left, i = left * side[at], i + 1
        else:
            right, j = right * side[at], j + 1
    return i, j


def _place_new_ones(result: list[int], ones: list[int], rank: int) -> None:
    """Inserts the new axes of extent 1 beside the axis they precede, or follow at the end."""
    trailing = rank
    while trailing - 1 in ones:
        trailing -= 1
    for axis in sorted((axis for axis in ones if axis < trailing), reverse=True):
        result.insert(result.index(axis + 1), axis)
    for axis in range(trailing, rank):
        result.insert(result.index(axis - 1) + 1 if axis else 0, axis)


def _is_int(extent: Any, value: int) -> bool:
    return isinstance(extent, int) and extent == value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return bool(structural_equal(a, b))
