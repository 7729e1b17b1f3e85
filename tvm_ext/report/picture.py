"""The roofline as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import cos, hypot, pi, sin, sqrt
from pathlib import Path
from typing import Any

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.hardware.roofline import level_gbps, peak_gflops
from tvm_ext.records.manifest import Manifest
from tvm_ext.report.figure import require_matplotlib, save_figure
from tvm_ext.report.roofline import GroupLine, group_lines, machine_text

NUMBERED = 12
"""Kernels that are listed beside the picture, those that take longest."""
DRAWN_SHARE = 5e-4
"""Kernels with less of the time than this are left out."""
AREA, LEAST_AREA = 4000.0, 12.0
"""Of a dot in square points: per share of the time, and at least."""
COLORS = {"compute": "#c0392b", "dram": "#1f5f99", "l3": "#2a9d8f", "l2": "#e09f3e"}
OTHER_COLOR = "#7f7f7f"
TAG_RADIUS = 8.0
"""Room a number needs around its middle, in points."""
Circle = tuple[float, float, float]
"""Middle and radius in points of the page."""


def drawn_lines(lines: Sequence[GroupLine]) -> list[GroupLine]:
    """The kernels that have a place in the picture: with arithmetic, time, and a share of it."""
    return [line for line in lines if line.gflops and line.intensity and line.share >= DRAWN_SHARE]


def roof_lines(hardware: HardwareModel, low: float, high: float) -> Iterator[tuple[str, Any, Any]]:
    """Label, intensities and GFLOP/s of each roof between two intensities: peak, then memory."""
    peak = peak_gflops(hardware)
    rates = [(level.name.upper(), level_gbps(hardware, level)) for level in hardware.levels[2:]]
    ridge = peak / max((rate for _, rate in rates), default=peak / low)
    yield f"peak {peak:,.0f} GFLOP/s", (max(low, ridge), high), (peak, peak)
    for name, rate in rates:
        yield f"{name} {rate:,.0f} GB/s", (low, peak / rate), (low * rate, peak)


def draw_roofline(manifest: Manifest, hardware: HardwareModel, path: Path) -> None:
    """Draws every kernel under the roofs of the machine, whole or not at all.

    A dot is a kernel: arithmetic intensity against GFLOP/s as measured, its area by its part of the
    time. A ring is the prediction. The suffix of `path` decides the format.

    Raises InstallError without matplotlib, ArtifactError if the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 6.6), dpi=110)
    lines = group_lines(manifest, hardware)
    plot = figure.add_axes((0.06, 0.1, 0.56, 0.78))
    shown = drawn_lines(lines)
    _roofs(plot, hardware, shown)
    _dots(plot, shown)
    _tags(plot, shown)
    _list(figure, shown)
    _words(figure, plot, manifest, hardware, lines)
    save_figure(figure, path, "roofline picture")


def _roofs(plot: Any, hardware: HardwareModel, shown: Sequence[GroupLine]) -> None:
    """Axes with the machine's limits, wide enough for all dots."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    peak = peak_gflops(hardware)
    dram = level_gbps(hardware, hardware.levels[-1])
    reached = [g for x in shown for g in (x.gflops, x.predicted_gflops) if g]
    intensities = [line.intensity for line in shown]
    low, high = min([0.5, *intensities]) / 2, max([8 * peak / dram, *intensities]) * 2
    plot.set(xscale="log", yscale="log", xlim=(low, high))
    plot.set_ylim(min([peak / 30, *reached]) / 2, max([peak, *reached]) * 1.8)
    for label, xs, ys in roof_lines(hardware, low, high):
        flat = ys[0] == ys[1]
        plot.plot(xs, ys, color="black", linewidth=1.6 if flat else 1.0, zorder=1)
        _name_roof(plot, label, xs, ys)
    for axis in (plot.xaxis, plot.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    plot.grid(True, which="major", color="#e4e4e4", linewidth=0.7)
    plot.set_axisbelow(True)


def _name_roof(plot: Any, label: str, xs: Any, ys: Any) -> None:
    """A roof's name along its line, at its left end."""
    (low, _), (bottom, _) = plot.get_xlim(), plot.get_ylim()
    flat = ys[0] == ys[1]
    start = low if flat else max(low, bottom * xs[1] / ys[1])
    x = xs[0] if flat else start * (xs[1] / start) ** 0.04
    plot.annotate(
        label,
        (x, ys[1] if flat else x * ys[1] / xs[1]),
        xytext=(0, 3),
        textcoords="offset points",
        ha="left",
        va="bottom",
        rotation=0 if flat else 45,
        rotation_mode="anchor",
        transform_rotates_text=not flat,
        fontsize=8.5,
        zorder=2,
    )


def _area(line: GroupLine) -> float:
    return max(LEAST_AREA, AREA * line.share)


def _color(line: GroupLine) -> str:
    return COLORS.get(line.roof.bound, OTHER_COLOR)


def _dots(plot: Any, shown: Sequence[GroupLine]) -> None:
    for line in shown:
        x, area = line.intensity, _area(line)
        measured = bool(line.group.measured_us)
        if measured:
            plot.scatter(x, line.gflops, s=area, color=_color(line), alpha=0.55, linewidth=0)
        if line.predicted_gflops:
            ring = {"facecolor": "none", "edgecolor": _color(line), "linewidth": 0.9}
            plot.scatter(x, line.predicted_gflops, s=area, zorder=3, **ring)
        if measured and line.predicted_gflops:
            ends = (line.gflops, line.predicted_gflops)
            plot.plot((x, x), ends, color=_color(line), linewidth=0.8, linestyle=":")


def _tags(plot: Any, shown: Sequence[GroupLine]) -> None:
    """Numbers of the largest kernels, each near its dot and clear of other dots and numbers."""
    points = 72 / plot.figure.dpi
    taken: list[Circle] = []
    for line in shown:
        x, y = plot.transData.transform((line.intensity, line.gflops)) * points
        taken.append((x, y, sqrt(_area(line) / pi)))
    for number, (line, dot) in enumerate(list(zip(shown, taken, strict=True))[:NUMBERED], 1):
        spot = free_spot(dot, taken)
        taken.append((*spot, TAG_RADIUS))
        plot.annotate(
            str(number),
            (line.intensity, line.gflops),
            xytext=(spot[0] - dot[0], spot[1] - dot[1]),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=9,
            fontweight="bold",
            arrowprops={"arrowstyle": "-", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0},
            zorder=5,
        )


def free_spot(dot: Circle, taken: Sequence[Circle]) -> tuple[float, float]:
    """Where the number of a dot goes: the nearest free place, below it first; on it if none is."""
    x, y, radius = dot
    for ring in range(16):
        for step in range(16):
            angle = -pi / 2 + (-1) ** step * ((step + 1) // 2) * pi / 8
            reach = radius + TAG_RADIUS * (1.01 + 0.7 * ring)
            spot = x + reach * cos(angle), y + reach * sin(angle)
            if all(hypot(spot[0] - a, spot[1] - b) > TAG_RADIUS + r for a, b, r in taken):
                return spot
    return x, y


def _list(figure: Any, shown: Sequence[GroupLine]) -> None:
    """The numbered kernels in words."""
    columns = (0.64, 0.665, 0.865, 0.915, 0.965)
    heads = ("", "kernel", "time", "GFLOP/s", "of roof")
    top, height = 0.87, 0.034
    rows = [heads] + [
        (
            str(number),
            _fit(line.group.kind) + (f" x{line.group.calls}" if line.group.calls > 1 else ""),
            f"{100 * line.share:.1f}%",
            f"{line.gflops:,.0f}" if line.gflops >= 10 else f"{line.gflops:.1f}",
            f"{line.roof_percent:.0f}%",
        )
        for number, line in enumerate(shown[:NUMBERED], 1)
    ]
    for place, row in enumerate(rows):
        for column, (x, text) in enumerate(zip(columns, row, strict=True)):
            figure.text(
                x + (0.022 if column > 1 else 0),
                top - place * height,
                text,
                ha="right" if column > 1 else "left",
                va="top",
                fontsize=8.5,
                fontweight="bold" if place == 0 or column == 0 else "normal",
                color=_color(shown[place - 1]) if place and column == 0 else "black",
            )


def _fit(kind: str, most: int = 28) -> str:
    """A kind of kernel, cut in the middle: its ends say most."""
    return kind if len(kind) <= most else f"{kind[: most // 2]}…{kind[-most // 2 + 1 :]}"


def _words(
    figure: Any, plot: Any, manifest: Manifest, hardware: HardwareModel, lines: Sequence[GroupLine]
) -> None:
    """Title, axes, colours, and what is not drawn."""
    from matplotlib.lines import Line2D

    measured = any(line.group.measured_us for line in lines)
    total_ms = sum(line.total_us for line in lines) / 1e3
    cpu = hardware.target.get("mcpu") or hardware.target.get("arch") or ""
    figure.text(0.06, 0.945, f"{manifest.model} on {hardware.name} {cpu}", fontsize=13, va="bottom")
    figure.text(
        *(0.06, 0.915),
        f"{machine_text(hardware)}; all kernels {total_ms:,.2f} ms "
        f"{'measured' if measured else 'predicted'}",
        fontsize=9,
        color="#444444",
        va="bottom",
    )
    plot.set_xlabel("arithmetic intensity, FLOP per byte of DRAM traffic")
    plot.set_ylabel("GFLOP/s")
    shown = drawn_lines(lines)
    bounds = list(dict.fromkeys(line.roof.bound for line in shown))
    keys = [(COLORS.get(bound, OTHER_COLOR), "full", f"bound: {bound}") for bound in bounds]
    if measured:
        keys.append(("#888888", "full", "measured"))
    keys.append(("#888888", "none", "predicted"))
    left_out = [line for line in lines if line not in shown]
    note = "area: part of the time"
    if left_out:
        share = 100 * sum(line.share for line in left_out)
        note += f"; {len(left_out)} kernels without\narithmetic or too short: {share:.1f}%"
    figure.legend(
        handles=[
            Line2D([], [], linestyle="none", marker="o", color=color, fillstyle=fill, label=label)
            for color, fill, label in keys
        ],
        loc="lower left",
        bbox_to_anchor=(0.635, 0.09),
        ncols=2,
        fontsize=8.5,
        frameon=False,
        title=note,
        title_fontsize=8.5,
        alignment="left",
    )
