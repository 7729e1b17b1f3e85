"""Asking for what comes next, a chain's task or a register tile: which lines, none of others, and
that results stay."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from this_host import skip_unless_it_runs

from tvm_ext.compute.conv import ConvGeometry, conv
from tvm_ext.compute.dense import dense
from tvm_ext.compute.winograd import packed_shape, transform_weight, winograd
from tvm_ext.errors import PlanError
from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick
from tvm_ext.search import neighbours, sketches
from tvm_ext.search.annotate import Annotator
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.legal import can_ask_ahead
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan
from tvm_ext.tir import prepare, write
from tvm_ext.tvm_api import (
    Analyzer,
    Call,
    PrimFunc,
    Target,
    structural_walk,
    substitute,
    te,
    tirx,
    tvm,
    variables,
)

LANES = 16
LINE = 16  # floats
SIDE, INNER, OUTER = 32, 32, 64  # a picture of 8 x 8 tiles


GEOMETRY = ConvGeometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1, INNER, OUTER)


def program(side: int = SIDE) -> PrimFunc:
    """F(4x4) of `side` x `side` x 32 to 64 channels, and a residual that is added."""
    x = te.placeholder((1, side, side, INNER), "float32", "x")
    w = te.placeholder(packed_shape(GEOMETRY, LANES, 4), "float32", "w")
    residual = te.placeholder((1, side, side, OUTER), "float32", "residual")
    y = winograd(x, w, GEOMETRY, 4)
    z = te.compute(y.shape, lambda *at: y[at] + residual[at], name="sum")
    return te.create_prim_func([x, w, residual, z])


def plan_of(func: PrimFunc, rows: int, columns: int, channels: int) -> TilePlan:
    """A plan with all stages inside tasks of so many tiles, that asks ahead."""
    prepared = prepare(func)
    assert prepared is not None
    found = next(
        plan
        for candidate in pick(prepared.graph, resolve("cpu/x86-avx512"), 1000)
        if (plan := candidate.plan).attach[0].level == "core" and plan.order[0] == 2
    )
    core = (*found.at("core").extents[:3], rows, columns, channels, INNER)
    register = (1, 1, 1, 1, 4, 32, 4)
    tiles = (LevelTile("core", Tile(core)), LevelTile("register", Tile(register)))
    return replace(found, tiles=tiles, prefetch=False, ahead=True)


def asked(func: PrimFunc, task: int) -> dict[str, list[tuple[int, ...]]]:
    """The elements whose lines a task asks for, in order, by tensor."""
    loads: list[Any] = []
    loops: dict[str, int] = {}
    task_name: list[str] = []

    def visit(call: Any) -> None:
        if getattr(call.op, "name", "") == "tirx.address_of":
            loads.append(call.args[0])

    def enter(loop: Any) -> None:
        if loop.kind == tirx.ForKind.PARALLEL:
            task_name.append(str(loop.loop_var.name))
        loops[str(loop.loop_var.name)] = int(loop.extent)

    structural_walk(func.body, (Call, visit))
    structural_walk(func.body, (tirx.For, enter))
    analyzer = Analyzer()
    found: dict[str, list[tuple[int, ...]]] = {}
    for load in loads:
        used = {str(var.name): var for index in load.indices for var in variables(index)}
        steps = [name for name in used if name not in task_name]
        for values in product(*(range(loops[name]) for name in steps)):
            at = dict(zip(steps, values, strict=True)) | dict.fromkeys(task_name, task)
            known = {used[name]: tirx.const(at[name], "int32") for name in used}
            element = tuple(
                int(analyzer.simplify(substitute(index, known))) for index in load.indices
            )
            found.setdefault(str(load.source.name), []).append(element)
    return found


def rows_of(elements: list[tuple[int, ...]], width: int) -> dict[int, set[tuple[int, int]]]:
    """Of every row of a picture the points and lines that are asked for: a point beyond its row is
    one of the next."""
    rows: dict[int, set[tuple[int, int]]] = {}
    for _, row, point, channel in elements:
        rows.setdefault(row + point // width, set()).add((point % width, channel // LINE))
    return rows


def test_whole_rows_of_the_next_task_and_of_this_ones_results() -> None:
    func = write(program(), plan_of(program(), 1, 8, OUTER))
    found = asked(func, 2)
    assert found.keys() == {"x", "residual", "sum"}
    everything = set(product(range(SIDE), range(INNER // LINE)))
    # task 3 transforms rows 11 to 16, and a point beside each of them
    taken = rows_of(found["x"], SIDE)
    assert all(taken[row] == everything for row in range(12, 17))
    assert set(taken) <= set(range(10, 19))
    everything = set(product(range(SIDE), range(OUTER // LINE)))
    for name in ("residual", "sum"):  # task 2 writes rows 8 to 11
        assert rows_of(found[name], SIDE) == dict.fromkeys(range(8, 12), everything)


def test_parts_of_rows() -> None:
    func = write(program(), plan_of(program(), 2, 4, OUTER))
    found = asked(func, 0)
    # task 1 has the right half of the first two rows of tiles
    points = {(row, point) for _, row, point, _ in found["x"]}
    assert points == set(product(range(-1, 9), range(15, 33)))
    assert {(row, point) for _, row, point, _ in found["sum"]} == set(product(range(8), range(16)))


def test_lines_are_asked_for_in_order_and_the_last_one_by_steps_left_over() -> None:
    func = write(program(), plan_of(program(), 1, 8, OUTER))
    lines = [(point, channel // LINE) for _, _, point, channel in asked(func, 0)["sum"]]
    count = 4 * SIDE * OUTER // LINE
    assert [point * (OUTER // LINE) + line for point, line in lines[:count]] == [*range(count)]
    assert set(lines[count:]) == {lines[count - 1]}


def test_blocks_of_channels_ask_for_their_own_results() -> None:
    """Inside a task, one block after another: each asks for its own lines."""
    func = write(program(), plan_of(program(), 1, 8, 32))
    found = asked(func, 1)
    channels = {channel // LINE for _, _, _, channel in found["sum"]}
    assert channels == set(range(OUTER // LINE))


def check_results_stay(func: PrimFunc, plan: TilePlan, arrays: list[np.ndarray]) -> None:
    """The kernel that asks computes what the one does that does not, all of it."""
    results = []
    for ahead in (True, False):
        built = build(
            write(func, replace(plan, ahead=ahead)), Target(resolve("cpu/x86-avx512").target)
        )
        assert isinstance(built, Built), built
        shape = [int(extent) for extent in func.params[-1].shape]
        out = tvm.runtime.tensor(np.full(shape, np.nan, np.float32))
        built.main(*map(tvm.runtime.tensor, arrays), out)
        results.append(out.numpy())
    assert np.isfinite(results[0]).all()
    assert np.array_equal(*results)


def test_results_stay() -> None:
    skip_unless_it_runs("cpu/x86-avx512")
    rng = np.random.default_rng(0)
    for side, rows, columns in ((32, 1, 4), (30, 1, 8), (30, 2, 4)):  # tiles of 30 end partial
        func = program(side)
        x = rng.standard_normal((1, side, side, INNER), dtype=np.float32)
        weight = rng.standard_normal((OUTER, 3, 3, INNER), dtype=np.float32)
        residual = rng.standard_normal((1, side, side, OUTER), dtype=np.float32)
        arrays = [x, transform_weight(weight, GEOMETRY, LANES, 4), residual]
        check_results_stay(func, plan_of(func, rows, columns, 32), arrays)


def test_only_chains_in_tasks_and_register_tiles_can_ask() -> None:
    func = program()
    plan = plan_of(func, 1, 8, OUTER)
    root = replace(plan, attach=tuple(replace(entry, level="root") for entry in plan.attach))
    for other in (replace(plan, rule="flat"), root, replace(plan, parallel=0)):
        with pytest.raises(PlanError, match="no next task"):
            write(func, other)


def test_the_search_tries_both() -> None:
    func = program()
    prepared = prepare(func)
    assert prepared is not None
    plan = plan_of(func, 1, 8, OUTER)
    near = list(neighbours(prepared.graph, plan))
    assert replace(plan, ahead=False) in near
    root = replace(plan, attach=tuple(replace(entry, level="root") for entry in plan.attach))
    asks = [other.ahead for other in neighbours(prepared.graph, replace(root, ahead=False))]
    assert not any(asks)
    die = Annotator(prepared.graph, LANES, random.Random(0))
    drawn = [die.draw(sketch) for sketch in sketches(prepared.graph, 2) for _ in range(40)]
    chains = [other for other in drawn if other.rule == "chain"]
    assert {other.ahead for other in chains if can_ask_ahead(prepared.graph, other)} == {
        True,
        False,
    }
    assert all(can_ask_ahead(prepared.graph, other) for other in chains if other.ahead)


@pytest.mark.parametrize("cores", [1, 2])
def test_the_picker_asks_where_data_leaves_a_cores_own_caches(cores: int) -> None:
    """A single core goes through tasks as well (UNet 0.90 of the time)."""
    hardware = replace(resolve("cpu/x86-avx512"), cores=cores)

    def first(side: int) -> TilePlan:
        prepared = prepare(program(side))
        assert prepared is not None
        return pick(prepared.graph, hardware)[0].plan

    assert first(224).ahead
    assert not first(16).ahead


ROWS, DEPTH, COLUMNS = 56, 64, 64


def residual_product(
    rows: int = ROWS, depth: int = DEPTH, columns: int = COLUMNS, *, added: bool = True
) -> PrimFunc:
    """relu(x @ w + residual), the weight packed; relu(x @ w) if nothing is `added`."""
    x = te.placeholder((rows, depth), "float32", "x")
    w = te.placeholder((columns // 32, depth, 32), "float32", "w")
    residual = te.placeholder((rows, columns), "float32", "residual")
    y = dense(x, w, columns)
    zero = tirx.const(0.0, "float32")

    def clipped(*at: Any) -> Any:
        return tirx.max(y[at] + residual[at] if added else y[at], zero)

    z = te.compute(y.shape, clipped, name="sum")
    return te.create_prim_func([x, w, *([residual] if added else []), z])


HEIGHT, WIDTH = 8, 7


def residual_image(images: int) -> PrimFunc:
    """conv 1x1 of x, plus a residual: pixels are counted by one axis."""
    geometry = ConvGeometry((1, 1), (1, 1), (0, 0), (0, 0), (1, 1), 1, DEPTH, COLUMNS)
    x = te.placeholder((images, HEIGHT, WIDTH, DEPTH), "float32", "x")
    w = te.placeholder((COLUMNS // 32, 1, 1, DEPTH, 32), "float32", "w")
    residual = te.placeholder((images, HEIGHT, WIDTH, COLUMNS), "float32", "residual")
    y = conv(x, w, geometry, LANES)
    z = te.compute(y.shape, lambda *at: y[at] + residual[at], name="sum")
    return te.create_prim_func([x, w, residual, z])


def image_plan(func: PrimFunc, pixels: int) -> TilePlan:
    """All pixels of the images, so many at once."""
    prepared = prepare(func)
    assert prepared is not None
    extents = prepared.graph.nodes[0].extents
    return replace(
        tile_plan(1, 1),
        tiles=(
            LevelTile("core", Tile(extents)),
            LevelTile("register", Tile((*extents[:-5], pixels, 32, 1, 1, 4))),
        ),
        order=tuple(range(len(extents))),
        parallel=0,
    )


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("pixels", [7, 4, 6])
def test_tiles_of_pixels_that_go_over_the_ends_of_rows_ask_as_well(
    pixels: int, images: int
) -> None:
    """6 of 56 pixels lie in two rows of 7 or one, the last ones are moved back; nothing was asked
    for (64 to 256 channels of 56 x 56, out of cache: 737 us, now 534)."""
    func = residual_image(images)
    found = asked(write(func, image_plan(func, pixels)), 0)
    assert found.keys() == {"residual", "sum"}
    everything = set(product(range(images * HEIGHT * WIDTH), range(COLUMNS // LINE)))
    first = set(product(range(pixels), range(2)))
    for elements in found.values():
        lines = {((n * HEIGHT + h) * WIDTH + w, c // LINE) for n, h, w, c in elements}
        assert everything - first <= lines


@pytest.mark.parametrize("pixels", [4, 6])
def test_results_of_tiles_of_pixels_that_ask_stay(pixels: int) -> None:
    skip_unless_it_runs("cpu/x86-avx512")
    rng = np.random.default_rng(0)
    func = residual_image(2)
    arrays = [rng.standard_normal([int(e) for e in p.shape], np.float32) for p in func.params]
    check_results_stay(func, image_plan(func, pixels), arrays[:-1])


def tile_plan(core: int, register: int) -> TilePlan:
    """Tasks of so many rows, register tiles of so many by 32, columns the inner loop."""
    return TilePlan(
        rule="tile",
        anchor=0,
        tiles=(
            LevelTile("core", Tile((core, COLUMNS, DEPTH))),
            LevelTile("register", Tile((register, 32, 4))),
        ),
        order=(0, 1, 2),
        parallel=1,
        lanes=LANES,
        unroll=4,
        attach=(Attach(1, "register"),),
        ahead=True,
    )


def test_a_register_tile_asks_for_what_the_next_epilogue_takes() -> None:
    """The last one of a task asks for the rows that the next task begins with."""
    found = asked(write(residual_product(), tile_plan(28, 14)), 0)
    assert found.keys() == {"residual", "sum"}
    first = set(product(range(14), range(2)))
    everything = set(product(range(28), range(COLUMNS // LINE)))
    following = set(product(range(28, 42), range(2)))
    for elements in found.values():
        assert {(row, column // LINE) for row, column in elements} == everything - first | following


@pytest.mark.parametrize(("rows", "core", "register"), [(56, 28, 14), (50, 36, 12), (55, 28, 14)])
def test_results_of_register_tiles_that_ask_stay(rows: int, core: int, register: int) -> None:
    skip_unless_it_runs("cpu/x86-avx512")
    rng = np.random.default_rng(0)
    func = residual_product(rows)
    shapes = ((rows, DEPTH), (COLUMNS // 32, DEPTH, 32), (rows, COLUMNS))
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    check_results_stay(func, tile_plan(core, register), arrays)


@pytest.mark.parametrize(
    ("rows", "depth", "added", "asks"),
    [
        (12544, 64, True, True),
        (25088, 64, False, True),
        (12544, 2048, True, False),
        (196, 64, True, False),
    ],
)
def test_the_picker_asks_for_what_short_products_write_out_of_cache(
    rows: int, depth: int, added: bool, asks: bool
) -> None:
    prepared = prepare(residual_product(rows, depth, 256, added=added))
    assert prepared is not None
    plan = pick(prepared.graph, resolve("cpu/x86-avx512"))[0].plan
    assert (plan.rule, plan.ahead) == ("tile", asks)
