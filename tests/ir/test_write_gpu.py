"""The GPU rules: the grids and copies they make, and that ptxas takes what comes of them.

The compiler is nvcc from PATH or from pip (`pip install -e '.[cuda]'`).
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from block_plans import block_plan
from funcs import FUNCS, conv_func, map_func, matmul_func, softmax_func
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operators import ODD_OPERATORS, OPERATORS, task_of
from tvm.s_tir.meta_schedule.testing.te_workload import conv2d_transpose_nhwc

from tvm_ext.cuda_libraries import use_nvcc
from tvm_ext.errors import PlanError
from tvm_ext.hardware import get
from tvm_ext.picker import pick
from tvm_ext.picker.gpu_perf import limits, shared_bytes
from tvm_ext.search import neighbours
from tvm_ext.tile import Attach, LevelTile, Tile, TilePlan
from tvm_ext.tir import prepare, write
from tvm_ext.tvm_api import IRModule, PrimFunc, is_scheduled, target_of, te, tirx, tvm
from tvm_ext.tvm_lowering import TIR_PIPELINE

MACHINES = ("cuda/sm_80", "cuda/sm_90")
everywhere = pytest.mark.parametrize("machine", MACHINES)


def flat_plan(rule: str, core: tuple[int, ...], lanes: int, unroll: int = 1) -> TilePlan:
    tiles = (LevelTile("core", Tile(core)),)
    return TilePlan(rule, 0, tiles, tuple(range(len(core))), 1, lanes, unroll)


def bound(func: PrimFunc, axis: str) -> list[int]:
    """Extents of the loops bound to `blockIdx.x` or `threadIdx.x`."""
    pattern = rf'thread_binding\((?:T\.int64\()?(\d+)\)?, thread="{axis}"'
    found = re.findall(pattern, func.script())
    return [int(extent) for extent in found]


MATMUL = block_plan((16, 20, 16), (16, 20, 8), (4, 2, 1))


def test_the_block_rule() -> None:
    """24 x 40 by 16: 2 x 2 blocks of 4 x 10 threads; both operands staged by all 40 threads."""
    func = write(matmul_func(24, 40, 16), MATMUL)
    assert bound(func, "blockIdx.x") == [4]
    assert bound(func, "threadIdx.x") == [40, 40, 40], "the tile and a copy of each operand"
    text = func.script()
    assert text.count('scope="shared"') == 2
    assert text.count('scope="local"') == 1
    assert "T.vectorized(4)" in text, "rows of a and b hold whole 16-byte vectors"


def test_threads_take_strips() -> None:
    """Eight rows of eight columns a thread: rows eight times one, columns twice four."""
    plan = block_plan((64, 64, 32), (64, 64, 8), (8, 8, 1))
    func = write(matmul_func(64, 64, 32), plan)
    assert (bound(func, "vthread.y"), bound(func, "vthread.x")) == ([8], [2])
    assert func.script().count("T.vectorized(4)") == 3, "both copies, and what a thread ends with"


def test_copies_of_the_next_step_are_under_way() -> None:
    plan = block_plan((16, 20, 16), (16, 20, 8), (4, 2, 1))
    ahead = msgspec.structs.replace(plan, ahead=True)
    text = write(matmul_func(24, 40, 16), ahead).script()
    assert '"software_pipeline_stage": [0, 0, 1]' in text
    assert "software_pipeline" not in write(matmul_func(24, 40, 16), plan).script()


@pytest.mark.parametrize("arch", [75, 80])
def test_asynchronous_copies_are_for_machines_that_have_them(arch: int) -> None:
    hw, func = get(f"cuda/sm_{arch}"), matmul_func(192, 320, 96)
    plan = pick(prepare(func).graph, hw)[0].plan
    source = cuda_source({"main": write(func, plan)}, hw.target, TIR_PIPELINE)
    assert ("cp.async" in source) == plan.ahead == (arch >= 80)


def test_a_copy_of_merged_indices_holds_its_rows_only() -> None:
    """A tile of a convolution by 1 x 1 takes pixels from the end of one row of the image to the
    start of the next: TVM would copy whole images."""
    hw, func = get("cuda/sm_80"), conv_func(size=28, channels=32, out=64, kernel=1, pad=0)
    graph = prepare(func).graph
    plan = pick(graph, hw)[0].plan
    source = cuda_source({"main": write(func, plan)}, hw.target, TIR_PIPELINE)
    shared = [int(n) for n in re.findall(r"__shared__ .*_ptr\[(\d+)\]", source)]
    assert shared
    assert 4 * sum(shared) <= shared_bytes(graph, plan)


def test_a_copy_whose_size_changes_is_refused() -> None:
    """Of a transposed convolution, rows of the input under a tile: two or three."""
    x, w, y = conv2d_transpose_nhwc(1, 16, 16, 64, 3, 4, 2, 1)
    func = te.create_prim_func([x, w, y])
    reasons = set()
    for candidate in pick(prepare(func).graph, get("cuda/sm_80"), 40):
        try:
            write(func, candidate.plan)
        except PlanError as error:
            reasons.add(error.reason)
        else:
            reasons.add("")
    assert reasons == {"", "copy"}


def test_odd_rows_are_fetched_element_by_element() -> None:
    func = write(matmul_func(24, 41, 17), block_plan((16, 20, 17), (16, 20, 8), (4, 2, 1)))
    assert "vectorized" not in func.script()


def test_an_operand_nobody_shares_is_not_staged() -> None:
    """One thread row: every element of b is read by one thread alone, those of a by all."""
    func = write(matmul_func(4, 40, 16), block_plan((4, 40, 16), (4, 40, 8), (4, 1, 1)))
    assert "a_shared" in func.script()
    assert "b_shared" not in func.script()


def test_padding_is_done_while_fetching() -> None:
    inside = (Attach(2, "register"), Attach(0, "shared"))
    plan = block_plan(
        (1, 2, 14, 32, 3, 3, 8), (1, 2, 14, 32, 1, 1, 8), (1, 1, 2, 4, 1, 1, 1), inside, anchor=1
    )
    assert bound(write(conv_func(), plan), "blockIdx.x") == [7]
    apart = msgspec.structs.replace(plan, attach=inside[:1])
    assert len(bound(write(conv_func(), apart), "blockIdx.x")) == 2, "a kernel for the padding"


def test_the_block_rows_rule() -> None:
    """All four stages of a softmax in one grid over rows, every one by all threads."""
    stages = tuple(Attach(stage, "core") for stage in range(3))
    plan = msgspec.structs.replace(flat_plan("block_rows", (1, 48), 32), anchor=3, attach=stages)
    func = write(softmax_func(12, 48), plan)
    assert bound(func, "blockIdx.x") == [12]
    assert bound(func, "threadIdx.x") == [32] * 4
    assert func.script().count('scope="shared"') == 3


def test_the_block_flat_rule() -> None:
    func = write(map_func(12, 48), flat_plan("block_flat", (3, 48), 32, 4))
    assert bound(func, "blockIdx.x") == [4]
    assert bound(func, "threadIdx.x") == [32]
    assert "T.vectorized(4)" in func.script()


def masked_func() -> PrimFunc:
    x, mask = te.placeholder((12, 48), name="x"), te.placeholder((12, 48), "bool", name="mask")
    kept = te.compute(x.shape, lambda *at: tirx.Select(mask[at], x[at], 0.0), name="kept")
    return te.create_prim_func([x, mask, kept])


def test_booleans_are_in_no_vector() -> None:
    """TVM's CUDA code has two bytes for each boolean of a vector, memory one."""
    prepared = prepare(masked_func())
    assert prepared is not None
    assert pick(prepared.graph, get("cuda/sm_80"))[0].plan.unroll == 1
    with pytest.raises(PlanError, match="booleans"):
        write(masked_func(), flat_plan("block_flat", (3, 48), 32, 4))


def test_a_product_that_is_masked_ends_without_vectors() -> None:
    x, y = te.placeholder((64, 64), name="x"), te.placeholder((64, 64), name="y")
    mask = te.placeholder((64, 64), "bool", name="mask")
    k = te.reduce_axis((0, 64), name="k")
    product = te.compute((64, 64), lambda i, j: te.sum(x[i, k] * y[k, j], k), name="product")
    kept = te.compute((64, 64), lambda *at: tirx.Select(mask[at], product[at], 0.0), name="kept")
    func = te.create_prim_func([x, y, mask, kept])
    plan = block_plan((64, 64, 64), (64, 64, 8), (8, 8, 1))
    plan = msgspec.structs.replace(plan, attach=(Attach(1, "register"),))
    assert write(func, plan).script().count("T.vectorized(4)") == 2, "the copies"


@everywhere
@pytest.mark.parametrize("name", [name for name in FUNCS if name != "argmax"])
def test_every_picked_plan_is_written_inside_grids(name: str, machine: str) -> None:
    func = FUNCS[name]()
    prepared = prepare(func)
    assert prepared is not None
    found = pick(prepared.graph, get(machine), 3)
    assert found
    for candidate in found:
        written = write(func, candidate.plan)
        assert is_scheduled(written)
        named = {candidate.plan.anchor, *(entry.stage for entry in candidate.plan.attach)}
        alone = len(prepared.graph.nodes) - len(named)
        assert len(bound(written, "blockIdx.x")) == 1 + alone
        assert max(bound(written, "threadIdx.x")) <= limits(get(machine)).threads
        assert "T.parallel" not in written.script()


ILLEGAL = {
    "a register tile that does not divide": ("divide", ((16, 20, 16), (16, 20, 8), (3, 2, 1))),
    "a step that is not the block's": ("divide", ((16, 20, 16), (8, 20, 8), (4, 2, 1))),
    "a reduction in registers": ("divide", ((16, 20, 16), (16, 20, 8), (4, 2, 2))),
    "too many threads": ("threads", ((24, 80, 16), (24, 80, 8), (1, 1, 1))),
    "too much unrolled": ("unroll", ((24, 80, 16), (24, 80, 8), (24, 20, 1))),
    "a tile wider than its axis": ("extent", ((32, 20, 16), (32, 20, 8), (4, 2, 1))),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_plan_says_why(name: str) -> None:
    reason, tiles = ILLEGAL[name]
    with pytest.raises(PlanError) as caught:
        write(matmul_func(24, 80, 16), block_plan(*tiles))
    assert caught.value.reason == reason
    assert "\n" not in str(caught.value)


small = st.integers(-1, 4)
odd_fields = st.one_of(
    st.tuples(st.just("rule"), st.sampled_from(["block", "block_rows", "block_flat", "tile"])),
    st.tuples(st.just("anchor"), small),
    st.tuples(st.just("order"), st.lists(small, max_size=4).map(tuple)),
    st.tuples(st.sampled_from(["lanes", "unroll", "parallel"]), st.sampled_from([-1, 0, 3, 2048])),
    st.tuples(
        st.just("tiles"),
        st.lists(
            st.builds(
                LevelTile,
                st.sampled_from(["core", "shared", "register"]),
                st.lists(st.sampled_from([0, 1, 3, 16, 48]), max_size=4).map(
                    lambda extents: Tile(tuple(extents))
                ),
            ),
            max_size=3,
        ).map(tuple),
    ),
    st.tuples(
        st.just("attach"),
        st.lists(
            st.builds(Attach, small, st.sampled_from(["core", "shared", "register", "root"])),
            max_size=2,
        ).map(tuple),
    ),
)
VICTIMS = {name: FUNCS[name]() for name in ("matmul", "conv_crop", "pool", "softmax", "sum", "map")}


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(VICTIMS)), st.lists(odd_fields, min_size=1, max_size=2))
def test_a_plan_from_a_damaged_log_is_written_or_refused(
    name: str, fields: list[tuple[str, object]]
) -> None:
    prepared = prepare(VICTIMS[name])
    assert prepared is not None
    plan = pick(prepared.graph, get("cuda/sm_80"))[0].plan
    with contextlib.suppress(PlanError):
        assert is_scheduled(write(VICTIMS[name], msgspec.structs.replace(plan, **dict(fields))))


@pytest.mark.parametrize("name", sorted(VICTIMS))
def test_neighbours_are_written_or_refused(name: str) -> None:
    """Whatever a search proposes, the writer raises nothing but PlanError."""
    prepared = prepare(VICTIMS[name])
    assert prepared is not None
    written = 0
    for plan in neighbours(prepared.graph, pick(prepared.graph, get("cuda/sm_80"))[0].plan):
        with contextlib.suppress(PlanError):
            written += is_scheduled(write(VICTIMS[name], plan))
    assert written


def nvcc() -> str | None:
    """The CUDA compiler on PATH, else that of this environment."""
    return shutil.which("nvcc") if use_nvcc() else None


class Usage(NamedTuple):
    """What ptxas says of one kernel."""

    registers: int
    shared_bytes: int
    spill_bytes: int


def cuda_source(
    funcs: dict[str, PrimFunc], target: dict[str, object], pipeline: str | None = None
) -> str:
    """CUDA of scheduled functions, by TVM's own TIR pipeline or one of ours."""
    chosen = {} if pipeline is None else {"tir_pipeline": pipeline}
    module = IRModule({name: func.with_attr("global_symbol", name) for name, func in funcs.items()})
    built = tvm.compile(module, target=target_of(target), **chosen)
    return str(built.mod.imports[0].inspect_source("cuda"))


def to_cubin(source: str, arch: str, folder: Path) -> dict[str, Usage]:
    """Compiles CUDA source to a cubin. Returns what each kernel uses."""
    compiler = nvcc()
    assert compiler is not None
    code, cubin = folder / "kernels.cu", folder / "kernels.cubin"
    code.write_text(source)
    done = subprocess.run(
        [compiler, "-cubin", f"-arch={arch}", "-Xptxas", "-v", "-o", str(cubin), str(code)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert cubin.read_bytes().startswith(b"\x7fELF")
    found = {}
    for part in done.stderr.split("Compiling entry function '")[1:]:
        name = part[: part.index("'")]
        used = {
            what: sum(map(int, re.findall(pattern, part)))
            for what, pattern in {
                "registers": r"Used (\d+) registers",
                "shared_bytes": r"(\d+) bytes smem",
                "spill_bytes": r"(\d+) bytes spill",
            }.items()
        }
        found[name] = Usage(**used)
    return found


@everywhere
@pytest.mark.parametrize("operators", [OPERATORS, ODD_OPERATORS], ids=["even", "odd"])
def test_the_kernels_compile_to_a_cubin_within_the_limits(
    operators: dict[str, object], machine: str, tmp_path: Path
) -> None:
    """Registers and shared memory as the compiler counts them, not as we predict them."""
    if nvcc() is None:
        pytest.skip("no CUDA compiler: pip install -e '.[cuda]', or put nvcc on PATH")
    hw = get(machine)
    limit = limits(hw)
    tasks = {name: task_of(operators, name) for name in operators}
    graphs = {name: task.graph for name, task in tasks.items() if task.graph is not None}
    plans = {name: pick(graph, hw)[0].plan for name, graph in graphs.items()}
    funcs = {name: write(tasks[name].func, plan) for name, plan in plans.items()}
    usage = to_cubin(cuda_source(funcs, hw.target), hw.target["arch"], tmp_path)
    assert {name.removesuffix("_kernel") for name in usage} == set(operators)
    for kernel, used in usage.items():
        name = kernel.removesuffix("_kernel")
        plan, graph = plans[name], graphs[name]
        threads = bound(funcs[name], "threadIdx.x")[0]
        assert used.registers <= limit.registers_per_thread
        assert used.registers * threads <= limit.registers
        assert used.shared_bytes <= limit.shared_bytes
        assert used.spill_bytes <= 64, f"{kernel} spills more than a few addresses"
        if plan.rule == "block":
            predicted = shared_bytes(graph, plan)
            assert used.shared_bytes <= predicted + 128, "more shared memory than was planned"
