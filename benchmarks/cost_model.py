"""How well the learned cost model tells fast plans from slow ones, on records it was not shown.

    python benchmarks/cost_model.py tuning_logs               # on what was measured by searches
    python benchmarks/cost_model.py log --measure 80          # measure 80 random plans each first

Two questions, each answered by cross-validation: plans held out of tasks that were seen, and whole
tasks held out. `pairs` is the part of pairs of one task's plans put in the right order, `recall@30`
the part of its 30 fastest among the 30 with the highest scores (Ansor, section 5.2: 0.851, 0.624
on 5000 programs of ResNet-50); `drafted` is the performance model on the same plans. Plans that
failed are left out. A search's plans are harder to tell apart than random ones, which are as the
paper's: most of them are near the best. Exits with 2 if the log holds too little.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from random_plans import random_plans
from workloads import UnavailableError, workloads

from tvm_ext.hardware import resolve
from tvm_ext.hardware.model import HardwareModel
from tvm_ext.picker import predict
from tvm_ext.records import Database
from tvm_ext.search import CostModel, lessons
from tvm_ext.search.cost_model import Example, pairwise_accuracy, recall
from tvm_ext.search.features import FEATURES
from tvm_ext.trials import Trials

BATCH = 16
TOP = 30
LEAST_PLANS = 40  # of a task; the 30 best of fewer are most of them
PREDICTED = list(FEATURES).index("predicted")


def measure(
    database: Database, hardware: HardwareModel, only: list[str], count: int, seed: int
) -> None:
    """Puts `count` random legal plans of every operator at batch 1 on record."""
    trials = Trials(hardware, database, seed)
    for workload in workloads(only, [1]):
        try:
            task = workload.task()
        except UnavailableError:
            continue
        if task.graph is None:
            continue
        lanes, cores = hardware.lanes(4), hardware.cores
        plans = [p for p, _ in random_plans(task.func, task.graph, lanes, cores, count, seed)]
        best_us = float("inf")
        for first in range(0, len(plans), BATCH):
            records = trials.run(task, plans[first : first + BATCH], best_us)
            best_us = min([best_us, *(record.best_us for record in records)])
        print(f"{workload.name}: {len(plans)} plans", flush=True)
    trials.close()


def quality(examples: list[Example], scores: np.ndarray) -> tuple[list[float], list[float]]:
    """Pairwise accuracy and recall of every task."""
    places = defaultdict(list)
    for place, example in enumerate(examples):
        places[example.task].append(place)
    speeds = np.array([1 / example.latency_us for example in examples])
    pairs = [pairwise_accuracy(scores[own], speeds[own]) for own in places.values()]
    best = [recall(scores[own], speeds[own], TOP) for own in places.values()]
    return pairs, best


def cross_validated(examples: list[Example], parts: list[int], folds: int) -> dict[str, float]:
    """Scores of every example by a model that was not shown its part."""
    scores = np.zeros(len(examples))
    for fold in range(folds):
        own = [place for place, part in enumerate(parts) if part == fold]
        model = CostModel(threads=2)
        model.fit([e for e, part in zip(examples, parts, strict=True) if part != fold])
        scores[own] = model.scores([examples[place].rows for place in own])
    pairs, best = quality(examples, scores)
    return {"pairs": statistics.mean(pairs), f"recall@{TOP}": statistics.mean(best)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", type=Path)
    parser.add_argument(
        "--measure", type=int, default=0, metavar="N", help="first measure N plans of each operator"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of these operators")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    args = parser.parse_args()
    hardware = resolve("cpu")
    database = Database.open(args.log, create=bool(args.measure))
    if args.measure:
        measure(database, hardware, args.only, args.measure, args.seed)
    mark = hardware.fingerprint()
    measured = {
        signature: {
            plan: us for plan, us in database.typical(signature, mark).items() if us < float("inf")
        }
        for signature in database.graphs
    }
    measured = {mark: plans for mark, plans in measured.items() if len(plans) >= LEAST_PLANS}
    if len(measured) < args.folds:
        parser.error(
            f"{args.log}: {len(measured)} tasks with {LEAST_PLANS} plans on this machine, "
            f"{args.folds} needed; tune more"
        )
    everything = sum(map(len, measured.values()))
    examples = lessons(
        database.graphs, measured, hardware, lambda g, p: predict(g, p, hardware), 0, everything
    )
    source = random.Random(args.seed)
    tasks = sorted(measured)
    source.shuffle(tasks)
    by_plan = [source.randrange(args.folds) for _ in examples]
    by_task = [tasks.index(example.task) % args.folds for example in examples]
    drafted = -np.array([example.rows[:, PREDICTED].max() for example in examples])
    pairs, best = quality(examples, drafted)
    figures = {
        "plans": len(examples),
        "tasks": len(tasks),
        "held_out_plans": cross_validated(examples, by_plan, args.folds),
        "held_out_tasks": cross_validated(examples, by_task, args.folds),
        "drafted": {"pairs": statistics.mean(pairs), f"recall@{TOP}": statistics.mean(best)},
    }
    print(f"{figures['plans']} plans of {figures['tasks']} tasks, {args.folds} folds")
    for name in ("held_out_plans", "held_out_tasks", "drafted"):
        row = figures[name]
        print(f"{name:16} pairs {row['pairs']:.3f}  recall@{TOP} {row[f'recall@{TOP}']:.3f}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
