"""Running and shipping a compiled model. Imports neither the tuner nor ONNX.

  executor   Compiled: call it, time it, save it, ask it for its report
  profile    the time every kernel takes inside the running model
  peak       the machine's peak of the moment, read beside what is timed
  machine    TVM's virtual machine without TVM's compiler
  artifact   one shared library that stock TVM loads, with its manifest inside
  kernel     a kernel's machine code: runs here, and is what the artifact is linked from
  export     writing it, with weights behind the code (weights)
  margin     an output with margins, and child: a process that a kernel may end
  threads    how many threads TVM's pool gets, decided once a process
  launch.c   the threads of an artifact, in place of TVM's pool; launcher: of kernels run here

What an artifact says of itself is `records.manifest`.
"""
