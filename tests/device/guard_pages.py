"""Arrays between pages that nobody may touch: what reads beside them ends the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_FORBIDDEN = 0


def between_pages(array: np.ndarray, at_end: bool) -> np.ndarray:
    """A copy that begins where a page does, behind a forbidden one; or `at_end`, and is followed by
    one."""
    page = mmap.PAGESIZE
    room = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    whole = np.frombuffer(memory, "uint8")
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for place in (0, page + room):
        address = ctypes.c_void_p(whole.ctypes.data + place)
        assert not protect(address, ctypes.c_size_t(page), _FORBIDDEN)
    begin = page + (room - array.nbytes if at_end else 0)
    copied = whole[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied
