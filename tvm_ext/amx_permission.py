"""Linux's permission to use the registers of AMX, x86's matrix unit: a process has to ask for it.

It is refused by systems before 5.16, and where a thread's stack for signals has no room for what
the registers hold. What was granted holds for all threads, for good.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys

ARCH_PRCTL, REQUEST, TILE_DATA = 158, 0x1023, 18
"""`syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA)` grants it by returning 0."""


@functools.cache
def granted() -> bool:
    """Whether this process may use them, or could if the processor had them."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    numbers = (ctypes.c_long(number) for number in (ARCH_PRCTL, REQUEST, TILE_DATA))
    return int(ctypes.CDLL(None).syscall(*numbers)) == 0
