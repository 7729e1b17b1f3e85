"""Weights behind the artifact's code, not inside it: read once, or mapped from the file.

TVM keeps constants inside its executable, which is kept inside the library as text: loading copies
them twice. Here the VM's code asks for a weight by its number, and gets a view of the file:

    kernel(x, constant, y)   →   w = tvm_ext_weight(7); kernel(x, w, y)

    model.so:  library | 0 … | weights from a whole page on | mark

They are read when the library is opened, into pages of 2 MB where the system hands these out: a
run goes through all weights, and with one translation for every 4 KB waits for a good part of them
(ResNet-18 1.06 times as fast, ResNet-50 1.03, VGG-19 1.02 to 1.04, BERT-base 1.01). Where it does
not, where they are few, and where `TVM_EXT_SHARE_WEIGHTS=1` asks for it they are mapped: pages
arrive when kernels first touch them, are shared by all processes that run the artifact, and can be
dropped.

As a section of the library weights were written three times, by the assembler and the linker too:
of the 9 s that saving BERT-base took, 7. A GPU has a copy of each weight, made when it is first
asked for.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from tvm_ext.runtime.artifact import WEIGHT_FUNCTION
from tvm_ext.tvm_api import GenericConst, IRModule, Tensor, constant_array, relax, rewritten, tirx

LEAST_BYTES = 1 << 16
"""Smaller constants stay where TVM keeps them: asking for one costs 0.1 us a run."""
ALIGNED = 64
"""What kernels assume of a tensor's address."""
PAGE_BYTES = 1 << 16
"""Largest page of the machines at hand: files are mapped from a multiple of it on."""
MARK = "tvm_ext: weights end here"
SHARE = "TVM_EXT_SHARE_WEIGHTS"
"""Where it is 1 while an artifact is loaded, its weights are mapped."""


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
        weight = relax.ExternFunc(WEIGHT_FUNCTION)
        index = tirx.const(number, "int64")
        return self.builder_.emit(relax.Call(weight, [index], ty_args=[argument.ty]))


def getter(
    arrays: Sequence[np.ndarray], folder: Path, compiler: str, device: str = "cpu"
) -> list[str]:
    """The object file of the function that hands the arrays out, on a device; none without arrays.

    Raises OSError if the folder's disk is full, CalledProcessError if the compiler fails.
    """
    if not arrays:
        return []
    import tvm_ffi

    rows = map(_row, arrays, _offsets(arrays))
    known = {
        "ROWS": ",\n    ".join(rows),
        "BYTES": str(_end(arrays)),
        "MARK": MARK,
        "DEVICE": f"kDL{device.upper()}",
        "SHARE": SHARE,
    }
    source = folder / "getter.c"
    source.write_text(Template(_GETTER).substitute(known))
    return [object_file(source, folder, compiler, *tvm_ffi.libinfo.include_paths())]


def object_file(source: Path, folder: Path, compiler: str, *include: str) -> str:
    """Compiles a C file; where its object file is. CalledProcessError if the compiler fails."""
    made = folder / f"{source.stem}.o"
    options = ["-x", "c", "-O2", "-fPIC", "-pthread", *(f"-I{path}" for path in include)]
    command = [compiler, *options, "-c", str(source), "-o", str(made)]
    # signals as they are here: a limit on the size of files is then an error that is reported
    subprocess.run(command, check=True, capture_output=True, text=True, restore_signals=False)
    return str(made)


def append(arrays: Sequence[np.ndarray], path: Path) -> None:
    """Writes the arrays behind the library, once each, where its getter looks for them.

    Raises OSError if the disk is full.
    """
    if not arrays:
        return
    with path.open("ab") as file:
        start = file.tell() + -file.tell() % PAGE_BYTES
        for array, offset in zip(arrays, _offsets(arrays), strict=True):
            file.write(bytes(start + offset - file.tell()))
            file.write(np.ascontiguousarray(array).data)
        file.write(MARK.encode())


def _offsets(arrays: Sequence[np.ndarray]) -> list[int]:
    sizes = (array.nbytes + -array.nbytes % ALIGNED for array in arrays)
    return list(accumulate(sizes, initial=0))[:-1]


def _end(arrays: Sequence[np.ndarray]) -> int:
    return _offsets(arrays)[-1] + arrays[-1].nbytes


def _row(array: np.ndarray, offset: int) -> str:
    code = {"i": 0, "u": 1, "f": 2, "b": 6}[array.dtype.kind]
    shape = ", ".join(map(str, array.shape))
    bits, rank = 8 * array.itemsize, array.ndim
    return f"{{{offset}LL, {rank}, {{{code}, {bits}, 1}}, (int64_t[]){{{shape}}}}}"


_GETTER = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

#ifndef MADV_HUGEPAGE
#define MADV_HUGEPAGE 14 /* of Linux; elsewhere nobody says that there are any */
#endif

static const struct {
  int64_t offset;
  int32_t rank;
  DLDataType dtype;
  int64_t* shape;
} rows[] = {
    $ROWS};

enum { COUNT = sizeof(rows) / sizeof(rows[0]) };
static const int64_t bytes = ${BYTES}LL;
static const char mark[] = "$MARK";
static DLManagedTensor views[COUNT];
static TVMFFIObjectHandle made[COUNT];
static char* weights;
static void* held; /* what they lie in, and its size */
static int64_t held_bytes;

/* Whether the system hands out large pages to those who ask. */
static int has_huge_pages(void) {
  char modes[64] = {0};
  int file = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  ssize_t count = read(file, modes, sizeof(modes) - 1);
  close(file);
  return count > 0 && !strstr(modes, "[never]");
}

/* The weights read into large pages; none if that cannot be or is not wanted. */
static char* read_weights(int file, int64_t start) {
  enum { HUGE = 1 << 21 };
  const char* share = getenv("$SHARE");
  int mapped = share && strcmp(share, "0");
  if ($DEVICE != kDLCPU || bytes < HUGE || mapped || !has_huge_pages()) return 0;
  int64_t size = bytes + HUGE;
  char* all = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return 0;
  char* first = all + (HUGE - (uintptr_t)all % HUGE) % HUGE;
  madvise(first, bytes, MADV_HUGEPAGE);
  for (int64_t done = 0; done < bytes;) {
    ssize_t more = pread(file, first + done, bytes - done, start + done);
    if (more <= 0) {
      munmap(all, size);
      return 0;
    }
    done += more;
  }
  mprotect(all, size, PROT_READ);
  held = all;
  held_bytes = size;
  return first;
}

static char* map_weights(int file, int64_t start) {
  void* mapped = mmap(0, bytes, PROT_READ, MAP_PRIVATE, file, start);
  if (mapped == MAP_FAILED) return 0;
  held = mapped;
  held_bytes = bytes;
  return mapped;
}

/* While the library is opened its path still means its file, whatever the process does later. */
__attribute__((constructor)) static void find_weights(void) {
  Dl_info own;
  struct stat is;
  char last[sizeof(mark) - 1];
  int file = dladdr(rows, &own) ? open(own.dli_fname, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  int64_t end = fstat(file, &is) ? -1 : (int64_t)is.st_size - (int64_t)sizeof(last);
  if (end >= bytes && pread(file, last, sizeof(last), end) == sizeof(last) &&
      !memcmp(last, mark, sizeof(last))) {
    weights = read_weights(file, end - bytes);
    if (!weights) weights = map_weights(file, end - bytes);
  }
  close(file);
}

__attribute__((destructor)) static void drop_weights(void) {
  if (held) munmap(held, held_bytes);
}

/* A tensor of the CPU becomes its copy on the device. */
static int move(TVMFFIObjectHandle* tensor) {
  static const TVMFFIByteArray name = {"vm.builtin.to_device", 20};
  TVMFFIObjectHandle function = 0;
  TVMFFIAny given[3] = {{0}}, copied = {0};
  if (TVMFFIFunctionGetGlobal(&name, &function)) return -1;
  given[0].type_index = kTVMFFITensor;
  given[0].v_obj = (TVMFFIObject*)*tensor;
  given[1].type_index = given[2].type_index = kTVMFFIInt;
  given[1].v_int64 = $DEVICE;
  int failed = TVMFFIFunctionCall(function, given, 3, &copied);
  TVMFFIObjectDecRef(function);
  TVMFFIObjectDecRef(*tensor);
  *tensor = (TVMFFIObjectHandle)copied.v_obj;
  return failed;
}

/* One weight, a view or a copy, made at its first use and kept as long as the library. */
__attribute__((visibility("default"))) int __tvm_ffi_tvm_ext_weight(
    void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  int64_t row = args[0].v_int64;
  if (!weights) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError",
                                 "its weights are missing: the file was cut short or stripped");
    return -1;
  }
  TVMFFIObjectHandle view = __atomic_load_n(&made[row], __ATOMIC_ACQUIRE);
  if (!view) {
    DLManagedTensor* own = &views[row];
    own->dl_tensor.data = weights + rows[row].offset;
    own->dl_tensor.device = (DLDevice){kDLCPU, 0};
    own->dl_tensor.ndim = rows[row].rank;
    own->dl_tensor.dtype = rows[row].dtype;
    own->dl_tensor.shape = rows[row].shape;
    if (TVMFFITensorFromDLPack(own, 64, 0, &view)) return -1;
    if ($DEVICE != kDLCPU && move(&view)) return -1;
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
