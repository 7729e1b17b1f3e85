"""What kernels are verified on: no divisor is zero, which would end the process that checks it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx_models import make_model

import tvm_ext
from tvm_ext.measure.inputs import make_inputs
from tvm_ext.tvm_api import te, tirx, topi
from tvm_ext.verify import arguments_of, divisors, index_spans


@pytest.mark.parametrize("name", ["Div", "Mod"])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64"])
def test_integers_are_divided(name: str, dtype: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [helper.make_tensor_value_info(n, kind, [4, 33]) for n in "ab"]
    model = make_model([helper.make_node(name, ["a", "b"], ["y"])], inputs, ["y"])
    rng = np.random.default_rng(0)
    a, b = (rng.integers(1, 100, (4, 33)).astype(dtype) for _ in "ab")
    (found,) = tvm_ext.compile(model)(a, b)
    np.testing.assert_array_equal(found, a // b if name == "Div" else a % b)


def test_divisors_are_found() -> None:
    a, b, table = (te.placeholder((9,), "int32", name=n) for n in "abt")
    index = te.compute((9,), lambda i: tirx.truncdiv(a[i], b[i] + 1), name="index")
    func = te.create_prim_func([a, b, table, topi.take(table, index)])
    assert divisors(func, index_spans(func)) == {1}
    direct = te.compute((9,), lambda i: tirx.truncmod(table[i], te.const(3)), name="known")
    assert divisors(te.create_prim_func([table, direct]), ()) == set()


def test_what_is_divided_by_a_stage_has_no_zeros_among_its_parameters() -> None:
    a, b = (te.placeholder((64,), "int32", name=n) for n in "ab")
    double = te.compute((64,), lambda i: b[i] * 2, name="double")
    quotient = te.compute((64,), lambda i: tirx.truncdiv(a[i], double[i]), name="quotient")
    func = te.create_prim_func([a, b, quotient])
    assert divisors(func, ()) >= {0, 1}
    assert all((array > 0).all() for array in make_inputs(arguments_of(func, 1), 0))


def test_a_divisor_that_is_an_index_stays_one() -> None:
    n, table = te.placeholder((9,), "int32", name="n"), te.placeholder((2,), "int32", name="t")
    quotient = te.compute((9,), lambda i: tirx.truncdiv(table[n[i]], n[i]), name="quotient")
    numbers, _ = make_inputs(arguments_of(te.create_prim_func([n, table, quotient]), 1), 0)
    assert (numbers == 1).all()
