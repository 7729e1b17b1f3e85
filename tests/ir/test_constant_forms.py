"""What constants may be of an extent that is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tvm_ext.graph.constant_form import Length, Limit
from tvm_ext.graph.constant_forms import Count, Diagonals, Number, Repeated, Rows, form_of
from tvm_ext.tvm_api import IRModule, PrimFunc, Target, array_of, relax, tirx, tvm

EXTENTS = (499, 1006)
TABLE = np.random.default_rng(0).standard_normal((2048, 3)).astype("float32")
Make = Callable[[int], np.ndarray]


def form(make: Make, *tables: np.ndarray) -> Any:
    return form_of([make(extent) for extent in EXTENTS], EXTENTS, lambda: tables)


def distances(n: int) -> np.ndarray:
    """j - i."""
    return np.arange(n) - np.arange(n)[:, None]


FORMS: dict[str, tuple[type, Make]] = {
    "places": (Count, lambda n: np.arange(n)),
    "places and others": (
        Count,
        lambda n: np.stack(np.broadcast_arrays(np.arange(n)[:, None], np.arange(5)), -1),
    ),
    "the inner axis": (Count, lambda n: np.arange(3)[:, None] * 7 - 2 * np.arange(n)),
    "a shape": (Number, lambda n: np.array([n, 128, 12 * n])),
    "large numbers that stay": (Number, lambda n: np.array([n, 1 << 62, 3072])),
    "a number": (Number, lambda n: np.array(n - 1)),
    "integers as floats": (Count, lambda n: np.arange(n, dtype=np.float32)),
    "repeated": (Repeated, lambda n: np.repeat(np.float32([[0.5, -1.5]]), n, 0)),
    "a mask of a few words after others": (
        Repeated,
        lambda n: np.arange(n + 3) - np.arange(3)[:, None] <= n,
    ),
    "the first and the last": (
        Repeated,
        lambda n: np.concatenate([TABLE[:2], TABLE[5:6].repeat(n, 0), TABLE[3:5]]),
    ),
    "up to three": (Repeated, lambda n: np.minimum(np.arange(n), 3) + np.float32(0.5)),
    "twice as many": (Count, lambda n: np.arange(2 * n)),
    "one more": (Repeated, lambda n: np.full((n + 1, 2), 0.125, np.float32)),
    "a mask after others": (
        Diagonals,
        lambda n: np.arange(n + 3) - np.arange(n)[:, None] <= 3,
    ),
    "a mask of many words after others": (
        Repeated,
        lambda n: np.arange(n + 600) <= n + np.arange(600)[:, None],
    ),
    "after the first few": (Repeated, lambda n: np.arange(n + 700) < 690),
    "repeated truths": (Repeated, lambda n: np.ones((1, n, 1), bool)),
    "positions": (Rows, lambda n: TABLE[None, :n]),
    "positions behind the first": (Rows, lambda n: TABLE[2 : n + 2]),
    "positions behind others": (Rows, lambda n: TABLE[None, n : n + 5]),
    "a position behind others": (Rows, lambda n: TABLE[n - 1 : n]),
    "positions of columns": (Rows, lambda n: TABLE[:n, 1][None, :, None]),
    "a mask": (Diagonals, lambda n: np.tril(np.ones((n, n), bool))[None]),
    "a mask with a window": (
        Diagonals,
        lambda n: np.where(np.abs(distances(n)) < 9, 0, -np.inf).astype(np.float32),
    ),
    "distances in buckets, by heads": (
        Diagonals,
        lambda n: np.moveaxis(TABLE[np.clip(distances(n), -64, 64) + 64], -1, 0)[None],
    ),
    "all distances": (Diagonals, lambda n: np.abs(distances(n))),
    "distances beside each other": (
        Diagonals,
        lambda n: np.sign(distances(n)).reshape(n, 1, n, 1).astype(np.int32),
    ),
}


@pytest.mark.parametrize("kind", FORMS)
def test_a_call_makes_it_for_any_extent(kind: str) -> None:
    wanted, make = FORMS[kind]
    tables = () if "columns" in kind else (TABLE[::-1].copy(), TABLE)
    found = form(make, *tables)
    assert isinstance(found, wanted)
    builder, n = relax.BlockBuilder(), tirx.Var("n", "int64")
    call = found.call(n, builder)
    mod = builder.get()
    kernel = mod[call.args[0]]
    assert isinstance(kernel, PrimFunc)
    built = tvm.compile(
        IRModule({"main": kernel.with_attr("global_symbol", "main")}),
        Target("llvm"),
        tir_pipeline="tvm_ext",
    )
    operands = [field for field in call.args[1].fields if hasattr(field, "value")]
    given = [array_of(operand.value) for operand in operands if hasattr(operand.value, "numpy")]
    told = len(call.args[1].fields) > len(given)
    for extent in (1, 2, 7, 800):
        expected = make(extent)
        np.testing.assert_array_equal(found.made(extent), expected)
        out = tvm.runtime.empty(expected.shape, str(expected.dtype))
        told_extent = (extent,) if told else ()
        built["main"](*map(tvm.runtime.tensor, given), *told_extent, out)
        np.testing.assert_array_equal(out.numpy(), expected)


def test_no_more_rows_than_the_table_has() -> None:
    """What is not found among the weights is all there is."""
    for tables, most in (((TABLE,), len(TABLE)), ((TABLE[:, :2], TABLE[:1000]), EXTENTS[1])):
        found = form(lambda n: TABLE[:n], *tables)
        assert isinstance(found, Rows)
        assert found.table.shape == (most, 3)
        assert found.limit == Limit(0, Length(1, 0), most)


def test_rows_behind_others_end_with_the_table_too() -> None:
    found = form(lambda n: TABLE[n : n + 5], TABLE)
    assert found is not None
    assert found.limit == Limit(Length(1, 0), 5, len(TABLE))
    assert found.limit.said("p") == "p and what follows: the model has values for 2048 at most"


REFUSED: dict[str, Make] = {
    "squares": lambda n: np.array(n * n),
    "squares of one more": lambda n: np.array((n + 1) ** 2),
    "squares of one less": lambda n: np.array((n - 1) ** 2),
    "pairs": lambda n: np.array([n * (n + 1) // 2, 7]),
    "as many as pairs": lambda n: np.zeros(n * (n - 1) // 2, np.float32),
    "a fraction": lambda n: np.float32([1 / n]),
    "rounded up": lambda n: np.array([-(-n // 16) * 16]),
    "random": lambda n: np.random.default_rng(n).standard_normal(8),
    "rows in reverse": lambda n: TABLE[:n][::-1],
    "of different types": lambda n: np.zeros(n, np.int32 if n < 500 else np.int64),
    "no room for both ends": lambda n: np.concatenate(
        [TABLE[:2], TABLE[5:6].repeat(n - 2, 0), TABLE[3:4]]
    ),
    "the first column": lambda n: np.eye(n, dtype=np.float32) + (np.arange(n) == 0),
    "as many as squares": lambda n: np.zeros(n * n, np.float32),
    "fewer for more": lambda n: np.zeros(2000 - n, np.float32),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_of_no_form(kind: str) -> None:
    assert form(REFUSED[kind]) is None
