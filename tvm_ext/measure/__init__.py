"""Latency of scheduled kernels on this machine. TVM is imported by every file but this one.

    job      Job, OutputCheck in; Outcome, Failure out
    inputs   Argument, make_inputs: the data of a job, the same wherever it is made
    run      Measurer: what callers use
    remote   the worker process seen from the tuner
    worker   the worker process seen from inside: compile a batch, fork a child per kernel
    build    PrimFunc to machine code, on several threads
    sandbox  verify and time one kernel in a forked child

Way of a job: Measurer -> remote -> worker -> build -> sandbox -> Outcome back.
"""
