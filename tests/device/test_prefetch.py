"""Asking for panels ahead: where requests go, which panel they mean, and that results stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tvm_ext.compute.conv import ConvGeometry, conv
from tvm_ext.compute.dense import dense, pack_matrix
from tvm_ext.compute.winograd import packed_shape, winograd
from tvm_ext.hardware import resolve
from tvm_ext.measure.build import Built, build
from tvm_ext.picker import pick
from tvm_ext.tile.axis import Tile
from tvm_ext.tile.plan import LevelTile, TilePlan
from tvm_ext.tir import prepare, write
from tvm_ext.tir.prefetch import with_prefetch
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

ROWS, INNER, COLUMNS, LANES = 24, 64, 96, 16
PANEL = 32  # columns side by side in a packed matrix of 96 columns


def product(rows: int = ROWS) -> PrimFunc:
    """x [rows, 64] times a packed matrix, [rows, 96]."""
    x = te.placeholder((rows, INNER), "float32", "x")
    blocks = COLUMNS // PANEL
    w = te.placeholder((blocks, INNER, PANEL), "float32", "w")
    return te.create_prim_func([x, w, dense(x, w, COLUMNS)])


def plan_of(register: tuple[int, int, int], prefetch: bool = True, rows: int = ROWS) -> TilePlan:
    return TilePlan(
        rule="tile",
        anchor=0,
        tiles=(
            LevelTile("core", Tile((rows, COLUMNS, INNER))),
            LevelTile("register", Tile(register)),
        ),
        order=(1, 0, 2),
        parallel=0,
        lanes=LANES,
        unroll=register[2],
        prefetch=prefetch,
    )


def requests(func: PrimFunc) -> list[Any]:
    """The addresses that a function asks for ahead."""
    found: list[Any] = []

    def visit(call: Any) -> None:
        if getattr(call.op, "name", "") == "tirx.address_of":
            found.append(call.args[0])

    structural_walk(func.body, (Call, visit))
    return found


def run(func: PrimFunc, *arrays: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    built = build(func, Target(resolve("cpu/host").target))
    assert isinstance(built, Built), built
    out = tvm.runtime.tensor(np.full(shape, np.nan, np.float32))
    built.main(*(tvm.runtime.tensor(array) for array in arrays), out)
    return out.numpy()


@pytest.mark.parametrize(
    ("register", "lines"),
    [
        ((6, 32, 4), 2),  # a panel is 128 lines, gone over in 4 passes of 16 steps
        ((12, 32, 4), 4),
        ((6, 32, 1), 1),  # 64 steps: half a line each, rounded up
        ((24, 32, 4), 8),  # all rows at once: one pass
    ],
)
def test_each_step_asks_for_its_share(register: tuple[int, int, int], lines: int) -> None:
    found = requests(write(product(), plan_of(register)))
    assert len(found) == lines
    assert {str(load.source.name) for load in found} == {"w"}


def test_all_panels_at_once_have_no_next_one() -> None:
    assert not requests(write(product(), plan_of((6, 96, 4))))


def test_half_a_panel_is_not_asked_for() -> None:
    """The next one is not what follows in memory."""
    assert not requests(write(product(), plan_of((6, 16, 4))))


def test_a_shorter_last_core_tile_is_asked_for_as_well() -> None:
    """A branch leaves out its register tiles that do not exist; what is inside asks all the same
    (64 rows by 50257 columns in two core tiles: 10.8 ms, with requests 9.7)."""
    plan = plan_of((6, 32, 4))
    cores = (LevelTile("core", Tile((ROWS, 64, INNER))), *plan.tiles[1:])
    func = write(product(), replace(plan, tiles=cores, parallel=1))
    branches: list[Any] = []
    structural_walk(func.body, (tirx.IfThenElse, branches.append))
    assert branches
    assert len(requests(func)) == 2


def test_a_plan_decides() -> None:
    assert not requests(write(product(), plan_of((6, 32, 4), prefetch=False)))


def test_requests_cover_the_next_panel_once_and_in_order() -> None:
    """Evaluated over all steps, the requests are the lines of the following panel, one by one."""
    [load] = requests(write(product(), plan_of((6, 32, 1))))
    index = load.indices[-1]
    variables: dict[str, Any] = {}
    structural_walk(index, (tirx.Var, lambda var: variables.update({str(var.name): var})))
    assert variables.keys() == {"i1_0", "i1_1", "i0_1", "k_0"}

    def position(panel: int, one: int, step: int) -> int:
        values = {"i1_0": 0, "i1_1": panel, "i0_1": one, "k_0": step}
        known = {variables[name]: tirx.const(value, "int32") for name, value in values.items()}
        return int(Analyzer().simplify(substitute(index, known)))

    visits = [
        position(panel, one, step)
        for panel in range(COLUMNS // PANEL)
        for one in range(4)
        for step in range(INNER)
    ]
    panel_elements = INNER * PANEL
    for panel in range(COLUMNS // PANEL):
        own = visits[panel * 4 * INNER : (panel + 1) * 4 * INNER]
        assert own == [(panel + 1) * panel_elements + 16 * visit for visit in range(4 * INNER)]


def test_the_next_panel_is_the_one_that_the_loops_choose() -> None:
    """A Winograd product goes through the blocks of channels of its task, then on to the next b:
    between them lie the panels of other tasks."""
    geometry = ConvGeometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1, 128, 128)
    x = te.placeholder((1, 28, 28, 128), "float32", "x")
    shape = packed_shape(geometry, LANES, 4)
    w = te.placeholder(shape, "float32", "w")
    func = te.create_prim_func([x, w, winograd(x, w, geometry, 4)])
    prepared = prepare(func)
    assert prepared is not None
    plan = next(
        plan
        for candidate in pick(prepared.graph, resolve("cpu/x86-avx512"), 1000)
        if (plan := candidate.plan).order[0] == 5
        and plan.prefetch
        and (plan.at("core").extents[5], plan.at("register").extents[5]) == (64, 32)
    )
    index = requests(write(func, plan))[0].indices[-1]
    variables: dict[str, Any] = {}
    structural_walk(index, (tirx.Var, lambda var: variables.update({str(var.name): var})))

    def panel_after(task: int, a: int, b: int, block: int) -> tuple[int, ...]:
        values = dict.fromkeys(variables, 0) | {"ax0": a, "ax1": b, "ax5_0": block}
        values[next(name for name in variables if "fused" in name)] = task
        known = {variables[name]: tirx.const(value, "int32") for name, value in values.items()}
        element = int(Analyzer().simplify(substitute(index, known)))
        return tuple(int(i) for i in np.unravel_index(element, shape))

    rows = 28 // 4 // plan.at("core").extents[3] * (28 // 4 // plan.at("core").extents[4])
    assert panel_after(0, 0, 0, 0) == (0, 0, 1, 0, 0)
    assert panel_after(0, 0, 0, 1) == (0, 1, 0, 0, 0)
    assert panel_after(0, 2, 5, 1) == (3, 0, 0, 0, 0)
    assert panel_after(rows, 2, 5, 0) == (2, 5, 3, 0, 0)
    assert panel_after(rows, 2, 5, 1) == (3, 0, 2, 0, 0)


def test_a_chunk_is_asked_for_where_its_pieces_lie() -> None:
    """Of taps of a window, and of blocks of columns of which a register tile takes two."""
    geometry = ConvGeometry((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1, 64, 64)
    x = te.placeholder((1, 8, 12, 64), "float32", "x")
    w = te.placeholder((2, 3, 3, 64, PANEL), "float32", "w")
    taps = te.create_prim_func([x, w, conv(x, w, geometry, LANES)])
    extents, chunk = (1, 8, 12, 64, 3, 3, 64), 32
    plan = TilePlan(
        rule="tile",
        anchor=1,
        tiles=(
            LevelTile("core", Tile(extents)),
            LevelTile("l2", Tile((*extents[:-1], chunk))),
            LevelTile("register", Tile((1, 1, 4, 2 * PANEL, 1, 1, 4))),
        ),
        order=(3, 0, 1, 2, 4, 5, 6),
        parallel=0,
        lanes=LANES,
        unroll=4,
        prefetch=True,
    )
    func = write(taps, plan)
    loops: dict[Any, int] = {}
    structural_walk(
        func.body, (tirx.For, lambda loop: loops.update({loop.loop_var: int(loop.extent)}))
    )
    found = requests(func)
    assert {str(load.source.name) for load in found} == {"w"}
    used = {var for load in found for var in variables(load.indices[-1])}
    (which,) = (var for var in used if loops[var] == 64 // chunk)
    others = [var for var in used if not var.same_as(which)]
    asked = set()
    for at in np.ndindex(*(loops[var] for var in others)):
        values = {v: tirx.const(n, "int32") for v, n in zip(others, at, strict=True)}
        values[which] = tirx.const(0, "int32")
        for load in found:
            asked.add(int(Analyzer().simplify(substitute(load.indices[-1], values))))
    places = np.arange(2 * 9 * 64 * PANEL).reshape(2, 3, 3, 64, PANEL)
    assert asked == set(places[:, :, :, chunk:, ::16].reshape(-1).tolist())


@pytest.mark.parametrize(("taps", "asked"), [((1, 1), True), ((3, 3), False)])
def test_taps_that_are_gone_through_inside_steps(taps: tuple[int, int], asked: bool) -> None:
    """Where the next piece of a chunk lies is not known yet; of one tap it is."""
    pads = tuple(tap // 2 for tap in taps)
    geometry = ConvGeometry(taps, (1, 1), pads, pads, (1, 1), 1, 64, 64)
    x = te.placeholder((1, 8, 12, 64), "float32", "x")
    w = te.placeholder((2, *taps, 64, PANEL), "float32", "w")
    func = te.create_prim_func([x, w, conv(x, w, geometry, LANES)])
    prepared = prepare(func)
    assert prepared is not None
    anchor = next(p for p, node in enumerate(prepared.graph.nodes) if node.kind == "reduce")
    *rows, columns, _, _, deep = prepared.graph.nodes[anchor].extents
    count = len(rows)
    register = (*(1 for _ in rows[1:]), 4, 2 * PANEL, 1, 1, 1)
    plan = TilePlan(
        rule="tile",
        anchor=anchor,
        tiles=(
            LevelTile("core", Tile((*rows, columns, *taps, deep))),
            LevelTile("l2", Tile((*rows, columns, *taps, 32))),
            LevelTile("register", Tile(register)),
        ),
        order=(count, *range(count), count + 1, count + 3, count + 2),
        parallel=0,
        lanes=LANES,
        unroll=1,
        prefetch=True,
    )
    scheduled = write(func, plan)
    assert bool(requests(scheduled)) == asked
    assert isinstance(build(scheduled, Target(resolve("cpu/host").target)), Built)


def test_a_chunk_of_several_blocks_is_asked_for_step_by_step() -> None:
    """Rows are few, and of each block there is more than fits into their steps."""
    geometry = ConvGeometry((1, 1), (1, 1), (0, 0), (0, 0), (1, 1), 1, 1232, 240)
    x = te.placeholder((1, 14, 7, 1232), "float32", "x")
    w = te.placeholder((15, 1, 1, 1232, LANES), "float32", "w")
    func = te.create_prim_func([x, w, conv(x, w, geometry, LANES)])
    rows, columns, chunk, step = 98, 240, 112, 4
    register = Tile((1, 7, 3 * LANES, 1, 1, step))
    plan = TilePlan(
        rule="tile",
        anchor=0,
        tiles=(
            LevelTile("core", Tile((1, rows, columns, 1, 1, 1232))),
            LevelTile("l2", Tile((1, rows, columns, 1, 1, chunk))),
            LevelTile("register", register),
        ),
        order=(2, 0, 1, 3, 4, 5),
        parallel=0,
        lanes=LANES,
        unroll=step,
        prefetch=True,
    )
    assert len(requests(write(func, plan))) == 3


def test_results_stay() -> None:
    rng = np.random.default_rng(0)
    for rows in (24, 13):  # without and with a tail of rows
        x = rng.standard_normal((rows, INNER), dtype=np.float32)
        w = rng.standard_normal((INNER, COLUMNS), dtype=np.float32)
        packed = pack_matrix(w, LANES)
        plan = plan_of((6, 32, 4), rows=rows)
        with_requests = run(write(product(rows), plan), x, packed, shape=(rows, COLUMNS))
        plain = write(product(rows), replace(plan, prefetch=False))
        assert np.array_equal(with_requests, run(plain, x, packed, shape=(rows, COLUMNS)))
        assert np.allclose(with_requests, x @ w, rtol=1e-5, atol=1e-4)


def test_a_function_without_packed_operands_stays_as_it_is() -> None:
    x = te.placeholder((8, 32), "float32", "x")
    k = te.reduce_axis((0, 32), "k")
    func = te.create_prim_func([x, te.compute((8,), lambda i: te.sum(x[i, k], axis=k))])
    assert not requests(with_prefetch(func))


def test_the_picker_asks_ahead_for_large_weights_only() -> None:
    def first(columns: int) -> TilePlan:
        x = te.placeholder((128, 256), "float32", "x")
        shape = pack_matrix(np.zeros((256, columns), np.float32), LANES).shape
        w = te.placeholder(shape, "float32", "w")
        prepared = prepare(te.create_prim_func([x, w, dense(x, w, columns)]))
        assert prepared is not None
        return pick(prepared.graph, resolve("cpu/x86-avx512"))[0].plan

    assert first(1024).prefetch
    assert not first(64).prefetch


def test_an_operand_without_axes_is_no_panel() -> None:
    x = te.placeholder((64, 96), "float32", "x")
    scale = te.placeholder((), "float32", "scale")
    k = te.reduce_axis((0, 96), "k")
    y = te.compute((64,), lambda i: te.sum(x[i, k] * scale(), k), name="y")
    func = te.create_prim_func([x, scale, y])
    prepared = prepare(func)
    assert prepared is not None
    for candidate in pick(prepared.graph, resolve("cpu"), 4):
        asked = replace(candidate.plan, prefetch=True)
        assert "prefetch" not in write(func, asked).script()


def test_of_many_rows_each_line_is_asked_for_once() -> None:
    """Where passes over a panel have more steps than it has lines, requests stand before the steps
    of a pass; every line of the next panel is among them, and few of that after it."""
    rows, steps = 800, 64
    x = te.placeholder((rows, steps), "float32", "x")
    w = te.placeholder((COLUMNS // PANEL, steps, PANEL), "float32", "w")
    func = te.create_prim_func([x, w, dense(x, w, COLUMNS)])
    written = write(func, plan_of((4, PANEL, 4), rows=rows))
    (asked,) = requests(written)
    index = asked.indices[-1]
    loops = {str(var.name): var for var in variables(index)}
    assert {name[:2] for name in loops} == {"i0", "i1"}, "rows and columns, no step"
    first = {var: tirx.const(0, "int32") for var in loops.values()}
    row = next(var for name, var in loops.items() if name.startswith("i0"))
    places = [
        int(Analyzer().simplify(substitute(index, first | {row: tirx.const(at, "int32")})))
        for at in range(rows // 4)
    ]
    panel = steps * PANEL
    assert {place % panel for place in places if place < 2 * panel} == set(range(0, panel, 16))
    assert max(places) < 3 * panel
    rng = np.random.default_rng(0)
    given = rng.standard_normal((rows, steps), np.float32)
    packed = rng.standard_normal((COLUMNS // PANEL, steps, PANEL), np.float32)
    found = run(written, given, packed, shape=(rows, COLUMNS))
    matrix = packed.transpose(1, 0, 2).reshape(steps, COLUMNS)
    np.testing.assert_allclose(found, given @ matrix, rtol=1e-4, atol=1e-4)
