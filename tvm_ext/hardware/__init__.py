"""Machines: what the rest of the package knows of them, from static presets or measurement.

model    `HardwareModel`, `MemoryLevel`: pure data, start here
isa      names of instruction sets; what they mean for width and peak; what LLVM says of a CPU
roofline  least time of arithmetic and traffic on a machine
catalog  presets for machines that are not at hand
system   this machine as /proc and /sys describe it: cores, caches, features
kernels  the micro-benchmarks' kernels, built with TVM
probe    runs them in a child process; `python -m tvm_ext.hardware.probe` prints the result
host     `host()`: this machine, probed once per user and kept
resolve  `resolve(target)`: from "cpu", a catalog name or a TVM target to a `HardwareModel`
"""

from tvm_ext.hardware.catalog import get, names
from tvm_ext.hardware.host import host
from tvm_ext.hardware.model import HardwareModel, MemoryLevel
from tvm_ext.hardware.resolve import resolve, runs_here
from tvm_ext.hardware.system import core_cpus, cpu_features, physical_cores

__all__ = [
    "HardwareModel",
    "MemoryLevel",
    "core_cpus",
    "cpu_features",
    "get",
    "host",
    "names",
    "physical_cores",
    "resolve",
    "runs_here",
]
