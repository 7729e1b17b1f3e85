"""Every way a candidate can fail gets its own word, and takes its batch along in none."""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
from measure_case import (
    TARGET,
    N,
    all_bytes,
    arguments,
    bytes_but_one,
    double,
    gpu_only,
    half_written,
    hang,
    job,
    segfault,
    slow,
    timed,
    triple,
    uninitialised_max,
    vandal,
)

from tvm_ext.measure import runner, sandbox
from tvm_ext.measure.build import Built, build_many, one_line
from tvm_ext.measure.inputs import DRAWN, Argument, make_inputs
from tvm_ext.measure.job import Failure, Job, Outcome, OutputCheck
from tvm_ext.measure.run import Measurer
from tvm_ext.measure.sandbox import Limits


@pytest.fixture(scope="module")
def measurer():
    with Measurer(TARGET, num_threads=2, timeout_s=1.0) as measurer:
        yield measurer


def test_every_failure_has_its_kind_and_the_batch_goes_on(measurer):
    good = job(double, checked=True)
    bad = {
        "compile": job(gpu_only),
        "crash": job(segfault),
        "hang": job(hang),
        "wrong": job(triple, checked=True),
        "launch": job(double, arguments=(Argument((N + 1,), "float32"), arguments()[1])),
    }
    batch = [good, *(entry for kind in bad for entry in (bad[kind], good))]
    outcomes = measurer.measure(batch)
    assert all(timed(outcome) for outcome in outcomes[0::2])
    assert [outcome.failure.kind for outcome in outcomes[1::2]] == list(bad)
    assert all(outcome.latency_us == () for outcome in outcomes[1::2])
    assert all("\n" not in outcome.failure.message for outcome in outcomes[1::2])


def test_a_kernel_does_not_pay_for_what_another_did_to_its_inputs(measurer):
    good, bad = job(double, checked=True), job(vandal)
    assert measurer.verify([good, bad, good, bad, good]) == [None] * 5
    assert measurer.verify([bad, job(triple, checked=True)])[1].kind == "wrong"


def test_kernels_of_a_batch_share_a_child_until_one_fails(monkeypatch):
    forks = []
    monkeypatch.setattr(runner, "_Child", lambda *args: forks.append(Scripted()) or forks[-1])

    class Scripted:
        """A child that fails as it is told to by the number of a case."""

        known = frozenset(range(5))

        def ask(self, place, job, limits, best_us):
            kinds = {1: "wrong", 2: "launch", 3: "hang"}
            return Outcome(failure=Failure(kinds[place], "")) if place in kinds else Outcome((1.0,))

        def end(self):
            pass

    cases = [(Built.__new__(Built), job(double)) for _ in range(5)]
    for number, (kernel, _) in enumerate(cases):
        kernel.number = number
    with runner.Runner(cases, Limits(1.0)) as running:

        def forked_by(place):
            before = len(forks)
            running.run(place)
            return len(forks) - before

        assert [forked_by(place) for place in (0, 0, 4)] == [1, 0, 0]
        assert forked_by(1) == 1, "tried again by itself, which counts"
        assert [forked_by(place) for place in (1, 0, 2, 0, 3)] == [1, 1, 0, 1, 0]


def test_lone_candidate_is_repeated(measurer):
    (outcome,) = measurer.measure([job(double)])
    assert timed(outcome)
    assert len(outcome.latency_us) in (3, 6, 9)


def test_verify_finds_the_same_without_timing(measurer):
    failures = measurer.verify(
        [job(double, checked=True), job(segfault), job(triple, checked=True)]
    )
    assert [failure and failure.kind for failure in failures] == [None, "crash", "wrong"]


def test_wrong_names_the_worst_element(measurer):
    (failure,) = measurer.verify([job(triple, checked=True)])
    worst = 2 * int(np.argmax(np.abs(make_inputs(arguments(), 0)[0][::2])))
    assert f"element {worst} is" in failure.message
    assert f"{N // 2} of {N // 2} checked elements" in failure.message


@pytest.mark.parametrize(
    ("func", "dtype", "count"),
    [
        pytest.param(half_written, "float32", N // 2, id="part of the output unwritten"),
        pytest.param(bytes_but_one, "int8", 1, id="one byte unwritten"),
    ],
)
def test_unwritten_elements_are_counted_without_any_check(measurer, func, dtype, count):
    (failure,) = measurer.verify([job(func, arguments=arguments(dtype))])
    assert failure.kind == "wrong"
    assert f"{count} of {N} elements" in failure.message


def test_output_read_before_it_is_written_is_wrong(measurer):
    (failure,) = measurer.verify([job(uninitialised_max)])
    assert failure.kind == "wrong"


def test_values_equal_to_the_fill_are_no_failure(measurer):
    assert measurer.verify([job(all_bytes, arguments=arguments("int8"))]) == [None]


def test_infinities_and_nans_compare_by_kind(measurer):
    values = {"inf": np.inf, "nan": np.nan}
    jobs = [
        Job(double, arguments(), (OutputCheck(0, np.array([3]), np.array([value]), 1.0, 1.0),))
        for value in values.values()
    ]
    assert [failure.kind for failure in measurer.verify(jobs)] == ["wrong", "wrong"]


def test_each_point_can_have_a_bound_of_its_own(measurer):
    points, wanted = np.arange(N), 2 * make_inputs(arguments(), 0)[0]
    wanted[5] += 1.0
    bounds = np.full(N, 1e-6)
    checks = OutputCheck(0, points, wanted, rtol=0.0, atol=bounds)
    lenient = OutputCheck(0, points, wanted, rtol=0.0, atol=np.where(points == 5, 2.0, bounds))
    failures = measurer.verify([Job(double, arguments(), (check,)) for check in (checks, lenient)])
    assert failures[0].kind == "wrong"
    assert "element 5 is" in failures[0].message
    assert failures[1] is None


def test_candidate_far_behind_the_best_is_not_repeated(measurer):
    (outcome,) = measurer.measure([job(slow)], best_us=1.0)
    assert outcome.failure is None
    assert len(outcome.latency_us) == 2


def test_cold_caches_can_be_asked_for():
    with Measurer(TARGET, num_threads=1) as measurer:
        assert timed(measurer.measure([job(double, cold=True)])[0])


def test_a_busy_machine_shortens_the_timing_and_fails_nothing():
    class Crowded:
        def time_evaluator(self, *_, repeat, **__):
            def evaluate():
                time.sleep(0.3 * repeat)
                return SimpleNamespace(results=[0.3] * repeat)

            return evaluate

    crowded = SimpleNamespace(module=Crowded(), name="main", device=None, flush="")
    try:
        times = sandbox._repeat(
            crowded, [], Limits(0.5), [30.0, 20.0], cold=False, best_us=float("inf")
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert times == (3e5, 3e5, 3e5)


def test_build_many_keeps_the_order_of_its_kernels():
    import tvm

    jobs = [(func, None) for func in (double, gpu_only, double)]
    built = [one.kernel for one in build_many(jobs, tvm.target.Target(TARGET))]
    assert [isinstance(entry, Built) for entry in built] == [True, False, True]
    assert built[1].kind == "compile"


def test_kernels_compiled_together_are_told_apart() -> None:
    import tvm

    jobs = [(func, None) for func in (double, triple, double, triple)]
    first, second, third, last = (
        one.kernel for one in build_many(jobs, tvm.target.Target(TARGET), workers=1)
    )
    assert first.module.same_as(last.module)
    assert len({one.name for one in (first, second, third, last)}) == 4
    given = np.arange(N, dtype=np.float32)
    for kernel, factor in ((first, 2), (second, 3), (third, 2), (last, 3)):
        result = tvm.runtime.tensor(np.zeros(N, np.float32))
        kernel.main(tvm.runtime.tensor(given), result)
        np.testing.assert_array_equal(result.numpy(), factor * given)


def test_inputs_are_the_same_everywhere_and_fit_their_types():
    wanted = (
        Argument((3, 5), "float32"),
        Argument((3, 5), "float32"),
        Argument((100,), "int64", span=(0, 3)),
        Argument((100,), "int8", span=(-128, 128)),
        Argument((100,), "bool"),
        Argument((4,), "bfloat16"),
        Argument((9,), "float16"),
        Argument((3, 5), "float32", output=True),
    )
    first, second = make_inputs(wanted, 7), make_inputs(wanted, 7)
    assert [a.tobytes() for a in first] == [a.tobytes() for a in second]
    assert [str(a.dtype) for a in first] == [argument.dtype for argument in wanted[:-1]]
    assert [a.shape for a in first] == [argument.shape for argument in wanted[:-1]]
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], make_inputs(wanted, 8)[0])
    assert set(np.unique(first[2])) == {0, 1, 2}
    assert first[3].min() < 0 < first[3].max()


def test_large_inputs_repeat_out_of_step_with_their_axes():
    (large,) = make_inputs((Argument((1024, 512), "float32"),), 0)
    assert large.shape == (1024, 512)
    flat = large.reshape(-1)
    np.testing.assert_array_equal(flat[:-DRAWN], flat[DRAWN:])
    assert np.unique(large, axis=0).shape == large.shape
    assert np.unique(large, axis=1).shape == large.shape


def test_what_nvcc_says_is_not_hidden_behind_its_code() -> None:
    error = RuntimeError(
        "#include <cuda.h>\n" * 99 + "\nCompilation error:\nk.cu(1): no such type\n"
    )
    assert one_line(error) == "RuntimeError: k.cu(1): no such type"
