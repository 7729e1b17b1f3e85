"""The one place that knows TVM's current names and quirks; everything else imports them from here.

TVM 0.20-0.27 moved `tvm.tir` to `tvm.tirx`, schedules and blocks to `tvm.s_tir`, and struct info to
types. When the next rename comes, this file changes and no other does.
"""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tvm_ext.cuda_libraries import load_cudart
from tvm_ext.errors import InstallError
from tvm_ext.garbage import without_collections
from tvm_ext.without_torch import without_torch

TVM_FFI_BROKEN = ("0.1.15",)


def check_install() -> None:
    """Raises InstallError if TVM is missing or paired with an FFI that crashes.

    apache-tvm-ffi 0.1.15.* segfaults whenever IR is serialised (save_json, pickle), and pip
    resolves to it by default; a message now is worth more than a crash later.
    """
    try:
        ffi = importlib.metadata.version("apache-tvm-ffi")
        importlib.metadata.version("apache-tvm")
    except importlib.metadata.PackageNotFoundError as error:
        raise InstallError(
            f"package {error.name}: not installed; run pip install 'apache-tvm==0.27.0.post1' "
            "'apache-tvm-ffi==0.1.14.post0'"
        ) from error
    if ffi.startswith(TVM_FFI_BROKEN):
        raise InstallError(
            f"apache-tvm-ffi {ffi}: crashes when IR is serialised, tvm_ext needs 0.1.14.post0; "
            "run pip install 'apache-tvm-ffi==0.1.14.post0'"
        )


@cache
def tvm_version() -> str:
    """Version of the installed TVM."""
    return importlib.metadata.version("apache-tvm")


check_install()
load_cudart()
with without_torch(), without_collections():
    import tvm
from tvm import ir, relax, s_tir, te, tirx, topi  # noqa: E402
from tvm.error import InternalError  # noqa: E402
from tvm.ir import Call, GenericConst, IRModule, TensorLoad  # noqa: E402
from tvm.s_tir import Schedule  # noqa: E402
from tvm.s_tir.schedule import SBlockRV, ScheduleError  # noqa: E402
from tvm.script.ir_builder import IRBuilder  # noqa: E402
from tvm.script.ir_builder import tirx as Build  # noqa: E402
from tvm.sym import Analyzer  # noqa: E402
from tvm.target import Target  # noqa: E402
from tvm.tirx import PrimFunc  # noqa: E402
from tvm_ffi import (  # noqa: E402
    Tensor,
    WalkResult,
    register_error,
    structural_equal,
    structural_map,
    structural_walk,
)

register_error(KeyboardInterrupt)  # raised in a pass, it would come out as a RuntimeError
PURE_INTRINSIC = "tirx.call_llvm_pure_intrin"
"""The operator that calls one of LLVM, by a number."""


def target_of(given: dict[str, Any]) -> Target:
    """The TVM target of a machine. What the CPU does beside a device is for this one's CPU."""
    host = {"kind": "llvm"} if given["kind"] == "cuda" and "host" not in given else None
    return Target(given, host=host)


def lanes_of(expr: Any) -> int:
    """Elements of a vector; 1 of a scalar."""
    return int(tvm.runtime.DataType(str(expr.ty.dtype)).lanes)


@cache
def _intrinsic_number(name: str) -> int:
    return int(tvm.target.codegen.llvm_lookup_intrinsic_id(name))


def calls_intrinsic(node: Any, name: str) -> bool:
    """Whether an expression is the call of a pure intrinsic of LLVM, with whatever operands."""
    if op_name(node) != PURE_INTRINSIC:
        return False
    return int(node.args[0]) == _intrinsic_number(name)


def element_bytes(buffer: Any) -> int:
    """Bytes of one element of a buffer, which may be a vector."""
    kind = tvm.runtime.DataType(str(buffer.dtype))
    return max(1, int(kind.bits) * int(kind.lanes) // 8)


def static_extents(ty: Any) -> tuple[int, ...] | None:
    """The extents of a Relax tensor type; None where they are not all known."""
    extents = getattr(getattr(ty, "shape", None), "values", None)
    if extents is None or not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    return tuple(int(extent) for extent in extents)


def extents_of(ty: Any) -> tuple[Any, ...]:
    """The extents of a Relax tensor type, known or not; none of any other type."""
    return tuple(getattr(getattr(ty, "shape", None), "values", ()))


def in_map_order(root: Any, kind: Any) -> list[Any]:
    """The nodes of a kind in the order of `structural_map`; a walk has another."""
    found: list[Any] = []

    def note(node: Any) -> Any:
        found.append(node)
        return node

    structural_map(root, [(kind, note)], order="post")
    return found


def op_name(value: Any) -> str:
    """The name of the operator a Relax expression calls; empty for anything else."""
    return str(getattr(getattr(value, "op", None), "name", ""))


def called(root: Any) -> set[str]:
    """The names of the operators that a function's body calls. Asking first is a quarter of the
    time of a map that finds nothing."""
    names: set[str] = set()
    structural_walk(root, (ir.Call, lambda call: names.add(op_name(call))))
    return names


def substitute(expr: Any, values: dict[Any, Any]) -> Any:
    """The expression with variables replaced."""
    return structural_map(expr, [(tirx.Var, lambda var: values.get(var, var))], order="post")


def block_values(realize: Any) -> dict[Any, Any]:
    """What a block's variables stand for where it is realized, by variable."""
    variables = (axis.var for axis in realize.block.iter_vars)
    return dict(zip(variables, realize.iter_values, strict=True))


def uses(expr: Any, variable: Any) -> bool:
    """Whether the variable occurs in the expression."""
    found: list[bool] = []
    structural_walk(expr, (tirx.Var, lambda var: found.append(var.same_as(variable))))
    return any(found)


def variables(expr: Any) -> list[Any]:
    """The variables in an expression, one entry for each occurrence."""
    found: list[Any] = []
    structural_walk(expr, (tirx.Var, found.append))
    return found


def loop_with(loop: Any, body: Any, annotations: Any = None) -> Any:
    """The loop around another body, with other annotations if they are given."""
    kept = loop.annotations if annotations is None else annotations
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, kept
    )


def sums_up(block: Any) -> bool:
    """Whether a block has an axis that it reduces over."""
    return any(axis.iter_type == tirx.IterVar.CommReduce for axis in block.iter_vars)


def prefetch_line(buffer: Any, indices: Sequence[Any]) -> Any:
    """A statement that asks for the cache line of an element of a buffer, to be kept in L2. The
    element may lie outside: a request for no memory is ignored."""
    address = tirx.call_intrin("handle", "tirx.address_of", tirx.BufferLoad(buffer, list(indices)))
    read, l2, data = (tirx.const(value, "int32") for value in (0, 2, 1))
    call = tirx.call_llvm_intrin("void", "llvm.prefetch.p0", address, read, l2, data)
    return tirx.Evaluate(call)


def opaque(condition: Any) -> Any:
    """The condition, of which simplification takes nothing for granted elsewhere.

    TVM simplifies the first value of a `Select` as if the condition held, and takes bounds away
    that keep a load inside its tensor; but both values are computed.
    """
    return Call("tirx.reinterpret", [condition], ret_ty=condition.ty)


def with_own_names(func: PrimFunc) -> PrimFunc:
    """The function with no variable bound twice, as an expression inlined into two places is: TVM
    takes no such function into a schedule."""
    return tirx.transform.ConvertSSA()(IRModule({"main": func}))["main"]


def schedule_of(func: PrimFunc) -> Schedule:
    """A schedule over one PrimFunc, without the self-checks that make it five times slower."""
    return Schedule(func, debug_mask="none")


def with_narrow_indices(func: PrimFunc) -> PrimFunc:
    """The function with 32-bit loop and index types, if its tensors are small enough for them.

    Relax makes 64-bit indices. With them TVM's loop partitioning leaves predicates in main loops
    (half the speed), and its index simplification misses neighbours.
    """
    wide = False
    for parameter in func.params:
        size = 1
        for extent in getattr(parameter, "shape", ()):
            if not isinstance(extent, tirx.IntImm):
                return func
            wide = wide or str(extent.ty.dtype) == "int64"
            size *= int(extent)
        if size >= 2**31:
            return func
    if not wide:
        return func
    try:
        narrow = tirx.transform.ForceNarrowIndexToInt32()
        return narrow(IRModule({"main": func}))["main"]
    except InternalError:  # the pass refuses functions that hold 64-bit data
        return func


def is_scheduled(func: PrimFunc) -> bool:
    """Whether a pass has already scheduled the function."""
    return bool(func.attrs and func.attrs.get("tirx.is_scheduled", 0))


def mark_scheduled(func: PrimFunc) -> PrimFunc:
    """The function, marked so that no later pass schedules it again."""
    return func.with_attr("tirx.is_scheduled", 1)


def mark_written(func: PrimFunc, cycles: float) -> PrimFunc:
    """The function, marked as written loop by loop, of about so many cycles: nothing to plan."""
    return func.with_attr("tvm_ext.written", max(1, int(cycles)))


def written_cycles(func: PrimFunc) -> int:
    """About how long a function takes that was written loop by loop; 0 of any other."""
    return int(func.attrs.get("tvm_ext.written", 0)) if func.attrs else 0


def array_of(tensor: Any) -> np.ndarray:
    """The data of a tensor, without a copy where numpy itself knows the element type."""
    shared = hasattr(np, str(tensor.dtype))
    array: np.ndarray = np.from_dlpack(tensor) if shared else tensor.numpy()
    return array


def constant_array(expr: Any) -> Any:
    """The array of a Relax constant, not to be written to; None of all else, constant types too."""
    is_tensor = isinstance(expr, GenericConst) and hasattr(expr.value, "shape")
    return array_of(expr.value) if is_tensor else None


def constant(array: np.ndarray, dtype: str = "") -> Any:
    """The array as a Relax constant of its type, or of a `dtype` that numpy lacks; one copy,
    whatever its strides."""
    tensor = tvm.runtime.empty(array.shape, dtype or array.dtype.name)
    memory = array_of(tensor)
    if memory.flags.owndata or not memory.flags.writeable or array.ndim == 0:
        tensor.copyfrom(array)
    elif array.flags.c_contiguous:
        memory[...] = array
    else:
        # Transposing a large matrix a cache line at a time is three times quicker than by rows.
        for start in range(0, array.shape[-1], 16):
            memory[..., start : start + 16] = array[..., start : start + 16]
    return relax.const(tensor, str(tensor.dtype))


def rewritten(mod: IRModule, mutator: Any) -> IRModule:
    """The module with each of its Relax functions visited by a `PyExprMutator` made for it."""
    for variable, function in mod.functions.items():
        if isinstance(function, relax.Function):
            mutator.builder_.update_func(variable, mutator.visit_expr(function))
    return mutator.builder_.get()


def with_blocks(mod: IRModule, rewrite: Any) -> IRModule:
    """The module with each dataflow block of its Relax functions as `rewrite` makes it."""
    changed = {
        variable: structural_map(function, [(relax.DataflowBlock, rewrite)], order="post")
        for variable, function in mod.functions.items()
        if isinstance(function, relax.Function)
    }
    result = IRModule(dict(mod.functions.items()) | changed)
    return result.with_attrs(mod.attrs) if mod.attrs else result


def bound(mutator: Any, expr: Any) -> Any:
    """What an expression is bound to in a function that a mutator visits, if need be by way of
    other variables; a parameter is itself."""
    while isinstance(expr, relax.Var) and (found := mutator.lookup_binding(expr)) is not None:
        expr = found
    return expr


def call_of(call: Any, first: Any) -> Any:
    """The call of the same operator on another first operand."""
    return Call(call.op, [first, *call.args[1:]], call.attrs)


def count_uses(mod: IRModule) -> Counter[Any]:
    """How many calls and tuples of a module's Relax functions each variable is an argument of."""
    uses: Counter[Any] = Counter()

    def count(node: Any) -> None:
        if isinstance(node, Call | relax.Tuple):
            fields = node.args if isinstance(node, Call) else node.fields
            uses.update(one for one in fields if isinstance(one, relax.Var))

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, count)
    return uses


def default_legalise(name: str) -> Any:
    """TVM's own legalisation of an operator, called with (builder, call)."""
    return ir.Op.get(name).get_attr("FLegalize")


__all__ = [
    "PURE_INTRINSIC",
    "Analyzer",
    "Build",
    "Call",
    "GenericConst",
    "IRBuilder",
    "IRModule",
    "InternalError",
    "PrimFunc",
    "SBlockRV",
    "Schedule",
    "ScheduleError",
    "Target",
    "Tensor",
    "TensorLoad",
    "WalkResult",
    "array_of",
    "block_values",
    "bound",
    "call_of",
    "calls_intrinsic",
    "check_install",
    "constant",
    "constant_array",
    "count_uses",
    "default_legalise",
    "element_bytes",
    "extents_of",
    "in_map_order",
    "ir",
    "is_scheduled",
    "lanes_of",
    "loop_with",
    "mark_scheduled",
    "mark_written",
    "op_name",
    "opaque",
    "prefetch_line",
    "relax",
    "rewritten",
    "s_tir",
    "schedule_of",
    "static_extents",
    "structural_equal",
    "structural_map",
    "structural_walk",
    "substitute",
    "sums_up",
    "target_of",
    "te",
    "tirx",
    "topi",
    "tvm",
    "tvm_version",
    "uses",
    "variables",
    "with_blocks",
    "with_narrow_indices",
    "written_cycles",
]
