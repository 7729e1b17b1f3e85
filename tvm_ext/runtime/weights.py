"""Weights as a section of the artifact: mapped from the file, not read into memory.

TVM keeps constants inside its executable, which is kept inside the library as text: loading copies
them twice. Here the VM's code asks for a weight by its number, and gets a view of the section:

    kernel(x, constant, y)   →   w = tvm_ext_weight(7); kernel(x, w, y)

Pages arrive when kernels first touch them, are shared by all processes that run the artifact, and
can be dropped again.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.tvm_api import GenericConst, IRModule, Tensor, constant_array, relax, rewritten, tirx

GETTER = "tvm_ext_weight"
LEAST_BYTES = 1 << 16
"""Smaller constants stay where TVM keeps them: asking for one costs 0.1 us a run."""
ALIGNED = 64
"""What kernels assume of a tensor's address."""


def detach(mod: IRModule) -> tuple[IRModule, list[np.ndarray]]:
    """The lowered module with its large constants asked for by number, and these in order.

    Only those that calls take as arguments: what the model returns must outlive the library.
    """
    found = _Detach(mod)
    return rewritten(mod, found), found.arrays


@relax.expr_functor.mutator
class _Detach(relax.PyExprMutator):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.arrays: list[np.ndarray] = []
        self._numbers: dict[int, int] = {}

    def visit_call_(self, call: Any) -> Any:
        arguments = [self._detached(argument) for argument in call.args]
        return relax.Call(call.op, arguments, call.attrs, call.ty_args, ret_ty=call.ty)

    def _detached(self, argument: Any) -> Any:
        if not (isinstance(argument, GenericConst) and isinstance(argument.value, Tensor)):
            return self.visit_expr(argument)
        array = constant_array(argument)
        if array.nbytes < LEAST_BYTES or not hasattr(np, str(argument.value.dtype)):
            return argument
        number = self._numbers.setdefault(array.ctypes.data, len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(array)
        getter = relax.ExternFunc(GETTER)
        index = tirx.const(number, "int64")
        return self.builder_.emit(relax.Call(getter, [index], ty_args=[argument.ty]))


def section(arrays: Sequence[np.ndarray], folder: Path, compiler: str) -> list[str]:
    """Object files that hold the arrays and the function that hands them out; none without arrays.

    Raises OSError if the folder's disk is full, CalledProcessError if the compiler fails.
    """
    if not arrays:
        return []
    import tvm_ffi

    rows, offset = [], 0
    with (folder / "weights.bin").open("wb") as file:
        for array in arrays:
            file.write(bytes(-offset % ALIGNED))
            offset += -offset % ALIGNED
            rows.append(_row(array, offset))
            np.ascontiguousarray(array).tofile(file)
            offset += array.nbytes
    (folder / "weights.S").write_text(_SECTION)
    (folder / "getter.c").write_text(_GETTER.replace("ROWS", ",\n    ".join(rows)))
    include = [f"-I{path}" for path in tvm_ffi.libinfo.include_paths()]
    objects = []
    for source, language in (("weights.S", "assembler-with-cpp"), ("getter.c", "c")):
        made = f"{Path(source).stem}.o"
        command = [compiler, "-x", language, "-O2", "-fPIC", *include, "-c", source, "-o", made]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        objects.append(str(folder / made))
    return objects


def _row(array: np.ndarray, offset: int) -> str:
    code = {"i": 0, "u": 1, "f": 2, "b": 6}[array.dtype.kind]
    shape = ", ".join(map(str, array.shape))
    bits, rank = 8 * array.itemsize, array.ndim
    return f"{{{offset}LL, {rank}, {{{code}, {bits}, 1}}, (int64_t[]){{{shape}}}}}"


_SECTION = """\
/* Sections marked large lie behind the code, so that it keeps its short jumps. */
#if defined(__x86_64__)
  .section .lrodata.tvm_ext, "al", @progbits
#else
  .section .rodata.tvm_ext, "a"
#endif
  .balign 4096
  .globl tvm_ext_weights
  .hidden tvm_ext_weights
tvm_ext_weights:
  .incbin "weights.bin"
  .section .note.GNU-stack, "", %progbits
"""

_GETTER = """\
#include <tvm/ffi/c_api.h>

extern const char tvm_ext_weights[] __attribute__((visibility("hidden")));

static const struct {
  int64_t offset;
  int32_t rank;
  DLDataType dtype;
  int64_t* shape;
} rows[] = {
    ROWS};

enum { COUNT = sizeof(rows) / sizeof(rows[0]) };
static DLManagedTensor views[COUNT];
static TVMFFIObjectHandle made[COUNT];

/* A view of one weight, made at its first use and kept as long as the library. */
__attribute__((visibility("default"))) int __tvm_ffi_tvm_ext_weight(
    void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  int64_t row = args[0].v_int64;
  TVMFFIObjectHandle view = __atomic_load_n(&made[row], __ATOMIC_ACQUIRE);
  if (!view) {
    DLManagedTensor* own = &views[row];
    own->dl_tensor.data = (void*)(tvm_ext_weights + rows[row].offset);
    own->dl_tensor.device = (DLDevice){kDLCPU, 0};
    own->dl_tensor.ndim = rows[row].rank;
    own->dl_tensor.dtype = rows[row].dtype;
    own->dl_tensor.shape = rows[row].shape;
    if (TVMFFITensorFromDLPack(own, 64, 0, &view)) return -1;
    TVMFFIObjectHandle none = 0;
    if (!__atomic_compare_exchange_n(&made[row], &none, view, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE)) {
      TVMFFIObjectDecRef(view);
      view = none;
    }
  }
  TVMFFIObjectIncRef(view);
  result->type_index = kTVMFFITensor;
  result->zero_padding = 0;
  result->v_obj = (TVMFFIObject*)view;
  return 0;
}
"""
