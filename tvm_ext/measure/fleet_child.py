"""A forked process of the fleet's worker: it works on one job, says how far it is, and answers."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_FORK = multiprocessing.get_context("fork")


class Child:
    """Runs `work(say, *args)`. What `reader` then has to tell is

    ("stage", stage, address)  as often as the work calls `say(stage, address)`
    ("done", answer)           it returned
    ("lost", text, traceback)  it raised OSError or RuntimeError, as TVM does for lost connections
    ("bug", traceback)         it raised anything else

    or nothing more, if something ended the process.
    """

    def __init__(self, index: int, stage: str, work: Callable[..., Any], *args: Any) -> None:
        self.index, self.stage, self.address = index, stage, ""
        self.started = time.monotonic()
        self.reader, writer = _FORK.Pipe(duplex=False)
        self.process = _FORK.Process(target=_run, args=(writer, work, *args), daemon=True)
        self.process.start()
        writer.close()

    def end(self) -> None:
        """End the process, if it has not, and release everything held for it."""
        self.process.kill()
        self.process.join()
        self.reader.close()


def _run(writer: Connection, work: Callable[..., Any], *args: Any) -> None:
    try:
        answer = work(lambda *stage: writer.send(("stage", *stage)), *args)
        writer.send(("done", answer))
    except (OSError, RuntimeError) as error:
        writer.send(("lost", " ".join(str(error).split()), traceback.format_exc()))
    except Exception:
        writer.send(("bug", traceback.format_exc()))
    writer.close()
    os._exit(0)
