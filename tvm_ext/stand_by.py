"""`stand_by`: a command in a process of its own, begun once more if a kernel ends it.

    waits                  | python -m tvm_ext.compile ...      SIGSEGV in a kernel's first run
    waits                  | the same, TVM_EXT_APART=1          each kernel is checked in its own
    leaves with its code   |                                    process; who ends it is replaced

To check kernels apart costs a fork for each. So that is done only after one has shown that it must.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from tvm_ext.flags import APART, GUARDED

CRASHES = (
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT),
    signal.SIGALRM,  # what a check sets that should have come to an end
)
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNALLED = 128
"""Added to a signal's number, as shells do: the exit code of who was ended by it."""
_SET_PARENT_DEATH_SIGNAL = 1


def stand_by() -> None:
    """Returns in a child that does the command's work; this process waits for it, and leaves.

    Signals to this process are the child's; those of the terminal reach both by themselves. The
    child does not outlive it.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who is told to ignore it cannot wait for any
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*FORWARDED, signal.SIGCHLD))
    parent = os.getpid()
    for again in (False, True):
        child = os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(SIGNALLED + signal.SIGKILL)
            os.environ[APART if again else GUARDED] = "1"
            return
        code = os.waitstatus_to_exitcode(_ended(child))
        if -code not in CRASHES:
            break
        name = signal.Signals(-code).name
        remedy = "once more, each kernel in a process of its own" if not again else "giving up"
        print(f"warning: compiling was ended by {name}; {remedy}", file=sys.stderr, flush=True)
    os._exit(code if code >= 0 else SIGNALLED - code)


def _ended(child: int) -> int:
    """The status with which a child has ended, which meanwhile gets this process' signals."""
    while True:
        got = signal.sigwaitinfo((*FORWARDED, signal.SIGCHLD))
        if got.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
        elif got.si_pid:  # by another process, not by the terminal
            os.kill(child, got.si_signo)
