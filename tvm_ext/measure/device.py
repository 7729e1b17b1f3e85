"""The device's side of a fleet: TVM's RPC server, with what our measurements need beside it."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import active_children

import tvm_ffi
from tvm.rpc import base, server, tracker

from tvm_ext.measure.sandbox import part_threads
from tvm_ext.measure.tracker import split_address

ALARM = "tvm_ext.alarm"
"""Remote function: end this session in so many seconds unless set anew."""
AGAIN_S = 1.0
"""An interrupt that was lost is raised again after so long."""
PART_THREADS = "tvm_ext.part_threads"
"""Remote function: start the thread pool, keep the calling thread off its cores."""


def serve_device(
    listener: socket.socket, tracker_address: str, key: str, say: Callable[[str], None]
) -> None:
    """Lends this machine to one session after the other until interrupted.

    TVM forks a child for each, which is all that a kernel can bring down. But its own server stops
    listening after a child that crashed: it is started again, and reports to the tracker anew.
    """
    logging.getLogger("RPCServer").setLevel(logging.WARNING)
    tvm_ffi.register_global_func(ALARM, _set_alarm)
    tvm_ffi.register_global_func(PART_THREADS, part_threads)
    os.register_at_fork(after_in_child=_leave_signals)
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGALRM, _interrupt)
    home, port = os.getcwd(), listener.getsockname()[1]
    try:
        while True:
            try:
                server._listen_loop(listener, port, key, split_address(tracker_address), "", None)
            except (RuntimeError, OSError) as error:
                say(f"{_cause(error)}; serving on")
            os.chdir(home)
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for session in active_children():
            session.kill()


def _interrupt(_signal: int, _frame: object) -> None:
    """Raises KeyboardInterrupt, and does so again until the server has ended: raised inside a call
    back from TVM, it becomes one of the errors after which we serve on."""
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    raise KeyboardInterrupt


def _leave_signals() -> None:
    """In a session: Ctrl-C reaches the whole terminal group, and the server ends its sessions; an
    alarm ends the session."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def serve_tracker(listener: socket.socket) -> None:
    """Answers servers and clients until interrupted."""
    logging.getLogger("RPCTracker").setLevel(logging.WARNING)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        tracker._tracker_server(listener, base.random_key("tracker"))


def _set_alarm(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _cause(error: BaseException) -> str:
    """Why the server stopped listening, on one line."""
    code = re.search(r"error code -(\d+)", str(error))
    if code is None:
        return " ".join(str(error).split())
    return f"a session was ended by {signal.Signals(int(code.group(1))).name}"
