"""Two modules that differ by one extent, as one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, permutations, product
from typing import Any

import numpy as np
import pytest

from tvm_ext.compute.open_attention import SPARE_ROWS
from tvm_ext.graph.unify import EXTENTS as CHOICES
from tvm_ext.graph.unify import SEVERAL, extent_text, of_one, pairs_for, unify, unify_all
from tvm_ext.tir.symbolic import instance, symbols
from tvm_ext.tvm_api import (
    Analyzer,
    IRModule,
    PrimFunc,
    constant,
    relax,
    structural_equal,
    te,
    tirx,
    topi,
)

EXTENTS = CHOICES[0]
Build = Callable[[Any, Any], Any]
"""From a builder and an input to a result."""
WEIGHT = constant(np.ones((6, 10), "float32"))


def module(extent: int, build: Build, *rest: int) -> IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((extent, *rest), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(build(builder, x))
        builder.emit_func_output(result)
    return relax.transform.LegalizeOps()(builder.finalize())


def unified(build: Build, *rest: int) -> IRModule | None:
    return unify([module(extent, build, *rest) for extent in EXTENTS], "n", EXTENTS)


def kernels(mod: IRModule) -> list[PrimFunc]:
    return [func for func in mod.functions.values() if isinstance(func, PrimFunc)]


def test_shapes_and_loops_grow_with_it() -> None:
    made = unified(lambda builder, x: relax.op.matmul(x, WEIGHT), 6)
    assert made is not None
    main = made["main"]
    rows, columns = main.ret_ty.shape
    assert rows.same_as(main.params[0].ty.shape[0])
    assert int(columns) == 10
    (kernel,) = kernels(made)
    for extent in EXTENTS:
        again = instance(kernel, dict.fromkeys(symbols(kernel), extent))
        (wanted,) = kernels(module(extent, lambda builder, x: relax.op.matmul(x, WEIGHT), 6))
        assert structural_equal(again, wanted)


def test_a_kernel_counts_in_steps_that_its_tensors_tell() -> None:
    """Flattened rows of images: nothing says that they come by seven."""

    def build(builder: Any, x: Any) -> Any:
        flat = builder.emit(relax.op.reshape(x, (int(x.ty.shape[0]) * 7, 6)))
        return relax.op.add(flat, relax.const(1.0, "float32"))

    made = unified(build, 7, 6)
    assert made is not None
    (add,) = [
        func
        for func in kernels(made)
        if len(func.params) == 2 and len(symbols(func)) == 1 and len(func.params[0].shape) == 2
    ]
    assert symbols(add) == (add.params[0].shape[0],)


def test_an_extent_that_no_tensor_tells_is_told() -> None:
    def build(builder: Any, x: Any) -> Any:
        def body(x: Any) -> Any:
            half = int(x.shape[0]) // 6
            inner = te.compute((half, 6), lambda i, j: x[i * 6 + j] * 2.0, name="inner")
            return te.compute(x.shape, lambda i: inner[i // 6, i % 6] + 1.0, name="outer")

        many = builder.emit(builder.call_te(lambda x: topi.repeat(x, 6, 0), x))
        return builder.call_te(body, many)

    made = unified(build)
    assert made is not None
    told = [func for func in kernels(made) if not all(hasattr(p, "shape") for p in func.params)]
    assert len(told) == 1
    assert not hasattr(told[0].params[1], "shape"), "after its operand, before its result"


def test_what_differs_by_more_is_refused() -> None:
    def fewer(builder: Any, x: Any) -> Any:
        if int(x.ty.shape[0]) == EXTENTS[0]:
            return relax.op.nn.relu(x)
        return relax.op.tanh(x)

    assert unified(fewer, 6) is None


@pytest.mark.parametrize("extents", CHOICES)
def test_squares_are_no_affine_function(extents: tuple[int, int]) -> None:
    """Two of them are: 1443 * n - 452702 is 461 * 461 and 982 * 982."""

    def build(builder: Any, x: Any) -> Any:
        n = int(x.ty.shape[0])
        return builder.call_te(lambda x: te.compute((n * n,), lambda i: x[i % n, 0]), x)

    assert unify([module(extent, build, 6) for extent in extents], "n", extents) is None


@pytest.mark.parametrize("extents", CHOICES)
def test_nor_are_they_where_something_is_divided(extents: tuple[int, int]) -> None:
    def build(builder: Any, x: Any) -> Any:
        n = int(x.ty.shape[0])
        return builder.call_te(
            lambda x: te.compute((n, 6), lambda i, j: x[i, j] * tirx.const(1 / n**2, "float32")), x
        )

    assert unify([module(extent, build, 6) for extent in extents], "n", extents) is None


@pytest.mark.parametrize("size", [4, 8, 12, 16, 32, 48, 64])
@pytest.mark.parametrize("extents", [*CHOICES, *chain(*SEVERAL)])
def test_what_is_rounded_up_is_no_affine_function(extents: tuple[int, int], size: int) -> None:
    whole = [-(-extent // size) * size for extent in extents]
    apart = extents[1] - extents[0]
    assert (whole[1] - whole[0]) % apart


def test_an_average_over_it_is_divided_by_it() -> None:
    made = unified(lambda builder, x: relax.op.mean(x, [0]), 6)
    assert made is not None
    (kernel,) = [func for func in kernels(made) if "divide" in func.script()]
    assert symbols(kernel)


def test_a_sum_over_it_is_none_of_many_slices_but_the_same_function() -> None:
    made = unified(lambda builder, x: relax.op.sum(x, [0]), 6)
    assert made is not None
    assert [int(extent) for extent in made["main"].ret_ty.shape] == [6]


def test_another_extent() -> None:
    (kernel,) = kernels(module(EXTENTS[0], lambda builder, x: relax.op.nn.relu(x), 6))
    (wanted,) = kernels(module(1, lambda builder, x: relax.op.nn.relu(x), 6))
    assert structural_equal(of_one(kernel, EXTENTS[:1]), wanted)


def texts(build: Build, names: tuple[str, ...] = ("b", "n")) -> IRModule | None:
    """A module of x[b, n, 6]."""
    (pairs, *_) = pairs_for(2)
    modules = {point: module(point[0], build, point[1], 6) for point in product(*pairs)}
    return unify_all(modules, names)


def test_two_extents() -> None:
    """Rows of all texts of a batch are one extent to a product, two to what adds positions."""

    def build(builder: Any, x: Any) -> Any:
        b, n, width = map(int, x.ty.shape)
        rows = builder.emit(relax.op.reshape(x, (b * n, width)))
        summed = builder.emit(relax.op.reshape(relax.op.matmul(rows, WEIGHT), (b, n, 10)))
        return relax.op.add(summed, relax.op.sum(summed, [0], keepdims=True))

    made = texts(build)
    assert made is not None
    main = made["main"]
    b, n, _ = main.params[0].ty.shape
    assert (str(b.name), str(n.name)) == ("b", "n")
    rows, columns, _ = main.ret_ty.shape
    assert rows.same_as(b)
    assert columns.same_as(n)
    counts = {len(symbols(kernel)) for kernel in kernels(made)}
    assert counts == {1, 2}


def test_what_grows_with_a_product_of_both() -> None:
    def build(builder: Any, x: Any) -> Any:
        b, n, width = map(int, x.ty.shape)
        return relax.op.reshape(x, (b * n * width,))

    made = texts(build)
    assert made is not None
    b, n, _ = made["main"].params[0].ty.shape
    (length,) = made["main"].ret_ty.shape
    assert Analyzer().can_prove(length == b * n * 6)


def test_what_only_one_of_both_decides() -> None:
    """A module that is another one for few texts is one along the other extent alone."""

    def build(builder: Any, x: Any) -> Any:
        few = int(x.ty.shape[0]) == SEVERAL[0][1][0]
        return relax.op.nn.relu(x) if few else relax.op.tanh(x)

    assert texts(build) is None


@pytest.mark.parametrize("count", [1, 2, 3])
def test_numbers_that_stand_for_extents_differ(count: int) -> None:
    for pairs in pairs_for(count):
        numbers = [number for pair in pairs for number in pair]
        assert len(set(numbers)) == 2 * count
        assert len({b - a for a, b in pairs}) == count
        for pair, other in permutations(pairs, 2):
            for number, own in product(other, pair):
                lengths = (own + more for more in (-2, -1, 0, 1, 2, SPARE_ROWS))
                assert all(length % number for length in lengths)
    for own, other, third in permutations(pairs, 3):
        sums = [sum(two) + more for two in product(own, other) for more in (-1, 0, 1)]
        assert all(length % number for length in sums for number in third)


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (lambda b, n: 7, 7),
        (lambda b, n: b, "b"),
        (lambda b, n: 2 * n - 3, "2*n-3"),
        (lambda b, n: b + n, "b+n"),
        (lambda b, n: n + 1, "n+1"),
        (lambda b, n: 4 * b * n, "4*b*n"),
        (lambda b, n: n - b, "-b+n"),
        (lambda b, n: (n + 1) // 2, "?"),
    ],
)
def test_an_extent_as_a_text(of: Callable[[int, int], int], text: int | str) -> None:
    (pairs, *_) = pairs_for(2)
    assert extent_text({point: of(*point) for point in product(*pairs)}, ("b", "n")) == text
