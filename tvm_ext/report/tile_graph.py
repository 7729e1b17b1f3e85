"""The tile graph of an artifact as a picture: kernels, their stages, the level of every edge."""

from __future__ import annotations

from collections import Counter
from math import log2
from pathlib import Path
from typing import Any

from tvm_ext.records.manifest import Group, Manifest
from tvm_ext.report.figure import require_matplotlib, save_figure

MOST_ROWS = 1000
"""Calls that are drawn; what a longer model has more is only counted."""
MOST_STAGES = 12
COLORS = {
    "register": "#7f7f7f",
    "l1": "#8e6bbf",
    "l2": "#e09f3e",
    "l3": "#2a9d8f",
    "dram": "#1f5f99",
}
OTHER_COLOR = "#c0392b"
ROW_INCHES = 0.24
WIDTH_INCHES = 13.0
TOP_ROWS = 4
"""Rows that title and legend take."""
BOX, STAGES, RIGHT = 0.0, 34.0, 100.0
"""Where kernels begin, and their stages; edges bulge to the left of it."""
BULGE = -22.0


def draw_tile_graph(manifest: Manifest, path: Path) -> None:
    """Draws every call of a kernel as a row, in order: what it takes of calls before it as arcs,
    its stages behind it with where the result of each lies until it is read.

    An arc's colour is the memory level that still holds what was handed over, by all that is
    touched in between; its width tells its bytes. The suffix of `path` decides the format.

    Raises InstallError without matplotlib, ArtifactError if the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    shown = manifest.steps[:MOST_ROWS]
    rows = len(shown) + TOP_ROWS
    figure = Figure(figsize=(WIDTH_INCHES, rows * ROW_INCHES), dpi=100)
    plot = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    plot.set(xlim=(BULGE - 2, RIGHT), ylim=(len(shown), -TOP_ROWS))
    plot.set_axis_off()
    groups = {group.name: group for group in manifest.groups}
    for row, step in enumerate(shown):
        for read in step.reads:
            _arc(plot, read.step, row, read.size_bytes, _color(read.level))
        _kernel(plot, row, groups.get(step.kernel), step.kernel)
    _words(plot, manifest)
    save_figure(figure, path, "tile graph")


def level_bytes(manifest: Manifest) -> dict[str, int]:
    """Bytes handed from stage to stage and from kernel to kernel in one run, by the level where
    they lie meanwhile."""
    found: Counter[str] = Counter()
    groups = {group.name: group for group in manifest.groups}
    for step in manifest.steps:
        for read in step.reads:
            found[read.level] += read.size_bytes
        group = groups.get(step.kernel)
        for stage in group.stages if group else ():
            found[stage.level] += stage.size_bytes
    found.pop("", None)
    order = [level for level in COLORS if level in found]
    return {level: found[level] for level in (*order, *sorted(found.keys() - COLORS.keys()))}


def level_text(manifest: Manifest) -> str:
    """`level_bytes` in a line."""
    parts = (f"{level} {size / 1e6:,.2f} MB" for level, size in level_bytes(manifest).items())
    return f"model     {manifest.model}\nedges     {', '.join(parts)}"


def _color(level: str) -> str:
    return COLORS.get(level, OTHER_COLOR)


def _arc(plot: Any, source: int, row: int, size_bytes: int, color: str) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    if source < 0:
        plot.plot((BOX - 1.2, BOX), (row + 0.5, row + 0.5), color=color, linewidth=1.2)
        return
    apart = row - source
    reach = BULGE * (1 - 1 / (1 + (apart - 1) / 6)) - 1.5
    ends = (BOX, source + 0.5), (BOX, row + 0.5)
    turns = (reach, source + 0.5), (reach, row + 0.5)
    curve = Curve(
        [ends[0], *turns, ends[1]], [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4]
    )
    width = 0.6 + 0.18 * max(0.0, log2(max(1, size_bytes) / 1024))
    plot.add_patch(PathPatch(curve, fill=False, edgecolor=color, linewidth=width, alpha=0.8))


def _kernel(plot: Any, row: int, group: Group | None, name: str) -> None:
    """One row: number and kind, then the stages with a mark behind each."""
    from matplotlib.patches import Rectangle

    frame = Rectangle((BOX, row + 0.08), STAGES - 1.5, 0.84, facecolor="#f2f2f2")
    frame.set(edgecolor="#9a9a9a", linewidth=0.6)
    plot.add_patch(frame)
    kind = group.kind if group else name
    rule = f"  [{group.plan.rule}]" if group and group.plan else ""
    text = {"va": "center", "fontsize": 7.5}
    plot.text(BOX + 0.5, row + 0.5, f"{row}", color="#777777", **text)
    plot.text(BOX + 3.2, row + 0.5, _cut(kind, 44 - len(rule)) + rule, **text)
    x = STAGES
    stages = group.stages if group else ()
    for stage in stages[:MOST_STAGES]:
        label = _cut(stage.name, 18)
        plot.text(x, row + 0.5, label, fontsize=6.5, va="center", color="#333333")
        x += 0.62 * len(label) + 0.6
        if stage.level:
            color = _color(stage.level)
            plot.add_patch(Rectangle((x, row + 0.3), 1.0, 0.4, facecolor=color, linewidth=0))
            x += 1.6
    if len(stages) > MOST_STAGES:
        plot.text(x, row + 0.5, f"… {len(stages) - MOST_STAGES} more", fontsize=6.5, va="center")


def _cut(text: str, most: int) -> str:
    """A name, cut in the middle: its ends say most."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def _words(plot: Any, manifest: Manifest) -> None:
    """Title, and how many bytes lie where."""
    from matplotlib.patches import Rectangle

    count = len(manifest.steps)
    more = f", the first {MOST_ROWS} drawn" if count > MOST_ROWS else ""
    title = f"{manifest.model}: {count} calls of {len(manifest.groups)} kernels{more}"
    plot.text(BULGE, -TOP_ROWS + 0.9, title, fontsize=12, va="center")
    x = BULGE
    for level, size in level_bytes(manifest).items():
        color = _color(level)
        plot.add_patch(Rectangle((x, -TOP_ROWS + 2.0), 1.6, 0.6, facecolor=color, linewidth=0))
        label = f"{level if level == 'register' else level.upper()} {size / 1e6:,.2f} MB"
        plot.text(x + 2.2, -TOP_ROWS + 2.3, label, fontsize=8.5, va="center")
        x += 17
    note = "left: handed from kernel to kernel; marks: where a stage's result lies until it is read"
    plot.text(BULGE, -TOP_ROWS + 3.3, note, fontsize=7.5, va="center", color="#555555")
