"""The table of operators on awkward shapes that `test_kernels` plans and runs, filled by
`kernel_cases` and `map_cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tvm_ext.tvm_api import IRModule, relax

Build = Callable[..., Any]


class Case(NamedTuple):
    """A Relax function as `build(emit, *inputs)`, and the shape and dtype of each input."""

    group: str
    build: Build
    inputs: tuple[tuple[tuple[int, ...], str], ...]


CASES: dict[str, Case] = {}

LEFT_TO_TVM = {
    "topk": "sorting",
    "sort": "sorting",
    "argsort": "sorting",
    "cumsum": "a scan: each element needs the one before",
    "cumprod": "a scan: each element needs the one before",
    **dict.fromkeys(("scatter_elements", "scatter_nd"), "writes where the data says"),
    "adaptive_pool": "windows of uneven size; even ones become plain pooling",
}
"""Cases whose work no plan of the picker covers, and why; in all others every stage is planned."""

_group = ""


def case(name: str, build: Build, *inputs: Any) -> None:
    """Adds a case; an input is a shape, of float32, or a (shape, dtype)."""
    assert name not in CASES, name
    typed = (i if i and isinstance(i[-1], str) else (i, "float32") for i in inputs)
    CASES[name] = Case(_group, build, tuple(typed))


def names(*groups: str) -> list[str]:
    """Names of the cases of some groups, or of all."""
    return [name for name, case in CASES.items() if not groups or case.group in groups]


def const(*shape: int, positive: bool = False) -> Any:
    """A random constant scaled so that a product with it keeps its operand's magnitude."""
    rng = np.random.default_rng(sum(shape) + len(shape))
    data = rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:], dtype=int)))
    return relax.const((np.abs(data) + 0.5 if positive else data).astype("float32"))


def module(case: Case) -> IRModule:
    """The case as a module with one function, `main`."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{place}", relax.TensorType(shape, dtype))
        for place, (shape, dtype) in enumerate(case.inputs)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(case.build(builder.emit, *params))
        builder.emit_func_output(result)
    return builder.finalize()


def fill(add: Callable[[], None]) -> None:
    """Adds the cases of a function, as the group it is named for."""
    global _group
    _group = add.__name__.strip("_")
    add()
