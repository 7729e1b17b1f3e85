"""The tile, the one abstraction everything is said in. Needs nothing but msgspec.

Read in this order:
  axis       Axis and Tile: a loop, and one extent per loop
  graph      TileNode and TileGraph: what operators touch, as affine maps (Welder §3.1)
  plan       TilePlan: the only tuning decision
  classify   what kind of work a node is;  legal: whether a plan can be a kernel of a group
  attention  the stages of attention;  chain: those of Winograd;  strassen: those of quarters
  cut        a group with several stages worth tiling in pieces;  fuse: stages inside another's tile
  strip      rows of a group as a group of their own
  amx        how register tiles fall into matrices
  chunk      part of a long reduction at once
  shift      tails: tiles that are moved back;  merge_indices: indices that are one again
  infer      from an output tile back to the regions and tiles of its producers (Welder §3.2)
  independent  whether slices of a group know nothing of each other
  held       how much of what a stage makes a plan keeps at once: the level of an edge
  footprint  bytes a tile touches and holds;  nest: bytes it moves (Roller §3.3)
  remember   answers that are kept
  codec      plans as JSON;  show: plans and graphs as text
"""

from tvm_ext.tile.axis import Axis, Tile
from tvm_ext.tile.codec import decode_plan, encode_plan
from tvm_ext.tile.graph import Access, AffineDim, Tensor, TileGraph, TileNode
from tvm_ext.tile.plan import Attach, LevelTile, TilePlan
from tvm_ext.tile.show import show_graph, show_plan

__all__ = [
    "Access",
    "AffineDim",
    "Attach",
    "Axis",
    "LevelTile",
    "Tensor",
    "Tile",
    "TileGraph",
    "TileNode",
    "TilePlan",
    "decode_plan",
    "encode_plan",
    "show_graph",
    "show_plan",
]
