"""What people read: tables of kernels, tasks and records as text. Works from data alone, no TVM.

    text        drawing with rich, loaded only then; numbers as people write them
    groups      the kernels of an artifact, their plans and why some fell back
    fusions     which memory-bound kernels became one, and why others stayed apart
    roofline    the same beside what the machine allows
    picture     the roofline drawn, with matplotlib;  tile_graph: calls, stages, and their edges
    tune_table  the tasks of a model while it is tuned
    log_tables  what a tuning log holds

`python -m tvm_ext.report model.so` prints the table of `groups`; the command is in `tvm_ext.cli`.
"""
