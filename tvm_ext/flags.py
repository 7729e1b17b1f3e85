"""Environment flags, read when asked for. Nothing else in the package reads `os.environ`."""

from __future__ import annotations

import os
from pathlib import Path


def debug() -> int:
    """TVM_EXT_DEBUG: 0 quiet, 1 tasks, 2 candidates, 3 plans, 4 generated source."""
    value = os.environ.get("TVM_EXT_DEBUG", "0")
    return int(value) if value.isdigit() else 0


def cache_dir() -> Path:
    """TVM_EXT_CACHE: where the hardware probe is kept; the user's cache folder by default."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tvm_ext"
    return Path(os.environ.get("TVM_EXT_CACHE", default))


def probe_enabled() -> bool:
    """TVM_EXT_PROBE=0 uses the catalog's figures for this host instead of measuring it once."""
    return os.environ.get("TVM_EXT_PROBE", "1") != "0"
