"""tvm_ext: makes a trained model fast on the machine at hand, as an extension of Apache TVM.

    compiled = tvm_ext.compile("model.onnx")     seconds, nothing measured
    compiled = tvm_ext.tune("model.onnx")        measured, with a log to replay
    compiled = tvm_ext.load("model.so")          an artifact made earlier
    tvm_ext.tune_tir(primfunc)                   the same for one TensorIR function
    tvm_ext.passes                               the Relax passes, for flows of your own

Reading guide: `tile` is the vocabulary, `flow` the place where everything meets.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_ext import hardware as targets
    from tvm_ext import passes
    from tvm_ext.check import check_model
    from tvm_ext.flow import compile, replay
    from tvm_ext.runtime.executor import load
    from tvm_ext.tuner import tune, tune_all, tune_tir

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "check_model",
    "compile",
    "load",
    "passes",
    "replay",
    "targets",
    "tune",
    "tune_all",
    "tune_tir",
]

_WHERE = {
    "check_model": ("tvm_ext.check", "check_model"),
    "compile": ("tvm_ext.flow", "compile"),
    "replay": ("tvm_ext.flow", "replay"),
    "load": ("tvm_ext.runtime.executor", "load"),
    "tune": ("tvm_ext.tuner", "tune"),
    "tune_all": ("tvm_ext.tuner", "tune_all"),
    "tune_tir": ("tvm_ext.tuner", "tune_tir"),
    "passes": ("tvm_ext.passes", ""),
    "targets": ("tvm_ext.hardware", ""),
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tvm_ext' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return __all__
