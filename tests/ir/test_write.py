"""From plans to schedules: the loops each rule makes, and the reasons it refuses a plan for."""

from __future__ import annotations

import contextlib
import re
from math import prod

import msgspec
import pytest
from funcs import FUNCS, conv_func, dense_func, map_func, matmul_func, softmax_func
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tvm_ext.errors import PlanError
from tvm_ext.hardware import get
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker import pick
from tvm_ext.planner import loose_plan
from tvm_ext.search import neighbours
from tvm_ext.tile import Attach, LevelTile, Tile, TilePlan
from tvm_ext.tir import prepare, write
from tvm_ext.tir.write_tile import INTERLEAVED
from tvm_ext.tvm_api import PrimFunc, is_scheduled, te


def tile_plan(
    core: tuple[int, ...],
    register: tuple[int, ...],
    order: tuple[int, ...],
    parallel: int = 0,
    anchor: int = 0,
    lanes: int = 16,
    attach: tuple[Attach, ...] = (),
) -> TilePlan:
    tiles = (LevelTile("core", Tile(core)), LevelTile("register", Tile(register)))
    return TilePlan("tile", anchor, tiles, order, parallel, lanes, 1, attach)


def one_tile(
    rule: str, core: tuple[int, ...], parallel: int, lanes: int, anchor: int = 0
) -> TilePlan:
    order = tuple(range(len(core)))
    return TilePlan(rule, anchor, (LevelTile("core", Tile(core)),), order, parallel, lanes)


def extents(func: PrimFunc, kind: str) -> list[int]:
    """Extents of the loops of one kind: `parallel`, `vectorized` or `unroll`."""
    found = re.findall(rf"T\.{kind}\((?:T\.int64\()?(\d+)", func.script())
    return [int(extent) for extent in found]


def best(func: PrimFunc, machine: str = "cpu/x86-avx512") -> TilePlan:
    prepared = prepare(func)
    assert prepared is not None
    candidates = pick(prepared.graph, get(machine), 1)
    return candidates[0].plan if candidates else loose_plan(get(machine))


MATMUL = tile_plan((6, 40, 16), (3, 32, 4), (1, 0, 2), parallel=2)


def test_the_tile_rule() -> None:
    """24 x 40 by 16: four core tiles of 6 x 40, register tiles of 3 x 2 vectors, k by 4."""
    func = write(matmul_func(24, 40, 16), MATMUL)
    assert extents(func, "parallel") == [4]
    vectors = extents(func, "vectorized")
    assert vectors == [16, 16, 16], "the accumulators' start, the multiply-adds, the result"
    assert sorted(extents(func, "unroll")) == sorted([3, 2, 4, 3, 2, 3, 2])
    assert "matmul_init" in func.script()
    assert 'scope="local"' in func.script()


def test_a_serial_plan_has_no_parallel_loop() -> None:
    plan = msgspec.structs.replace(
        MATMUL, parallel=0, tiles=tile_plan((24, 40, 16), (3, 32, 4), ()).tiles
    )
    assert extents(write(matmul_func(24, 40, 16), plan), "parallel") == []


def test_a_scalar_plan_has_no_vectors() -> None:
    func = write(matmul_func(24, 40, 16), msgspec.structs.replace(MATMUL, lanes=1))
    assert extents(func, "vectorized") == []


HINT = "pragma_loop_partition_hint"


def test_a_last_tile_is_moved_back() -> None:
    """40 columns by 32: [0, 32) and [8, 40); 25 rows by 3 in tasks of 9: the last at 22."""
    text = write(matmul_func(24, 40, 16), MATMUL).script()
    assert text.count("T.min(j_1 * 32, 8)") == 3, "start, multiply-adds and result agree"
    both = tile_plan((9, 40, 16), (3, 32, 4), (1, 0, 2), parallel=2)
    text = write(matmul_func(25, 40, 16), both).script()
    assert text.count("T.min(j_1 * 32, 8)") == 3
    assert text.count("T.min(j_0_i_0_fused * 9 + i_1 * 3, 22)") == 3
    assert "T.where" not in text
    assert HINT not in text


def test_register_tiles_outside_are_left_out() -> None:
    """48 columns in core tiles of 32: the second holds one register tile of 16."""
    cut = tile_plan((24, 32, 16), (3, 16, 4), (1, 0, 2), parallel=1)
    text = write(matmul_func(24, 48, 16), cut).script()
    assert text.count("if j_0 * 2 + j_1 < 3") + text.count("if j_0 * 32 + j_1 * 16 < 48") == 1
    assert "T.where" not in text
    assert HINT not in text
    whole = tile_plan((6, 32, 16), (3, 32, 4), (1, 0, 2), parallel=2)
    assert HINT not in write(matmul_func(24, 32, 16), whole).script()


def test_a_cropped_result_keeps_its_tail() -> None:
    """48 columns of which 33 are kept: tiles of one stage would lie where those of the other do
    not."""
    a, b = te.placeholder((7, 16), name="a"), te.placeholder((16, 48), name="b")
    k = te.reduce_axis((0, 16), name="k")
    dense = te.compute((7, 48), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="dense")
    kept = te.compute((7, 33), lambda i, j: dense[i, j] + te.const(1.0), name="kept")
    plan = tile_plan((7, 48, 16), (7, 32, 4), (1, 0, 2), attach=(Attach(1, "register"),))
    func = te.create_prim_func([a, b, kept])
    text = write(func, plan).script()
    assert HINT in text
    assert "T.min(" not in text
    both = tile_plan((4, 32, 16), (4, 32, 4), (1, 0, 2), 2, attach=(Attach(1, "register"),))
    with pytest.raises(PlanError, match="tails on two axes"):
        write(func, both)


def test_an_attached_epilogue_runs_on_registers() -> None:
    plan = tile_plan((8, 64, 16), (4, 32, 4), (1, 0, 2), 2, attach=(Attach(1, "register"),))
    func = write(dense_func(24, 16, 64), plan)
    text = func.script()
    assert text.index('T.sblock("dense_update"') < text.index('T.sblock("bias"')
    assert text.count('scope="local"') == 1
    assert extents(func, "parallel") == [3], "the epilogue is inside the one parallel loop"


def test_a_producer_may_be_computed_in_the_core_tile() -> None:
    plan = tile_plan(
        (1, 7, 14, 32, 3, 3, 8), (1, 1, 14, 32, 1, 1, 4), (3, 0, 1, 2, 4, 5, 6), 3, 1,
        attach=(Attach(0, "core"), Attach(2, "register")),
    )  # fmt: skip
    func = write(conv_func(), plan)
    assert extents(func, "parallel") == [2]
    apart = msgspec.structs.replace(plan, attach=plan.attach[1:])
    assert len(extents(write(conv_func(), apart), "parallel")) == 2, "the padding has its own loop"


def test_the_rows_rule() -> None:
    """All four stages of a softmax in one parallel loop over rows, every one in vectors."""
    stages = tuple(Attach(stage, "core") for stage in range(3))
    plan = msgspec.structs.replace(one_tile("rows", (1, 48), 1, 16, anchor=3), attach=stages)
    func = write(softmax_func(12, 48), plan)
    assert extents(func, "parallel") == [12]
    assert set(extents(func, "vectorized")) == {16, 8, 4, 2}, "one vector of partials is halved"
    vectors = func.script().split("T.vectorized")[1:]
    for stage in ("row_max", "row_exp", "row_sum", "softmax"):
        assert any(f'T.sblock("{stage}' in loop for loop in vectors), stage


def test_the_flat_rule() -> None:
    """Contiguous boxes of whole rows, or of a part of one, each a task."""
    func = write(map_func(12, 48), one_tile("flat", (3, 48), 1, 16))
    assert extents(func, "parallel") == [4]
    assert extents(func, "vectorized") == [16]
    assert "pragma_loop_partition_hint" not in func.script()
    uneven = write(map_func(12, 48), one_tile("flat", (5, 48), 1, 16))
    assert extents(uneven, "parallel") == [3]
    assert "pragma_loop_partition_hint" in uneven.script()
    assert extents(write(map_func(2, 64), one_tile("flat", (1, 32), 1, 16)), "parallel") == [4]
    with pytest.raises(PlanError) as caught:
        write(map_func(12, 48), one_tile("flat", (3, 16), 1, 16))
    assert caught.value.reason == "flat", "parts of several rows are not contiguous"


def test_maps_go_by_several_vectors() -> None:
    """As many as leave no tail: four, two or one."""
    for width, lanes in ((192, 64), (96, 32), (48, 16)):
        func = write(map_func(12, width), one_tile("flat", (4, width), 1, 16))
        assert extents(func, "vectorized") == [lanes]


def test_vectors_do_not_cross_the_ends_of_rows() -> None:
    """Twelve rows of twelve elements were once taken for one axis (a slice of 60 x 64 x 60: 264 us,
    29 so)."""
    func = write(map_func(12, 12), one_tile("flat", (4, 12), 1, 8))
    assert extents(func, "vectorized") == []
    assert extents(write(map_func(1, 96), one_tile("flat", (1, 48), 1, 8)), "vectorized") == [16]


def test_the_loose_rule() -> None:
    func = write(softmax_func(12, 48), loose_plan(get("cpu/x86-avx512")))
    assert len(extents(func, "parallel")) == 4, "every stage by itself"
    assert set(extents(func, "vectorized")) == {16}


@pytest.mark.parametrize("free_launch", [False, True], ids=["serial", "parallel"])
@pytest.mark.parametrize("name", FUNCS)
def test_every_picked_plan_can_be_written(
    name: str, hardware: HardwareModel, free_launch: bool
) -> None:
    """Where launching costs nothing, small operators run in parallel too."""
    func = FUNCS[name]()
    prepared = prepare(func)
    assert prepared is not None
    if free_launch:
        hardware = msgspec.structs.replace(hardware, launch_us=0.0)
    for candidate in pick(prepared.graph, hardware, 5):
        written = write(func, candidate.plan)
        assert is_scheduled(written)
        assert [param.name for param in written.params] == [param.name for param in func.params]
        vectors = extents(written, "vectorized")
        assert max(vectors, default=1) <= hardware.lanes(4) * INTERLEAVED[0]
        axes = prepared.graph.nodes[candidate.plan.anchor].axes
        tasks = prod(candidate.plan.at("core").counts(axes))
        if not candidate.plan.parallel:
            assert extents(written, "parallel") == []
        elif tasks > 1:
            assert tasks in extents(written, "parallel")


@pytest.mark.parametrize("name", FUNCS)
def test_loose_plans_can_be_written_for_everything(name: str, hardware: HardwareModel) -> None:
    """The last resort before leaving a group to TVM must not fail itself."""
    assert is_scheduled(write(FUNCS[name](), loose_plan(hardware)))


@pytest.mark.parametrize("name", FUNCS)
def test_writing_is_deterministic(name: str) -> None:
    func = FUNCS[name]()
    plan = best(func)
    before = func.script()
    assert (
        write(func, plan).script()
        == write(func, plan).script()
        == write(FUNCS[name](), plan).script()
    )
    assert func.script() == before
    assert not is_scheduled(func)


def test_attributes_survive() -> None:
    func = map_func().with_attr("op_pattern", 3)
    written = write(func, best(func))
    assert int(written.attrs["op_pattern"]) == 3


ILLEGAL = {
    "a tile of the wrong rank": ("extent", tile_plan((6, 40), (3, 32), (1, 0, 2))),
    "a tile wider than its axis": ("extent", tile_plan((6, 48, 16), (3, 16, 4), (1, 0, 2))),
    "an empty tile": ("extent", tile_plan((6, 40, 16), (0, 16, 4), (1, 0, 2))),
    "a register tile that does not divide": (
        "divide",
        tile_plan((6, 40, 16), (4, 8, 4), (1, 0, 2)),
    ),
    "a reduction with a tail": ("divide", tile_plan((6, 40, 16), (3, 8, 3), (1, 0, 2))),
    "an order that forgets an axis": ("order", tile_plan((6, 40, 16), (3, 8, 4), (1, 0))),
    "an order that repeats an axis": ("order", tile_plan((6, 40, 16), (3, 8, 4), (1, 1, 2))),
    "a body too long": ("unroll", tile_plan((24, 40, 16), (24, 40, 16), (1, 0, 2), lanes=4)),
    "a stage that does not exist": (
        "anchor",
        tile_plan((6, 40, 16), (3, 8, 4), (1, 0, 2), anchor=3),
    ),
    "a stage before the first": ("anchor", tile_plan((6, 40, 16), (3, 8, 4), (1, 0, 2), anchor=-1)),
    "an unknown rule": ("rule", msgspec.structs.replace(MATMUL, rule="spiral")),
    "rows without a row": ("rows", one_tile("rows", (24, 20, 16), 1, 16)),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_plan_says_why(name: str) -> None:
    reason, plan = ILLEGAL[name]
    with pytest.raises(PlanError) as caught:
        write(matmul_func(24, 40, 16), plan)
    assert caught.value.reason == reason
    assert str(caught.value).startswith("plan")
    assert "\n" not in str(caught.value)


def test_a_function_without_blocks() -> None:
    from tvm_ext.tvm_api import tirx

    empty = tirx.PrimFunc([], tirx.Evaluate(0))
    with pytest.raises(PlanError) as caught:
        write(empty, one_tile("flat", (1,), 0, 1))
    assert caught.value.reason == "structure"


@pytest.mark.parametrize("name", FUNCS)
def test_neighbours_are_written_or_refused(name: str) -> None:
    """Whatever the tuner proposes, the writer raises nothing but PlanError."""
    func = FUNCS[name]()
    prepared = prepare(func)
    assert prepared is not None
    written = 0
    for candidate in pick(prepared.graph, get("cpu/x86-avx512"), 2):
        for plan in neighbours(prepared.graph, candidate.plan):
            with contextlib.suppress(PlanError):
                write(func, plan)
                written += 1
    if prepared.graph.flops > 1e4:
        assert written


small = st.integers(-1, 4)
odd_tiles = st.lists(st.sampled_from([-1, 0, 1, 2, 3, 4, 16, 24, 48]), max_size=4).map(
    lambda extents: Tile(tuple(extents))
)
odd_fields = st.one_of(
    st.tuples(st.just("rule"), st.sampled_from(["tile", "rows", "flat", "loose", "contract"])),
    st.tuples(st.just("anchor"), small),
    st.tuples(
        st.just("tiles"),
        st.lists(
            st.builds(LevelTile, st.sampled_from(["core", "register", "l1"]), odd_tiles), max_size=3
        ).map(tuple),
    ),
    st.tuples(st.just("order"), st.lists(small, max_size=4).map(tuple)),
    st.tuples(st.just("parallel"), small),
    st.tuples(st.just("lanes"), st.sampled_from([-1, 0, 1, 3, 64])),
    st.tuples(
        st.just("attach"),
        st.lists(
            st.builds(Attach, small, st.sampled_from(["core", "register", "root", "l1"])),
            max_size=2,
        ).map(tuple),
    ),
)
VICTIMS = {
    name: FUNCS[name]()
    for name in ("matmul", "dense", "conv_crop", "pool", "softmax", "sum", "map", "transpose")
}


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(VICTIMS)), st.lists(odd_fields, min_size=1, max_size=2))
def test_a_plan_from_a_damaged_log_is_written_or_refused(
    name: str, fields: list[tuple[str, object]]
) -> None:
    """A log edited by hand, or by a later version, may hold any plan that decodes."""
    plan = msgspec.structs.replace(best(VICTIMS[name]), **dict(fields))
    with contextlib.suppress(PlanError):
        assert is_scheduled(write(VICTIMS[name], plan))


@pytest.mark.parametrize("stages", [(3,), (0, 0)])
def test_a_stage_is_attached_once_and_to_another(stages: tuple[int, ...]) -> None:
    """TVM ends the process where a loop is made one with itself."""
    func = VICTIMS["softmax"]
    attach = tuple(Attach(stage, "core") for stage in stages)
    with pytest.raises(PlanError) as caught:
        write(func, msgspec.structs.replace(best(func), attach=attach))
    assert caught.value.reason == "attach"


def test_a_plain_epilogue_takes_one_vector_at_a_time() -> None:
    """Accumulators read two at once LLVM keeps as one value twice as wide, which then spills."""
    func = conv_func(channels=32, out=64)
    plan = best(func)
    assert plan.at("register").extents[3] > plan.lanes
    assert set(extents(write(func, plan), "vectorized")) == {plan.lanes}


@pytest.mark.parametrize(("steps", "vectors"), [(96, 2), (1024, 1)])
def test_a_costly_epilogue_is_interleaved_behind_few_steps(steps: int, vectors: int) -> None:
    x, w = te.placeholder((64, steps), name="x"), te.placeholder((steps, 64), name="w")
    k = te.reduce_axis((0, steps), name="k")
    y = te.compute((64, 64), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="y")
    z = te.compute((64, 64), lambda i, j: te.exp(te.exp(te.exp(te.exp(y[i, j])))), name="z")
    plan = tile_plan((64, 64, steps), (4, 32, 1), (0, 1, 2), attach=(Attach(1, "register"),))
    found = extents(write(te.create_prim_func([x, w, z]), plan), "vectorized")
    assert max(found) == vectors * plan.lanes
