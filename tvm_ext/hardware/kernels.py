"""The probe's micro-kernels as TVM PrimFuncs, so that TVM's own LLVM is the only compiler needed.

Every kernel does `tasks` equal tasks: over TVM's thread pool, or on the calling thread alone. A
region of one task would not do for the latter: it waits for all threads of the pool, and beside
other programs that is a time slice, thousands of times what a run takes. Importing this module
imports TVM.
"""

from __future__ import annotations

from typing import Any

import msgspec
from tvm.script import tirx as T

from tvm_ext.hardware.isa import vector_bytes


class Instruction(msgspec.Struct, frozen=True):
    """A vector multiply-accumulate, `sum + a * b` unless said otherwise."""

    feature: str
    """What it needs; "" for nothing."""
    dtype: str
    """Element type of what is multiplied."""
    intrinsic: str
    """Its name in LLVM; "" for a multiplication and an addition, `sum * a + b`."""
    lanes: int
    operand: str
    """LLVM type of the two multiplied vectors."""
    macs_per_lane: int

    @property
    def accumulator(self) -> str:
        """Element type the products are summed in."""
        return "int32" if self.dtype == "int8" else "float32"

    def ir(self) -> str:
        """LLVM IR of `probe_<dtype>(sum, a, b)`, with a and b as 32-bit words.

        As text, because TVM cannot declare vectors of bf16, and because LLVM would take the
        product of loop constants out of the loop.
        """
        result = f"<{self.lanes} x {'i32' if self.dtype == 'int8' else 'float'}>"
        words = f"<{self.lanes} x i32>"
        x, y, c = f"{self.operand} %x", f"{self.operand} %y", f"{result} %c"
        if not self.intrinsic:
            declare, compute = "", f"%m = fmul {c}, %x\n  %r = fadd {result} %m, %y"
        else:
            fused = self.intrinsic.startswith("llvm.fma")
            declare = f"declare {result} @{self.intrinsic}(" + (
                f"{self.operand}, {self.operand}, {result})"
                if fused
                else f"{result}, {self.operand}, {self.operand})"
            )
            arguments = f"{x}, {y}, {c}" if fused else f"{c}, {x}, {y}"
            compute = f"%r = call {result} @{self.intrinsic}({arguments})"
        return f"""{declare}
define {result} @probe_{self.dtype}({c}, {words} %a, {words} %b) alwaysinline nounwind {{
  %x = bitcast {words} %a to {self.operand}
  %y = bitcast {words} %b to {self.operand}
  {compute}
  ret {result} %r
}}"""


_X86, _ARM = "llvm.x86.avx512", "llvm.aarch64.neon"
# Best first, for each type.
_INSTRUCTIONS = (
    Instruction("avx512f", "float32", "llvm.fma.v16f32", 16, "<16 x float>", 1),
    Instruction("fma", "float32", "llvm.fma.v8f32", 8, "<8 x float>", 1),
    Instruction("neon", "float32", "llvm.fma.v4f32", 4, "<4 x float>", 1),
    Instruction("", "float32", "", 4, "<4 x float>", 1),
    Instruction("avx512vnni", "int8", f"{_X86}.vpdpbusd.512", 16, "<64 x i8>", 4),
    Instruction("avxvnni", "int8", f"{_X86}.vpdpbusd.256", 8, "<32 x i8>", 4),
    Instruction("i8mm", "int8", f"{_ARM}.smmla.v4i32.v16i8", 4, "<16 x i8>", 8),
    Instruction("dotprod", "int8", f"{_ARM}.sdot.v4i32.v16i8", 4, "<16 x i8>", 4),
    Instruction("avx512bf16", "bfloat16", f"{_X86}bf16.dpbf16ps.512", 16, "<32 x bfloat>", 2),
    Instruction("bf16", "bfloat16", f"{_ARM}.bfmmla", 4, "<8 x bfloat>", 4),
)


def instructions(isa: tuple[str, ...]) -> dict[str, Instruction]:
    """The fastest multiply-accumulate of `isa` for each element type; always one for float32."""
    best: dict[str, Instruction] = {}
    lanes = vector_bytes(isa) // 4
    for instruction in _INSTRUCTIONS:
        if instruction.lanes <= lanes and instruction.feature in ("", *isa):
            best.setdefault(instruction.dtype, instruction)
    return best


SEED = (0x3F003F00, 0x3F803F80)
"""What chains multiply and add, about 0.5 and 1 as float32 and as pairs of bf16: no sum becomes
denormal or infinite."""


def chain_count(vector_registers: int) -> int:
    """Chains that hide the latency; a quarter of the registers is left for operands."""
    return vector_registers * 3 // 4


def _loop(alone: bool) -> Any:
    return T.serial if alone else T.parallel


def chains(instruction: Instruction, count: int, alone: bool = False) -> Any:
    """`count` independent chains of `instruction`, one step each per round, all in registers."""
    loop = _loop(alone)
    lanes, dtype = instruction.lanes, instruction.accumulator
    function, result = f"probe_{instruction.dtype}", f"{dtype}x{lanes}"
    pragmas = {"pragma_import_llvm": instruction.ir()}

    @T.prim_func(s_tir=True)
    def kernel(
        seed_handle: T.handle,
        out_handle: T.handle,
        tasks: T.int32,
        rounds: T.int32,
    ) -> None:
        T.func_attr({"tirx.noalias": True})
        seed = T.match_buffer(seed_handle, (2,), "int32")
        out = T.match_buffer(out_handle, (T.int64(),), dtype)
        for t in loop(tasks, annotations=pragmas):
            with T.sblock("task"):
                T.reads()
                T.writes()
                sums = T.sblock_alloc_buffer((count * lanes,), dtype, scope="local")
                for c in T.unroll(count):
                    sums[T.ramp(c * lanes, 1, lanes)] = T.broadcast(T.Cast(dtype, 0), lanes)
                for _ in T.serial(rounds):
                    for c in T.unroll(count):
                        sums[T.ramp(c * lanes, 1, lanes)] = T.call_pure_extern(
                            function,
                            sums[T.ramp(c * lanes, 1, lanes)],
                            T.broadcast(seed[0], lanes),
                            T.broadcast(seed[1], lanes),
                            dtype=result,
                        )
                for c in T.unroll(count):
                    out[T.ramp((t * count + c) * lanes, 1, lanes)] = sums[
                        T.ramp(c * lanes, 1, lanes)
                    ]

    return kernel


def cycles(steps: int) -> Any:
    """A chain of `steps` dependent one-cycle integer operations per round, alone: a clock.

    Additions and exclusive-ors alternate so that LLVM cannot fold them, and take their operands
    from registers because some cores execute additions of small constants for free.
    """

    @T.prim_func(s_tir=True)
    def kernel(
        seed_handle: T.handle,
        out_handle: T.handle,
        tasks: T.int32,
        rounds: T.int32,
    ) -> None:
        T.func_attr({"tirx.noalias": True})
        seed = T.match_buffer(seed_handle, (2,), "int32")
        out = T.match_buffer(out_handle, (T.int64(),), "int32")
        for t in T.serial(tasks):
            with T.sblock("task"):
                T.reads()
                T.writes()
                value = T.sblock_alloc_buffer((1,), "int32", scope="local")
                value[0] = seed[0]
                for _ in T.serial(rounds):
                    for _ in T.unroll(steps // 2):
                        value[0] = T.bitwise_xor(value[0] + seed[0], seed[1])
                out[t] = value[0]

    return kernel


def walk(steps: int) -> Any:
    """`steps` loads per round, alone, each of which waits for the one before: an element of `data`
    is the place of the next. `at` has the place where the walk begins, and then where it ends."""

    @T.prim_func(s_tir=True)
    def kernel(
        data_handle: T.handle,
        at_handle: T.handle,
        tasks: T.int32,
        rounds: T.int32,
    ) -> None:
        T.func_attr({"tirx.noalias": True})
        data = T.match_buffer(data_handle, (T.int64(),), "int32")
        at = T.match_buffer(at_handle, (T.int64(),), "int32")
        for t in T.serial(tasks):
            with T.sblock("task"):
                T.reads()
                T.writes()
                place = T.sblock_alloc_buffer((1,), "int32", scope="local")
                place[0] = at[t]
                for _ in T.serial(rounds):
                    for _ in T.unroll(steps):
                        place[0] = data[place[0]]
                at[t] = place[0]

    return kernel


def fill() -> Any:
    """Writes one block of `words` 32-bit words per task, so that each core touches its own."""

    @T.prim_func(s_tir=True)
    def kernel(data_handle: T.handle, tasks: T.int32, words: T.int32) -> None:
        T.func_attr({"tirx.noalias": True})
        data = T.match_buffer(data_handle, (T.int64(),), "int32")
        for t in T.parallel(tasks):
            for i in T.serial(words):
                data[t * words + i] = i

    return kernel


def stream(lanes: int, vectors: int, alone: bool = False) -> Any:
    """Each task reads its own `blocks` blocks (of `vectors` x `lanes` 32-bit words) per round.

    Exclusive-or, because it never limits: one cycle of latency, as many ports as loads have.
    """
    loop, block = _loop(alone), lanes * vectors

    @T.prim_func(s_tir=True)
    def kernel(
        data_handle: T.handle,
        out_handle: T.handle,
        tasks: T.int32,
        blocks: T.int32,
        rounds: T.int32,
    ) -> None:
        T.func_attr({"tirx.noalias": True})
        data = T.match_buffer(data_handle, (T.int64(),), "int32")
        out = T.match_buffer(out_handle, (T.int64(),), "int32")
        for t in loop(tasks):
            with T.sblock("task"):
                T.reads()
                T.writes()
                sums = T.sblock_alloc_buffer((block,), "int32", scope="local")
                for v in T.unroll(vectors):
                    sums[T.ramp(v * lanes, 1, lanes)] = T.broadcast(0, lanes)
                for _ in T.serial(rounds):
                    for i in T.serial(blocks):
                        for v in T.unroll(vectors):
                            sums[T.ramp(v * lanes, 1, lanes)] = T.bitwise_xor(
                                sums[T.ramp(v * lanes, 1, lanes)],
                                data[T.ramp((t * blocks + i) * block + v * lanes, 1, lanes)],
                            )
                for v in T.unroll(vectors):
                    out[T.ramp(t * block + v * lanes, 1, lanes)] = sums[T.ramp(v * lanes, 1, lanes)]

    return kernel


def launches(barrier: bool) -> Any:
    """`rounds` parallel regions that do next to nothing, one launch each; with `barrier`, all in
    one launch with a barrier between them. Tasks write 64 bytes apart."""
    outer = {"pragma_parallel_launch_point": 1} if barrier else {}
    inner = {"pragma_parallel_barrier_when_finish": 1} if barrier else {}

    @T.prim_func(s_tir=True)
    def kernel(out_handle: T.handle, tasks: T.int32, rounds: T.int32) -> None:
        T.func_attr({"tirx.noalias": True})
        out = T.match_buffer(out_handle, (T.int64(),), "int32")
        for i in T.serial(rounds, annotations=outer):
            for t in T.parallel(tasks, annotations=inner):
                out[t * 16] = i

    return kernel
