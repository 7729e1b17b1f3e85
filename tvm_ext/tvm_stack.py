"""What kernels keep on the stack, and where it begins.

    alloc t[6, 64]; …       t stays on the stack, where LLVM makes registers of it
    for task in parallel: … →   for task in parallel: alloc line[64 bytes]; prefetch(line); …

Both are for LLVM, which sees to neither by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm_ext.tvm_api import element_bytes, loop_with, prefetch_line, tirx

STACK_BYTES = 16384
"""Largest buffer that is kept on the stack."""
LINE = "float32x16"
"""The type of a whole line of a cache: LLVM aligns what is made of it."""


def on_stack(alloc: Any, scopes: Sequence[str]) -> Any:
    """Marks a small buffer of those scopes so that it is not moved to the heap.

    TVM takes buffers above 1 KiB from a workspace; LLVM then cannot see that nobody else reads
    them, stores every accumulator, and keeps main loops' accumulators alive through tail loops
    (a register tile of 6 x 64 with a tail: 210 instead of 490 GFLOP/s). Every task asks for them
    anew, which takes a third as long as a row (softmax of 1024 rows of 512: 62 us, 46 so).
    """
    buffer = alloc.buffer
    if buffer.scope() not in scopes or not all(isinstance(e, tirx.IntImm) for e in buffer.shape):
        return alloc
    if prod(int(e) for e in buffer.shape) * element_bytes(buffer) > STACK_BYTES:
        return alloc
    return _kept(buffer, alloc.annotations)


def align_tasks(loop: Any) -> Any:
    """The tasks of a parallel loop, each on a stack that begins at a line of a cache."""
    shared_out = loop.kind == tirx.ForKind.PARALLEL
    return loop_with(loop, on_a_line(loop.body)) if shared_out else loop


def on_a_line(body: Any) -> Any:
    """What is done on a stack that begins at a line of a cache.

    LLVM begins at one only in a function that has something on its stack that does; registers that
    it runs out of later are put 16 bytes from wherever the stack was, and three times of four each
    lies on two lines (784 rows of 96 by 384 and GELU: 600 us, and 680 or 910 from run to run). A
    request for the line keeps it there, for a cycle of each task.
    """
    line = tirx.decl_buffer((1,), LINE, "line", scope="local")
    return tirx.SeqStmt([_kept(line), prefetch_line(line, [0]), body])


def _kept(buffer: Any, annotations: Any = ()) -> Any:
    marks = dict(annotations) | {"disable_lower_builtin": tirx.IntImm("bool", 1)}
    return tirx.AllocBuffer(buffer, marks)
