"""Plans between other kernels: what they cost those before and after them, and how they write."""

from __future__ import annotations

import msgspec
import pytest
from graphs import GRAPHS, conv, depthwise, elementwise

from tvm_ext.hardware import get
from tvm_ext.picker import exchange_us, pick
from tvm_ext.picker.perf import pieces
from tvm_ext.picker.traffic import gathered_us, handed_on_us

MACHINE = "cpu/x86-avx512"
TOP = 5


def test_rows_are_shared_out_where_columns_would_be_a_little_quicker_alone() -> None:
    """55 rows by 14 columns make 112 register tiles, 55 columns cut in two 110."""
    graph, hw = conv(55, 55, 128, 32, kernel=1), msgspec.structs.replace(get(MACHINE), cores=2)
    best, alone = pick(graph, hw)[0], pick(graph, hw, alone=True)[0]
    assert best.plan.at("core").extents[:3] == (1, 28, 55)
    assert alone.plan.at("core").extents[:3] == (1, 55, 28)
    assert exchange_us(graph, best.plan, hw) == 0
    dearer_us = exchange_us(graph, alone.plan, hw)
    assert alone.estimate.latency_us <= best.estimate.latency_us
    assert best.estimate.latency_us <= alone.estimate.latency_us + dearer_us


def test_weights_are_not_handed_on() -> None:
    """A depthwise window of 7 x 7 over 768 channels cut across its channels: 150 kB of weights are
    read by one core each, 670 kB of activations in part by the core that has not written them."""
    graph, hw = depthwise(7, 7, 768, kernel=7), msgspec.structs.replace(get(MACHINE), cores=2)
    image, weights = (access.tensor for access in graph.nodes[0].reads)
    plans = [candidate.plan for candidate in pick(graph, hw, TOP)]
    across = next(plan for plan in plans if plan.at("core").extents[3] < 768 and plan.parallel)
    moved = graph.io_bytes - graph.tensors[weights].size_bytes
    assert graph.tensors[image].size_bytes < moved < graph.io_bytes
    assert exchange_us(graph, across, hw) == handed_on_us(moved, 2, hw)


def test_one_core_alone_fetches_what_others_wrote() -> None:
    """A map that one core finishes sooner by itself is shared out between kernels; none of tens of
    nanoseconds is."""
    hw = msgspec.structs.replace(get(MACHINE), cores=2)
    one = msgspec.structs.replace(hw, cores=1)
    graph = elementwise(2, 4096, flops=40)
    best, serial = pick(graph, hw)[0], pick(graph, one)[0]
    assert best.plan.parallel
    assert not serial.plan.parallel
    handed_over_us = serial.estimate.latency_us + gathered_us(graph.io_bytes, hw)
    assert serial.estimate.latency_us < best.estimate.latency_us < handed_over_us
    assert not pick(elementwise(2, 256), hw)[0].plan.parallel


@pytest.mark.parametrize("machine", ["cpu/x86-avx512", "cpu/x86-avx2"])
def test_of_equal_plans_the_one_that_writes_in_one_piece_comes_first(machine: str) -> None:
    graph, hw = GRAPHS["conv_stem"], get(machine)
    best, *others = pick(graph, hw, TOP)
    node = graph.nodes[best.plan.anchor]
    close = [
        other
        for other in others
        if other.plan.at("register") == best.plan.at("register")
        and other.estimate.latency_us <= best.estimate.latency_us
    ]
    scattered = [pieces(node, c.plan.at("core")) for c in close if c.plan.rule == "tile"]
    assert pieces(node, best.plan.at("core")) <= min(scattered, default=1 << 30)
