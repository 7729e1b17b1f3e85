"""The analytical picker: from tile graph and hardware model to ranked plans (Roller, OSDI'22).

  align  the few extents worth considering on a machine
  perf   the time of a tiled stage from tile numbers alone
  pick   which stage to tile, by which rule, with which tiles

Pure Python over `tile` and `hardware`: no TVM, nothing measured, the same answer every time.
"""

from tvm_ext.picker.perf import Estimate, estimate, predict, roof
from tvm_ext.picker.pick import Candidate, pick

__all__ = ["Candidate", "Estimate", "estimate", "pick", "predict", "roof"]
