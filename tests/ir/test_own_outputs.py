"""Results in memory of their own, told from inputs, constants, views and doubles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tvm_ext.graph.own_outputs import own_outputs
from tvm_ext.tvm_api import relax, te, tvm

Results = Callable[[Any, Any, Any], Any]


def function(results: Results) -> Any:
    """A function of `x` that calls a kernel twice and returns `results(builder, x, made)`."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = [
                builder.emit_te(lambda a: te.compute(a.shape, lambda *i: a(*i) + 1.0), x)
                for _ in range(2)
            ]
            out = builder.emit_output(results(builder, x, made))
        builder.emit_func_output(out)
    return builder.finalize()


CASES: dict[str, tuple[Results, tuple[int, ...]]] = {
    "made": (lambda b, x, made: made[0], (0,)),
    "both": (lambda b, x, made: relax.Tuple(made), (0, 1)),
    "twice": (lambda b, x, made: relax.Tuple([made[0], made[0], made[1]]), (0, 2)),
    "input": (lambda b, x, made: relax.Tuple([x, made[1]]), (1,)),
    "constant": (
        lambda b, x, made: relax.Tuple([made[0], relax.const(np.zeros(3, "float32"))]),
        (0,),
    ),
    "view": (lambda b, x, made: b.emit(relax.op.reshape(made[0], (32,))), (0,)),
    "view of an input": (lambda b, x, made: b.emit(relax.op.reshape(x, (32,))), ()),
    "beside its view": (
        lambda b, x, made: relax.Tuple([made[1], b.emit(relax.op.reshape(made[1], (32,)))]),
        (0,),
    ),
    "view of a view": (
        lambda b, x, made: b.emit(
            relax.op.reshape(b.emit(relax.op.reshape(made[0], (2, 16))), (32,))
        ),
        (0,),
    ),
    "field": (
        lambda b, x, made: relax.TupleGetItem(b.emit(relax.Tuple(made)), 1),
        (0,),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_results_of_kernels_are_own_once(name: str) -> None:
    results, own = CASES[name]
    module = function(results)
    assert own_outputs(module["main"]) == own
    lowered = tvm.transform.Sequential(
        [relax.transform.ToNonDataflow(), relax.transform.CallTIRRewrite()]
    )(module)
    assert own_outputs(lowered["main"]) == own
