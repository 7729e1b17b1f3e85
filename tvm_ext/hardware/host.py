"""`host()`: this machine, measured once per user and kept in the cache folder."""

from __future__ import annotations

import functools
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from tvm_ext import flags
from tvm_ext.hardware import system
from tvm_ext.hardware.model import HardwareModel

_LOCK_TIMEOUT_S = 30.0


def host() -> HardwareModel:
    """This machine, named `cpu/host`: measured figures, or the catalog's with TVM_EXT_PROBE=0.

    The first call on a machine probes it (about 3 s) and keeps the result under
    TVM_EXT_CACHE as `hardware-<key>.json`. Whatever is wrong with that file or folder costs a
    new probe and a warning, never an error. Either way the fingerprint is the same.
    """
    return _host(flags.cache_dir(), flags.probe_enabled())


@functools.cache
def _host(folder: Path, probing: bool) -> HardwareModel:
    # Here, because `python -m tvm_ext.hardware.probe` imports this package first.
    from tvm_ext.hardware import probe

    static = system.static_model()
    if not probing:
        return static
    key = f"{system.cpu_name()} {static.fingerprint()} {probe.VERSION}"
    path = folder / f"hardware-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"
    kept = _read(path, static)
    if kept is not None:
        return kept
    # Probes at the same time would disturb one another; the second finds the first one's file.
    with _locked(path):
        return _read(path, static) or _measure(probe.run, path, static)


def _read(path: Path, static: HardwareModel) -> HardwareModel | None:
    """The kept model, if it is whole and of this machine as it is now."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=HardwareModel)
    except (OSError, msgspec.DecodeError):
        return None
    same = kept.fingerprint() == static.fingerprint() and kept.target == static.target
    return kept if same and kept.isa == static.isa else None


def _measure(run: Callable[[], HardwareModel], path: Path, static: HardwareModel) -> HardwareModel:
    try:
        measured = run()
    except RuntimeError as error:
        _warn(f"hardware probe failed ({error}): the catalog's figures are used for this host")
        return static
    try:
        _write(path, msgspec.json.format(msgspec.json.encode(measured)))
    except OSError as error:
        _warn(
            f"hardware probe not kept ({error}): every process will probe again; "
            "set TVM_EXT_CACHE to a writable folder"
        )
    return measured


def _write(path: Path, content: bytes) -> None:
    """Atomically: a reader sees the old file or the new one, never half of one."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One probe per user at a time; without the lock where it cannot be had."""
    lock = FileLock(path.with_suffix(".lock"), timeout=_LOCK_TIMEOUT_S)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, Timeout):
        yield
        return
    try:
        yield
    finally:
        lock.release()


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
