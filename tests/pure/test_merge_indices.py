"""Two indices that walk a tensor from the end of a row to the start of the next are one."""

from __future__ import annotations

from graphs import GraphBuilder

from tvm_ext.tile import AffineDim, TileGraph
from tvm_ext.tile.merge_indices import merge_indices


def copied(shape: tuple[int, ...], rows: int, dims: list[AffineDim]) -> TileGraph:
    """y[i] = x[dims of i], of `rows` elements."""
    builder = GraphBuilder("copy")
    x, y = builder.tensor("x", shape, "input"), builder.tensor("y", (rows,), "output")
    builder.node("copy", {"i": rows}, [(x, dims)], (y, [{"i": 1}]))
    return builder.graph()


def index(div: int = 1, mod: int = 0, offset: int = 0) -> AffineDim:
    return AffineDim((1,), offset, div, mod)


def test_quotient_and_remainder_are_one_index() -> None:
    graph = merge_indices(copied((5, 7), 35, [index(div=7), index(mod=7)]))
    assert graph.tensors[0].shape == (35,)
    assert graph.nodes[0].reads[0].dims == (index(),)


def test_three_indices_are_one() -> None:
    dims = [index(div=35), index(div=7, mod=5), index(mod=7)]
    graph = merge_indices(copied((2, 5, 7), 70, dims))
    assert graph.tensors[0].shape == (70,)
    assert graph.nodes[0].reads[0].dims == (index(),)


def test_part_of_a_row_is_no_index() -> None:
    """Rows of 7 in a tensor whose rows have 8, and an index that begins in the middle."""
    for shape, dims in (
        ((5, 8), [index(div=7), index(mod=7)]),
        ((5, 7), [index(div=7), index(mod=7, offset=1)]),
        ((7, 5), [index(mod=7), index(div=7)]),
    ):
        graph = copied(shape, 35, dims)
        assert merge_indices(graph) == graph
