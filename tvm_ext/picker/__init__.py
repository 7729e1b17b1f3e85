"""The analytical picker: from tile graph and hardware model to ranked plans (Roller, OSDI'22).

  align  the few extents worth considering on a machine
  register  the register tiles made of them; amx: those for a matrix unit; halves: half vectors,
         where they are as fast
  order  of the loops
  perf   the time of a tiled stage from tile numbers alone; issue what one pass over a register
         tile issues; traffic what data costs on its way; weights how weights come to the cores;
         company what a plan costs the kernels before and after
  stream  groups that touch each byte once, row by row or element by element
  cycles  of a stage by one register tile
  chain  a product between two transforms (Winograd);  attention: a softmax between two products
  strassen  seven products of quarters
  chunk  how much of a long reduction a core's own cache holds
  strip  rows of several stages at a time, each piece planned by itself
  gpu    the same for thread blocks; gpu_perf the time of one
  pick   which stage to tile, by which rule, with which tiles;  whole: those that loops alone say

Pure Python over `tile` and `hardware`: no TVM, nothing measured, the same answer every time.
"""

from tvm_ext.picker.company import exchange_us
from tvm_ext.picker.perf import Candidate, Estimate, estimate
from tvm_ext.picker.pick import PICKED, pick, pick_strips
from tvm_ext.picker.predict import predict
from tvm_ext.picker.weights import PREFETCH_BYTES, packed_bytes
from tvm_ext.picker.whole import pick_whole

__all__ = [
    "PICKED",
    "PREFETCH_BYTES",
    "Candidate",
    "Estimate",
    "estimate",
    "exchange_us",
    "packed_bytes",
    "pick",
    "pick_strips",
    "pick_whole",
    "predict",
]
