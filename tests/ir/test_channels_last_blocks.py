"""ChannelsLast where values cross blocks, branches and tuples."""

from __future__ import annotations

import pytest
from channels_last_modules import (
    BORDERS,
    SHAPE,
    bindings,
    branch,
    calls,
    const,
    conv,
    converted,
    module,
)

from tvm_ext.tvm_api import Call, relax

op, nn = relax.op, relax.op.nn


def test_plain_binding_blocks():
    def build(b, x):
        parts = b.emit(op.split(b.emit(conv(x)), 2, 1))
        return nn.relu(b.emit(op.add(parts[0], parts[1])))

    result = converted(module(build, SHAPE, dataflow=False))
    assert len(calls(result, "permute_dims")) == BORDERS


@pytest.mark.parametrize(("returned", "expected"), [(False, 2), (True, 3)])
def test_values_cross_dataflow_blocks_as_they_lie(returned, expected):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(conv(x))
        between = builder.emit(nn.relu(y))
        with builder.dataflow():
            z = builder.emit_output(conv(between, 4, 8))
        builder.emit_func_output(relax.Tuple([y, z]) if returned else z)
    result = converted(builder.finalize())
    assert len(calls(result, "permute_dims")) == expected
    assert len(result["main"].body.blocks) == 3


def test_if_is_left_as_it_is():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))

    shape = (2, 8, 9, 7)
    with builder.function("main", [x]):
        y = builder.emit(conv(x))
        condition = builder.emit(op.greater(op.sum(y), const()))
        sides = branch(nn.relu(y), shape), branch(conv(y, cin=8), shape)
        chosen = builder.emit(relax.If(condition, *sides))
        builder.emit_func_output(chosen)
    result = converted(builder.finalize())
    assert len(calls(result, "permute_dims")) == BORDERS
    (node,) = [b.value for b in bindings(result) if isinstance(b.value, relax.If)]
    layouts = [
        binding.value.attrs.data_layout
        for block in node.false_branch.blocks
        for binding in block.bindings
        if isinstance(binding.value, Call)
    ]
    assert layouts == ["NCHW"]


def test_tuples_outlive_a_dataflow_block_that_reads_them():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        parts = builder.emit(op.split(builder.emit(conv(x)), 2, 1))
        with builder.dataflow():
            y = builder.emit_output(nn.relu(builder.emit(parts[0])))
        builder.emit_func_output(builder.emit(op.add(y, builder.emit(parts[0]))))
    converted(builder.finalize())
