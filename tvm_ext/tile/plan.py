"""`TilePlan`: the only tuning decision. Picker, search, log and code generation all speak it."""

from __future__ import annotations

import msgspec

from tvm_ext.tile.axis import Tile

MAX_UNROLLED = 512
"""Statements in one unrolled body; beyond it compile time and the instruction cache suffer."""


class LevelTile(msgspec.Struct, frozen=True):
    """The anchor's tile at one memory level (`core`, `l2`, `l1`, `register`).

    Of a product `l2`, where it has one, is the core tile with a chunk of the reduction (`chunk`).
    Of products of quarters it is a block of the core tile's columns.
    Of attention `second` is the register tile of the second product, which is not the anchor.
    On a GPU `core` is a thread block, `shared` what it keeps in shared memory at once, `register`
    one thread.
    """

    level: str
    tile: Tile


class Attach(msgspec.Struct, frozen=True):
    """Where another stage is computed: inside the anchor's loops at `level`, or at `root`.

    At `register` a later stage is the epilogue of each register tile, at `core` that of a core tile
    whose reduction goes in chunks; at `register` an earlier one is computed where it is read and
    keeps no buffer.
    """

    stage: int
    level: str


class TilePlan(msgspec.Struct, frozen=True):
    """How one fused group runs.

    rule      which writer lowers it: `tile`, `chain`, `attention`, `rows`, `strips`, `split`,
              `flat` or `loose`; on GPUs `block` or one of `block_rows`, `block_flat`, `block_loose`
    anchor    index of the stage that is tiled (stages are numbered in topological order)
    tiles     the anchor's tiles, outermost level first; each divides the space of the one before
    order     axis numbers of the anchor, outermost loop first
    parallel  how many of the leading `core` loops are fused and run on all cores; 0 = serial
    lanes     elements per vector instruction on the innermost axis; 1 = scalar. On a GPU, where a
              warp is the vector, threads side by side along it
    unroll    iterations of the innermost reduce axis unrolled into one loop body (`block_flat`:
              elements one thread loads at once)
    attach    other stages, and the level whose loops they move into
    instruction  the instruction family the innermost loops are written for
    prefetch  whether each step asks for its share of the next panel of a packed operand
    staged    reads of the anchor (by number) whose part of a core tile is copied side by side
              first; of attention, 0 are the keys and 1 the values
    also      plans of further stages of the same kernel, where several are worth tiling (`cut`); of
              `strips` those of all pieces of a strip
    ahead     whether steps of the product ask for what comes next: of `chain` what the next task
              transforms and the places of this one's results, of `tile` what the epilogue of the
              next register tile reads and writes, of `block` the copies of the next step
    """

    rule: str
    anchor: int
    tiles: tuple[LevelTile, ...]
    order: tuple[int, ...]
    parallel: int
    lanes: int = 1
    unroll: int = 1
    attach: tuple[Attach, ...] = ()
    instruction: str = "fma"
    prefetch: bool = False
    staged: tuple[int, ...] = ()
    also: tuple[TilePlan, ...] = ()
    ahead: bool = False

    def at(self, level: str) -> Tile:
        """The anchor's tile at `level`; KeyError if the plan has none there."""
        for entry in self.tiles:
            if entry.level == level:
                return entry.tile
        raise KeyError(level)

    def parts(self) -> tuple[TilePlan, ...]:
        """The plan without `also`, and those."""
        return (msgspec.structs.replace(self, also=()), *self.also) if self.also else (self,)


def with_extent(plan: TilePlan, level: str, axis: int, size: int) -> TilePlan:
    """The plan with one extent of one tile changed."""
    tiles = tuple(
        LevelTile(level, entry.tile.with_extent(axis, size)) if entry.level == level else entry
        for entry in plan.tiles
    )
    return msgspec.structs.replace(plan, tiles=tiles)
