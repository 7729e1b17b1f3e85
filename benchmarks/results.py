"""What a comparison of engines found, model by model, and its tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

OURS = "tvm_ext"
BUSY_CORES = 0.1  # other processes using more than this disturb a measurement


@dataclass
class Row:
    """What was measured of one engine on one model; `failure` says why the rest is missing.

    load_rss_bytes, peak_rss_bytes  peak memory of the process that compiled, until it was loaded,
                                    and to the end
    run_rss_bytes                   peak memory of a process that loads the saved artifact and runs
    """

    engine: str
    load_s: float | None = None
    round_s: list[float] = field(default_factory=list)
    error: float | None = None
    load_rss_bytes: int | None = None
    peak_rss_bytes: int | None = None
    run_rss_bytes: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    others_cores: float | None = None
    failure: str | None = None

    @property
    def latency_s(self) -> float | None:
        """Median over rounds."""
        return statistics.median(self.round_s) if self.round_s else None


@dataclass
class Model:
    """One model in all engines."""

    name: str
    rows: list[Row]

    def row(self, engine: str) -> Row | None:
        """The engine's row, if the engine ran."""
        return next((row for row in self.rows if row.engine == engine and row.round_s), None)

    @property
    def best_peer(self) -> Row | None:
        """The fastest of the other engines."""
        peers = [row for row in self.rows if row.engine != OURS and row.round_s]
        return min(peers, key=lambda row: row.latency_s or 0.0, default=None)

    def ratios(self, row: Row) -> list[float]:
        """Latency of an engine over ours, round by round: above 1 ours is faster."""
        ours = self.row(OURS)
        if ours is None or not row.round_s:
            return []
        return [theirs / mine for theirs, mine in zip(row.round_s, ours.round_s, strict=True)]

    @property
    def ratio(self) -> float | None:
        """Latency of the best peer over ours, the median of the rounds."""
        best = self.best_peer
        ratios = self.ratios(best) if best is not None else []
        return statistics.median(ratios) if ratios else None

    @property
    def roof_share(self) -> float | None:
        """Time of our kernels' roofline over our latency."""
        ours = self.row(OURS)
        if ours is None or ours.latency_s is None or "roof_us" not in ours.facts:
            return None
        return float(ours.facts["roof_us"]) / 1e6 / ours.latency_s

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        best = self.best_peer
        engines = [asdict(row) | {"round_ratio": self.ratios(row)} for row in self.rows]
        return {
            "best_peer": best.engine if best else None,
            "ratio": self.ratio,
            "roof_share": self.roof_share,
            "engines": engines,
        }


def engines_text(model: Model) -> str:
    """One model, an engine a line."""
    lines = [
        model.name,
        f"  {'engine':18}{'load s':>8}{'latency ms':>12}  {'ratio':20}{'error':>9}{'peak MB':>9}",
    ]
    for row in model.rows:
        if row.failure is not None or row.latency_s is None:
            lines.append(f"  {row.engine:18}  failed: {row.failure}")
            continue
        ratio = "-"
        if row.engine != OURS and (ratios := model.ratios(row)):
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
        lines.append(
            f"  {row.engine:18}{row.load_s or 0.0:8.2f}{row.latency_s * 1e3:12.3f}  {ratio:20}"
            f"{_text(row.error, '.1e'):>9}{_megabytes(row.load_rss_bytes):>9}"
        )
    others = max((row.others_cores or 0.0 for row in model.rows), default=0.0)
    if others > BUSY_CORES:
        lines.append(
            f"  not to be trusted: other processes used up to {others:.1f} cores meanwhile"
        )
    return "\n".join(lines)


def models_text(models: Sequence[Model], engines: Sequence[str]) -> str:
    """All models, one a line: latency in ms of each engine, the best peer over ours, the part of
    the roofline reached, seconds and memory to compile, memory to run, error; then the geomean."""
    engines = [*(engine for engine in engines if engine != OURS), OURS]
    width = max((len(model.name) for model in models), default=0) + 2
    lines = [
        f"{'latency, ms':{width}}"
        + "".join(f"{engine:>{max(10, len(engine) + 2)}}" for engine in engines)
        + f"{'best/ours':>11}{'%roof':>7}{'compile s':>11}{'compile MB':>12}{'run MB':>8}"
        + f"{'peer MB':>9}{'error':>9}"
    ]
    for model in models:
        cells = ""
        for engine in engines:
            row = model.row(engine)
            latency_ms = row.latency_s * 1e3 if row and row.latency_s else None
            cells += f"{_text(latency_ms, '.2f', 'failed'):>{max(10, len(engine) + 2)}}"
        ours, best = model.row(OURS), model.best_peer
        lines.append(
            f"{model.name:{width}}{cells}{_text(model.ratio, '.3f'):>11}"
            f"{_text(model.roof_share, '.0%'):>7}{_text(ours and ours.load_s, '.1f'):>11}"
            f"{_megabytes(ours and ours.load_rss_bytes):>12}"
            f"{_megabytes(ours and ours.run_rss_bytes):>8}"
            f"{_megabytes(best and best.peak_rss_bytes):>9}{_text(ours and ours.error, '.1e'):>9}"
        )
    figures = summary(models)
    if "geomean" in figures:
        lines.append(
            f"best peer over ours: geomean {figures['geomean']:.3f}, least {figures['least']:.3f} "
            f"({figures['least_model']}), over {figures['models']} models"
        )
    return "\n".join(lines)


def summary(models: Sequence[Model]) -> Mapping[str, Any]:
    """Geomean and least ratio of the best peer to ours."""
    ratios = {model.name: model.ratio for model in models if model.ratio}
    if not ratios:
        return {"models": 0}
    least = min(ratios, key=lambda name: ratios[name])
    return {
        "models": len(ratios),
        "geomean": statistics.geometric_mean(ratios.values()),
        "least": ratios[least],
        "least_model": least,
    }


def _text(value: float | None, form: str, missing: str = "-") -> str:
    return missing if value is None else format(value, form)


def _megabytes(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1e6:.0f}"
