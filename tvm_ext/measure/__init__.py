"""Latency of scheduled kernels on this machine, from a process that no candidate can harm.

    job      Job, OutputCheck in; Outcome, Failure out
    inputs   Argument, make_inputs: the data of a job, the same wherever it is made
    run      Measurer: what callers use
    remote   the worker process seen from the tuner
    worker   the worker process seen from inside: compile a batch, fork a child per kernel
    build    PrimFunc to machine code, on several threads
    sandbox  verify and time one kernel in a forked child

Way of a job: Measurer -> remote -> worker -> build -> sandbox -> Outcome back.
"""

from tvm_ext.measure.inputs import Argument, make_inputs
from tvm_ext.measure.job import Failure, Job, Outcome, OutputCheck
from tvm_ext.measure.run import Measurer

__all__ = ["Argument", "Failure", "Job", "Measurer", "Outcome", "OutputCheck", "make_inputs"]
