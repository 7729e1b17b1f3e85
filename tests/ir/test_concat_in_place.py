"""Concatenations that disappear, and those that must stay; the module computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tvm_ext.graph import concat_places
from tvm_ext.graph.concat_in_place import ConcatInPlace
from tvm_ext.graph.legalise import Legalise
from tvm_ext.hardware import catalog
from tvm_ext.passes import TIR_PIPELINE, lowering_passes
from tvm_ext.tir.slices import dense
from tvm_ext.tvm_api import IRModule, PrimFunc, Target, relax, tvm

op = relax.op
Emit = Callable[[Any], Any]
LANES = 4


def module(body: Callable[[Emit, Any, Any], Any], width: int = 8) -> IRModule:
    """A function of two tensors [2, 3, width], lowered to call_tir."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((2, 3, width), "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit, x, y))
        builder.emit_func_output(out)
    legal = Legalise(catalog.get("cpu/x86-avx2"))(builder.finalize())
    return relax.transform.RewriteDataflowReshape()(legal)  # as `Fuse` does


def concats(mod: IRModule) -> int:
    """Calls of concatenations."""
    found: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and isinstance(node.op, tvm.ir.GlobalVar):
            found.append(node.op.name_hint)

    relax.analysis.post_order_visit(mod["main"], visit)
    return sum(name.startswith("concatenate") for name in found)


def run(mod: IRModule, *arrays: np.ndarray) -> list[np.ndarray]:
    """The outputs, with functions as TVM wrote them."""
    with Target("llvm"):
        lowest = tvm.transform.Sequential(lowering_passes())(mod)
        executable = tvm.compile(lowest, "llvm", relax_pipeline=None, tir_pipeline=TIR_PIPELINE)
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays))
    return [result.numpy()] if hasattr(result, "numpy") else [one.numpy() for one in result]


def two(e: Emit, x: Any, y: Any, axis: int = 2) -> Any:
    return e(op.concat([e(op.nn.relu(x)), e(op.negative(y))], axis))


GONE = {
    "channels": lambda e, x, y: e(op.exp(two(e, x, y))),
    "rows": lambda e, x, y: e(op.exp(two(e, x, y, 1))),
    "outermost": lambda e, x, y: e(op.exp(two(e, x, y, 0))),
    "returned": two,
}


def dense_block(e: Emit, x: Any, y: Any) -> Any:
    """relu(x) | f(it) | g(both): each layer reads all before it, as in DenseNet."""
    first = e(op.nn.relu(x))
    both = e(op.concat([first, e(op.negative(first))], 2))
    return e(op.concat([both, e(op.add(both, e(op.concat([y, y], 2))))], 2))


def of_rows_of_columns(e: Emit, x: Any, y: Any) -> Any:
    """Side by side, then one above the other."""
    return e(op.concat([two(e, x, y), two(e, y, x)], 1))


def also_read(e: Emit, x: Any, y: Any) -> Any:
    a = e(op.nn.relu(x))
    return relax.Tuple([e(op.exp(a)), e(op.concat([a, e(op.negative(y))], 2))])


def of_an_input(e: Emit, x: Any, y: Any) -> Any:
    return e(op.concat([x, e(op.nn.relu(y))], 2))


def of_little_that_is_made(e: Emit, x: Any, y: Any) -> Any:
    return e(op.concat([x, e(op.nn.relu(y)), y], 2))


def twice_the_same(e: Emit, x: Any, y: Any) -> Any:
    a = e(op.nn.relu(x))
    return e(op.concat([a, a], 2))


def returned_too(e: Emit, x: Any, y: Any) -> Any:
    a = e(op.nn.relu(x))
    return relax.Tuple([a, e(op.concat([a, e(op.negative(y))], 2))])


def in_two_places(e: Emit, x: Any, y: Any) -> Any:
    """The second place of a tensor is a copy of the first."""
    a = e(op.nn.relu(x))
    return relax.Tuple(
        [e(op.concat([a, e(op.negative(y))], 2)), e(op.concat([e(op.exp(y)), a], 2))]
    )


def stacked(axis: int) -> Callable[..., Any]:
    """Each with an axis of one more, side by side along it."""

    def body(e: Emit, x: Any, y: Any) -> Any:
        made = [e(op.nn.relu(x)), e(op.negative(y)), e(op.exp(y))]
        tops = [e(op.reshape(one, (*(2, 3, 8)[:axis], 1, *(2, 3, 8)[axis:]))) for one in made]
        whole = e(op.concat(tops, axis))
        return relax.Tuple([e(op.tanh(whole)), e(op.exp(made[0]))])

    return body


def flattened(e: Emit, x: Any, y: Any) -> Any:
    """One after another as one long row: heads of a detector."""
    made = [e(op.nn.relu(x)), e(op.reshape(e(op.negative(y)), (1, 48)))]
    return e(op.tanh(e(op.concat([e(op.reshape(made[0], (1, 48))), made[1]], 1))))


def rows_of_another_length(e: Emit, x: Any, y: Any) -> Any:
    """[2, 24] side by side: rows lie apart, and are no rows of [2, 3, 8]."""
    made = [e(op.reshape(e(one), (2, 24))) for one in (op.nn.relu(x), op.negative(y))]
    return e(op.tanh(e(op.concat(made, 1))))


CASES: dict[str, tuple[Callable[..., Any], int]] = {
    **{name: (body, 0) for name, body in GONE.items()},
    "dense_block": (dense_block, 1),  # the one of inputs
    "of_rows_of_columns": (of_rows_of_columns, 0),
    "also_read": (also_read, 0),
    "of_an_input": (of_an_input, 0),
    "of_little_that_is_made": (of_little_that_is_made, 1),
    "twice_the_same": (twice_the_same, 0),
    "returned_too": (returned_too, 0),
    "in_two_places": (in_two_places, 0),
    "stacked": (stacked(0), 0),
    "stacked_between": (stacked(1), 0),
    "flattened": (flattened, 0),
    "rows_of_another_length": (rows_of_another_length, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_what_goes_and_what_stays(name: str) -> None:
    """Counted, and run beside the module as it was."""
    body, left = CASES[name]
    mod = module(body)
    placed = ConcatInPlace(LANES)(mod)
    assert concats(placed) == left
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 3, 8), dtype="float32") for _ in range(2)]
    for actual, expected in zip(run(placed, *arrays), run(mod, *arrays), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_slices_that_would_cut_vectors_stay_copies() -> None:
    assert concats(ConcatInPlace(LANES)(module(two, width=6))) == 1
    assert concats(ConcatInPlace(2)(module(two, width=6))) == 0


@pytest.mark.parametrize(("elements", "left"), [(6, 0), (7, 1)])
def test_large_operands_are_copied_one_after_another(
    elements: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where rows are no whole vectors; small ones by one kernel that chooses."""
    monkeypatch.setattr(concat_places, "COPIED", elements * 6)
    mod = module(lambda e, x, y: e(op.concat([x, y], 2)), width=6)
    placed = ConcatInPlace(LANES)(mod)
    assert concats(placed) == left
    arrays = [np.random.default_rng(0).standard_normal((2, 3, 6), dtype="float32")] * 2
    (actual,), (expected,) = run(placed, *arrays), run(mod, *arrays)
    np.testing.assert_array_equal(actual, expected)


def test_a_kernel_is_made_once_for_all_places_in_tensors_alike() -> None:
    """relu(x) | relu(y): one function for both halves, which begin in different places."""
    mod = module(lambda e, x, y: e(op.concat([e(op.nn.relu(x)), e(op.nn.relu(y))], 2)))
    functions = [f for f in ConcatInPlace(LANES)(mod).functions.values() if isinstance(f, PrimFunc)]
    assert [dense(function)[1] for function in functions] == [{1: (48, 16, 1)}]


def test_no_two_functions_have_one_name() -> None:
    placed = ConcatInPlace(LANES)(module(in_two_places))
    symbols = [str(f.attrs.get("global_symbol", v.name_hint)) for v, f in placed.functions_items()]
    assert len(set(symbols)) == len(symbols)
