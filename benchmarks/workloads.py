"""The operators of `tvm.s_tir.meta_schedule.testing.te_workload`: the Ansor paper's set (OSDI'20,
section 7.1), as single functions, and how one of their kernels is put to the measurer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm.s_tir.meta_schedule.testing.te_workload import CONFIGS

from tvm_ext.measure import Job, OutputCheck
from tvm_ext.planner import Task, make_task
from tvm_ext.trials import reference_checks
from tvm_ext.tvm_api import PrimFunc, te
from tvm_ext.verify import arguments_of


class UnavailableError(Exception):
    """TVM lists an operator that it cannot build."""


@dataclass(frozen=True)
class Workload:
    """One operator at one shape. `place` is its position among the operator's configurations."""

    operator: str
    place: int
    batch: int

    @property
    def name(self) -> str:
        """Such as `C2D/2 b16`."""
        return f"{self.operator}/{self.place} b{self.batch}"

    @property
    def parameters(self) -> tuple[int, ...]:
        """What the operator is made with; the first is the batch (of softmax: the rows)."""
        first, *rest = CONFIGS[self.operator][1][self.place]
        return (first * self.batch, *rest)

    def task(self) -> Task:
        """The unscheduled function, read. Raises UnavailableError: 0.27 still lists the Winograd
        form with transformed weights, whose definition it has given up."""
        build, _ = CONFIGS[self.operator]
        try:
            tensors = build(*self.parameters)
        except RuntimeError as error:
            raise UnavailableError(f"TVM cannot make it: {error}") from error
        return make_task(te.create_prim_func(tensors), self.operator.lower())


def workloads(operators: Sequence[str], batches: Sequence[int]) -> Iterator[Workload]:
    """Every configuration of the operators named, or of all if none is, at every batch.

    A name may end in a place: `C2D/2`. Raises KeyError for one that does not exist.
    """
    known = [f"{operator}/{i}" for operator, (_, all_) in CONFIGS.items() for i in range(len(all_))]
    if unknown := [name for name in operators if name not in CONFIGS and name not in known]:
        raise KeyError(", ".join(unknown))
    for batch in batches:
        for name in known:
            operator, _, place = name.partition("/")
            if not operators or operator in operators or name in operators:
                yield Workload(operator, int(place), batch)


class Jobs:
    """Makes measuring jobs of kernels of one task; all are checked against the same reference."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        self._checks: tuple[OutputCheck, ...] = tuple(reference_checks(task, seed))
        written = len(task.reference.outputs) if task.reference else 1
        self._arguments = arguments_of(task.func, written)
        self._seed = seed

    def of(self, func: PrimFunc) -> Job:
        """The job of one scheduled kernel."""
        return Job(func=func, arguments=self._arguments, checks=self._checks, seed=self._seed)
