"""A command in a process of its own: codes, signals and crashes, as who started it sees them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BEGIN = "import os, signal, sys, time; from tvm_ext.stand_by import stand_by; stand_by(); "
PAUSE = "print(os.getpid(), flush=True); time.sleep(60)"


def started(work: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + work], stdout=pipe, stderr=pipe, text=True
    )


def test_the_code_is_the_commands() -> None:
    process = started("print('done'); sys.exit(3)")
    assert process.communicate() == ("done\n", "")
    assert process.returncode == 3


def test_who_was_told_to_ignore_its_children_waits_for_this_one() -> None:
    command = f"trap '' CHLD; exec {sys.executable} -c {shlex.quote(BEGIN + 'sys.exit(3)')}"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_the_commands(number: signal.Signals) -> None:
    work = f"signal.signal({number}, lambda *_: sys.exit(7)); {PAUSE}"
    process = started(work)
    assert process.stdout
    process.stdout.readline()
    process.send_signal(number)
    assert process.wait(10) == 7


def test_the_command_does_not_outlive_who_waits_for_it() -> None:
    process = started(PAUSE)
    assert process.stdout
    child = int(process.stdout.readline())
    process.kill()
    process.wait(10)
    stat = Path(f"/proc/{child}/stat")
    for _ in range(100):
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("it did")


def test_after_a_crash_it_is_begun_once_more_with_kernels_checked_apart() -> None:
    work = "from tvm_ext.flags import apart; apart() or os.kill(os.getpid(), signal.SIGSEGV); "
    process = started(work + "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))")
    said, warned = process.communicate()
    assert (process.returncode, said) == (0, "set()\n"), "signals reach it, too"
    assert "SIGSEGV; once more" in warned


def test_what_crashes_again_leaves_as_a_shell_says_it() -> None:
    process = started("os.kill(os.getpid(), signal.SIGABRT)")
    _, warned = process.communicate()
    assert process.returncode == 128 + signal.SIGABRT
    assert "giving up" in warned


def test_what_is_killed_is_not_begun_again() -> None:
    process = started("os.kill(os.getpid(), signal.SIGKILL)")
    assert process.communicate() == ("", "")
    assert process.returncode == 128 + signal.SIGKILL
