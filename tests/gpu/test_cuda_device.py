"""What can be checked of a CUDA device so far: that its hardware model describes it."""

from __future__ import annotations

import pytest
import tvm

from tvm_ext.hardware import get, resolve

pytestmark = pytest.mark.skipif(not tvm.cuda(0).exist, reason="no CUDA device on this machine")


def test_the_device_is_described() -> None:
    """Multiprocessors and compute capability are the device's own; the levels are ordered."""
    device = tvm.cuda(0)
    model = resolve("cuda")
    assert model.kind == "cuda"
    assert model.cores == device.multi_processor_count
    assert model.target["arch"] == "sm_" + device.compute_version.replace(".", "")
    sizes = [level.size_bytes for level in model.levels]
    assert sizes == sorted(sizes)


def test_a_catalog_entry_of_the_same_generation_has_the_same_limits() -> None:
    model = resolve("cuda")
    name = f"cuda/{model.target['arch']}"
    if name in {"cuda/sm_80", "cuda/sm_90"}:
        assert get(name).level("shared").size_bytes == model.level("shared").size_bytes
