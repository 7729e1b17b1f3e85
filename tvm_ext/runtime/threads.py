"""How many threads kernels run on. TVM decides once, when its pool starts."""

from __future__ import annotations

import os
import warnings

_chosen: list[int] = []


def use_threads(count: int, *, asked: bool = False) -> int:
    """Asks TVM's pool for `count` threads and returns how many it will have.

    TVM's own default is half of the hardware threads on x86. The pool reads TVM_NUM_THREADS when it
    starts and never again, so a second, different request only warns. A value that the user has set
    in the environment stands, unless the user `asked` for this very count.

    Threads are left to the system's scheduler: bound to cores, as TVM does by default, one of them
    waits wherever another program holds its core, and all wait for it. TVM_BIND_THREADS=1 binds
    those of TVM's pool, which runs what our own threads do not (`launch.c`).
    """
    if _chosen:
        if _chosen[0] != count:
            warnings.warn(
                f"num_threads={count}: TVM's thread pool already runs with {_chosen[0]} threads in "
                "this process; start a new process to change it",
                stacklevel=3,
            )
        return _chosen[0]
    preset = "" if asked else os.environ.get("TVM_NUM_THREADS", "")
    _chosen.append(int(preset) if preset.isdigit() and int(preset) > 0 else count)
    os.environ["TVM_NUM_THREADS"] = str(_chosen[0])
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    return _chosen[0]
