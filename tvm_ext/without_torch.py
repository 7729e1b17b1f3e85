"""`without_torch()`: imports that would import torch, without it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_torch() -> Iterator[None]:
    """Keeps torch from being imported meanwhile, unless it or tvm_ffi is there already.

    tvm_ffi imports torch wherever it is installed, to hand tensors over faster; none are handed
    over here, and it costs a second and 150 MB. Torch can be imported as usual afterwards.
    """
    kept_out = "torch" not in sys.modules and "tvm_ffi" not in sys.modules
    if kept_out:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if kept_out:
            del sys.modules["torch"]
