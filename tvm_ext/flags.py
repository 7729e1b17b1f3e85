"""Environment flags, read when asked for."""

from __future__ import annotations

import os
from pathlib import Path

APART = "TVM_EXT_APART"
GUARDED = "TVM_EXT_GUARDED"


def cache_dir() -> Path:
    """TVM_EXT_CACHE: where the hardware probe is kept; the user's cache folder by default."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tvm_ext"
    return Path(os.environ.get("TVM_EXT_CACHE", default))


def probe_enabled() -> bool:
    """TVM_EXT_PROBE=0 uses the catalog's figures for this host instead of measuring it once."""
    return os.environ.get("TVM_EXT_PROBE", "1") != "0"


def strict() -> bool:
    """TVM_EXT_STRICT=1 lets errors of our own propagate, as the tests do; otherwise a compile goes
    on without the pass or plan that failed, and its report says so."""
    return os.environ.get("TVM_EXT_STRICT", "0") == "1"


def apart() -> bool:
    """TVM_EXT_APART=1 checks every kernel in a process of its own: what crashes there is replaced,
    as what is wrong is. `python -m tvm_ext.compile` asks for it itself once one has crashed."""
    return os.environ.get(APART, "0") == "1"


def guarded() -> bool:
    """TVM_EXT_GUARDED=1, set by `stand_by`: this process may be ended, and is begun once more."""
    return os.environ.get(GUARDED, "0") == "1"
