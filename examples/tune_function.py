"""Tune one TensorIR function, with a sketch rule of one's own.

python examples/tune_function.py [trials]
"""

import sys
import tempfile
from collections.abc import Iterator

import numpy as np
import tvm
from tvm import te

import tvm_ext
from tvm_ext.search import Sketch
from tvm_ext.search.sketch import State
from tvm_ext.tile import TileGraph, show_plan


def scores(rows: int, columns: int, depth: int) -> tvm.tirx.PrimFunc:
    """relu(x · w): one product and its epilogue."""
    x, w = te.placeholder((rows, depth), name="x"), te.placeholder((depth, columns), name="w")
    k = te.reduce_axis((0, depth))
    product = te.compute((rows, columns), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k))
    y = te.compute((rows, columns), lambda i, j: tvm.tirx.max(product[i, j], 0.0))
    return te.create_prim_func([x, w, y])


def without_epilogue(graph: TileGraph, state: State, cores: int) -> Iterator[State]:
    """A rule: tile the product and leave what follows it to a pass of its own."""
    node = graph.nodes[state.stage]
    if state.sketch is None and node.kind == "reduce":
        sketch = Sketch("tile", state.stage, derivation=("without_epilogue",))
        yield State(state.stage - 1, sketch)


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    func = scores(384, 512, 256)
    with tempfile.TemporaryDirectory() as log:
        tuned = tvm_ext.tune_tir(func, trials=trials, log=log, rules=[without_epilogue])
    print(f"picker {tuned.first_us:.1f} us, after {tuned.trials} trials {tuned.latency_us:.1f} us")
    print(show_plan(tuned.plan))

    x = np.random.default_rng(0).standard_normal((384, 256), dtype=np.float32)
    w = np.random.default_rng(1).standard_normal((256, 512), dtype=np.float32)
    out = tvm.runtime.empty((384, 512), "float32")
    tuned.build()["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w), out)
    np.testing.assert_allclose(out.numpy(), np.maximum(x @ w, 0), rtol=1e-4, atol=1e-3)
    print("right")


if __name__ == "__main__":
    main()
