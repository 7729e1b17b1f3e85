"""The measurer's worker and its children: they end when they should, and only then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress

import psutil
import pytest
from measure_case import TARGET, double, gpu_only, hang, job, segfault, slow, timed, triple

from tvm_ext.measure import remote
from tvm_ext.measure.job import Failure
from tvm_ext.measure.run import Measurer


def test_nothing_to_measure_starts_nothing():
    before = psutil.Process().children()
    with Measurer(TARGET, num_threads=2) as measurer:
        assert measurer.measure([]) == []
        assert psutil.Process().children() == before


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a fresh process that knows this file and uses two threads."""
    head = (
        f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "from test_measure_worker import *\n"
    )
    environment = {
        **os.environ,
        "TVM_NUM_THREADS": "2",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    return subprocess.run(
        [
            sys.executable,
            "-c",
            head + "from test_measure_worker import *\n" + textwrap.dedent(script),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_parent_that_has_run_parallel_kernels_still_measures():
    script = """
        import numpy as np
        import tvm
        from tvm_ext.measure.build import build
        built = build(double, tvm.target.Target(TARGET))
        tensors = [tvm.runtime.tensor(np.zeros(64, "float32")) for _ in range(2)]
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
    def born():
        return set(psutil.Process().children(recursive=True)) - others

    def interrupt(number, frame):
        family.update(born())
        raise KeyboardInterrupt

    def once_the_kernel_hangs():
        deadline = time.monotonic() + 30
        while len(born()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGUSR1)

    family: set[psutil.Process] = set()
    others = set(psutil.Process().children(recursive=True))
    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Thread(target=once_the_kernel_hangs)
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
        measurer.measure([job(segfault), job(double)])
        worker = started_since(others)
        counts = open_files(me), open_files(worker)
        for _ in range(10):
            outcomes = measurer.measure([job(double), job(segfault), job(gpu_only), job(triple)])
            assert [o.failure is None for o in outcomes] == [True, False, False, True]
        assert (open_files(me), open_files(worker)) == counts
        assert len(worker.children()) == 1, "the child that may be asked again"
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
        while not set(worker.children()) - before:
            time.sleep(0.01)
        worker.kill()

    others = psutil.Process().children()
    with Measurer(TARGET, num_threads=1, timeout_s=60.0) as measurer:
        measurer.measure([job(double)])
        worker = started_since(others)
        before = set(worker.children())
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
honest = room._scheduled
def scheduled(func, plan):
    if "bad" in func.attrs:
        {deed}
    return honest(func, plan)
room._scheduled = scheduled
"""
    start = "from importlib import import_module"
    assert start in remote.BOOT
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


def test_what_was_measured_is_measured_again_in_the_same_child() -> None:
    """A search that settles between kernels it has just compared forks nothing for it; before
    something is compiled the child ends."""
    others = psutil.Process().children()
    first, second = job(double), job(triple)
    with Measurer(TARGET, num_threads=1) as measurer:
        measurer.measure([first, second])
        worker = started_since(others)
        (child,) = worker.children()
        assert all(timed(outcome) for outcome in measurer.measure([second, first, second]))
        assert worker.children() == [child]
        assert timed(measurer.measure([job(slow)])[0])
        assert child not in worker.children()


def test_a_worker_that_was_ended_unnoticed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory pressure may end it between the question whether it is there and its first word."""
    others = psutil.Process().children()
    with Measurer(TARGET, num_threads=1) as measurer:
        measurer.measure([job(double)])
        started_since(others).kill()
        monkeypatch.setattr(remote.Remote, "alive", True)
        assert all(timed(outcome) for outcome in measurer.measure([job(double), job(triple)]))
