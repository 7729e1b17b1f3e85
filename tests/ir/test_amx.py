"""Register tiles for the matrix unit: what loops over dots become."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import msgspec
import pytest
from byte_kernels import (
    AMX_MACHINE,
    X86,
    amx_plan,
    conv_halves,
    conv_kernel,
    dense_halves,
    dense_kernel,
)
from funcs import matmul_func, prepared_graph

from tvm_ext.errors import PlanError
from tvm_ext.picker import pick
from tvm_ext.search.space import PieceSpace
from tvm_ext.tile.amx import has_unit
from tvm_ext.tile.plan import TilePlan
from tvm_ext.tir import write
from tvm_ext.tvm_amx import AMX, use_amx
from tvm_ext.tvm_api import (
    IRModule,
    PrimFunc,
    structural_map,
    structural_walk,
    target_of,
    tirx,
    tvm,
)
from tvm_ext.tvm_lowering import KERNEL_PIPELINE, TIR_PIPELINE

PRODUCT = dense_kernel((56,), 96, 64)
WINDOW = conv_kernel((4, 14), (64, 32), 3, 1, 1)
DOTS = 12
FOUR = amx_plan((28, 64, 24), (28, 32, DOTS))
NARROW = amx_plan((28, 64, 24), (14, 32, 1))


def lowered(func: PrimFunc) -> PrimFunc:
    """A scheduled function as code generation would take it, but for the unit."""
    target = target_of(AMX_MACHINE.target)
    lower, _, _ = tirx.get_tir_pipeline(TIR_PIPELINE)
    bound = tirx.transform.BindTarget(tvm.target.Target(target, host=target))
    mod = lower(bound(IRModule({"main": func.with_attr({"global_symbol": "main"})})))
    return mod["main"]


def by_unit(func: PrimFunc, plan: TilePlan) -> PrimFunc:
    """The kernel of a plan."""
    return use_amx(IRModule({"main": lowered(write(func, plan))}))["main"]


def instructions(func: PrimFunc) -> Counter[str]:
    """How often the unit's instructions are written down."""
    return Counter(re.findall(r"llvm\.x86\.(t\w+|ldtilecfg)\b", func.script()))


def test_matrices_are_loaded_once_a_pass() -> None:
    found = instructions(by_unit(PRODUCT.func, FOUR))
    assert found == {
        "ldtilecfg": 1,
        "tilezero": 4,
        "tileloadd64": 4,
        "tdpbusd": 4,
        "tilestored64": 4,
        "tilerelease": 1,
    }


@pytest.mark.parametrize("pipeline", [TIR_PIPELINE, KERNEL_PIPELINE])
def test_a_kernel_asks_for_the_registers_itself(pipeline: str) -> None:
    """Kernels of the tuner, whose arguments are not checked, did not, and crashed in a process that
    had not asked."""
    target = target_of(AMX_MACHINE.target)
    func = write(PRODUCT.func, FOUR).with_attr({"global_symbol": "main"})
    kernel = tvm.compile(IRModule({"main": func}), target=target, tir_pipeline=pipeline)
    assert "@syscall(" in kernel.mod.inspect_source("ll")


def test_padding_that_both_cores_read_is_copied_by_each() -> None:
    """14 x 14 x 256 by 3 x 3 x 256, channels shared out: 107 us by way of memory, 77."""
    graph = prepared_graph(conv_halves((14, 14), (256, 256), 3, 1, 1).func)
    plan = pick(graph, AMX_MACHINE)[0].plan
    assert plan.at("core").extents[3] == 128
    assert [one.level for one in plan.attach if one.stage < plan.anchor] == ["core"]


@pytest.mark.parametrize(
    ("inner", "columns", "outermost"), [(128, 1024, "rows"), (1024, 128, "columns")]
)
def test_rows_are_outermost_where_more_is_written_than_multiplied(
    inner: int, columns: int, outermost: str
) -> None:
    plan = pick(prepared_graph(dense_halves(196, inner, columns).func), AMX_MACHINE)[0].plan
    assert plan.instruction == "amx"
    assert plan.order[:2] == ((0, 1) if outermost == "rows" else (1, 0))


def test_sums_of_halves_have_an_instruction_of_their_own() -> None:
    """The same matrices, of as many bytes."""
    kernel = dense_halves(56, 48, 64)
    assert instructions(by_unit(kernel.func, FOUR)) == {
        "ldtilecfg": 1,
        "tilezero": 4,
        "tileloadd64": 4,
        "tdpbf16ps": 4,
        "tilestored64": 4,
        "tilerelease": 1,
    }
    node = prepared_graph(kernel.func).nodes[0]
    assert has_unit(node, ("amx-bf16",))
    assert not has_unit(node, ("amx-int8",))
    assert not has_unit(prepared_graph(PRODUCT.func).nodes[0], ("amx-bf16",))
    assert pick(prepared_graph(kernel.func), AMX_MACHINE)[0].plan.instruction == "amx"


def test_without_room_rows_and_columns_take_turns() -> None:
    """Six matrices of sums leave one register for each."""
    kernel = dense_kernel((96,), 64, 16)
    found = instructions(by_unit(kernel.func, amx_plan((96, 16, 16), (96, 16, 16), parallel=0)))
    assert found["tdpbusd"] == 6
    assert found["tileloadd64"] == 7


def test_registers_have_the_shapes_of_matrices() -> None:
    words: dict[int, int] = {}

    def look(store: Any) -> None:
        if store.buffer.name == "shapes":
            words[int(store.indices[0])] = int(store.value)

    structural_walk(by_unit(PRODUCT.func, FOUR).body, [(tirx.BufferStore, look)])
    table = b"".join(words[place].to_bytes(4, "little") for place in range(16))
    assert table[0] == 1
    assert table[16:32:2] == bytes([64] * 4 + [48] * 2 + [64] * 2)
    assert table[48:56] == bytes([14] * 4 + [14] * 2 + [12] * 2)


def test_guarded_loads_stay_guarded() -> None:
    """A piece of a strip that lies outside reads nothing."""
    func = lowered(write(PRODUCT.func, amx_plan((28, 64, 24), (14, 16, 12))))

    def guarded(loop: Any) -> Any:
        adds = isinstance(loop.body, tirx.For) and isinstance(loop.body.body, tirx.For)
        if not (adds and "vpdpbusd" in str(loop) and int(loop.extent) == DOTS):
            return loop
        return tirx.IfThenElse(tirx.Var("rows", "int32") < 5, loop, None)

    body = structural_map(func.body, [(tirx.For, guarded)], order="post")
    result = use_amx(IRModule({"main": func.with_body(body)}))["main"]
    branches: list[Any] = []
    structural_walk(result.body, [(tirx.IfThenElse, branches.append)])
    inside = sum(str(branch).count("tileloadd64") for branch in branches)
    assert inside == instructions(result)["tileloadd64"] == 2


def test_it_is_asked_for_first() -> None:
    """Before any task, and with an error where it is refused."""
    found: list[Any] = []
    structural_walk(by_unit(PRODUCT.func, FOUR).body, [(tirx.AssertStmt, found.append)])
    (request,) = [one for one in found if "AMX" in str(one)]
    assert "syscall" in str(request)


def test_other_functions_stay_as_they_are() -> None:
    plain = msgspec.structs.replace(FOUR, tiles=NARROW.tiles, instruction="fma")
    func = lowered(write(PRODUCT.func, plain))
    assert use_amx(IRModule({"main": func}))["main"].same_as(func)


def test_loops_that_are_no_matrices_are_refused() -> None:
    scalars = msgspec.structs.replace(NARROW, instruction="fma", lanes=1)
    func = lowered(write(PRODUCT.func, scalars)).with_attr(AMX, 1)
    with pytest.raises(ValueError, match="not one for the unit"):
        use_amx(IRModule({"main": func}))


@pytest.mark.parametrize(
    ("register", "why"),
    [
        ((28, 24, 12), "no whole matrices of columns"),
        ((51, 16, 12), "rows in unequal parts"),
        ((56, 64, 12), "more sums than registers"),
        ((28, 32, 24), "more dots than a row holds"),
        ((28, 32, 1), "a single dot"),
        ((1, 32, 12), "a single row"),
    ],
)
def test_other_register_tiles_are_refused(register: tuple[int, ...], why: str) -> None:
    with pytest.raises(PlanError) as caught:
        write(PRODUCT.func, amx_plan((56, 64, 24), register))
    assert caught.value.reason in ("amx", "divide"), why


def test_padding_where_it_is_read_is_refused() -> None:
    plan = amx_plan((1, 4, 14, 32, 3, 3, 16), (1, 1, 14, 32, 1, 1, 16), 1, 2)
    inside = tuple(msgspec.structs.replace(one, level="register") for one in plan.attach)
    with pytest.raises(PlanError, match="nowhere"):
        write(WINDOW.func, msgspec.structs.replace(plan, attach=inside))


def test_it_is_picked_where_there_is_one() -> None:
    graph = prepared_graph(WINDOW.func)
    with_unit, without = (pick(graph, one)[0].plan for one in (AMX_MACHINE, X86))
    assert with_unit.instruction == "amx"
    assert without.instruction == "fma"
    assert instructions(by_unit(WINDOW.func, with_unit))["tdpbusd"]


def test_floats_have_none() -> None:
    func = matmul_func(64, 64, 64)
    plans = [one.plan for one in pick(prepared_graph(func), AMX_MACHINE, 8)]
    assert {plan.instruction for plan in plans} == {"fma"}
    plan = msgspec.structs.replace(amx_plan((64, 64, 64), (16, 32, 16)), attach=())
    with pytest.raises(PlanError, match="not for the unit"):
        write(func, plan)


def test_a_search_draws_plans_for_it() -> None:
    """Where there is one, and all of them can be written."""
    graph = prepared_graph(WINDOW.func)
    spaces = [
        PieceSpace(graph, machine, lambda *_: None, (), random.Random(0))
        for machine in (AMX_MACHINE, X86)
    ]
    names = [[sketch.instruction for sketch in space.sketches] for space in spaces]
    assert names == [["fma", "amx"], ["fma"]]
    drawn = list(spaces[0].annotator.plans(spaces[0].sketches[1], 6))
    assert len(drawn) == 6
    for plan in drawn:
        assert instructions(by_unit(WINDOW.func, plan))["tdpbusd"]
