"""A tracker and its servers on loopback: kernels and devices may die, what is measured does not."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from measure_case import (
    TARGET,
    N,
    arguments,
    double,
    gpu_only,
    half_written,
    hang,
    job,
    segfault,
    slow,
    triple,
)

from tvm_ext.cli import serve
from tvm_ext.errors import FleetError
from tvm_ext.measure.fleet import FleetMeasurer
from tvm_ext.measure.fleet_worker import _Batch
from tvm_ext.measure.inputs import Argument
from tvm_ext.measure.tracker import check_tracker

START_S = 60.0


class Served:
    """`python -m tvm_ext.serve` at a free port, in a process group of its own."""

    def __init__(self, log: Path, *words: str) -> None:
        self.log = log
        with log.open("w") as stream:
            self.process = psutil.Popen(
                [sys.executable, "-m", "tvm_ext.serve", "--port", "0", *words],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    @property
    def address(self) -> str:
        wait_for(lambda: " at " in self.log.read_text())
        return re.search(r" at (\S+?:\d+)", self.log.read_text()).group(1)

    def kill(self) -> None:
        """Like a power cut: with the session it serves."""
        for process in [self.process, *self.process.children(recursive=True)]:
            process.kill()
        self.process.wait()


def measured(outcome) -> bool:
    """Whether there are latencies; one alone, if it lies behind another kernel's."""
    return outcome.failure is None and min(outcome.latency_us) > 0


def wait_for(condition, limit_s: float = START_S) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@contextmanager
def fleet(folder: Path, key: str, count: int):
    """A tracker and servers of one key, started at the same time."""
    with_tracker = [Served(folder / "tracker", "--start-tracker")]
    try:
        address = with_tracker[0].address
        for place in range(count):
            words = ("--tracker", address, "--key", key, "--threads", "2")
            with_tracker.append(Served(folder / f"server{place}", *words))
        wait_for(lambda: len(check_tracker(address).get(key, ())) == count)
        yield with_tracker
    finally:
        for served in with_tracker:
            if served.process.is_running():
                served.kill()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("fleet"), "box", 2) as served:
        yield served


@pytest.fixture(scope="module")
def measurer(served):
    with FleetMeasurer(TARGET, served[0].address, "box", num_threads=2, timeout_s=2.0) as measurer:
        yield measurer


@contextmanager
def meanwhile(work):
    """Runs `work` in a thread beside the body, and ends, or fails, with it."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result()


def test_every_failure_has_its_kind_and_the_batch_goes_on(measurer, served):
    bad = {
        "compile": job(gpu_only),
        "crash": job(segfault),
        "hang": job(hang),
        "wrong": job(triple, checked=True),
        "launch": job(double, arguments=(Argument((N + 1,), "float32"), arguments()[1])),
    }
    good = job(double, checked=True)
    outcomes = measurer.measure([good, *bad.values(), job(double, cold=True)])
    assert measured(outcomes[0])
    assert measured(outcomes[-1])
    assert all(outcome.tir_hash for outcome in outcomes)
    assert [outcome.failure.kind for outcome in outcomes[1:-1]] == list(bad)
    assert not any("\n" in outcome.failure.message for outcome in outcomes[1:-1])
    # each device lost a session to the crash and one to the hang, and serves on
    for server in served[1:]:
        wait_for(lambda server=server: server.log.read_text().count("serving on") == 2)
        assert "SIGSEGV; serving on" in server.log.read_text()
        assert "SIGALRM; serving on" in server.log.read_text()


def test_verify_finds_the_same_without_timing(measurer):
    failures = measurer.verify([job(double, checked=True), job(half_written)])
    assert failures[0] is None
    assert failures[1].kind == "wrong"
    assert f"{N // 2} of {N} elements" in failures[1].message


def test_all_devices_are_used_at_a_time(measurer, served):
    servers = [server.process for server in served[1:]]
    # one keeps a device until it is taken from it, then the other device: the others meet it
    with meanwhile(lambda: wait_for(lambda: all(server.children() for server in servers))):
        hung, *outcomes = measurer.measure([job(hang)] + [job(double)] * 4)
    assert hung.failure.kind == "hang"
    assert all(measured(outcome) for outcome in outcomes)


def test_nothing_to_measure_asks_nobody():
    with FleetMeasurer(TARGET, "127.0.0.1:1", "box", num_threads=2) as measurer:
        assert measurer.measure([]) == []


def test_other_number_of_threads_is_told(served):
    with FleetMeasurer(TARGET, served[0].address, "box", num_threads=3) as measurer:
        (outcome,) = measurer.measure([job(double)])
    assert outcome.failure.kind == "device"
    assert "start its server with --threads 3" in outcome.failure.message


def test_killed_server_loses_nothing_and_killed_tracker_only_what_was_not_measured(tmp_path):
    with fleet(tmp_path, "mortal", 2) as (tracker, first, second):
        with FleetMeasurer(TARGET, tracker.address, "mortal", num_threads=2) as measurer:

            def cut(victim, during):
                wait_for(lambda: during.process.children())
                victim.kill()

            with meanwhile(lambda: cut(second, during=second)):
                outcomes = measurer.measure([job(slow)] * 2 + [job(double, checked=True)] * 4)
            assert all(measured(outcome) for outcome in outcomes)

            wait_for(lambda: not first.process.children())
            with meanwhile(lambda: cut(tracker, during=first)):
                outcomes = measurer.measure([job(double, checked=True)] * 12)
            failures = [outcome.failure for outcome in outcomes if not measured(outcome)]
            assert 0 < len(failures) < len(outcomes), "what was on the device has its latency"
            assert {failure.kind for failure in failures} == {"device"}
            assert all("has gone" in failure.message for failure in failures)
            with pytest.raises(FleetError, match="no answer"):
                measurer.measure([job(double)])

        first.process.send_signal(signal.SIGINT)
        assert first.process.wait(START_S) == 0
        assert "server ended" in first.log.read_text()
        assert "Traceback" not in first.log.read_text()


def test_a_client_that_has_found_its_device_is_not_stranded_before_it_is_heard(tmp_path):
    reader, writer = Pipe(duplex=False)
    child = SimpleNamespace(index=0, stage="tracker", address="", reader=reader)
    sent = []
    batch = object.__new__(_Batch)
    batch.connection, batch.fleet = (
        SimpleNamespace(send=sent.append),
        SimpleNamespace(folder=tmp_path),
    )
    batch.left, batch.to_build, batch.to_run = {0, 1}, deque(), deque([1])
    batch.children, batch.hashes, batch.best_us = {reader: child}, ["", ""], float("inf")
    writer.send(("stage", "device", "box:1"))
    batch.strand("tracker has gone")
    assert (child.stage, batch.left) == ("device", {0})
    assert [index for _, index, _ in sent] == [1]


def test_unknown_key_names_those_there_are(served):
    measurer = FleetMeasurer(TARGET, served[0].address, "toaster", num_threads=2)
    with pytest.raises(FleetError, match=r"no server of key 'toaster'.*box \(2\); start one"):
        measurer.measure([job(double)])


def test_no_tracker_says_how_to_start_one():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        measurer = FleetMeasurer(TARGET, address, "box", num_threads=2)
        with pytest.raises(FleetError, match=f"{address}: no answer.*--start-tracker --port"):
            measurer.measure([job(double)])


def test_address_that_is_none():
    with pytest.raises(FleetError, match="is not host:port"):
        check_tracker("somewhere")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], "--tracker and --key"),
        (["--start-tracker", "--key", "box"], "drop the others"),
        (["--tracker", "h:1", "--key", "two words"], "is no word"),
        (["--port", "70000"], "is no port"),
        (["--tracker", "somewhere", "--key", "box"], "is not host:port"),
    ],
)
def test_serve_errors_are_one_line(words, found, capsys, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert serve.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert found in line


def test_serve_warns_where_others_can_reach_it():
    with pytest.warns(UserWarning, match="runs any code"):
        serve._listen("0.0.0.0", 0, 0).close()


def test_serve_names_a_port_that_is_taken():
    with serve._listen(serve.LOOPBACK, 0, 0) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "tvm_ext.serve", "--start-tracker", "--port", str(port)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=START_S,
        )
    assert done.returncode == 2
    assert f"127.0.0.1:{port}: cannot listen there" in done.stderr


def test_a_function_is_tuned_on_the_fleet(served, tmp_path):
    import tvm_ext
    from tvm_ext.records import Database
    from tvm_ext.tvm_api import te

    a, b = te.placeholder((32, 48), name="a"), te.placeholder((48, 32), name="b")
    k = te.reduce_axis((0, 48))
    func = te.create_prim_func(
        [a, b, te.compute((32, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))]
    )
    fleet = (served[0].address, "box")
    tuned = tvm_ext.tune_tir(func, trials=5, log=tmp_path, num_threads=2, fleet=fleet)
    records = Database.open(tmp_path).records()
    assert tuned.trials == 5
    assert len({record.plan for record in records}) == 5
    assert all(record.ok and record.drift == 1.0 for record in records)
    with pytest.raises(FleetError, match="no server of key 'toaster'"):
        tvm_ext.tune_tir(func, log=tmp_path, num_threads=2, fleet=(served[0].address, "toaster"))


LOST = """
import os, signal, socket, time
from tvm.rpc import server
from tvm_ext.measure.device import serve_device

def listen(*_):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        server._listen_loop = lambda *_: time.sleep(60)
        raise RuntimeError("an interrupt that TVM turned into an error")

server._listen_loop = listen
serve_device(socket.create_server(("127.0.0.1", 0)), "127.0.0.1:1", "box", print)
print("ended")
"""


def test_an_interrupt_is_not_lost():
    done = subprocess.run(
        [sys.executable, "-c", LOST], capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout.splitlines()[-1] == "ended"
