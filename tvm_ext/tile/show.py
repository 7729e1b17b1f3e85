"""Plans and graphs as short text for reports and debugging."""

from __future__ import annotations

from tvm_ext.tile.graph import TileGraph
from tvm_ext.tile.plan import TilePlan


def show_plan(plan: TilePlan) -> str:
    """One line, such as `tile core(1,14,56,64) register(1,1,14,32) par2 x16 unroll4 s0@core`."""
    tiles = " ".join(
        f"{entry.level}({','.join(map(str, entry.tile.extents))})" for entry in plan.tiles
    )
    attach = " ".join(f"s{entry.stage}@{entry.level}" for entry in plan.attach)
    parts = [plan.rule, tiles, f"par{plan.parallel}", f"x{plan.lanes}"]
    if plan.instruction != "fma":
        parts.append(plan.instruction)
    if plan.unroll > 1:
        parts.append(f"unroll{plan.unroll}")
    if plan.prefetch:
        parts.append("prefetch")
    if plan.ahead:
        parts.append("ahead")
    parts += [f"in{read}@core" for read in plan.staged]
    own = " ".join(part for part in (*parts, attach) if part)
    return " | ".join((own, *map(show_plan, plan.also)))


def show_graph(graph: TileGraph) -> str:
    """One line per node: its axes and what it reads and writes."""
    lines = [f"{graph.name}  {graph.flops / 1e6:.1f} MFLOP  {graph.io_bytes / 1e6:.2f} MB"]
    for index, node in enumerate(graph.nodes):
        axes = " ".join(
            f"{a.name}{'*' if a.kind == 'reduce' else ''}={a.extent}" for a in node.axes
        )
        reads = ", ".join(graph.tensors[access.tensor].name for access in node.reads)
        lines.append(
            f"  s{index} {node.kind:6} {node.name} [{axes}] {reads} -> "
            f"{graph.tensors[node.write.tensor].name}"
        )
    return "\n".join(lines)
