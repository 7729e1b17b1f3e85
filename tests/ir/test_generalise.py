"""Functions that differ by numbers as one."""

from __future__ import annotations

import pytest

from tvm_ext.tir.generalise import generalised, numbers
from tvm_ext.tir.symbolic import instance
from tvm_ext.tvm_api import PrimFunc, structural_equal, te, tirx

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


def rows(n: int, m: int, more: int = 0) -> PrimFunc:
    """y[i, j] = x[2 * i, j] of 2 * n + 3 rows of m, and numbers of either."""
    sizes = [tirx.const(size, "int64") for size in (2 * n + 3, m)]
    x = te.placeholder(sizes, "float32", "x")
    y = te.compute((tirx.const(n, "int64"), sizes[1]), lambda i, j: x[2 * i, j] + float(more))
    return te.create_prim_func([x, y])


def test_numbers_of_one_quantity() -> None:
    made = generalised([rows(5, 9), rows(8, 9)], [(5,), (8,)], (N,))
    assert made is not None
    assert [str(extent) for extent in made.params[0].shape] == [
        "n * T.int64(2) + T.int64(3)",
        "T.int64(9)",
    ]
    again = instance(made, {N: 20})
    assert again is not None
    assert structural_equal(again, rows(20, 9))


def test_numbers_of_two_quantities() -> None:
    points = [(5, 9), (8, 9), (5, 20), (13, 11)]
    made = generalised([rows(*point) for point in points], points, (N, M))
    assert made is not None
    for n, m in (*points, (40, 2)):
        again = instance(made, {M: m, N: n})
        assert again is not None
        assert structural_equal(again, rows(n, m))


def test_an_expression_may_be_written_for_a_quantity() -> None:
    made = generalised([rows(5, 9), rows(8, 9)], [(5,), (8,)], (N + 1,))
    assert made is not None
    again = instance(PrimFunc([*made.params, N], made.body, attrs=made.attrs), {N: 4})
    assert again is not None
    assert numbers(again) == numbers(rows(5, 9))


@pytest.mark.parametrize("third", [11, 12, 14])
def test_one_function_more_tells_what_is_not_affine(third: int) -> None:
    """n * n at 5, 8 and another."""
    points = [5, 8, third]
    functions = [rows(n, n * n) for n in points]
    assert generalised(functions, [(n,) for n in points], (N,)) is None


def scaled(value: float) -> PrimFunc:
    x = te.placeholder((5,), "float32", "x")
    return te.create_prim_func([x, te.compute((5,), lambda i: x[i] * tirx.const(value, "float32"))])


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ((5.0, 8.0), 'T.Cast("float32", n)'),
        ((1 / 5, 1 / 8), 'T.float32(-1.0) / T.Cast("float32", n * T.int64(-1))'),
        ((1 / 50, 1 / 80), 'T.float32(-1.0) / T.Cast("float32", n * T.int64(-10))'),
        ((0.5, 2.0), None),
        ((0.3, 0.4), None),
        ((-5.0, -8.0), None),
    ],
)
def test_averages_have_one_by_a_number(values: tuple[float, float], wanted: str | None) -> None:
    made = generalised([scaled(value) for value in values], [(5,), (8,)], (N,))
    if wanted is None:
        assert made is None
    else:
        assert made is not None
        assert wanted in made.script()


def test_functions_of_other_structure() -> None:
    other = te.placeholder((5, 9), "float32", "x")
    func = te.create_prim_func([other, te.compute((5,), lambda i: other[i, 0])])
    assert generalised([rows(5, 9), func], [(5,), (8,)], (N,)) is None


def test_what_is_no_whole_multiple() -> None:
    assert generalised([rows(5, 9), rows(5, 10)], [(2,), (4,)], (N,)) is None
