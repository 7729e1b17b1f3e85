"""Dot products of two bfloat16, and rounding to it: one operation in tensor programs, one
instruction in machine code.

    dot_pairs(a, b) = a0 * b0 + a1 * b1        a, b: two bfloat16 in a uint32 each; the sum: float32
    rounded(x)                                 x: float32; the nearest bfloat16 as a uint16
    paired(x, y)                               two of them in a uint32

An instruction does either in each lane of a vector, and adds the product to a sum (x86's BF16): two
multiply-adds in the time of one of float32. In tensor programs both are calls of LLVM's intrinsics
on scalars, as `tvm_dots.dot` is; `fuse_pairs` gives them their vectors and the sum:

    c[ramp] = c[ramp] + dot_pairs(broadcast(a), b[ramp])   →   c[ramp] = vdpbf16ps(c[ramp], …)

TVM cannot declare vectors of bfloat16, so the instructions are functions in LLVM's own language
that take words. Where a program is lowered in scalars or vectors of another width, or for another
machine, they are written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm_ext.tvm_api import (
    PURE_INTRINSIC,
    IRModule,
    PrimFunc,
    TensorLoad,
    called,
    calls_intrinsic,
    ir,
    lanes_of,
    structural_map,
    structural_walk,
    tirx,
    tvm,
)

ISA = "avx512bf16"
"""The instruction set that has them, as LLVM calls it as well."""
PAIR = 2
"""Elements in an operand."""
HALF_WIDTH = 16
"""Bits of one."""
HALF, HALF_BITS, WORD = "bfloat16", "uint16", "uint32"
"""An element, what holds one, and what holds two: TVM makes four operations of each one on its own
bfloat16, and variables that its passes trip over."""
_DOT, _ROUND = "dpbf16ps", "cvtneps2bf16"
_WIDTHS = {_DOT: (128, 256, 512), _ROUND: (128, 256, 512, 1024, 2048)}
"""Bits in a vector of 32-bit lanes that an instruction is for: LLVM rounds several vectors as one.
"""


def dot_pairs(a: Any, b: Any) -> Any:
    """The dot product of two bfloat16 in `a` and two in `b`, both uint32."""
    zero = tirx.const(0, "float32")
    return tirx.call_llvm_pure_intrin("float32", _intrinsic(_DOT, 512), zero, a, b)


def rounded(x: Any) -> Any:
    """A float32 as the bits of the nearest bfloat16; of two as near the even one."""
    return tirx.call_llvm_pure_intrin(HALF_BITS, _intrinsic(_ROUND, 512), x)


def widened(half: Any) -> Any:
    """The float32 that a bfloat16's bits stand for."""
    return tirx.reinterpret("float32", half.astype(WORD) << HALF_WIDTH)


def upper(x: Any) -> Any:
    """The bits of a bfloat16 from those of the float32 that it is: rounding it would make zeros of
    the smallest."""
    return (tirx.reinterpret(WORD, x) >> HALF_WIDTH).astype(HALF_BITS)


def paired(low: Any, high: Any) -> Any:
    """Two float32, rounded, in a uint32: `low` in its lower half."""
    return word(rounded(low), rounded(high))


def word(low: Any, high: Any) -> Any:
    """The bits of two bfloat16, uint16 both, in a uint32."""
    return low.astype(WORD) | high.astype(WORD) << HALF_WIDTH


def is_paired(node: Any) -> bool:
    """Whether an expression is a `paired`, of scalars."""
    return bool(_paired_halves(node))


def _paired_halves(node: Any) -> tuple[Any, ...]:
    """What a `paired` puts together; nothing of any other expression."""
    if not isinstance(node, tirx.BitwiseOr) or not isinstance(node.b, tirx.LShift):
        return ()
    up = node.b.b
    halves = tuple(getattr(one, "value", None) for one in (node.a, node.b.a))
    moved = isinstance(up, tirx.IntImm) and int(up) == HALF_WIDTH
    return halves if moved and all(map(is_rounding, halves)) else ()


def is_dot_of_pairs(node: Any) -> bool:
    """Whether an expression is a `dot_pairs`, of scalars or vectors."""
    return calls_intrinsic(node, _intrinsic(_DOT, 512))


def is_rounding(node: Any) -> bool:
    """Whether an expression is a `rounded`, of a scalar or vectors."""
    return calls_intrinsic(node, _intrinsic(_ROUND, 512))


def operands(node: Any) -> tuple[Any, ...]:
    """Those of a `dot_pairs`, a `rounded` or a `paired`."""
    if is_paired(node):
        return tuple(operands(one)[0] for one in _paired_halves(node))
    return tuple(node.args)[2:] if is_dot_of_pairs(node) else tuple(node.args)[1:]


def multiplies_tensors(node: Any) -> bool:
    """Whether an expression is a `dot_pairs` of elements of two tensors."""
    return is_dot_of_pairs(node) and all(isinstance(one, TensorLoad) for one in operands(node))


def multiplies_pairs(func: PrimFunc) -> bool:
    """Whether a function has a `dot_pairs`."""
    found = False

    def look(call: Any) -> None:
        nonlocal found
        found = found or is_dot_of_pairs(call)

    structural_walk(func.body, (ir.Call, look))
    return found


def _intrinsic(name: str, bits: int) -> str:
    return f"llvm.x86.avx512bf16.{name}.{bits}"


def _instruction(name: str, bits: int) -> str:
    """An instruction as a function of words, in LLVM's language."""
    lanes, intrinsic, own = bits // 32, _intrinsic(name, bits), _function(name, bits)
    floats, words = f"<{lanes} x float>", f"<{lanes} x i32>"
    if name == _ROUND:
        halves, result = f"<{lanes} x bfloat>", f"<{lanes} x i16>"
        return f"""
define linkonce_odr {result} @{own}({floats} %x) alwaysinline nounwind {{
  %h = fptrunc {floats} %x to {halves}
  %r = bitcast {halves} %h to {result}
  ret {result} %r
}}"""
    pairs = f"<{2 * lanes} x bfloat>"
    return f"""
declare {floats} @{intrinsic}({floats}, {pairs}, {pairs})
define linkonce_odr {floats} @{own}({floats} %c, {words} %a, {words} %b) alwaysinline nounwind {{
  %x = bitcast {words} %a to {pairs}
  %y = bitcast {words} %b to {pairs}
  %r = call {floats} @{intrinsic}({floats} %c, {pairs} %x, {pairs} %y)
  ret {floats} %r
}}"""


def _function(name: str, bits: int) -> str:
    return f"tvm_ext_{name}_{bits}"


class _Fuser:
    """Replaces both operations, and knows the instructions it took."""

    def __init__(self, has_instructions: bool) -> None:
        self._widths = _WIDTHS if has_instructions else dict.fromkeys(_WIDTHS, ())
        self.taken: dict[tuple[str, int], None] = {}

    def sum(self, node: Any) -> Any:
        """A sum with a dot product as one operation."""
        for one, total in ((node.b, node.a), (node.a, node.b)):
            if is_dot_of_pairs(one):
                return self._added(total, *operands(one))
        return node

    def alone(self, node: Any) -> Any:
        """A dot product that is added to nothing, or a rounding."""
        if is_dot_of_pairs(node):
            return self._added(tirx.const(0, str(node.ty.dtype)), *operands(node))
        return self._rounded(*operands(node)) if is_rounding(node) else node

    def _added(self, total: Any, a: Any, b: Any) -> Any:
        def written_out() -> Any:
            low, high = ((half(a, place), half(b, place)) for place in range(PAIR))
            return total + low[0] * low[1] + high[0] * high[1]

        return self._call(_DOT, "float32", written_out, total, a, b)

    def _rounded(self, x: Any) -> Any:
        return self._call(_ROUND, HALF_BITS, lambda: rounded_by_integers(x), x)

    def _call(self, name: str, dtype: str, written_out: Callable[[], Any], *given: Any) -> Any:
        lanes = lanes_of(given[0])
        if 32 * lanes not in self._widths[name]:
            return written_out()
        self.taken[name, 32 * lanes] = None
        return tirx.call_pure_extern(f"{dtype}x{lanes}", _function(name, 32 * lanes), *given)


def half(pair: Any, place: int) -> Any:
    """The lower or the upper half of a pair as a float32."""
    words = str(pair.ty.dtype)
    up, upper = (tirx.const(value, words) for value in (HALF_WIDTH, 0xFFFF0000))
    bits = pair << up if place == 0 else pair & upper
    return tirx.reinterpret(words.replace(WORD, "float32"), bits)


def rounded_by_integers(x: Any) -> Any:
    """`rounded` of numbers: half of the last place that stays is added, less the least bit where
    the number that stays would be odd otherwise. What is none stays none."""
    floats = str(x.ty.dtype)
    words = floats.replace("float32", WORD)

    def const(value: int) -> Any:
        return tirx.const(value, words)

    bits = tirx.reinterpret(words, x)
    upper = (bits + const(0x7FFF) + ((bits >> const(16)) & const(1))) >> const(16)
    none = (bits & const(0x7FFFFFFF)) > const(0x7F800000)  # TVM takes x != x for false
    kept = tirx.Select(none, (bits >> const(16)) | const(0x40), upper)
    return kept.astype(words.replace(WORD, HALF_BITS))


@tirx.transform.prim_func_pass(opt_level=0, name="RoundToHalves")
def round_to_halves(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Makes casts to bfloat16 `rounded`: TVM binds a variable for each, which unrolled bodies then
    share, and refuses its own code.

    bfloat16(x)   →   reinterpret(bfloat16, rounded(x))
    """

    def cast(node: Any) -> Any:
        if str(node.ty.dtype) != HALF or str(node.value.ty.dtype) != "float32":
            return node
        return tirx.reinterpret(HALF, rounded(node.value))

    return func.with_body(structural_map(func.body, [(tirx.Cast, cast)], order="post"))


@tirx.transform.prim_func_pass(opt_level=0, name="FusePairs")
def fuse_pairs(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Makes each such operation an instruction, the sum that it is added to among its operands."""
    if PURE_INTRINSIC not in called(func.body):
        return func
    target = func.attrs.get("target") if func.attrs else None
    has_features = tvm.target.codegen.target_has_features
    fuser = _Fuser(target is not None and has_features(ISA, target))
    body = structural_map(func.body, [(tirx.Add, fuser.sum)], order="pre")
    body = structural_map(body, [(ir.Call, fuser.alone)], order="post")
    for name, bits in fuser.taken:
        text = ir.StringImm(_instruction(name, bits))
        body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", text, body)
    return func.with_body(body)
