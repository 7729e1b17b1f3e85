"""Every kernel beside what its machine allows: the numbers, the table, and a text for people."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from tvm_ext.hardware.model import HardwareModel
from tvm_ext.hardware.roofline import Roof, level_gbps, peak_gflops, roof
from tvm_ext.records.manifest import Group, Manifest
from tvm_ext.records.profile import Profile
from tvm_ext.report.groups import FALLBACKS, footer, group_us, header, plan_text
from tvm_ext.report.text import draw, gflops_text, short, table, us_text

if TYPE_CHECKING:
    from rich.table import Table


class GroupLine(msgspec.Struct, frozen=True):
    """A kernel, its roof, and its part of the time of all kernels."""

    group: Group
    roof: Roof
    peak_gflops: float
    """Of the machine, all cores."""
    share: float

    @property
    def us(self) -> float:
        """Latency of one call: measured, else predicted, else 0, which means unknown."""
        return group_us(self.group)

    @property
    def total_us(self) -> float:
        """All calls."""
        return self.group.calls * self.us

    @property
    def gflops(self) -> float:
        """Arithmetic per time, GFLOP/s; 0 if unknown."""
        return self.group.flops / self.us / 1e3 if self.us else 0.0

    @property
    def predicted_gflops(self) -> float:
        """The same with the predicted time."""
        us = self.group.predicted_us
        return self.group.flops / us / 1e3 if us and isfinite(us) else 0.0

    @property
    def intensity(self) -> float:
        """Arithmetic per byte that must come from or go to DRAM; 0 if there is none."""
        return self.group.flops / self.group.io_bytes if self.group.io_bytes else 0.0

    @property
    def roof_percent(self) -> float:
        """How much of what the machine can do is reached; 0 if unknown."""
        return 100 * self.roof.latency_us / self.us if self.us else 0.0

    @property
    def peak_percent(self) -> float | None:
        """Multiply-adds beside the peak, for a kernel bound by compute that has any.

        Those the kernel really does: Winograd's own, not the ones of the convolution it stands for,
        and without its transforms.
        """
        if self.roof.bound != "compute" or not self.group.multiply_flops or not self.us:
            return None
        return 100 * self.group.multiply_flops / self.us / 1e3 / self.peak_gflops

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.group.name,
            "kind": self.group.kind,
            "calls": self.group.calls,
            "predicted_us": self.group.predicted_us,
            "measured_us": self.group.measured_us,
            "total_us": self.total_us,
            "share": self.share,
            "gflops": self.gflops,
            "intensity": self.intensity,
            "bound": self.roof.bound,
            "roof_us": self.roof.latency_us,
            "roof_percent": self.roof_percent,
            "peak_percent": self.peak_percent,
        }


def group_lines(
    manifest: Manifest, hardware: HardwareModel, profile: Profile | None = None
) -> list[GroupLine]:
    """One line per kernel, those that take longest first; peaks are those read beside the runs of
    a profile, where it has any."""
    if profile and profile.peak_gflops:
        each = profile.peak_gflops / hardware.cores
        hardware = msgspec.structs.replace(hardware, peak_gflops={"float32": each})
    total = sum(group.calls * group_us(group) for group in manifest.groups) or 1.0
    lines = [
        GroupLine(
            group,
            roof(group.flops, group.io_bytes, hardware),
            peak_gflops(hardware),
            group.calls * group_us(group) / total,
        )
        for group in manifest.groups
    ]
    return sorted(lines, key=lambda line: -line.total_us)


def roofline_text(
    manifest: Manifest,
    hardware: HardwareModel,
    profile: Profile | None = None,
    width: int | None = None,
    color: bool = False,
) -> str:
    """Every kernel beside its roof, and what the compute-bound ones reach of the peak.

    hardware  the machine the figures are held against
    profile   where the measured times come from
    """
    lines = group_lines(manifest, hardware, profile)
    parts = [*header(manifest), f"machine    {machine_text(hardware)}"]
    if profile:
        parts += [f"measured   {line}" for line in _measured(profile)]
    parts += [f"peak       {line}" for line in _at_peak(lines)]
    return draw(*parts, _table(lines), *footer(manifest), width=width, color=color)


def machine_text(hardware: HardwareModel) -> str:
    """A machine's roofs in words."""
    levels = (f"{x.name.upper()} {level_gbps(hardware, x):,.0f}" for x in hardware.levels[2:])
    return (
        f"{hardware.name}, {hardware.cores} cores: peak {peak_gflops(hardware):,.0f} GFLOP/s; "
        f"{', '.join(levels)} GB/s"
    )


def _table(lines: list[GroupLine]) -> Table:
    rows = table(
        "kernel",
        "task",
        "calls",
        "predicted us",
        "measured us",
        "x calls",
        "% of time",
        "GFLOP/s",
        "bound",
        "% of roof",
        "% of peak",
        "source",
        "plan",
        left=("kernel", "task", "source", "plan", "bound"),
    )
    for line in lines:
        group = line.group
        fell = group.source in FALLBACKS
        rows.add_row(
            group.kind,
            short(group.signature),
            str(group.calls),
            us_text(group.predicted_us),
            us_text(group.measured_us),
            us_text(line.total_us),
            f"{100 * line.share:.1f}",
            gflops_text(group.flops, line.us),
            line.roof.bound,
            f"{line.roof_percent:.1f}" if line.us else "-",
            "-" if line.peak_percent is None else f"{line.peak_percent:.1f}",
            f"{group.source} (fell back)" if fell else group.source,
            plan_text(group),
            style="yellow" if fell else None,
        )
    rows.add_section()
    total_us = sum(line.total_us for line in lines)
    rows.add_row(
        "all",
        "",
        str(sum(line.group.calls for line in lines)),
        us_text(sum(line.group.calls * line.group.predicted_us for line in lines)),
        us_text(sum(line.group.calls * line.group.measured_us for line in lines)),
        us_text(total_us),
        f"{100 * sum(line.share for line in lines):.1f}",
        gflops_text(sum(line.group.calls * line.group.flops for line in lines), total_us),
        "",
        f"{_mean_percent(lines):.1f}",
        *("", "", ""),
    )
    return rows


def _mean_percent(lines: list[GroupLine]) -> float:
    """Time all calls would take at their roofs, as part of the time they take."""
    known = [line for line in lines if line.us]
    total_us = sum(line.total_us for line in known)
    return 100 * sum(line.group.calls * line.roof.latency_us for line in known) / (total_us or 1.0)


def _measured(profile: Profile) -> Iterator[str]:
    """What the measured times add up to, beside the model's latency."""
    ratio = 100 * profile.kernels_us / profile.latency_us
    yield (
        f"in place, medians of {profile.runs} runs: kernels {us_text(profile.kernels_us)} us, "
        f"{ratio:.0f}% of the model's latency of {us_text(profile.latency_us)} us"
    )
    if profile.peak_gflops:
        yield f"peak beside the runs {profile.peak_gflops:,.0f} GFLOP/s, which % of peak is of"
    yield (
        f"with the clock around every call {us_text(profile.clocked_us)} us, of which memory and "
        f"shapes {us_text(profile.other_us)} us"
    )


def _at_peak(lines: list[GroupLine]) -> Iterator[str]:
    """What the kernels that are bound by compute reach of the peak, together and at worst."""
    found = [(line, line.peak_percent) for line in lines]
    known = [(line, percent) for line, percent in found if percent is not None]
    if not known:
        return
    time_us = sum(line.total_us for line, _ in known)
    mean = sum(percent * line.total_us for line, percent in known) / time_us
    worst, least = min(known, key=lambda entry: entry[1])
    yield (
        f"{len(known)} kernels bound by compute take {100 * sum(x.share for x, _ in known):.0f}% "
        f"of the time: together at {mean:.1f}% of peak, the least {least:.1f}% "
        f"({worst.group.kind} {short(worst.group.signature)})"
    )
