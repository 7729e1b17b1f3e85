"""What `python -m tvm_ext.<verb>` starts: it imports next to nothing, so that Ctrl-C while the rest
is imported ends a command as it does later."""

from __future__ import annotations

import atexit
import os
import sys
from importlib import import_module
from typing import NoReturn

from tvm_ext.stand_by import stand_by

EXIT_INTERRUPTED = 130


def run_command(verb: str, *, guarded: bool = False) -> NoReturn:
    """Runs `tvm_ext.cli.<verb>` and leaves with its exit code; if `guarded`, in a process that may
    be ended by a kernel (`stand_by`)."""
    if guarded:
        stand_by()
    try:
        code: int = import_module(f"tvm_ext.cli.{verb}").main()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    # TVM is not taken down object by object: that takes half a second, and what is cut short at any
    # point may never come to the end of it.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
