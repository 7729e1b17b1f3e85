"""Products and convolutions of bytes, and of bfloat16, as functions to schedule, with what they
should compute."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from tvm_ext.compute.byte_products import conv_bytes, dense_bytes, in_fours
from tvm_ext.compute.conv import ConvGeometry, pack_weight
from tvm_ext.compute.dense import pack_matrix
from tvm_ext.compute.half_products import conv_pairs, dense_pairs, in_pairs
from tvm_ext.hardware import HardwareModel, get
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan
from tvm_ext.tvm_api import PrimFunc, te

LANES = 16
POINT = 3
X86 = get("cpu/x86-avx512")
FEATURES = (*X86.isa, "amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512vnni")
AMX_MACHINE = msgspec.structs.replace(X86, cores=2, isa=tuple(sorted(set(FEATURES))))
"""A machine with the unit, wherever tests run."""


class ByteKernel(NamedTuple):
    """A function, what it is given but for the result, and that."""

    func: PrimFunc
    given: tuple[np.ndarray, ...]
    expected: np.ndarray


def dense_kernel(rows: tuple[int, ...], inner: int, columns: int) -> ByteKernel:
    """x [rows.., inner] by a matrix of so many columns, less the point of x."""
    random = np.random.default_rng(inner)
    x = random.integers(0, 256, (*rows, inner)).astype(np.uint8)
    w = random.integers(-128, 128, (columns, inner)).astype(np.int8)
    packed = np.ascontiguousarray(pack_matrix(in_fours(w).T, LANES))
    sums = (POINT * w.astype(np.int32).sum(1)).astype(np.int32)
    words = in_fours(x.view(np.int8))
    tensors = [
        te.placeholder(a.shape, "int32", f"p{i}") for i, a in enumerate((words, packed, sums))
    ]
    func = te.create_prim_func([*tensors, dense_bytes(*tensors)])
    expected = (x.astype(np.int32) - POINT) @ w.T.astype(np.int32)
    return ByteKernel(func, (words, packed, sums), expected.astype(np.float32))


def conv_kernel(
    size: tuple[int, int], channels: tuple[int, int], kernel: int, stride: int, pad: int
) -> ByteKernel:
    """An image by a square window, padded with the point."""
    random = np.random.default_rng(sum(channels))
    x = random.integers(0, 256, (1, *size, channels[0])).astype(np.uint8)
    w = random.integers(-128, 128, (channels[1], kernel, kernel, channels[0])).astype(np.int8)
    geometry = ConvGeometry(
        (kernel,) * 2,
        (stride,) * 2,
        (pad,) * 2,
        (pad,) * 2,
        (1, 1),
        1,
        channels[0] // 4,
        channels[1],
    )
    packed = np.ascontiguousarray(pack_weight(in_fours(w), geometry, LANES))
    sums = (POINT * w.astype(np.int32).sum((1, 2, 3))).astype(np.int32)
    words = in_fours(x.view(np.int8))
    given = (words, packed, sums)
    tensors = [te.placeholder(a.shape, "int32", f"p{i}") for i, a in enumerate(given)]
    func = te.create_prim_func([*tensors, conv_bytes(*tensors, POINT, geometry, LANES)])
    around = np.pad(x.astype(np.int32) - POINT, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    height, width = geometry.out_size(size)
    expected = np.zeros((1, height, width, channels[1]), np.int32)
    for row in range(kernel):
        for column in range(kernel):
            taps = around[:, row:, column:][:, ::stride, ::stride][:, :height, :width]
            expected += taps @ w[:, row, column].T.astype(np.int32)
    return ByteKernel(func, given, expected.astype(np.float32))


def dense_halves(rows: int, inner: int, columns: int) -> ByteKernel:
    """x [rows, inner] by a matrix of so many columns, in bfloat16: small integers, whose sums are
    exact."""
    random = np.random.default_rng(inner)
    x = random.integers(-64, 65, (rows, inner)).astype(np.float32)
    w = random.integers(-64, 65, (columns, inner)).astype(np.float32)
    packed = np.ascontiguousarray(pack_matrix(in_pairs(w).T, LANES))
    given = (in_pairs(x), packed)
    tensors = [te.placeholder(a.shape, "uint32", f"p{i}") for i, a in enumerate(given)]
    sums = dense_pairs(*tensors, columns)
    func = te.create_prim_func([*tensors, te.compute(sums.shape, lambda *at: sums(*at) + 1.0)])
    return ByteKernel(func, given, x @ w.T + 1.0)


def conv_halves(
    size: tuple[int, int], channels: tuple[int, int], kernel: int, stride: int, pad: int
) -> ByteKernel:
    """An image by a square window, padded with zeros, in bfloat16."""
    random = np.random.default_rng(sum(channels))
    x = random.integers(-64, 65, (1, *size, channels[0])).astype(np.float32)
    w = random.integers(-64, 65, (channels[1], kernel, kernel, channels[0])).astype(np.float32)
    sides = (kernel,) * 2, (stride,) * 2, (pad,) * 2, (pad,) * 2, (1, 1)
    geometry = ConvGeometry(*sides, 1, channels[0] // 2, channels[1])
    packed = np.ascontiguousarray(pack_weight(in_pairs(w), geometry, LANES))
    given = (in_pairs(x), packed)
    tensors = [te.placeholder(a.shape, "uint32", f"p{i}") for i, a in enumerate(given)]
    sums = conv_pairs(*tensors, geometry, LANES)
    func = te.create_prim_func([*tensors, te.compute(sums.shape, lambda *at: sums(*at) + 1.0)])
    around = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    height, width = geometry.out_size(size)
    expected = np.ones((1, height, width, channels[1]), np.float32)
    for row in range(kernel):
        for column in range(kernel):
            taps = around[:, row:, column:][:, ::stride, ::stride][:, :height, :width]
            expected += taps @ w[:, row, column].T
    return ByteKernel(func, given, expected)


def amx_plan(
    core: tuple[int, ...],
    register: tuple[int, ...],
    anchor: int = 0,
    parallel: int = 1,
    **more: Any,
) -> TilePlan:
    """A plan for the unit, in the order of the axes, padding copied for each core tile, what comes
    after the sums in registers."""
    before = tuple(Attach(stage, "core") for stage in range(anchor) if parallel)
    return TilePlan(
        rule="tile",
        anchor=anchor,
        tiles=(LevelTile("core", Tile(core)), LevelTile("register", Tile(register))),
        order=tuple(range(len(core))),
        parallel=parallel,
        lanes=LANES,
        attach=(Attach(anchor + 1, "register"), *before),
        instruction="amx",
        **more,
    )


def has_unit(hardware: HardwareModel) -> bool:
    """Whether a machine can run kernels for the unit."""
    return {"amx-int8", "amx-bf16"} <= set(hardware.isa)
