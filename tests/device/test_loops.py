"""Kernels that are called again and again run as one with the loop inside, and compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tvm_ext
from tvm_ext import loops
from tvm_ext.runtime.executor import Compiled
from tvm_ext.tir.roll import Rolled, roll
from tvm_ext.tvm_api import IRModule, Target, constant, relax, te, tirx, tvm

op = relax.op
Array = np.ndarray
Emit = Callable[[Any], Any]
TURNS, ROWS = 11, 3


def matrix(size: int, seed: int) -> Array:
    source = np.random.default_rng(seed)
    return (source.standard_normal((size, size)) / size**0.5).astype("float32")


class Chain:
    """h → tanh(h W + x), again and again; once with Relax and once with numpy."""

    def __init__(self, emit: Emit | None, size: int) -> None:
        self._emit, self._size = emit, size

    def step(self, h: Any, x: Any, seed: int = 0) -> Any:
        weights = matrix(self._size, seed)
        if self._emit is None:
            return np.tanh(h @ weights + x)
        product = self._emit(op.matmul(h, constant(weights)))
        return self._emit(op.tanh(self._emit(op.add(product, x))))

    def add(self, a: Any, b: Any) -> Any:
        return a + b if self._emit is None else self._emit(op.add(a, b))

    def product(self, a: Any) -> Any:
        """What is no step, and stands between loops."""
        weights = matrix(self._size, 9)
        if self._emit is None:
            return a @ weights
        return self._emit(op.matmul(a, constant(weights)))


def last(chain: Chain, x: Any) -> Any:
    h = x
    for _ in range(TURNS):
        h = chain.step(h, x)
    return h


def kept(chain: Chain, x: Any) -> Any:
    """What several turns made is needed later."""
    states = [chain.product(x)]
    for _ in range(TURNS):
        states.append(chain.step(states[-1], x))
    total = states[0]
    for one in states[2::3]:
        total = chain.add(total, chain.product(one))
    return total


def in_a_row(chain: Chain, x: Any) -> Any:
    """Where one loop ends the next begins."""
    h = chain.product(x)
    for _ in range(TURNS):
        h = chain.step(h, x)
    for _ in range(TURNS):
        h = chain.step(h, x, seed=1)
    return chain.product(h)


def apart(chain: Chain, x: Any) -> Any:
    h = x
    for seed in range(2):
        h = chain.product(h)
        for _ in range(TURNS):
            h = chain.step(h, x, seed)
    return chain.product(h)


def twice(chain: Chain, x: Any) -> Any:
    """One kernel is called twice in a turn, with other weights."""
    h = chain.product(x)
    for turn in range(2 * TURNS):
        h = chain.step(h, x, seed=turn % 2)
    return chain.product(h)


def beginning_kept(chain: Chain, x: Any) -> Any:
    """What the first turn is given is needed later, and in every turn."""
    first = chain.product(x)
    h = first
    for _ in range(TURNS):
        h = chain.step(h, first)
    return chain.add(first, chain.product(h))


def side_by_side(chain: Chain, x: Any) -> Any:
    """Two states in turn, each of which makes use of the other."""
    one, other = chain.product(x), x
    for _ in range(TURNS):
        one, other = chain.step(other, one), chain.step(one, x, seed=1)
    return chain.product(chain.add(one, other))


CASES = (last, kept, in_a_row, apart, twice, beginning_kept, side_by_side)


def module(case: Callable[[Chain, Any], Any], size: int) -> IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((ROWS, size), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(case(Chain(builder.emit, size), x))
        builder.emit_func_output(result)
    return builder.finalize()


def given(size: int) -> Array:
    return np.random.default_rng(2).standard_normal((ROWS, size)).astype("float32")


def turns(compiled: Compiled) -> list[str]:
    return [g.kind.split(" x ")[0] for g in compiled.manifest.groups if g.source == "loop"]


@pytest.mark.parametrize("size", [5, 64, 300])
@pytest.mark.parametrize("case", CASES)
def test_loops_compute_the_same(case: Callable[[Chain, Any], Any], size: int) -> None:
    compiled = tvm_ext.compile(module(case, size), num_threads=2)
    assert turns(compiled)
    assert not [note for note in compiled.manifest.notes if "loop" in note]
    x = given(size)
    expected = case(Chain(None, size), x)
    for _ in range(5):
        (actual,) = compiled(x)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_in_a_flow_of_tvm(case: Callable[[Chain, Any], Any]) -> None:
    executable = tvm.compile(
        module(case, 64),
        Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}),
        relax_pipeline="tvm_ext",
        tir_pipeline="tvm_ext",
    )
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    x = given(64)
    expected = case(Chain(None, 64), x)
    np.testing.assert_allclose(main(tvm.runtime.tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_report_counts_calls_outside_of_loops() -> None:
    compiled = tvm_ext.compile(module(in_a_row, 64))
    groups = compiled.manifest.groups
    assert [g.calls for g in groups if g.source == "loop"]
    step = next(g for g in groups if "tanh" in g.name and g.source != "loop")
    looped = sum(int(g.kind.split(" x ")[0]) * g.calls for g in groups if g.source == "loop")
    assert looped + step.calls == 2 * TURNS
    assert len(compiled.manifest.steps) == sum(g.calls for g in groups)
    assert compiled.profile(runs=2).calls == {g.name: g.calls for g in groups if g.calls}


def test_artifacts_have_their_loops(tmp_path: Any) -> None:
    compiled = tvm_ext.compile(module(twice, 64))
    loaded = tvm_ext.load(compiled.save(tmp_path / "model.so"))
    np.testing.assert_array_equal(loaded(given(64))[0], compiled(given(64))[0])


def test_a_loop_that_computes_something_else_is_left_as_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = loops.differs

    def other(loop: Rolled, main: Any, mains: Any) -> str:
        def idle(*_: Any) -> None:
            """Leaves its tensors as they are."""

        return right(loop, idle, mains)

    monkeypatch.setattr(loops, "differs", other)
    compiled = tvm_ext.compile(module(last, 64))
    assert turns(compiled) == []
    assert any("left as calls: tensor" in note for note in compiled.manifest.notes)
    x = given(64)
    np.testing.assert_allclose(compiled(x)[0], last(Chain(None, 64), x), rtol=1e-4, atol=1e-5)


def test_equal_loops_are_one_kernel() -> None:
    compiled = tvm_ext.compile(module(apart, 64))
    assert [g.calls for g in compiled.manifest.groups if g.source == "loop"] == [2]


def test_the_pass_can_be_left_out() -> None:
    with tvm.transform.PassContext(disabled_pass=["RerollLoops"]):
        compiled = tvm_ext.compile(module(last, 64))
    assert turns(compiled) == []
    x = given(64)
    np.testing.assert_allclose(compiled(x)[0], last(Chain(None, 64), x), rtol=1e-4, atol=1e-5)


def test_integers_of_random_data_are_indices_and_divisors() -> None:
    """What a kernel divides by is not zero, what another takes elements by lies inside."""
    taken = te.placeholder((5,), "float32", "taken")
    index, number = te.placeholder((3,), "int32", "index"), te.placeholder((3,), "int32", "number")
    picks = te.create_prim_func([taken, index, te.compute((3,), lambda i: taken[index[i]])])
    divides = te.create_prim_func(
        [number, index, te.compute((3,), lambda i: tirx.floordiv(number[i], index[i]))]
    )
    buffers = [*picks.params[:2], divides.params[0], picks.params[2], divides.params[2]]
    tensors = [tirx.decl_buffer(one.shape, one.dtype) for one in buffers]
    parts = ((0, 1, 3), (2, 1, 4))
    kernels = [(picks, parts[0]), (divides, parts[1])]
    loop = Rolled(
        roll(kernels, tensors, 4), 4, (("picks", picks), ("divides", divides)), parts, (None,) * 5
    )
    low, high = loops._spans(loop)[1]
    assert 0 < low < high <= 5
