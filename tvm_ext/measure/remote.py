"""The worker process as the tuner sees it: start, talk, bury."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

from tvm_ext.measure.build import MESSAGE_CHARS

BOOT = """\
import os, sys
os.environ.update(
    TVM_NUM_THREADS=sys.argv[2], TVM_BIND_THREADS="1", OPENBLAS_NUM_THREADS="1"
)
sys.path[:] = sys.argv[4:]
from importlib import import_module
import_module(sys.argv[3]).serve(int(sys.argv[1]))
"""
"""The thread counts must stand in the environment before TVM and numpy are imported."""
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(16 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
"""What a compilation has freed the next one takes: to have it back from the system, page by page,
takes glibc's processes a tenth of the time (a solver that TVM starts for a proof: 6 ms, so 1)."""


class Remote:
    """A fresh interpreter running `serve` of a module, in a session of its own: Ctrl-C does not
    reach it, and it ends with its children when killed, or by itself when this process is gone.

    module       `tvm_ext.measure.worker`, or what serves as it does
    num_threads  threads that TVM starts there
    first        its first message
    """

    def __init__(self, module: str, num_threads: int, first: Any) -> None:
        self.connection, theirs = Pipe()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        words = [str(theirs.fileno()), str(num_threads), module, *sys.path]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT, *words],
                env=os.environ | KEEP_MEMORY,
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.connection.send(first)

    @property
    def alive(self) -> bool:
        """Whether the worker is still there; memory pressure may have ended it while idle."""
        return self._process.poll() is None

    def forget_words(self) -> None:
        """Empty the file that the worker's output goes to; its file offset is shared with us."""
        self._words.seek(0)
        self._words.truncate()

    def last_words(self) -> str:
        """The end of what the worker printed, on one line: LLVM names its fatal errors there."""
        size = os.fstat(self._words.fileno()).st_size
        tail = os.pread(self._words.fileno(), MESSAGE_CHARS, max(0, size - MESSAGE_CHARS))
        return " ".join(tail.decode(errors="replace").split())

    def kill(self) -> None:
        """End the worker and its children, and release everything held for it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.connection.close()
        self._words.close()
