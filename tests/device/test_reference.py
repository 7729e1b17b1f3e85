"""The reference evaluator against unscheduled functions compiled by TVM, element by element."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tvm_ext.compute import maths
from tvm_ext.compute.norm import softmax
from tvm_ext.tir.compare import choose, compare
from tvm_ext.tir.reference import Reference
from tvm_ext.tvm_api import IRModule, PrimFunc, Target, relax, te, tirx, topi, tvm

R = relax.op
F32, F16, BF16, I64 = "float32", "float16", "bfloat16", "int64"


def lower(build, *tensors):
    """The single PrimFunc that a Relax expression becomes after legalisation and fusion."""
    params = [
        relax.Var(f"p{i}", relax.TensorType(shape, dtype))
        for i, (shape, dtype) in enumerate(tensors)
    ]
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit_output(build(bb.emit, *params))
        bb.emit_func_output(out)
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    with Target("llvm"):
        module = tvm.transform.Sequential(passes)(bb.finalize())
    funcs = [f for f in module.functions.values() if isinstance(f, PrimFunc)]
    assert len(funcs) == 1
    return funcs[0]


def from_te(*tensors):
    """The PrimFunc of a TE expression."""
    return te.create_prim_func(list(tensors))


def random_inputs(reference, seed=0, high=4):
    """Normal floats, non-negative small integers."""
    rng = np.random.default_rng(seed)
    arrays = []
    for shape, dtype in reference.inputs:
        if dtype == "bool":
            arrays.append(rng.integers(0, 2, size=shape).astype(bool))
        elif "int" in dtype:
            arrays.append(rng.integers(0, high, size=shape).astype(dtype))
        else:
            arrays.append(rng.standard_normal(shape).astype(_numpy(dtype)))
    return arrays


def _numpy(dtype):
    if dtype == BF16:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def run_kernel(func, inputs, outputs):
    """The outputs of the function as TVM compiles it."""
    module = IRModule({"main": func.with_attr("global_symbol", "main")})
    kernel = tvm.compile(module, target="llvm")
    results = [np.zeros(shape, _numpy(dtype)) for shape, dtype in outputs]
    given = [tvm.runtime.tensor(a) for a in (*inputs, *results)]
    kernel["main"](*given)
    return [t.numpy() for t in given[len(inputs) :]]


def check_all(func, seed=0, high=4):
    """Compares every element of every output; returns the reference and its inputs."""
    reference = Reference.of(func)
    assert reference is not None
    inputs = random_inputs(reference, seed, high)
    results = run_kernel(func, inputs, reference.outputs)
    for number, ((shape, _), got) in enumerate(zip(reference.outputs, results, strict=True)):
        points = reference.points(inputs, number, choose(shape, None, count=got.size))
        outcome = compare(got, points)
        assert outcome.ok, outcome
        assert outcome.checked >= 0.9 * got.size
    return reference, inputs


def conv_bias_relu(emit, x, w, b, **options):
    return emit(R.nn.relu(emit(R.add(emit(R.nn.conv2d(x, w, **options)), b))))


CONV = partial(conv_bias_relu, padding=1, strides=2)
GROUPED = partial(conv_bias_relu, padding=1, groups=2, dilation=2)


def gelu(emit, x):
    return emit(R.nn.gelu(x))


CASES = {
    "conv_pad_bias_relu": (CONV, ((2, 5, 9, 9), F32), ((6, 5, 3, 3), F32), ((1, 6, 1, 1), F32)),
    "conv_grouped_dilated": (
        GROUPED, ((1, 6, 9, 8), F32), ((4, 3, 3, 3), F32), ((1, 4, 1, 1), F32)
    ),
    "softmax": (lambda e, x: e(R.nn.softmax(x, -1)), ((3, 4, 37), F32)),
    "log_softmax": (lambda e, x: e(R.nn.log_softmax(x, -1)), ((5, 37), F32)),
    "layer_norm": (
        lambda e, x, g, b: e(R.nn.layer_norm(x, g, b, -1)),
        ((4, 3, 33), F32), ((33,), F32), ((33,), F32),
    ),
    "rms_norm": (lambda e, x, g: e(R.nn.rms_norm(x, g, -1)), ((4, 33), F32), ((33,), F32)),
    "mean": (lambda e, x: e(R.mean(x, [2, 3])), ((2, 3, 7, 7), F32)),
    "max_pool": (
        lambda e, x: e(R.nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=1)), ((1, 3, 9, 9), F32)
    ),
    "avg_pool_counting_padding_out": (
        lambda e, x: e(R.nn.avg_pool2d(x, (3, 3), strides=(2, 2), padding=1)), ((1, 3, 9, 9), F32)
    ),
    "argmax": (lambda e, x: e(R.argmax(x, 1)), ((4, 33), F32)),
    "argmin_keepdims": (lambda e, x: e(R.argmin(x, 0, keepdims=True)), ((33, 4), F32)),
    "take": (lambda e, x, i: e(R.take(x, i, 0)), ((4, 6), F32), ((3, 2), I64)),
    "gather_elements": (
        lambda e, x, i: e(R.gather_elements(x, i, 1)), ((3, 4), F32), ((3, 7), I64)
    ),
    "concat": (
        lambda e, x, y, z: e(R.concat([x, e(R.exp(y)), z], 1)),
        ((2, 3, 4), F32), ((2, 1, 4), F32), ((2, 5, 4), F32),
    ),
    "strided_slice": (
        lambda e, x: e(R.strided_slice(x, [0, 1], [1, 8], [9, 0], [3, -2])), ((9, 9), F32)
    ),
    "where": (
        lambda e, c, x, y: e(R.where(c, x, y)), ((4, 5), "bool"), ((4, 5), F32), ((1, 5), F32)
    ),
    "where_computed": (
        lambda e, x, y: e(R.where(e(R.greater(e(R.exp(x)), y)), x, y)), ((40, 5), F32), ((5,), F32)
    ),
    "cast_float_to_int": (lambda e, x: e(R.astype(x, "int32")), ((40, 7), F32)),
    "cast_int_to_float16": (lambda e, x: e(R.astype(x, F16)), ((4, 7), "int32")),
    "gelu": (gelu, ((6, 50), F32)),
    "silu_tanh": (lambda e, x: e(R.tanh(e(R.nn.silu(x)))), ((6, 50), F32)),
    "matmul_batched_broadcast": (
        lambda e, x, y: e(R.matmul(x, y)), ((3, 2, 5, 17), F32), ((2, 17, 4), F32)
    ),
    "transpose_reshape": (
        lambda e, x: e(R.reshape(e(R.permute_dims(x, [0, 2, 1])), (6, 10))), ((3, 4, 5), F32)
    ),
    "resize_linear": (
        lambda e, x: e(R.image.resize2d(x, (13, 7), method="linear")), ((1, 2, 5, 5), F32)
    ),
    "resize_nearest": (
        lambda e, x: e(
            R.image.resize2d(
                x, (10, 10), method="nearest_neighbor",
                coordinate_transformation_mode="asymmetric", rounding_method="floor",
            )
        ),
        ((1, 2, 5, 5), F32),
    ),
    "resize_nearest_at_ties": (
        lambda e, x: e(R.image.resize2d(x, (31, 23), method="nearest_neighbor")),
        ((1, 2, 9, 10), F32),
    ),
    "not_a_number": (lambda e, x: e(R.sqrt(e(R.subtract(x, e(R.log(x)))))), ((40,), F32)),
    "power_floor_mod": (
        lambda e, x, y: e(R.floor_mod(e(R.power(e(R.abs(x)), y)), e(R.exp(y)))),
        ((8, 9), F32), ((8, 9), F32),
    ),
    "integer_arithmetic": (
        lambda e, x, y: e(R.floor_divide(e(R.subtract(e(R.multiply(x, x)), y)), e(R.maximum(
            y, relax.const(3, "int32"))))),
        ((8, 9), "int32"), ((8, 9), "int32"),
    ),
    "matmul_bfloat16_in_float32": (
        lambda e, x, y: e(R.matmul(x, y, out_dtype=F32)), ((5, 64), BF16), ((64, 3), BF16)
    ),
    "add_float16": (lambda e, x, y: e(R.add(x, y)), ((5, 8), F16), ((8,), F16)),
    "product": (lambda e, x: e(R.prod(x, 1)), ((5, 8), F32)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_element_agrees_with_the_compiled_function(name):
    build, *tensors = CASES[name]
    check_all(lower(build, *tensors))


def test_scalars():
    a = te.placeholder((), name="a")
    check_all(from_te(a, te.compute((), lambda: a() * 2.0, name="b")))


def test_reduction_to_one_element_is_chunked():
    a = te.placeholder((70, 1000), name="a")
    check_all(from_te(a, topi.sum(a)))


def test_float16_below_its_normal_range():
    a = te.placeholder((3, 300), F16, name="a")
    b = te.compute(a.shape, lambda i, j: a[i, j] * tirx.const(3.0, F16))
    reference, inputs = check_all(from_te(a, topi.cast(topi.nn.softmax(b), F32)))
    assert reference.points(inputs, 0, np.arange(900)).values.min() < 6e-5


def test_two_outputs():
    a = te.placeholder((4, 30), name="a")
    total = topi.sum(a, 1)
    reference, _ = check_all(from_te(a, total, topi.exp(total)))
    assert [shape for shape, _ in reference.outputs] == [(4,), (4,)]


def test_reduction_over_a_reduction():
    q, k = te.placeholder((2, 6, 16), name="q"), te.placeholder((2, 7, 16), name="k")
    check_all(from_te(q, k, topi.nn.softmax(topi.nn.batch_matmul(q, k))))


def test_reinterpret_and_bits():
    a = te.placeholder((64,), name="a")
    bits = te.compute(
        (64,), lambda i: tirx.reinterpret("int32", a[i]) & tirx.const(0x7FFFFF, "int32")
    )
    check_all(from_te(a, te.compute((64,), lambda i: tirx.popcount(bits[i]) + (bits[i] >> 3))))


@pytest.mark.parametrize("name", ["sort", "cumsum", "symbolic", "scheduled"])
def test_what_is_not_understood_has_no_reference(name):
    a = te.placeholder((4, 9), name="a")
    if name == "sort":
        with Target("llvm"):
            func = from_te(a, topi.sort(a))
    elif name == "cumsum":
        func = from_te(a, topi.cumsum(a, 1))
    elif name == "symbolic":
        s = te.placeholder((te.var("n", "int64"), 9), name="s")
        func = from_te(s, topi.exp(s))
    else:
        schedule = tvm.s_tir.Schedule(from_te(a, te.compute((4, 9), lambda i, j: a[i, j] + 1.0)))
        i, _ = schedule.get_loops(schedule.get_sblock("compute"))
        schedule.split(i, [2, 2])
        func = schedule.mod["main"]
    assert Reference.of(func) is None


def conv_case():
    """1024 elements of a convolution of a residual network's depth: K = 4608."""
    func = lower(CONV, ((1, 512, 14, 14), F32), ((64, 512, 3, 3), F32), ((1, 64, 1, 1), F32))
    reference = Reference.of(func)
    inputs = random_inputs(reference)
    return reference, inputs, choose((1, 64, 7, 7), (1, 64, 1, 7))


def sum_in_float32(reference, inputs, flat, skip=None):
    """The convolution as a float32 kernel adds it, one input channel and tap after the other."""
    x, w, b = inputs
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    _, ff, yy, xx = np.unravel_index(flat, reference.outputs[0][0])
    total = np.zeros(flat.size, np.float32)
    for step, (c, i, j) in enumerate(np.ndindex(512, 3, 3)):
        if step != skip:
            total += padded[0, c, yy * 2 + i, xx * 2 + j] * w[ff, c, i, j]
    return np.maximum(total + b[0, ff, 0, 0], 0)


def test_a_dropped_reduction_step_is_caught_and_plain_float32_passes():
    reference, inputs, flat = conv_case()
    points = reference.points(inputs, 0, flat)
    fine = compare(sum_in_float32(reference, inputs, flat), points)
    assert fine.ok
    assert fine.ratio < 0.2
    broken = sum_in_float32(reference, inputs, flat, skip=1234)
    assert not compare(broken, points).ok
    wrong = np.abs(broken - points.values) > points.bounds
    positive = points.values > 0
    assert wrong[positive].mean() > 0.7


@pytest.mark.parametrize("relative", [3e-5, -3e-5])
def test_a_small_error_in_one_element_is_caught(relative):
    func = lower(CASES["layer_norm"][0], *CASES["layer_norm"][1:])
    reference = Reference.of(func)
    inputs = random_inputs(reference)
    (got,) = run_kernel(func, inputs, reference.outputs)
    got = got.copy()
    worst = np.unravel_index(np.argmax(np.abs(got)), got.shape)
    got[worst] *= 1 + relative
    outcome = compare(got, reference.points(inputs, 0, np.arange(got.size)))
    assert not outcome.ok
    assert outcome.position == np.ravel_multi_index(worst, got.shape)


def test_fast_approximations_pass_and_wrong_functions_do_not():
    a = te.placeholder((40, 50), name="a")
    for exact, fast in ((topi.tanh, topi.fast_tanh), (topi.exp, topi.fast_exp)):
        reference = Reference.of(from_te(a, exact(a)))
        inputs = random_inputs(reference)
        points = reference.points(inputs, 0, np.arange(2000))
        (approximate,) = run_kernel(from_te(a, fast(a)), inputs, reference.outputs)
        assert compare(approximate, points).ok
        assert not compare(points.values * np.float32(1 + 1e-5), points).ok


def test_a_polynomial_with_bit_tricks_is_its_own_reference():
    a = te.placeholder((40, 50), name="a")
    total = topi.sum(topi.fast_exp(a), 1)
    reference, inputs = check_all(from_te(a, total))
    np.testing.assert_allclose(
        reference.points(inputs, 0, np.arange(40)).values, np.exp(inputs[0]).sum(1), rtol=1e-5
    )


def test_decisions_within_rounding_are_not_judged_and_others_are():
    a = te.placeholder((3,), name="a")
    bins = te.compute((3,), lambda i: tirx.floor(a[i] * tirx.const(10.0, F32)).astype("int32"))
    reference = Reference.of(from_te(a, bins))
    inputs = [np.array([0.25, 0.3, 0.35], np.float32)]
    points = reference.points(inputs, 0, np.arange(3))
    assert points.values.dtype == np.int32
    assert points.bounds.tolist() == [0.0, 1.0, 0.0]
    assert compare(np.array([2, 2, 3]), points).ok
    assert not compare(np.array([3, 3, 3]), points).ok


def test_nothing_is_known_of_a_quotient_whose_divisor_may_be_zero() -> None:
    """A sum that cancels down to its own rounding error, as of weights that are learned."""
    a, b, c, d = (te.placeholder((512,), F32, name) for name in "abcd")
    quotient = te.compute((512,), lambda i: a[i] / (te.exp(b[i]) + te.exp(c[i]) * -1.0))
    root = te.compute((512,), lambda i: te.sqrt(te.abs(d[i] * quotient[i]) + 1.0))
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(512).astype(F32) for _ in range(4)]
    values[2][:8] = np.nextafter(values[1][:8], np.float32(np.inf))
    values[3][:4] = 0  # times it no more is known
    for made, given in ((quotient, values[:3]), (root, values)):
        reference = Reference.of(from_te(*(a, b, c, d)[: len(given)], made))
        points = reference.points(given, 0, choose((512,), None, count=512))
        assert np.isinf(points.bounds[:8]).all()
        assert np.isfinite(points.bounds[8:]).all()


def test_integer_results_are_exact():
    func = lower(CASES["argmax"][0], *CASES["argmax"][1:])
    reference = Reference.of(func)
    inputs = random_inputs(reference)
    points = reference.points(inputs, 0, np.arange(4))
    np.testing.assert_array_equal(points.values, inputs[0].argmax(1))
    assert not compare(points.values + np.array([0, 0, 1, 0]), points).ok


def test_cost_counts_the_reductions_an_element_reads():
    def cost(name):
        return Reference.of(lower(CASES[name][0], *CASES[name][1:])).cost_points(0)

    assert cost("conv_pad_bias_relu") == 1 + 5 * 3 * 3
    assert cost("softmax") == 2 + 37 + (37 + 37)
    assert cost("take") == 1


def test_inputs_of_the_wrong_shape_are_refused():
    reference = Reference.of(lower(CASES["gelu"][0], *CASES["gelu"][1:]))
    with pytest.raises(ValueError, match="shapes"):
        reference.points([np.zeros((50, 6), np.float32)], 0, np.arange(3))


@pytest.mark.parametrize("whole", [False, True], ids=["of_two", "of_a_row"])
def test_of_a_number_and_a_nan_a_kernel_may_take_either(whole):
    """Roots of random data: the larger of one and a number, and what is made of it, is not bound;
    where no NaN took part it is."""

    x = te.placeholder((2, 3), F32, name="x")
    if whole:
        k = te.reduce_axis((0, 3))
        top = te.compute((2,), lambda i: te.max(tirx.sqrt(x[i, k]), k))
    else:
        top = te.compute((2, 3), lambda i, j: tirx.max(tirx.sqrt(x[i, j]), tirx.const(1e-3, F32)))
    reference = Reference.of(from_te(x, te.compute(top.shape, lambda *at: 1.0 / top[at])))
    x = np.array([[4.0, -1.0, 9.0], [1.0, 16.0, 4.0]], np.float32)
    points = reference.points([x], 0, np.arange(np.prod(reference.outputs[0][0])))
    bound = np.isfinite(points.bounds)
    assert bound.tolist() == ([False, True] if whole else [True, False, *[True] * 4])
    for other in (np.nan, 1e3):
        got = np.where(bound, points.values, other)
        assert compare(got.astype(np.float32), points).ok
    assert not compare(np.full_like(points.values, 7.0), points).ok


@pytest.mark.parametrize("name", ["exp", "sigmoid"])
def test_a_fraction_that_is_rounded_off_is_so_in_the_reference_too(name):
    """n = (x * log2(e) + 1.5 * 2**23) - 1.5 * 2**23 is a whole number in float32, not in float64:
    e**-5 was 0.0078 there, and whatever is divided by a sum of such values had no bound at all."""
    a = te.placeholder((4096,), F32, "a")
    power = te.compute(a.shape, lambda i: getattr(maths, name)(a[i]), "power")
    x = np.random.default_rng(0).uniform(-60, 60, 4096).astype(F32)
    exact = np.exp(x.astype("float64")) if name == "exp" else 1 / (1 + np.exp(-x.astype("float64")))
    points = Reference.of(from_te(a, power)).points([x], 0, np.arange(4096))
    assert np.all(np.abs(points.values - exact) <= 1e-5 * exact)
    assert np.quantile(points.bounds / exact, 0.99) < 2e-5


def test_a_softmax_by_powers_of_two_is_bounded():
    a = te.placeholder((5, 37), F32, "a")
    func = from_te(a, softmax(a, 1, 8))
    (x,) = random_inputs(Reference.of(func))
    points = Reference.of(func).points([x], 0, np.arange(5 * 37))
    assert np.all(points.bounds <= 1e-5 * points.values)
