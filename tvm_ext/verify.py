"""Verification: every kernel that is kept against its reference, on random data.

The reference is evaluated in numpy from the function's definition (`tir.Reference`), never by TVM's
code generator, at chosen elements: corners, tile borders, tails and random ones. Outputs start out
as NaN, so an element that no iteration writes shows, and so does what is written beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

import numpy as np

from tvm_ext.measure.inputs import Argument, make_inputs
from tvm_ext.planner import Planned, Task
from tvm_ext.runtime.margin import Output
from tvm_ext.tir import Reference
from tvm_ext.tir.affine import loads
from tvm_ext.tir.compare import choose, choose_lines, compare
from tvm_ext.tir.least import least
from tvm_ext.tir.read import read
from tvm_ext.tir.slices import gathered, span, spread
from tvm_ext.tir.symbolic import instance, of_tensors, ones, symbols
from tvm_ext.tvm_api import PrimFunc, TensorLoad, structural_walk, tirx, tvm
from tvm_ext.tvm_pairs import HALF_BITS, WORD, multiplies_pairs

POINT_BUDGET = 1_000_000
"""Multiply-adds spent on the reference of one kernel."""
MIN_POINTS, MAX_POINTS = 64, 2048
POINTS_PER_LINE = 4
QUOTIENTS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
CHECKED = (1, 5, 67, 1029)
"""What extents that are not known are taken for: tiles of every size have a part in it."""
OUTER = 3
"""And what those further out are, where several are not known, at most."""
CHECKED_BYTES = 2**26
"""What a kernel may read and write for that."""


def arguments_of(func: PrimFunc, written: int) -> tuple[Argument, ...]:
    """The kernel's arguments; the last `written` parameters are outputs."""
    first = len(func.params) - written
    spans = index_spans(func)
    divide = divisors(func, spans)
    in_halves = (WORD, HALF_BITS) if multiplies_pairs(func) else ()
    return tuple(
        Argument(
            tuple(int(extent) for extent in parameter.shape),
            str(parameter.dtype),
            output=place >= first,
            span=(1, max(2, spans.get(place, 3))) if place in divide else (0, spans.get(place, 2)),
            halves=str(parameter.dtype) in in_halves,
        )
        for place, parameter in enumerate(func.params)
    )


def index_spans(func: PrimFunc) -> dict[int, int]:
    """For integer parameters that index a tensor (gather, embedding): the extent they must stay
    below. An index through an intermediate buffer limits every integer parameter."""
    places = {parameter: place for place, parameter in enumerate(func.params)}
    integers = {p: i for p, i in places.items() if "int" in str(p.dtype)}
    limits: dict[int, int] = {}

    def visit(load: Any) -> None:
        for index, extent in zip(load.indices, load.source.shape, strict=True):
            for inner in loads(index):
                known = inner.source in places
                own = [places[inner.source]] if known else list(integers.values())
                for place in own:
                    limits[place] = min(limits.get(place, 1 << 30), int(extent))

    structural_walk(func.body, (TensorLoad, visit))
    return limits


def divisors(func: PrimFunc, indices: Container[int]) -> set[int]:
    """Integer parameters that something is divided by: a zero ends the process, whoever runs it. A
    divisor that is computed counts for all of them that are no `indices`."""
    places = {parameter: place for place, parameter in enumerate(func.params)}
    others = {i for p, i in places.items() if "int" in str(p.dtype) and i not in indices}
    found: set[int] = set()

    def visit(quotient: Any) -> None:
        if "int" in str(quotient.ty.dtype):
            for load in loads(quotient.b):
                known = load.source in places
                found.update([places[load.source]] if known else others)

    structural_walk(func.body, (QUOTIENTS, visit))
    return found


def choose_points(
    reference: Reference, output: int, tile: tuple[int, ...] | None, seed: int
) -> np.ndarray:
    """Flat positions of an output to check: as many as the budget allows. Where it does not allow
    the least number, several share what they read (data transformed for Winograd, say)."""
    shape, _ = reference.outputs[output]
    cost = max(1, reference.cost_points(output))
    count = max(MIN_POINTS, min(MAX_POINTS, POINT_BUDGET // cost))
    if shape and cost * MIN_POINTS > POINT_BUDGET:
        return choose_lines(shape, tile, count, POINTS_PER_LINE, seed)
    return choose(shape, tile, count, seed)


def tile_of_output(planned: Planned, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The register tile as extents of the output, where they correspond axis by axis."""
    plan, graph = planned.option.plan, planned.task.graph
    if plan is None or graph is None or plan.rule != "tile":
        return None
    node = graph.nodes[plan.anchor]
    extents = tuple(plan.at("register").extents[axis] for axis in node.space)
    return extents if len(extents) == len(shape) else None


def check(planned: Planned, kernel: Callable[..., Any], seed: int = 0) -> str:
    """Runs the kernel once, or for several extents where one is not known, and compares it. Returns
    what is wrong, or an empty text.

    A function with no reference (opaque blocks, which we leave as TVM wrote them) passes.
    """
    task = planned.task
    if not symbols(task.original):
        reference = task.reference
        return _check(planned, kernel, task.func, reference, seed) if reference else ""
    for sizes, func in instances(task):
        reference = Reference.of(func)

        def run(*given: Any, sizes: dict[Any, int] = sizes) -> None:
            left = iter(given)
            params = task.original.params
            kernel(*(next(left) if hasattr(p, "shape") else sizes.get(p, 1) for p in params))

        if reference and (wrong := _check(planned, run, func, reference, seed)):
            return f"{wrong}; {' times '.join(map(str, sizes.values()))} slices"
    return ""


def instances(task: Task) -> Iterator[tuple[dict[Any, int], PrimFunc]]:
    """A function whose extents are not known, with numbers for them: few, but not so few that it
    would read what is not there, and then as many as are no larger than a check should be."""
    fewest = least(task.original)
    *outer, last = symbols(task.original)
    for extent in sorted({max(extent, fewest[last]) for extent in CHECKED}):
        sizes = {symbol: max(min(extent, OUTER), fewest[symbol]) for symbol in outer}
        sizes[last] = extent
        func = instance(task.original, ones(task.original) | sizes)
        if any(int(e) < 1 for param in func.params for e in param.shape):
            continue  # of so few nothing is left
        graph = read(func)
        if extent > fewest[last] and (graph is None or graph.io_bytes > CHECKED_BYTES):
            return
        yield sizes, func


def _check(
    planned: Planned, kernel: Callable[..., Any], func: PrimFunc, reference: Reference, seed: int
) -> str:
    arguments = arguments_of(func, len(reference.outputs))
    slices = of_tensors(planned.task.original, planned.task.slices)
    inputs = make_inputs(arguments, seed)
    given = [spread(x, slices[i]) if i in slices else x for i, x in enumerate(inputs)]
    strides = [slices.get(place) for place in range(len(inputs), len(arguments))]
    outputs = [
        Output.of((span(shape, gaps),) if gaps else shape, dtype)
        for (shape, dtype), gaps in zip(reference.outputs, strides, strict=True)
    ]
    tensors = [tvm.runtime.tensor(array) for array in given]
    kernel(*tensors, *(output.tensor for output in outputs))
    for place, (shape, _) in enumerate(reference.outputs):
        if overrun := outputs[place].overrun():
            return f"output {place}: {overrun}"
        actual, gaps = outputs[place].numpy(), strides[place]
        if gaps:
            actual = np.ascontiguousarray(gathered(actual, shape, gaps))
        where = choose_points(reference, place, tile_of_output(planned, shape), seed)
        if actual.dtype.kind == "f":
            odd = np.flatnonzero(np.isnan(actual.reshape(-1)))[:MIN_POINTS]
            where = np.union1d(where, odd)
        result = compare(actual.reshape(-1)[where], reference.points(inputs, place, where))
        if not result.ok:
            return (
                f"output {place}: {result.actual:.6g} at {int(where[result.position])}, the "
                f"reference says {result.expected:.6g} within {result.bound:.2g}"
            )
    return ""


def has_reference(task: Task) -> bool:
    """Whether the task has a reference to be checked against."""
    if not symbols(task.original):
        return task.reference is not None
    first = next(instances(task), None)
    return first is not None and Reference.of(first[1]) is not None
