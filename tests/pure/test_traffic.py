"""What comes from beyond a core's own caches: near or far, asked for ahead or not."""

from __future__ import annotations

import msgspec
import pytest
from graphs import GraphBuilder, conv, matmul

from tvm_ext.hardware import get
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker import pick
from tvm_ext.picker.traffic import OVERLAP_LOSS, far_loss, handed_on_us
from tvm_ext.picker.weights import arriving_us, has_next_panel, sweeps
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import LevelTile, TilePlan

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


def rows_plan(core: tuple[int, ...], columns_first: bool, columns: int = 64) -> TilePlan:
    """Core tiles of `conv(7, 7, 512, 512)`, register tiles of so many channels."""
    return TilePlan(
        rule="tile",
        anchor=0,
        tiles=(
            LevelTile("core", Tile((*core, 3, 3, 512))),
            LevelTile("register", Tile((1, 1, 4, columns, 1, 1, 4))),
        ),
        order=(3, 0, 1, 2, 4, 5, 6) if columns_first else (0, 1, 2, 3, 4, 5, 6),
        parallel=4,
        lanes=16,
        prefetch=True,
    )


@pytest.mark.parametrize(
    ("core", "columns_first", "times"),
    [
        ((1, 7, 7, 256), True, 1),  # half of the channels each
        ((1, 1, 7, 256), True, 7),  # the same, row by row
        ((1, 1, 7, 64), True, 1),  # one panel for all rows, then the next
        ((1, 1, 7, 512), False, 4),  # rows shared out, all channels for each
        ((1, 7, 7, 512), False, 1),
    ],
)
def test_how_often_a_core_goes_over_all_its_panels(
    core: tuple[int, ...], columns_first: bool, times: int
) -> None:
    node = conv(7, 7, 512, 512).nodes[0]
    assert sweeps(node, rows_plan(core, columns_first), NEAR) == times


@pytest.mark.parametrize(
    ("graph", "columns", "asks"),
    [
        (conv(7, 7, 64, 128), 32, True),
        (conv(7, 7, 64, 128), 64, True),
        (conv(7, 7, 64, 128), 16, False),
        (conv(7, 7, 64, 128), 128, False),  # there is none behind it
        (matmul(64, 128, 64, block=16), 16, True),
        (matmul(64, 128, 64), 16, False),  # not packed
    ],
)
def test_a_part_of_a_panel_is_not_asked_for_ahead(
    graph: TileGraph, columns: int, asks: bool
) -> None:
    node = graph.nodes[-1 if graph.name == "matmul" else 0]
    extents = [columns if axis == node.space[-1] else 1 for axis in range(len(node.axes))]
    assert has_next_panel(node, Tile(tuple(extents))) == asks


def test_a_near_cache_may_be_one_of_several() -> None:
    assert NEAR.levels[-2].gbps > 2 * FAR.levels[-2].gbps
    assert handed_on_us(MIB, 2, NEAR) == pytest.approx(MIB / 4 / (0.08 * 80e3))
    assert handed_on_us(MIB, 2, FAR) == pytest.approx(MIB / 4 / (0.3 * 28e3))


def test_weights_arrive_beside_the_first_time_they_are_used() -> None:
    """9.4 MB in seven rows one after another 1960 us, at once 1400."""
    at_once = arriving_us(1100.0, 450.0, 1, NEAR)
    by_rows = arriving_us(1100.0, 450.0, 7, NEAR)
    assert at_once == 1100.0 + OVERLAP_LOSS * 450.0
    assert by_rows == pytest.approx(1100.0 * 6 / 7 + 450.0 + OVERLAP_LOSS * 1100.0 / 7)
    assert arriving_us(1100.0, 20.0, 7, NEAR) < 1.01 * 1100.0


def test_a_far_cache_keeps_weights_when_they_have_been_read_twice() -> None:
    """16.5 MB for 64 rows at once 1590 us, in two times 32 2130 to 2330, in four times 16 2970."""
    once, twice, often = (
        arriving_us(1150.0, 600.0, times, FAR, 8.3 * MIB) - 1150.0 for times in (1, 2, 4)
    )
    kept = arriving_us(1150.0, 600.0, 2, FAR, MIB) - 1150.0
    assert kept < twice
    assert 2 * once < twice
    assert twice < often < 2 * 600.0
    near = arriving_us(1150.0, 600.0, 2, NEAR, 8.3 * MIB)
    assert near == arriving_us(1150.0, 600.0, 2, NEAR)
    all_fit = FAR.running(MIB)
    assert arriving_us(1150.0, 600.0, 2, all_fit, 8.3 * MIB) - 1150.0 == kept


def test_weights_that_fit_into_the_last_cache_come_in_part_from_there() -> None:
    """28 x 28 points of 128 by 32 channels in DenseNet-121: 590 KB of weights for each core."""
    graph = conv(28, 28, 128, 32)
    cold, warm = (pick(graph, hw)[0].estimate for hw in (NEAR, NEAR.running(32 * MIB)))
    assert warm.compute_us == cold.compute_us
    assert warm.latency_us < cold.latency_us


def test_small_images_of_many_channels_are_cut_by_channels() -> None:
    core = pick(conv(7, 7, 512, 512, stride=2), NEAR)[0].plan.at("core").extents
    assert core[1:3] == (7, 7)
    assert core[3] < 512
