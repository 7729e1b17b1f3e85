"""Modules to lay out channels last, and what holds of every one that was."""

from __future__ import annotations

import numpy as np

from tvm_ext.graph.channels_last import ChannelsLast
from tvm_ext.tvm_api import Call, GenericConst, ir, relax, tvm

nn = relax.op.nn
LAST = [0, 2, 3, 1]
FIRST = [0, 3, 1, 2]
SHAPE = (2, 6, 9, 7)
BORDERS = 2
"""Permutations of a module whose values all lie channels last in between."""


def const(*shape):
    return relax.const(np.arange(np.prod(shape), dtype="float32").reshape(shape), "float32")


def conv(x, out=8, cin=6, kernel=1, **attrs):
    return nn.conv2d(x, const(out, cin, kernel, kernel), **attrs)


def module(build, *shapes, dataflow=True, **attrs):
    """main(x0, x1, ...) = build(builder, x0, x1, ...)."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)
    ]
    with builder.function("main", params, attrs=attrs):
        if dataflow:
            with builder.dataflow():
                result = builder.emit_output(build(builder, *params))
        else:
            result = builder.emit(build(builder, *params))
        builder.emit_func_output(result)
    return builder.finalize()


def branch(value, shape):
    """One side of an If, of a single value."""
    inner = relax.Var("r", relax.TensorType(shape, "float32"))
    return relax.SeqExpr([relax.BindingBlock([relax.VarBinding(inner, value)])], inner)


def bindings(mod):
    return [binding for block in mod["main"].body.blocks for binding in block.bindings]


def calls(mod, name):
    values = [binding.value for binding in bindings(mod)]
    return [v for v in values if isinstance(v, Call) and v.op == ir.Op.get(f"relax.{name}")]


def converted(mod):
    """The converted module, once checked for what must hold of every one."""
    result = ChannelsLast()(mod)
    relax.analysis.well_formed(result)
    tvm.ir.assert_structural_equal(result["main"].ty, mod["main"].ty)
    permuted = {b.var for b in bindings(result) if b.value in calls(result, "permute_dims")}
    for call in calls(result, "permute_dims"):
        assert not isinstance(call.args[0], GenericConst)
        assert call.args[0] not in permuted
    tvm.ir.assert_structural_equal(ChannelsLast()(result), result)
    return result
