"""Single operators: the picker's first plan against the roofline, MetaSchedule and random plans.

    python benchmarks/ops.py                               # all, batch 1 and 16, 64 trials each
    python benchmarks/ops.py --trials 0 --batch 1          # the picker alone
    python benchmarks/ops.py --only C2D/2 GMM --trials 1000
    python benchmarks/ops.py --random 200 --batch 1        # against 200 random legal plans
    python benchmarks/ops.py --tune 64 --trials 1000       # our search beside MetaSchedule's

The functions are those of `te_workload`, given to both sides as they are: one layout, weights
packed on neither side. Kernels are checked against one reference and timed in turn, on the same
threads. `ratio` is the other side's latency over ours: above 1 is in our favour. `%roof` is the
time of the roofline (arithmetic or traffic, whichever takes longer) over the time measured. `gain`
is the latency of the picker's first plan over that of the search's best.
Exits with 1 if the picker has no working kernel for an operator, with 2 on bad arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads spin after a product, beside a kernel

import metaschedule
from op_measure import Bench, Row
from results import BUSY_CORES
from workloads import workloads

from tvm_ext.hardware import physical_cores

NEAR = 1.1  # a first choice this close to the best random plan is as good as found

HEADER = (
    f"{'operator':20}{'ours us':>10}{'GFLOP/s':>9}{'%roof':>7} {'bound':8}{'plan s':>8}{'gain':>6}"
    f"{'other us':>10}{'search s':>9}{'ratio':>7}  plan"
)


def line(row: Row) -> str:
    """A row of the table; what went wrong follows on lines of its own."""
    if row.unavailable:
        return f"{row.name:20}  {row.unavailable}"
    other_us = row.random_us or row.metaschedule_us
    search_s = row.random_s or row.metaschedule_s
    cells = (
        f"{row.name:20}{_text(row.ours_us, '.1f'):>10}{_text(row.gflops, '.1f'):>9}"
        f"{_text(row.roof_share, '.0%'):>7} {row.bound or '-':8}"
        f"{row.tune_s or row.plan_s + row.compile_s:8.2f}{_text(row.gain, '.2f'):>6}"
        f"{_text(other_us, '.1f'):>10}"
        f"{_text(search_s, '.1f'):>9}{_text(row.ratio, '.2f'):>7}  {row.source}: {row.plan}"
    )
    notes = [f"    ours: {reason}" for reason in row.reasons]
    if row.other_failure:
        notes.append(f"    the other: {row.other_failure}")
    if row.random_plan:
        failed = sum(row.random_failures.values())
        notes.append(f"    random, {row.random_tried} tried, {failed} failed: {row.random_plan}")
    if row.others_cores > BUSY_CORES:
        notes.append(
            f"    not to be trusted: other processes used {row.others_cores:.1f} cores meanwhile"
        )
    return "\n".join([cells, *notes])


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Figures over all operators measured."""
    rows = [row for row in rows if not row.unavailable]
    ratios = [row.ratio for row in rows if row.ratio]
    shares = [row.roof_share for row in rows if row.roof_share]
    figures: dict[str, Any] = {"operators": len(rows), "working": len(shares)}
    if shares:
        figures["roof_share_geomean"] = statistics.geometric_mean(shares)
    if ratios:
        figures["ratio_geomean"] = statistics.geometric_mean(ratios)
        figures["ratio_least"] = min(ratios)
    gains = [row.gain for row in rows if row.gain]
    if gains:
        figures["gain_geomean"] = statistics.geometric_mean(gains)
        figures["gain_least"] = min(gains)
    ours_s = sum(row.tune_s or row.plan_s + row.compile_s for row in rows)
    figures["ours_s"] = ours_s
    figures["search_s"] = sum(row.random_s or row.metaschedule_s or 0.0 for row in rows)
    near = [row.ratio >= 1 / NEAR for row in rows if row.random_us and row.ratio]
    if near:
        figures["near_best_random"] = sum(near)
        figures["against_random"] = len(near)
    return figures


def summary_text(figures: dict[str, Any]) -> str:
    """The summary as lines under the table."""
    lines = [f"{figures['working']} of {figures['operators']} operators run a kernel of ours"]
    if "roof_share_geomean" in figures:
        lines.append(f"geomean of roofline reached {figures['roof_share_geomean']:.0%}")
    if "ratio_geomean" in figures:
        lines.append(
            f"geomean ratio {figures['ratio_geomean']:.3f}, least {figures['ratio_least']:.3f}; "
            f"ours took {figures['ours_s']:.1f} s, the other's search {figures['search_s']:.1f} s"
        )
    if "gain_geomean" in figures:
        lines.append(
            f"our search over the picker's first plan: geomean {figures['gain_geomean']:.3f}, "
            f"least {figures['gain_least']:.3f}"
        )
    if "against_random" in figures:
        lines.append(
            f"first choice within {NEAR - 1:.0%} of the best random plan for "
            f"{figures['near_best_random']} of {figures['against_random']} operators"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="C2D, or one shape of it, C2D/2"
    )
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--trials", type=int, default=64, help="of MetaSchedule; 0 leaves it out")
    parser.add_argument(
        "--random", type=int, default=0, metavar="N", help="N random plans in place of MetaSchedule"
    )
    parser.add_argument(
        "--tune", type=int, default=0, metavar="N", help="N trials of our own search first"
    )
    parser.add_argument(
        "--log", type=Path, metavar="FOLDER", help="tuning log that our searches go to, and go on"
    )
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--searches", type=Path, metavar="FOLDER", help="keep MetaSchedule's searches, and use them"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    args = parser.parse_args()
    if min(args.trials, args.random, args.tune) < 0 or min(args.threads, *args.batch) < 1:
        parser.error(
            "--trials, --random and --tune must be at least 0, --threads and --batch at least 1"
        )
    try:
        chosen = list(workloads(args.only, args.batch))
    except KeyError as error:
        parser.error(f"no operator named {error.args[0]}")
    trials = 0 if args.random else args.trials
    os.environ["TVM_NUM_THREADS"] = str(args.threads)
    if trials:
        metaschedule.warm_up()
    settings = {
        "threads": args.threads,
        "trials": trials,
        "random": args.random,
        "tune": args.tune,
        "seed": args.seed,
    }
    bench = Bench(args.threads, args.seed, args.searches, args.log)
    rows: list[Row] = []
    print(HEADER)
    for workload in chosen:
        rows.append(bench.measure(workload, trials, args.random, args.tune))
        print(line(rows[-1]), flush=True)
        if args.json:
            figures = [
                asdict(row) | {"gflops": row.gflops, "roof_share": row.roof_share, "gain": row.gain}
                for row in rows
            ]
            written = settings | {"operators": figures, "summary": summary(rows)}
            args.json.write_text(json.dumps(written, indent=1) + "\n")
    print(summary_text(summary(rows)))
    return 1 if any(row.ours_us is None and not row.unavailable for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
