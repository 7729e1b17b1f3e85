"""Plans of the `block` rule, by their tiles."""

from __future__ import annotations

from tvm_ext.tile import Attach, LevelTile, Tile, TilePlan


def block_plan(
    core: tuple[int, ...],
    shared: tuple[int, ...],
    register: tuple[int, ...],
    attach: tuple[Attach, ...] = (),
    anchor: int = 0,
) -> TilePlan:
    levels = {"core": core, "shared": shared, "register": register}
    tiles = tuple(LevelTile(name, Tile(tile)) for name, tile in levels.items())
    return TilePlan("block", anchor, tiles, tuple(range(len(core))), 1, attach=attach)
