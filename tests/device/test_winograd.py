"""Winograd convolution equals direct convolution, in every form of plan, on awkward shapes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from guard_pages import between_pages
from msgspec.structs import replace
from this_host import skip_unless_it_runs

import tvm_ext
from tvm_ext.compute.conv import ConvGeometry
from tvm_ext.compute.winograd import packed_shape, transform_weight, winograd
from tvm_ext.errors import PlanError
from tvm_ext.hardware import get, resolve
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import exchange_us, packed_bytes, pick, predict
from tvm_ext.picker.traffic import handed_on_us
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.chain import (
    CHANNELS_FIRST,
    IMAGE_FIRST,
    IMAGE_IN_BLOCKS,
    PHASES,
    ChainForm,
    chain_form,
    transform_chain,
)
from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan
from tvm_ext.tir import prepare, read, write
from tvm_ext.tvm_api import PrimFunc, Target, constant, relax, structural_walk, te, tirx, tvm

LANES = 16
BOUNDS = {2: 2e-6, 4: 5e-6}
"""max|error| / max|y| of F(m x m) against float64, as `compute.winograd` states it."""

SHAPES = {
    # name: (batch, height, width, in, out, pads before, pads after)
    "whole tiles": (1, 16, 24, 32, 32, (1, 1), (1, 1)),
    "cut tiles": (1, 14, 13, 16, 32, (1, 1), (1, 1)),
    "one tile": (1, 3, 3, 16, 16, (1, 1), (1, 1)),
    "one pixel": (1, 1, 1, 16, 16, (1, 1), (1, 1)),
    "no padding": (1, 11, 10, 16, 48, (0, 0), (0, 0)),
    "uneven padding": (1, 9, 12, 16, 16, (0, 2), (1, 0)),
    "batch": (3, 8, 8, 16, 32, (1, 1), (1, 1)),
    "batch without padding": (4, 10, 10, 16, 32, (0, 0), (0, 0)),
    "narrow input": (1, 12, 12, 4, 64, (1, 1), (1, 1)),
    "odd vectors": (1, 12, 9, 20, 80, (1, 1), (1, 1)),
    "many channels": (1, 6, 6, 512, 16, (1, 1), (1, 1)),
    "prime": (1, 17, 19, 12, 112, (1, 1), (1, 1)),
    "half vectors": (1, 14, 13, 24, 24, (1, 1), (1, 1)),
    "quarter vectors": (2, 9, 12, 20, 36, (1, 1), (1, 1)),
    "less than a vector": (1, 12, 13, 16, 12, (0, 1), (1, 0)),
    "groups of half vectors": (1, 14, 11, 3 * 12, 3 * 24, (1, 1), (1, 1)),
    "groups": (1, 14, 14, 3 * 16, 3 * 32, (1, 1), (1, 1)),
    "groups of a prime": (1, 17, 19, 2 * 12, 2 * 112, (1, 1), (1, 1)),
    "many groups": (1, 7, 9, 11 * 4, 11 * 16, (0, 2), (1, 0)),
}
WINDOWS = {
    # name: (shape as above, window)
    "five by five": ((1, 14, 13, 16, 32, (2, 2), (2, 2)), (5, 5)),
    "four by four": ((2, 11, 10, 12, 48, (1, 2), (2, 1)), (4, 4)),
    "two by two": ((1, 12, 13, 24, 16, (1, 0), (0, 1)), (2, 2)),
    "five by five in groups": ((1, 9, 12, 2 * 16, 2 * 32, (2, 2), (2, 2)), (5, 5)),
    "a row": ((1, 14, 13, 16, 32, (0, 1), (0, 1)), (1, 3)),
    "a row of five": ((2, 5, 19, 20, 16, (0, 2), (0, 2)), (1, 5)),
    "a column": ((1, 17, 9, 16, 48, (1, 0), (1, 0)), (3, 1)),
    "a column of images": ((3, 13, 7, 16, 16, (2, 0), (1, 0)), (4, 1)),
    "a column in groups": ((1, 12, 14, 3 * 16, 3 * 32, (1, 0), (1, 0)), (3, 1)),
    "a sequence of pairs": ((2, 1, 30, 16, 16, (0, 1), (0, 0)), (2,)),
    "a sequence": ((1, 1, 101, 32, 64, (0, 1), (0, 1)), (3,)),
    "sequences of five": ((3, 1, 40, 16, 48, (0, 0), (0, 4)), (5,)),
    "a sequence in groups": ((1, 1, 33, 2 * 16, 2 * 16, (0, 1), (0, 1)), (3,)),
}
"""Of other extents, with six points."""
SHAPES |= {name: shape for name, (shape, _) in WINDOWS.items()}
GROUPS = {
    "groups of half vectors": 3,
    "groups": 3,
    "groups of a prime": 2,
    "many groups": 11,
    "five by five in groups": 2,
    "a column in groups": 3,
    "a sequence in groups": 2,
}
TILES = {name: (7 - max(taps),) for name, (_, taps) in WINDOWS.items()}
CASES = [(name, m) for name in SHAPES for m in TILES.get(name, (2, 4))]
THIRDS = 3


def window_of(name: str) -> tuple[int, ...]:
    return WINDOWS[name][1] if name in WINDOWS else (3, 3)


def geometry_of(name: str) -> ConvGeometry:
    *_, inner, outer, before, after = SHAPES[name]
    window = window_of(name)
    rank, groups = len(window), GROUPS.get(name, 1)
    ones = (1,) * rank
    return ConvGeometry(window, ones, before[-rank:], after[-rank:], ones, groups, inner, outer)


def packed_of(name: str, m: int) -> np.ndarray:
    return transform_weight(arrays(name)[1], geometry_of(name), LANES, m)


def bound_of(name: str, m: int) -> float:
    """By the number of points."""
    return BOUNDS[2 if m + max(window_of(name)) == 5 else 4]


def program(name: str, m: int) -> PrimFunc:
    """Winograd with a bias and a ReLU behind it."""
    geometry = geometry_of(name)
    x = te.placeholder(arrays(name)[0].shape, "float32", "x")
    w = te.placeholder(packed_shape(geometry, LANES, m), "float32", "w")
    b = te.placeholder((geometry.out_channels,), "float32", "b")
    y = winograd(x, w, geometry, m)
    zero = tirx.const(0.0, "float32")
    z = te.compute(y.shape, lambda *at: te.max(y[at] + b[at[-1]], zero), name="bias_relu")
    return te.create_prim_func([x, w, b, z])


def layer(side: int, inner: int, outer: int) -> PrimFunc:
    """A padded convolution of square images by F(4x4) and nothing more."""
    geometry = ConvGeometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1, inner, outer)
    x = te.placeholder((1, side, side, inner), "float32", "x")
    w = te.placeholder(packed_shape(geometry, LANES, 4), "float32", "w")
    return te.create_prim_func([x, w, winograd(x, w, geometry, 4)])


@cache
def arrays(name: str) -> tuple[np.ndarray, ...]:
    """Input, weight, bias, and the direct convolution in float64."""
    batch, height, width, inner, outer, before, after = SHAPES[name]
    rng, groups = np.random.default_rng(0), GROUPS.get(name, 1)
    x = rng.standard_normal((batch, height, width, inner)).astype(np.float32)
    deep = inner // groups
    window = window_of(name)
    down, along = (1, *window)[-2:]
    scale = (2 / (down * along * deep)) ** 0.5
    w = (rng.standard_normal((outer, down, along, deep)) * scale).astype(np.float32)
    b = rng.standard_normal(outer).astype(np.float32)
    padded = np.pad(x, ((0, 0), *zip(before, after, strict=True), (0, 0))).astype(np.float64)
    rows, columns = padded.shape[1] - down + 1, padded.shape[2] - along + 1
    parts = [
        sum(
            image[:, i : i + rows, j : j + columns] @ own[:, i, j].T.astype(np.float64)
            for i in range(down)
            for j in range(along)
        )
        for image, own in zip(np.split(padded, groups, 3), np.split(w, groups), strict=True)
    ]
    y = np.maximum(np.concatenate(parts, 3) + b, 0)
    if len(window) == 1:  # sequences
        return x[:, 0], w[:, 0], b, y[:, 0]
    return x, w, b, y


def some_plans(name: str, m: int, machine: str) -> list[TilePlan]:
    """The picker's first choice, and the best of some forms, whole or cut, with tails or without:
    a third of them, another third for the next case."""
    graph = read_prepared(program(name, m))
    plans = [candidate.plan for candidate in pick(graph, resolve(machine), 1000)]
    forms = {form(graph, plan): plan for plan in reversed(plans) if plan.rule == "chain"}
    some = list(forms.values())[CASES.index((name, m)) % THIRDS :: THIRDS]
    return list(dict.fromkeys((plans[0], plans[-1], *some)))


def form(graph: TileGraph, plan: TilePlan) -> tuple[object, ...]:
    """What a chain's code depends on, but for numbers."""
    core, whole = plan.at("core").extents, graph.nodes[plan.anchor].extents
    cut = [axis for axis in (3, 4) if core[axis] < whole[axis]]
    tails = core[4] % plan.at("register").extents[4] > 0
    return chain_form(plan), core[5] < whole[5], len(cut), tails


def read_prepared(func: PrimFunc) -> TileGraph:
    prepared = prepare(func)
    assert prepared is not None
    return prepared.graph


@pytest.mark.parametrize(("name", "m"), CASES)
def test_equals_direct_convolution(name: str, m: int) -> None:
    x, _, b, expected = arrays(name)
    packed = packed_of(name, m)
    plans = some_plans(name, m, "cpu/host")
    for plan in plans:
        built = build(write(program(name, m), plan), Target(resolve("cpu/host").target))
        assert isinstance(built, Built), built
        out = tvm.runtime.tensor(np.full(expected.shape, np.nan, np.float32))
        built.main(*(tvm.runtime.tensor(a) for a in (x, packed, b)), out)
        error = np.abs(out.numpy() - expected).max() / np.abs(expected).max()
        assert error < bound_of(name, m), plan


@pytest.mark.parametrize(
    ("machine", "m"), [("cpu/x86-sse", 2), ("cpu/x86-avx2", 4), ("cpu/x86-avx512", 2)]
)
def test_narrower_vectors(machine: str, m: int) -> None:
    skip_unless_it_runs(machine)
    x, _, b, expected = arrays("cut tiles")
    packed = packed_of("cut tiles", m)
    for plan in some_plans("cut tiles", m, machine):
        built = build(write(program("cut tiles", m), plan), Target(get(machine).target))
        assert isinstance(built, Built), built
        out = tvm.runtime.empty(expected.shape, "float32")
        built.main(*(tvm.runtime.tensor(a) for a in (x, packed, b)), out)
        error = np.abs(out.numpy() - expected).max() / np.abs(expected).max()
        assert error < BOUNDS[m], plan


def test_a_transform_reads_nothing_outside_for_the_rows_of_others() -> None:
    """Its rows are chosen by their place: to TVM that holds everywhere, and
    an image's number was then read off the task's, four images too far."""
    x, _, b, expected = arrays("batch without padding")
    cores, register = Tile((1, 6, 2, 2, 2, 16)), Tile((1, 1, 1, 1, 1, 16))
    plan = TilePlan(
        rule="tile",
        anchor=1,
        tiles=(LevelTile("core", cores), LevelTile("register", register)),
        order=(0, 1, 2, 3, 4, 5),
        parallel=3,
        lanes=16,
        attach=(Attach(0, "core"),),
    )
    func = write(program("batch without padding", 4), plan)
    built = build(func, Target(resolve("cpu/host").target))
    assert isinstance(built, Built), built
    out = tvm.runtime.empty(expected.shape, "float32")
    inside = tvm_ffi.from_dlpack(between_pages(x, at_end=True))
    built.main(inside, *map(tvm.runtime.tensor, (packed_of("batch without padding", 4), b)), out)
    error = np.abs(out.numpy() - expected).max() / np.abs(expected).max()
    assert error < BOUNDS[4]


@pytest.mark.parametrize(("images", "algorithm"), [(1, True), (2, False)])
def test_wide_groups_of_one_image_go_by_winograd(images: int, algorithm: bool) -> None:
    rng = np.random.default_rng(0)
    shape, groups, wide = (images, 3 * 64, 28, 28), 3, 64
    w = rng.standard_normal((groups * wide, wide, 3, 3)).astype("float32") / 24
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = relax.op.nn.conv2d(x, constant(w), padding=1, groups=groups)
            result = builder.emit_output(builder.emit(y))
        builder.emit_func_output(result)
    compiled = tvm_ext.compile(builder.finalize(), "cpu")
    assert any("winograd" in group.name for group in compiled.manifest.groups) == algorithm
    given = rng.standard_normal(shape).astype("float32")
    padded = np.pad(given, ((0, 0), (0, 0), (1, 1), (1, 1))).astype("float64")
    expected = np.concatenate(
        [
            sum(
                np.einsum("oc,nchw->nohw", own[:, :, i, j], image[:, :, i : i + 28, j : j + 28])
                for i in range(3)
                for j in range(3)
            )
            for image, own in zip(np.split(padded, groups, 1), np.split(w, groups), strict=True)
        ],
        1,
    )
    (actual,) = compiled(given)
    assert np.abs(actual - expected).max() < BOUNDS[4] * np.abs(expected).max()


def test_the_chain_is_read_from_its_structure() -> None:
    graph = read_prepared(program("cut tiles", 4))
    chain = transform_chain(graph)
    assert chain is not None
    assert chain.tile == (4, 4)
    assert graph.nodes[chain.product].kind == "reduce"
    plain = te.placeholder((8, 8), "float32", "x")
    k = te.reduce_axis((0, 8), "k")
    total = te.compute((8,), lambda i: te.sum(plain[i, k], axis=k))
    other = read(te.create_prim_func([plain, total]))
    assert other is not None
    assert transform_chain(other) is None


@pytest.mark.parametrize("level", ["core", "root"])
def test_planes_of_a_power_of_two_lie_odd_lines_apart(level: str) -> None:
    """Or all planes that a transform touches would share one set of the cache."""
    func = program("whole tiles", 4)  # 4 x 6 tiles of 32 channels
    plans = pick(read_prepared(func), resolve("cpu/x86-avx512"), 1000)
    plan = next(c.plan for c in plans if c.plan.attach[0].level == level)
    mod = tvm.IRModule({"main": write(func, plan)})
    for name in (
        "ConvertBlocksToOpaque",
        "PlanAndUpdateBufferAllocationLocation",
        "CompactBufferAllocation",
    ):
        mod = getattr(tvm.s_tir.transform, name)()(mod)
    planes = {}

    def visit(block: Any) -> None:
        for buffer in block.alloc_buffers:
            planes[str(buffer.name)] = [int(stride) for stride in buffer.strides]

    structural_walk(mod["main"].body, (tvm.s_tir.SBlock, visit))
    for name in ("cols_in", "product"):
        a, b, *_ = planes[name]
        assert b % 32 == 16
        assert a == 6 * b


def test_refuses_plans_that_leave_tails() -> None:
    func = program("cut tiles", 2)
    graph = read_prepared(func)
    inside = next(
        c.plan for c in pick(graph, resolve("cpu/host"), 60) if c.plan.attach[0].level == "core"
    )
    core = list(inside.at("core").extents)
    cut = Tile((*core[:3], 2, *core[4:]))  # 7 tiles of rows: the last core tile would be partial
    tiles = (LevelTile("core", cut), *inside.tiles[1:])
    with pytest.raises(PlanError):
        write(func, replace(inside, tiles=tiles))
    with pytest.raises(PlanError):
        write(func, replace(inside, attach=(Attach(0, "core"), Attach(1, "root"))))
    for order, parallel in ((CHANNELS_FIRST.order, 3), (PHASES.order, 3), (inside.order[::-1], 3)):
        with pytest.raises(PlanError, match="order"):
            write(func, replace(inside, order=order, parallel=parallel))


def test_rows_that_cores_cannot_share_out_evenly_are_cut_by_channels() -> None:
    """Seven rows of tiles for two cores: one that has four takes 8/7 of an even share. Tasks of
    half of a row's channels share out evenly and read what their own core wrote, but in one row;
    those of half of all rows' channels read half of it from the other core."""
    hardware = replace(get("cpu/x86-avx512"), cores=2)
    graph = read_prepared(layer(27, 32, 128))
    found = [c.plan for c in pick(graph, hardware, 1000)]
    best = {chain_form(plan): plan for plan in reversed(found)}
    assert chain_form(found[0]) == IMAGE_IN_BLOCKS
    assert found[0].at("core").extents[3] == 1
    moved = graph.io_bytes - packed_bytes(graph, graph.nodes[found[0].anchor])
    by_channels_us = exchange_us(graph, best[CHANNELS_FIRST], hardware)
    assert by_channels_us == handed_on_us(moved, 2, hardware) > 0
    others = [form for form in best if form != CHANNELS_FIRST]
    assert not any(exchange_us(graph, best[form], hardware) for form in others)
    even = pick(read_prepared(layer(32, 32, 128)), hardware)
    assert chain_form(even[0].plan) == IMAGE_FIRST


def best_of(form: ChainForm, graph: TileGraph, hardware: HardwareModel) -> TilePlan:
    plans = (candidate.plan for candidate in pick(graph, hardware, 1000))
    return next(plan for plan in plans if chain_form(plan) == form)


def test_weights_of_all_cores_take_their_room_in_a_shared_cache_once() -> None:
    """Blocks of channels of seven rows: both cores read the same 5 MB, 471 us and not 1440."""
    hardware = replace(get("cpu/x86-avx512"), cores=2)
    graph = read_prepared(layer(27, 192, 192))
    plan = best_of(IMAGE_IN_BLOCKS, graph, hardware)
    weight_bytes = packed_bytes(graph, graph.nodes[plan.anchor])
    *near, last, memory = hardware.levels
    assert last.shared

    def memory_us(rooms: float) -> float:
        room = replace(last, size_bytes=int(4 * rooms * weight_bytes))  # a quarter is counted on
        return predict(graph, plan, replace(hardware, levels=(*near, room, memory))).memory_us

    assert memory_us(1.8) == memory_us(18.0) < memory_us(0.9)


def test_phases_hand_on_whatever_weights_arrive_meanwhile() -> None:
    """Cores apart take 1.2 times as long for 14 x 14 of 512 channels in phases, weights in memory
    or not."""
    near = replace(get("cpu/x86-avx512"), cores=2, shared_cache_cycles=50)
    unknown = replace(near, shared_cache_cycles=0)
    graph = read_prepared(layer(14, 512, 512))
    plan = best_of(PHASES, graph, near)
    product = graph.nodes[plan.anchor]
    handed_bytes = sum(
        graph.tensors[tensor].size_bytes
        for tensor in (graph.nodes[plan.anchor - 1].write.tensor, product.write.tensor)
    )
    longer_us = handed_on_us(handed_bytes, 2, near) - handed_on_us(handed_bytes, 2, unknown)
    latencies = [predict(graph, plan, hardware).latency_us for hardware in (near, unknown)]
    assert longer_us > 0
    assert latencies[0] - latencies[1] == pytest.approx(longer_us)


@pytest.mark.parametrize("machine", ["cpu/x86-avx2", "cpu/x86-avx512", "arm/neoverse-n1"])
@pytest.mark.parametrize("side", [112, 224])
def test_transformed_data_of_a_large_image_stays_with_a_core(side: int, machine: str) -> None:
    """Beyond its caches data that is written in 36 places at a time takes a third of memory's
    bandwidth: 224 x 224 x 64 took 8.1 ms in core tiles of 14 x 56, and 5.2 in 1 x 28."""
    hardware = get(machine)
    graph = read_prepared(layer(side, 64, 64))
    core = pick(graph, hardware, 1)[0].plan.at("core").extents
    assert 36 * core[3] * core[4] * 64 * 4 < hardware.own_cache_bytes


def test_predicts_every_plan_it_makes() -> None:
    graph = read_prepared(program("whole tiles", 4))
    for candidate in pick(graph, resolve("cpu/host"), 60):
        again = predict(graph, candidate.plan, resolve("cpu/host"))
        assert again == candidate.estimate
        assert again.latency_us > 0
