"""Every way a candidate can fail gets its own word, and takes neither batch nor tuner along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from tvm.script import tirx as T

from tvm_ext.measure import remote, sandbox
from tvm_ext.measure.build import Built, build_many
from tvm_ext.measure.inputs import Argument, make_inputs
from tvm_ext.measure.job import Failure, Job, Outcome, OutputCheck
from tvm_ext.measure.run import Measurer
from tvm_ext.measure.sandbox import Limits

TARGET = {"kind": "llvm", "num-cores": 2}
N = 64


@T.prim_func(s_tir=True)
def double(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.parallel(N):
        B[i] = A[i] * T.float32(2)


@T.prim_func(s_tir=True)
def triple(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.serial(N):
        B[i] = A[i] * T.float32(3)


@T.prim_func(s_tir=True)
def segfault(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.serial(N):
        B[i + 1000000000] = A[i]


@T.prim_func(s_tir=True)
def hang(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    B[0] = T.float32(0)
    while B[0] < T.float32(1):
        B[0] = B[0] * T.float32(0.5)


@T.prim_func(s_tir=True)
def half_written(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.serial(N // 2):
        B[i] = A[i] * T.float32(2)


@T.prim_func(s_tir=True)
def uninitialised_max(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.serial(N):
        B[i] = T.max(A[i] * T.float32(2), B[i])


@T.prim_func(s_tir=True)
def bytes_but_one(A: T.Buffer((N,), "int8"), B: T.Buffer((N,), "int8")):
    for i in T.serial(N - 1):
        B[i + 1] = A[i] - A[i] - T.int8(1)


@T.prim_func(s_tir=True)
def all_bytes(A: T.Buffer((N,), "int8"), B: T.Buffer((N,), "int8")):
    for i in T.serial(N):
        B[i] = A[i] - A[i] - T.int8(1)


@T.prim_func(s_tir=True)
def gpu_only(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.thread_binding(N, thread="threadIdx.x"):
        B[i] = A[i] * T.float32(2)


@T.prim_func(s_tir=True)
def slow(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32")):
    for i in T.serial(N):
        B[i] = A[i]
    for _ in T.serial(500000):
        for i in T.serial(N):
            B[i] = T.sin(B[i])


def arguments(dtype: str = "float32") -> tuple[Argument, ...]:
    return Argument((N,), dtype), Argument((N,), dtype, output=True)


def job(func, *, arguments=arguments(), checked: bool = False, **options) -> Job:  # noqa: B008
    """A job on `func`; `checked` compares it with `double` at every second element."""
    checks = ()
    if checked:
        wanted = 2 * make_inputs(arguments, 0)[0]
        points = np.arange(0, N, 2)
        checks = (OutputCheck(0, points, wanted[points], rtol=1e-6, atol=1e-6),)
    return Job(func, arguments, checks, **options)


def timed(outcome: Outcome) -> bool:
    """Whether there are latencies; on a busy machine a candidate may be cut after two of them."""
    return (
        outcome.failure is None
        and len(outcome.latency_us) >= 2
        and min(outcome.latency_us) > 0
        and min(outcome.latency_us) <= outcome.best_us <= max(outcome.latency_us)
    )


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


def test_lone_candidate_is_repeated(measurer):
    (outcome,) = measurer.measure([job(double)])
    assert timed(outcome)
    assert len(outcome.latency_us) in (5, 10, 15)


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
            assert repeat == 1
            return self.repeat

        def repeat(self):
            time.sleep(0.3)
            return SimpleNamespace(mean=0.3)

    crowded = SimpleNamespace(module=Crowded())
    try:
        times = sandbox._repeat(crowded, [], Limits(0.5), [30.0, 20.0], cold=False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert times == (3e5, 3e5)


def test_nothing_to_measure_starts_nothing():
    before = psutil.Process().children()
    with Measurer(TARGET, num_threads=2) as measurer:
        assert measurer.measure([]) == []
        assert psutil.Process().children() == before


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a fresh process that knows this file and uses two threads."""
    head = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
    environment = {
        **os.environ,
        "TVM_NUM_THREADS": "2",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    return subprocess.run(
        [sys.executable, "-c", head + "from test_measure import *\n" + textwrap.dedent(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_parent_that_has_run_parallel_kernels_still_measures():
    script = """
        import tvm
        from tvm_ext.measure.build import build
        built = build(double, tvm.target.Target(TARGET))
        tensors = [tvm.runtime.tensor(np.zeros(N, "float32")) for _ in range(2)]
        built.main(*tensors)
        assert len(os.listdir("/proc/self/task")) > 1
        with Measurer(TARGET, num_threads=2, timeout_s=5.0) as measurer:
            assert timed(measurer.measure([job(double, checked=True)])[0])
            built.main(*tensors)
            assert timed(measurer.measure([job(double, checked=True)])[0])
    """
    result = run_script(script)
    assert result.returncode == 0, result.stderr


def test_worker_does_not_outlive_a_killed_tuner():
    script = """
        measurer = Measurer(TARGET, num_threads=1)
        assert timed(measurer.measure([job(double)])[0])
        print(psutil.Process().children()[0].pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    result = run_script(script)
    assert result.returncode == -signal.SIGKILL, result.stderr
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(result.stdout)).wait(timeout=10)


def test_interrupt_ends_the_worker_and_the_kernel_it_runs():
    def interrupt(number, frame):
        family.update(set(psutil.Process().children(recursive=True)) - others)
        raise KeyboardInterrupt

    family: set[psutil.Process] = set()
    others = set(psutil.Process().children(recursive=True))
    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        with Measurer(TARGET, num_threads=1, timeout_s=60.0) as measurer:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                measurer.measure([job(hang)])
            assert timed(measurer.measure([job(double)])[0])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(family) == 2, "the worker and its hanging child"
    assert psutil.wait_procs(family, timeout=10)[1] == []


def started_since(before: list[psutil.Process]) -> psutil.Process:
    (worker,) = set(psutil.Process().children()) - set(before)
    return worker


def open_files(process: psutil.Process) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def test_descriptors_and_processes_do_not_pile_up():
    me = psutil.Process()
    others, before = me.children(), open_files(me)
    with Measurer(TARGET, num_threads=2, timeout_s=1.0) as measurer:
        measurer.measure([job(double), job(segfault)])
        worker = started_since(others)
        counts = open_files(me), open_files(worker)
        for _ in range(10):
            outcomes = measurer.measure([job(double), job(segfault), job(gpu_only), job(triple)])
            assert [o.failure is None for o in outcomes] == [True, False, False, True]
        assert (open_files(me), open_files(worker)) == counts
        assert worker.children() == []
    assert open_files(me) == before
    assert not worker.is_running()


def test_worker_killed_while_idle_is_replaced():
    others = psutil.Process().children()
    with Measurer(TARGET, num_threads=1) as measurer:
        assert timed(measurer.measure([job(double)])[0])
        worker = started_since(others)
        worker.send_signal(signal.SIGKILL)
        psutil.wait_procs([worker], timeout=10)
        assert timed(measurer.measure([job(double)])[0])


def test_worker_killed_over_a_kernel_fails_that_kernel_only():
    def kill_worker():
        worker = started_since(others)
        while not worker.children():
            time.sleep(0.01)
        worker.kill()

    others = psutil.Process().children()
    with Measurer(TARGET, num_threads=1, timeout_s=60.0) as measurer:
        measurer.measure([job(double)])
        killer = threading.Thread(target=kill_worker)
        killer.start()
        outcomes = measurer.measure([job(hang), job(double)])
        killer.join()
    assert outcomes[0].failure.kind == "crash"
    assert timed(outcomes[1])


def sabotage(monkeypatch: pytest.MonkeyPatch, deed: str) -> None:
    """Make the worker's compiler do `deed` on every kernel with the attribute `bad`."""
    patch = f"""
import os, time
from tvm_ext.measure import build as room
honest = room.build
def build(func, *rest):
    if "bad" in func.attrs:
        {deed}
    return honest(func, *rest)
room.build = build
"""
    start = "from tvm_ext.measure.worker"
    monkeypatch.setattr(remote, "BOOT", remote.BOOT.replace(start, patch + start))


def test_compiler_that_dies_fails_only_its_own_job(monkeypatch):
    sabotage(monkeypatch, "os.write(2, b'LLVM ERROR: out of registers'); os.abort()")
    with Measurer(TARGET, num_threads=2, timeout_s=5.0) as measurer:
        jobs = [job(double), job(double.with_attr("bad", 1)), job(double), job(double)]
        outcomes = measurer.measure(jobs)
        assert [timed(outcome) for outcome in outcomes] == [True, False, True, True]
        assert outcomes[1].failure.kind == "compile"
        assert "LLVM ERROR: out of registers" in outcomes[1].failure.message


def test_compiler_that_stands_still_is_given_up(monkeypatch):
    sabotage(monkeypatch, "time.sleep(60)")
    with Measurer(TARGET, num_threads=2, build_timeout_s=2.0) as measurer:
        jobs = [job(double), job(double.with_attr("bad", 1)), job(double)]
        outcomes = measurer.measure(jobs)
        assert [timed(outcome) for outcome in outcomes] == [True, False, True]
        assert outcomes[1].failure == Failure("compile", "did not compile within 2 s")


def test_fault_of_our_own_is_raised_not_recorded(monkeypatch):
    sabotage(monkeypatch, "raise KeyError('a bug of ours')")
    with Measurer(TARGET, num_threads=2) as measurer:
        with pytest.raises(RuntimeError, match="a bug of ours"):
            measurer.measure([job(double), job(double.with_attr("bad", 1))])
        assert timed(measurer.measure([job(double)])[0])


def test_build_many_keeps_the_order_of_its_kernels():
    import tvm

    built = build_many([double, gpu_only, double], tvm.target.Target(TARGET))
    assert [isinstance(entry, Built) for entry in built] == [True, False, True]
    assert built[1].kind == "compile"


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
