"""Plans that loops alone say: no tile leaves a tail, and nothing is asked for ahead."""

from __future__ import annotations

from itertools import pairwise

import pytest
from graphs import GRAPHS

from tvm_ext.hardware import get
from tvm_ext.picker import pick_whole
from tvm_ext.tile import Tile

MACHINES = ("cpu/x86-avx512", "cpu/x86-avx2", "arm/neoverse-n1")


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", GRAPHS)
def test_every_tile_divides_what_it_lies_in(name: str, machine: str) -> None:
    graph = GRAPHS[name]
    for plan in pick_whole(graph, get(machine), 3):
        for part in plan.parts():
            assert (part.prefetch, part.ahead) == (False, False)
            tiles = [Tile(graph.nodes[part.anchor].extents), *(level.tile for level in part.tiles)]
            for outer, inner in pairwise(tiles):
                left = [o % i for o, i in zip(outer.extents, inner.extents, strict=True)]
                assert not any(left)


@pytest.mark.parametrize("machine", MACHINES)
def test_groups_that_divide_into_vectors_have_one(machine: str) -> None:
    awkward = {"matmul_plain", "matmul_vector"}  # 197 rows, or one, by 1000 columns
    without = {name for name, graph in GRAPHS.items() if not pick_whole(graph, get(machine))}
    assert all("prime" in name for name in without - awkward)


def test_blocks_of_a_gpu_have_none() -> None:
    assert pick_whole(next(iter(GRAPHS.values())), get("cuda/sm_80")) == []
