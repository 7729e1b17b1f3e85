"""What a plan keeps at once of what each stage makes: the levels of a tile graph's edges."""

from __future__ import annotations

import pytest
from graphs import GRAPHS, GraphBuilder

from tvm_ext.errors import PlanError
from tvm_ext.hardware import get
from tvm_ext.picker import pick, pick_strips
from tvm_ext.tile.attention import COLUMN, attention_stages
from tvm_ext.tile.held import Held, held

HARDWARE = get("cpu/x86-avx512")


@pytest.mark.parametrize("name", GRAPHS)
def test_no_stage_holds_more_than_it_makes(name: str) -> None:
    graph = GRAPHS[name]
    for candidate in pick(graph, HARDWARE, 3):
        found = held(graph, candidate.plan)
        assert len(found) == len(graph.nodes)
        for node, one in zip(graph.nodes, found, strict=True):
            tensor = graph.tensors[node.write.tensor]
            assert (one is None) == (tensor.role == "output")
            assert one is None or one.size_bytes <= tensor.size_bytes
            assert one is None or not one.apart or one.size_bytes == tensor.size_bytes


def test_a_product_hands_registers_to_its_epilogue() -> None:
    graph = GRAPHS["conv_large"]
    plan = pick(graph, HARDWARE)[0].plan
    found = held(graph, plan)
    assert found[plan.anchor] == Held(0)
    assert found[-1] is None


def test_a_softmax_holds_a_row() -> None:
    graph = GRAPHS["softmax_large"]
    sizes = [one.size_bytes for one in held(graph, pick(graph, HARDWARE)[0].plan) if one]
    assert sizes
    assert max(sizes) == 384 * 4


def test_attention_holds_all_keys_of_a_block_of_queries() -> None:
    graph = GRAPHS["fused_attention_large"]
    plan = pick(graph, HARDWARE)[0].plan
    stages = attention_stages(graph)
    assert stages is not None
    one = held(graph, plan)[stages.scores]
    assert one is not None
    assert one.size_bytes == 384 * plan.at("l2").extents[COLUMN] * 4


def test_strips_hold_their_rows() -> None:
    """Of what lies between two products as many rows as a strip has; products hand registers on."""
    build = GraphBuilder("products")
    rows, width = 4096, 32
    x = build.tensor("x", (rows, width), "input")
    for place in (0, 1):
        w = build.tensor(f"w{place}", (width, width), "input")
        role = "output" if place else "inner"
        y = build.tensor(f"y{place}", (rows, width), role)
        axes = {"i": rows, "j": width, "k*": width}
        reads = [(x, [{"i": 1}, {"k": 1}]), (w, [{"k": 1}, {"j": 1}])]
        build.node(f"product{place}", axes, reads, (y, [{"i": 1}, {"j": 1}]), flops=2.0)
        x = y
    graph = build.graph()
    plan = pick_strips(graph, HARDWARE)[0].plan
    assert held(graph, plan) == (Held(plan.at("core").extents[0] * width * 4), None)


def test_a_plan_of_another_group_is_refused() -> None:
    plan = pick(GRAPHS["attention_large"], HARDWARE)[0].plan
    assert plan.also
    with pytest.raises((KeyError, PlanError)):
        held(GRAPHS["conv_large"], plan)
