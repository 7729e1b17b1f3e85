"""tvm_ext's passes in a flow of your own: all at once, or one by one.

python examples/own_flow.py
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

import tvm_ext


def small_network() -> tvm.IRModule:
    """A Relax module as any frontend makes it: NCHW, weights as constants."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> relax.Expr:
        return relax.const(rng.standard_normal(shape, dtype="float32") * 0.2)

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 20, 20), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, weight(16, 8, 3, 3), padding=(1, 1, 1, 1)))
            y = builder.emit(relax.op.nn.relu(relax.op.add(y, weight(1, 16, 1, 1))))
            y = builder.emit(relax.op.mean(y, axis=[2, 3]))
            y = builder.emit(relax.op.nn.softmax(relax.op.matmul(y, weight(16, 10))))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.finalize()


def run(executable: tvm.relax.VMExecutable, x: np.ndarray) -> np.ndarray:
    """One run on the CPU."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result: np.ndarray = machine["main"](tvm.runtime.tensor(x)).numpy()
    return result


def main() -> None:
    """Compiles the network three ways and compares the outputs."""
    passes = tvm_ext.passes
    hardware = tvm_ext.targets.resolve("cpu")
    target = tvm.target.Target(hardware.target)
    x = np.random.default_rng(1).standard_normal((1, 8, 20, 20), dtype="float32")
    expected = run(tvm.compile(small_network(), target), x)

    whole = tvm.compile(small_network(), target, relax_pipeline="tvm_ext", tir_pipeline="tvm_ext")
    print("pipeline:   max difference", np.abs(run(whole, x) - expected).max())

    mod = small_network()
    with target:
        for step in (
            passes.Normalise(),
            passes.FoldLayout(),
            passes.ChannelsLast(),
            passes.Legalise(hardware),
            passes.Fuse(),
            passes.Plan(hardware),
        ):
            mod = step(mod)
            print(f"  after {step.info.name}: {len(mod.functions)} functions")
    single = tvm.compile(
        mod,
        target,
        relax_pipeline=tvm.transform.Sequential(passes.lowering_passes()),
        tir_pipeline=passes.TIR_PIPELINE,
    )
    print("one by one: max difference", np.abs(run(single, x) - expected).max())
    assert np.allclose(run(whole, x), expected, atol=1e-5)
    assert np.allclose(run(single, x), expected, atol=1e-5)


if __name__ == "__main__":
    main()
