"""Groups with several stages worth tiling: pieces, and plans that go back and forth."""

from __future__ import annotations

import pytest
from graphs import GRAPHS, depthwise, matmul, softmax

from tvm_ext.hardware import get
from tvm_ext.picker import pick, predict
from tvm_ext.tile import decode_plan, encode_plan, show_plan
from tvm_ext.tile.classify import reuses_both
from tvm_ext.tile.cut import cut, joined, parted
from tvm_ext.tile.legal import check_plan

HARDWARE = get("cpu/x86-avx512")


SEVERAL = ("attention", "column_variance")


@pytest.mark.parametrize("name", [n for n in GRAPHS if not n.startswith(SEVERAL)])
def test_one_stage_worth_tiling_is_one_piece(name: str) -> None:
    (piece,) = cut(GRAPHS[name])
    assert piece.graph is GRAPHS[name]
    assert piece.stages == tuple(range(len(piece.graph.nodes)))


@pytest.mark.parametrize("name", GRAPHS)
def test_every_stage_is_in_one_piece(name: str) -> None:
    graph = GRAPHS[name]
    stages = [stage for piece in cut(graph) for stage in piece.stages]
    assert sorted(stages) == list(range(len(graph.nodes)))
    assert sum(piece.graph.flops for piece in cut(graph)) == pytest.approx(graph.flops)


def test_attention_is_two_products_and_the_rows_between_them() -> None:
    graph = GRAPHS["attention_large"]
    pieces = cut(graph)
    names = [[graph.nodes[stage].name for stage in piece.stages] for piece in pieces]
    assert names == [["qk", "scale"], ["max", "exp", "sum", "divide"], ["pv"]]
    first, rows, last = (piece.graph for piece in pieces)
    assert {t.name: t.role for t in first.tensors} == {
        "q": "input",
        "k": "input",
        "scores": "inner",
        "scaled": "output",
    }
    assert {t.name for t in rows.tensors if t.role == "input"} == {"scaled"}
    assert {t.name for t in last.tensors if t.role == "input"} == {"shares", "v"}


def test_reductions_over_columns_have_a_plan_each() -> None:
    """Without one, a reduction ran as TVM writes it, and the model did not know."""
    graph = GRAPHS["column_variance_large"]
    assert [piece.stages for piece in cut(graph)] == [(0,), (1,)]
    assert [piece.stages for piece in cut(GRAPHS["softmax_large"])] == [(0, 1, 2, 3)]
    best = pick(graph, HARDWARE)[0]
    assert [part.anchor for part in best.plan.parts()] == [0, 1]
    assert all(part.parallel for part in best.plan.parts())
    one = pick(cut(graph)[0].graph, HARDWARE)[0]
    assert best.estimate.latency_us > 1.5 * one.estimate.latency_us


@pytest.mark.parametrize("name", ["attention_large", "attention_prime"])
def test_every_piece_has_a_plan_of_its_own(name: str) -> None:
    graph = GRAPHS[name]
    pieces = cut(graph)
    candidates = [one for one in pick(graph, HARDWARE, 8) if one.plan.rule != "strips"]
    assert candidates
    for candidate in candidates:
        plan = candidate.plan
        parts = parted(pieces, plan)
        assert [part.rule for part in parts[1:]] == ["rows", "tile"]
        assert joined(pieces, parts) == plan
        assert decode_plan(encode_plan(plan)) == plan
        assert show_plan(plan).count(" | ") == 2
        for part in plan.parts():
            check_plan(graph, part)
        pairs = zip(pieces, parts, strict=True)
        own = sum(predict(piece.graph, part, HARDWARE).latency_us for piece, part in pairs)
        assert predict(graph, plan, HARDWARE).latency_us == pytest.approx(own)
        assert candidate.estimate.latency_us == pytest.approx(own)


def test_a_plan_cut_otherwise_is_refused() -> None:
    plan = pick(GRAPHS["matmul_packed"], HARDWARE)[0].plan
    with pytest.raises(KeyError):
        parted(cut(GRAPHS["attention_large"]), plan)


def test_rows_times_a_vector_are_no_product() -> None:
    """Register tiles save reads of both operands of a product, of one alone beside a vector."""
    product = matmul(64, 48, 32).nodes[0]
    assert reuses_both(product)
    assert not reuses_both(matmul(64, 1, 32).nodes[0])
    assert not reuses_both(softmax(64, 48).nodes[0])
    assert reuses_both(depthwise(8, 8, 16).nodes[-1])
