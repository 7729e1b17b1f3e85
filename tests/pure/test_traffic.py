"""What comes from beyond a core's own caches: near or far, asked for ahead or not."""

from __future__ import annotations

import msgspec
import pytest
from graphs import GraphBuilder, matmul

from tvm_ext.hardware import get
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker import pick
from tvm_ext.picker.traffic import OVERLAP_LOSS, far_loss
from tvm_ext.tile.graph import TileGraph

MIB = 1 << 20


def two_cores(l3_gbps: float, dram_gbps: float, l3_cycles: int) -> HardwareModel:
    """Two cores at 4 GHz with 2 MiB of L2 each, and what one alone reads beyond it."""
    model = get("cpu/x86-avx512")
    rates = {"l2": (205.0, 350.0), "l3": (l3_gbps, 2 * l3_gbps), "dram": (dram_gbps, 30.0)}
    sizes = {"l1": 48 << 10, "l2": 2 * MIB, "l3": 480 * MIB}
    levels = []
    for level in model.levels:
        alone, total = rates.get(level.name, (level.gbps, level.total_gbps))
        size = sizes.get(level.name, level.size_bytes)
        levels.append(msgspec.structs.replace(level, size_bytes=size, gbps=alone, total_gbps=total))
    return msgspec.structs.replace(
        model,
        cores=2,
        peak_gflops={"float32": 256.0},
        levels=tuple(levels),
        shared_cache_cycles=l3_cycles,
    )


NEAR, FAR = two_cores(80.0, 28.0, 50), two_cores(28.0, 15.0, 165)


def test_work_hides_a_near_cache_and_half_of_what_is_asked_of_a_far_one_ahead() -> None:
    assert far_loss(NEAR, ahead=True) == far_loss(NEAR, ahead=False) == OVERLAP_LOSS
    unknown = msgspec.structs.replace(FAR, shared_cache_cycles=0)
    assert far_loss(unknown, ahead=False) == OVERLAP_LOSS
    assert OVERLAP_LOSS < far_loss(FAR, ahead=True) < 0.7 < far_loss(FAR, ahead=False) <= 1


@pytest.mark.parametrize(
    ("machine", "rows", "columns", "depth", "shared_out"),
    [
        (NEAR, 128, 3072, 768, "rows"),
        (FAR, 128, 3072, 768, "columns"),
        # 1.5 MB of rows would leave L2 between the panels of weights.
        (FAR, 128, 768, 3072, "rows"),
    ],
)
def test_cores_share_out_weights_that_are_far_but_for_rows_that_leave_l2(
    machine: HardwareModel, rows: int, columns: int, depth: int, shared_out: str
) -> None:
    plan = pick(matmul(rows, columns, depth, block=32), machine)[0].plan
    core = plan.at("core").extents
    cut = {"rows": core[0] < rows, "columns": core[1] < columns}
    assert plan.prefetch
    assert [name for name, is_cut in cut.items() if is_cut] == [shared_out]


def unpacked(size: int, channels: int, out: int) -> TileGraph:
    """A 3 x 3 convolution whose weights lie as `w[r, s, c, o]`: rows of all output channels."""
    build = GraphBuilder("unpacked")
    x = build.tensor("x", (size + 2, size + 2, channels), "input")
    w = build.tensor("w", (3, 3, channels, out), "input")
    y = build.tensor("y", (size, size, out), "output")
    axes = {"p": size, "q": size, "o": out, "r*": 3, "s*": 3, "c*": channels}
    window = [{"p": 1, "r": 1}, {"q": 1, "s": 1}, {"c": 1}]
    weights = [{"r": 1}, {"s": 1}, {"c": 1}, {"o": 1}]
    build.node("conv", axes, [(x, window), (w, weights)], (y, [{"p": 1}, {"q": 1}, {"o": 1}]), 2.0)
    return build.graph()


def test_columns_of_unpacked_weights_are_copied_side_by_side_where_they_would_leave_l2() -> None:
    """Of rows 1 KiB apart 192 bytes: 432 KiB take all of L2, and came from L3 for each of 28 tiles
    (14 x 14 x 256 by 256 channels: 1370 us, side by side 620)."""
    plan = pick(unpacked(14, 256, 256), FAR, alone=True)[0].plan
    assert plan.staged == (1,)
