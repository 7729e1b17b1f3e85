"""Latency of scheduled kernels on this machine, from a process that no candidate can harm.

    job      Job, OutputCheck in; Outcome, Failure out
    inputs   Argument, make_inputs: the data of a job, the same wherever it is made
    run      Measurer: what callers use
    remote   the worker process seen from the tuner
    worker   the worker process seen from inside: compile a batch, have it run
    build    PrimFunc to machine code, on several threads
    runner   a forked child for the kernels of a batch, another where one ends it
    sandbox  what it does with each: verify and time

Way of a job: Measurer -> remote -> worker -> build -> runner -> sandbox -> Outcome back.

The same on other machines, through TVM's RPC (docs/fleet.md):

    fleet         FleetMeasurer: what callers use
    fleet_worker  its process: a batch from beginning to end, tried again where a device is lost
    fleet_child   a process forked from it for one step of one job
    fleet_build   one step: PrimFunc to a shared object
    fleet_run     the other: borrow a device, verify and time the kernel there
    tracker       TVM's tracker as a client sees it
    device        the server on a device, and the tracker: what python -m tvm_ext.serve runs

FleetMeasurer -> fleet_worker -> fleet_build, then fleet_run -> device -> Outcome back.
"""

from tvm_ext.measure.inputs import Argument, make_inputs
from tvm_ext.measure.job import Failure, Job, Outcome, OutputCheck
from tvm_ext.measure.run import Measurer

__all__ = ["Argument", "Failure", "Job", "Measurer", "Outcome", "OutputCheck", "make_inputs"]
