"""The kernels of an artifact as a table: what `print(compiled.report)` shows."""

from __future__ import annotations

from collections.abc import Iterator

from tvm_ext.records.manifest import Group, Manifest
from tvm_ext.report.text import draw, gflops_text, short, table, us_text
from tvm_ext.tile import show_plan

SOURCES = ("log", "picker", "written", "loop", "loose", "none")
FALLBACKS = ("loose", "none")
"""Sources that are nobody's choice: every plan made for the kernel had failed."""


def sources(manifest: Manifest) -> dict[str, int]:
    """How many kernels came from each source."""
    return {source: sum(group.source == source for group in manifest.groups) for source in SOURCES}


def group_us(group: Group) -> float:
    """Latency of one call: measured, else predicted, else 0, which means unknown."""
    return group.measured_us or group.predicted_us


def plan_text(group: Group) -> str:
    """The plan of a kernel, or how it came about without one."""
    if group.plan:
        return show_plan(group.plan)
    others = {"written": "written loop by loop", "loop": "its kernels, turn by turn"}
    return others.get(group.source, "as TVM wrote it")


def groups_text(manifest: Manifest, width: int | None = None, color: bool = False) -> str:
    """Every kernel of an artifact, those that take longest first, and all fallbacks in full.

    width  columns of text; by default as many as the table needs
    color  with escapes for a terminal
    """
    rows = table(
        "kernel",
        "task",
        "calls",
        "source",
        "bound",
        "predicted us",
        "measured us",
        "x calls",
        "GFLOP/s",
        "verified",
        "plan",
        left=("kernel", "task", "source", "plan", "bound", "verified"),
    )
    for group in sorted(manifest.groups, key=lambda group: -group.calls * group_us(group)):
        us = group_us(group)
        fell = group.source in FALLBACKS
        rows.add_row(
            group.kind,
            short(group.signature),
            str(group.calls),
            f"{group.source} (fell back)" if fell else group.source,
            group.bound or "-",
            us_text(group.predicted_us),
            us_text(group.measured_us),
            us_text(group.calls * us),
            gflops_text(group.flops, us),
            "yes" if group.verified else "no",
            plan_text(group),
            style="yellow" if fell else None,
        )
    return draw(*header(manifest), rows, *footer(manifest), width=width, color=color)


def header(manifest: Manifest) -> Iterator[str]:
    """What the artifact is, in lines."""
    counts = ", ".join(f"{source} {count}" for source, count in sources(manifest).items())
    verified = sum(group.verified for group in manifest.groups)
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    yield f"model      {manifest.model}"
    yield f"hardware   {hardware_text(manifest)}"
    yield f"target     {manifest.target}"
    yield f"code hash  {manifest.code_hash} ({versions})"
    yield f"kernels    {len(manifest.groups)}: {counts}; {verified} verified"
    yield f"time       {_total(manifest)}"
    if limits := manifest.limits():
        yield f"open       {', '.join(limits)}"
    for note in manifest.notes:
        yield f"note       {note}"


def hardware_text(manifest: Manifest) -> str:
    """The machine that an artifact is for, and how much of it."""
    cores = "multiprocessors" if manifest.device == "cuda" else "threads"
    return f"{manifest.hardware_name} ({manifest.hardware}), {manifest.num_threads} {cores}"


def _total(manifest: Manifest) -> str:
    """Time of all calls, and what the figure is made of."""
    predicted = sum(group.calls * group.predicted_us for group in manifest.groups)
    measured = [group for group in manifest.groups if group.measured_us]
    unknown = sum(not group_us(group) for group in manifest.groups)
    parts = [f"{us_text(predicted)} us predicted"]
    if measured:
        total = sum(group.calls * group_us(group) for group in manifest.groups)
        parts = [
            f"{us_text(total)} us: {len(measured)} kernels as measured, the others as predicted"
        ]
    if unknown:
        parts.append(f"{unknown} kernels without a figure")
    return "; ".join(parts)


def footer(manifest: Manifest) -> Iterator[str]:
    """Why better plans were not used, kernel by kernel."""
    fallen = [group for group in manifest.groups if group.source in FALLBACKS]
    if fallen:
        yield f"{len(fallen)} of {len(manifest.groups)} kernels fell back to a plain form:"
        yield from _reasons(fallen)
    replaced = [
        group for group in manifest.groups if group.fallback and group.source not in FALLBACKS
    ]
    if replaced:
        yield f"{len(replaced)} kernels do not run the first plan made for them:"
        yield from _reasons(replaced)


def _reasons(groups: list[Group]) -> Iterator[str]:
    for group in groups:
        yield f"  {group.kind} ({group.name}), now {group.source}"
        for reason in group.fallback or ("no reason recorded",):
            yield f"    {reason}"
