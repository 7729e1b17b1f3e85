"""What a PrimFunc should compute: chosen output elements, without TVM's code generator.

Elements are evaluated on demand, backwards through the function: a reduction that is read is
computed only where it is read, once (so a softmax element costs its row, not the tensor). Floats
are held in float64 throughout, intermediate buffers included, and cast to the output's dtype at the
end; so the reference is better than any kernel of that dtype, and each element comes with a bound
on how far a correct kernel may be from it.

The bound is the error analysis of `evaluate`, plus for a sum of K terms, in any order,

    2 u sqrt(K) sum|terms|        (u: unit roundoff, 6e-8 for float32)

Rounding errors of a sum of random data behave like independent ones: their standard deviation is at
most about u sqrt(K) sum|terms| / 4 (Higham, Accuracy and Stability of Numerical Algorithms, 2nd
ed., section 4.5), so a correct kernel is 8 deviations inside, and for K <= 4 the bound is the
strict one. Equal terms break this: verify on random data. A dropped term is outside if it is over
2 u sqrt(K) K mean terms: 4 % of one for K = 4608, so each element that misses a step shows it with
a chance above 0.9; beyond K = 40000 no single step can be told from rounding. exp, tanh, erf and
their like may be off by 1e-6, relatively.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.tir.compare import Points
from tvm_ext.tir.demand import Order, Run
from tvm_ext.tir.evaluate import numpy_dtype, underflow, unit_roundoff
from tvm_ext.tir.expression import NotUnderstoodError, topological
from tvm_ext.tir.stages import Program, read_program
from tvm_ext.tvm_api import PrimFunc
from tvm_ext.tvm_pairs import WORD


class Reference:
    """An independent reference for one unscheduled PrimFunc with static shapes."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._orders = [Order(stage) for stage in program.stages]

    @classmethod
    def of(cls, func: PrimFunc) -> Reference | None:
        """The reference of a function; None if it holds something the reference has no meaning for.

        Understood is what legalisation and FuseTIR make: serial loops around blocks that each write
        every element of their buffers once, with or without a reduction, over static shapes.
        """
        try:
            return cls(read_program(func))
        except NotUnderstoodError:
            return None

    @property
    def inputs(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shape and dtype of each input: the parameters that are not written, in order."""
        return self._program.inputs

    @property
    def outputs(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shape and dtype of each output: the parameters that are written, in order."""
        stages = self._program.stages
        return tuple((stages[s].shape, stages[s].dtypes[c]) for s, c in self._program.outputs)

    def points(
        self, inputs: Sequence[NDArray[Any]], output: int, flat_indices: NDArray[np.integer]
    ) -> Points:
        """Chosen elements of one output, by their row-major flat indices.

        `inputs` are the arrays given to the kernel (they are taken as exact). Memory beyond them
        stays below 200 MB plus 18 bytes for each element of the reductions that are read.
        """
        if [a.shape for a in inputs] != [shape for shape, _ in self.inputs]:
            raise ValueError(f"inputs have shapes {[a.shape for a in inputs]}, not {self.inputs}")
        stage, component = self._program.outputs[output]
        flat = np.asarray(flat_indices, dtype=np.int64)
        with np.errstate(all="ignore"):
            run = Run(self._program, self._orders, inputs)
            value = run.compute(stage, flat)[component]
            dtype = self._program.stages[stage].dtypes[component]
            spread = value.spread()
            if spread is None:
                bounds = np.zeros(flat.shape)
            else:
                unit = unit_roundoff(dtype)
                tiny = max(float(np.finfo(np.float32).tiny), underflow(dtype))
                bounds = spread + (unit * np.abs(value.x) + tiny if unit else 0.0)
                if dtype == WORD:  # whose bits say nothing of how far their halves are from others
                    bounds = np.where(bounds > 0, np.inf, 0.0)
                # where the reference is not a number, neither may the kernel be one
                bounds = np.where(np.isnan(bounds), np.where(np.isnan(value.x), 0, np.inf), bounds)
            return Points(np.asarray(value.x).astype(numpy_dtype(dtype)), bounds)

    def cost_points(self, output: int) -> int:
        """Multiply-adds that one element of an output costs, reductions it reads included.

        Shared reads (a row's mean) are counted once for each element, so it is an upper bound.
        """
        costs: list[int] = []
        for stage, order in zip(self._program.stages, self._orders, strict=True):
            costs.append(stage.steps * order.step_cost)
            for node in topological((*stage.init, *stage.update)):
                if node.op == "load" and node.data.kind == "stage":
                    leaves = topological(node.args)
                    reads = prod(extent for var, extent in stage.reduce if var in leaves)
                    costs[-1] += reads * costs[node.data.number]
        return costs[self._program.outputs[output][0]]
