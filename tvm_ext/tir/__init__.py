"""Between TIR and tiles: PrimFuncs in, TileGraphs out; TilePlans in, schedules out.

read        blocks to nodes;  affine: their indices to maps of axes
prepare     inline what is free, number the stages;  join_axes: pixels counted by one axis,
            split_axes: phases and blocks by two
write       a plan to a schedule, one rule a file: write_tile, write_attention, ..;
            all those of GPUs in write_gpu; then tile_bounds and shift (tails), guard (padding read
            in place; margins: room for it), transpose (squares of vectors), matrices (of a matrix
            unit), prefetch (panels asked for ahead) and ahead (a task's data), both by requests
symbolic    extents that are not known: kernels as loops over tiles of known ones;
            write_open: what has no such tiles, in its own loops on all cores;
            least: with how few of them it still reads what there is
roll        several kernels, again and again, as one with the loop inside
generalise  kernels of one plan for several numbers as one for any
signature   what a function computes, independent of names
reference   what it should compute, in numpy (stages, expression, demand, evaluate, halves)
compare     which elements to check, and whether a kernel's are close enough
"""

from tvm_ext.tir.prepare import Prepared, prepare
from tvm_ext.tir.read import read
from tvm_ext.tir.reference import Reference
from tvm_ext.tir.signature import signature
from tvm_ext.tir.write import write

__all__ = ["Prepared", "Reference", "prepare", "read", "signature", "write"]
