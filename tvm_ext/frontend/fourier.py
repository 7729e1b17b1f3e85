"""Fourier transforms as what the machine is good at: products, and convolutions of frames.

rewrite:
    DFT(x)                       =>  Reshape(MatMul(Reshape(x), waves))     waves [n parts, k parts]
    STFT(x, step, window, size)  =>  Reshape(Transpose(Conv(Reshape(x), window waves, stride step)))

A transform of n numbers takes n² multiplications so, not n log n; those of sound, of a few hundred
numbers of which there are many, are products that weights wait in cache for. Angles are of float64:
the result is as exact as a sum of n float32 numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import RewriteRule

from tvm_ext.frontend.nodes import constant, node_of, opset_of

MOST = 1 << 22
"""Elements of the waves of one transform; more of them are no longer what caches hold."""
PARTS = 2
"""Of a complex number: real, imaginary."""


def waves(inner: int, outer: int, size: int, *, inverse: bool) -> np.ndarray:
    """What each part of a number adds to each part of a result, [inner, 2, outer, 2]: those of
    `exp(-+2 pi i n k / size)`; divided by `size` for the inverse."""
    turns = np.outer(np.arange(inner), np.arange(outer)) % size / size
    angles = (2 if inverse else -2) * np.pi * turns
    cosine, sine = np.cos(angles), np.sin(angles)
    table = np.empty((inner, PARTS, outer, PARTS))
    table[:, 0, :, 0], table[:, 0, :, 1] = cosine, sine
    table[:, 1, :, 0], table[:, 1, :, 1] = -sine, cosine
    return table / size if inverse else table


def real_again(inner: int, size: int) -> np.ndarray:
    """What each part of one half of a spectrum adds to each real number, [inner, 2, size]."""
    table = waves(inner, size, size, inverse=True)[..., 0]
    alone = [0, size // 2] if size % 2 == 0 else [0]
    others = [n for n in range(min(inner, size // 2 + 1)) if n not in alone]
    table[others] *= 2  # each stands for its mirror image, too
    table[size // 2 + 1 :] = 0
    table[[n for n in alone if n < inner], 1] = 0
    return table


def _extent(x: ir.Value, axis: int) -> int | None:
    """The extent of an axis, if it is known."""
    extent = None if x.shape is None else x.shape[axis]
    return extent if isinstance(extent, int) else None


def _dft(op: Any, x: Any) -> Any:
    return op.DFT(x, _allow_other_inputs=True, _outputs=["y"])


class _Product(NamedTuple):
    """A transform of an axis."""

    axis: int
    inner: int
    parts: int
    size: int
    inverse: bool
    half: bool
    """Whether only half of the spectrum is there."""

    @property
    def outer(self) -> int:
        """Numbers of the result."""
        return self.size // 2 + 1 if self.half and not self.inverse else self.size

    def table(self) -> np.ndarray:
        """What each part of a number adds to those of a result, [n, parts, k, parts]."""
        if self.inverse and self.half:
            made = real_again(self.inner, self.size)[..., None]
        else:
            made = waves(self.inner, self.outer, self.size, inverse=self.inverse)
            made[self.size :] = 0  # numbers beyond the transform's have no part in it
        return made[:, : self.parts].astype(np.float32)


def _product(x: ir.Value, y: ir.Value) -> _Product | None:
    """What a `DFT` node asks for; None where that is not known, or too much."""
    node = node_of(y)
    rank = 0 if x.shape is None else len(x.shape)
    known = x.dtype == ir.DataType.FLOAT and rank > 1
    given = [None if one is None else one.const_value for one in node.inputs[1:]]
    there = [one is not None for one in node.inputs[1:]]
    if not known or any(a and g is None for a, g in zip(there, given, strict=True)):
        return None
    numbers = [None if one is None else int(one.numpy().reshape(-1)[0]) for one in given]
    numbers += [None] * (2 - len(numbers))
    axis = node.attributes.get_int("axis", 1) if opset_of(node) < 20 else -2
    axis = (axis if numbers[1] is None else numbers[1]) % rank
    inner, parts = _extent(x, axis), _extent(x, -1)
    if inner is None or parts is None or axis == rank - 1:
        return None
    inverse = bool(node.attributes.get_int("inverse", 0))
    half = bool(node.attributes.get_int("onesided", 0))
    usual = 2 * (inner - 1) if inverse and half else inner
    size = usual if numbers[0] is None else numbers[0]
    asked = _Product(axis, inner, parts, size, inverse, half)
    too_much = inner * parts * asked.outer * PARTS > MOST
    return None if size < 1 or too_much else asked


def _is_product(_: Any, x: ir.Value, y: ir.Value, **__: Any) -> bool:
    return _product(x, y) is not None


def _as_product(op: Any, x: ir.Value, y: ir.Value, **_: Any) -> Any:
    asked = _product(x, y)
    assert asked is not None
    assert x.shape is not None
    rank = len(x.shape)
    others = [axis for axis in range(rank - 1) if axis != asked.axis]
    last = [*others, asked.axis, rank - 1]
    back = [last.index(axis) for axis in range(rank)]
    table = asked.table()
    inner, parts, outer, made = table.shape
    matrix = table.reshape(inner * parts, outer * made)
    kept = [0] * len(others)
    joined = constant(op, f"{y.name}_joined", np.array([*kept, inner * parts], np.int64))
    apart = constant(op, f"{y.name}_apart", np.array([*kept, outer, made], np.int64))
    given = x if last == list(range(rank)) else op.Transpose(x, perm=last)
    product = op.MatMul(op.Reshape(given, joined), constant(op, f"{y.name}_waves", matrix))
    result = op.Reshape(product, apart)
    return result if last == list(range(rank)) else op.Transpose(result, perm=back)


def _stft(op: Any, x: Any, step: Any) -> Any:
    return op.STFT(x, step, _allow_other_inputs=True, _outputs=["y"])


class _Frames(NamedTuple):
    """Transforms of parts of rows."""

    parts: int
    length: int
    step: int
    window: np.ndarray
    half: bool

    @property
    def outer(self) -> int:
        """Numbers of a spectrum."""
        return self.window.size // 2 + 1 if self.half else self.window.size

    def filters(self) -> np.ndarray:
        """What each number of a frame adds to the parts of its spectrum, [k parts, parts, n]."""
        taps = self.window.size
        table = waves(taps, self.outer, taps, inverse=False)[:, : self.parts]
        table = table * self.window.astype(np.float64)[:, None, None, None]
        filters = table.reshape(taps, self.parts, self.outer * PARTS).transpose(2, 1, 0)
        return np.ascontiguousarray(filters, np.float32)


def _frames(x: ir.Value, step: ir.Value, y: ir.Value) -> _Frames | None:
    """What an `STFT` node asks for; None where that is not known, or too much."""
    node = node_of(y)
    rank = 0 if x.shape is None else len(x.shape)
    window, size = ([*node.inputs[2:], None, None])[:2]
    unknown = any(one is not None and one.const_value is None for one in (step, window, size))
    if unknown or x.dtype != ir.DataType.FLOAT or rank not in (2, 3):
        return None
    total, parts = _extent(x, 1), _extent(x, 2) if rank == 3 else 1
    if total is None or parts is None or step.const_value is None:
        return None
    hop = int(step.const_value.numpy().reshape(-1)[0])
    weights = None if window is None or window.const_value is None else window.const_value
    if size is not None and size.const_value is not None:
        length = int(size.const_value.numpy().reshape(-1)[0])
    else:
        length = total if weights is None else weights.numpy().size
    factors = np.ones(length) if weights is None else weights.numpy().reshape(-1)
    asked = _Frames(parts, total, hop, factors, bool(node.attributes.get_int("onesided", 1)))
    fits = 1 <= length <= total and factors.size == length and hop >= 1
    return asked if fits and length * parts * asked.outer * PARTS <= MOST else None


def _is_convolution(_: Any, x: ir.Value, step: ir.Value, y: ir.Value, **__: Any) -> bool:
    return _frames(x, step, y) is not None


def _as_convolution(op: Any, x: ir.Value, step: ir.Value, y: ir.Value, **_: Any) -> Any:
    asked = _frames(x, step, y)
    assert asked is not None
    if asked.parts == 1:
        row = constant(op, f"{y.name}_row", np.array([0, 1, asked.length], np.int64))
        given = op.Reshape(x, row)
    else:
        given = op.Transpose(x, perm=[0, 2, 1])
    filters = constant(op, f"{y.name}_waves", asked.filters())
    made = op.Conv(given, filters, strides=[asked.step])
    count = 1 + (asked.length - asked.window.size) // asked.step
    shape = [0, count, asked.outer, PARTS]
    target = constant(op, f"{y.name}_frames", np.array(shape, np.int64))
    return op.Reshape(op.Transpose(made, perm=[0, 2, 1]), target)


rules = (
    RewriteRule(_dft, _as_product, _is_product, name="FourierByProduct"),
    RewriteRule(_stft, _as_convolution, _is_convolution, name="FramesByConvolution"),
)
