"""What fusion made of memory-bound kernels, and why it stopped: `report --fusion`."""

from __future__ import annotations

from collections.abc import Iterable

from tvm_ext.records.manifest import Fusion, Manifest
from tvm_ext.report.text import draw, table, us_text

MEGA = 1e6


def fusions_text(manifest: Manifest, width: int | None = None, color: bool = False) -> str:
    """Every decision on memory-bound kernels, those that save most bytes first, then what stayed
    alone by its traffic. Times are predicted; traffic counts each tensor once a kernel."""
    rows = table(
        "by",
        "calls",
        "kernels",
        "us apart",
        "us as one",
        "MB apart",
        "MB as one",
        "why no larger",
        left=("by", "kernels", "why no larger"),
    )
    for fusion in sorted(manifest.fusions, key=_weight):
        one = len(fusion.kernels) > 1
        rows.add_row(
            fusion.by,
            str(fusion.times),
            " + ".join(name.removeprefix("fused_") for name in fusion.kernels),
            us_text(fusion.apart_us) if one else "-",
            us_text(fusion.together_us) if one else "-",
            f"{fusion.apart_bytes / MEGA:.2f}",
            f"{fusion.together_bytes / MEGA:.2f}" if one else "-",
            fusion.stopped or "nothing more before it",
        )
    lines = (f"model      {manifest.model}", _summary(manifest.fusions))
    return draw(*lines, rows, width=width, color=color)


def _weight(fusion: Fusion) -> tuple[bool, float]:
    saved = fusion.apart_bytes - fusion.together_bytes
    alone = len(fusion.kernels) == 1
    return alone, -fusion.times * (fusion.apart_bytes if alone else saved)


def _summary(fusions: Iterable[Fusion]) -> str:
    """How many kernels became how many, and what of their traffic is left."""
    merged = [fusion for fusion in fusions if len(fusion.kernels) > 1]
    before = sum(fusion.times * len(fusion.kernels) for fusion in merged)
    after = sum(fusion.times for fusion in merged)
    apart = sum(fusion.times * fusion.apart_bytes for fusion in merged) / MEGA
    together = sum(fusion.times * fusion.together_bytes for fusion in merged) / MEGA
    alone = sum(fusion.times for fusion in fusions if len(fusion.kernels) == 1)
    return (
        f"fusion     {before} kernels became {after}, {apart:.1f} MB {together:.1f}; "
        f"{alone} stayed alone"
    )
