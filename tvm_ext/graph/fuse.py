"""`Fuse`: operators into groups, one PrimFunc each, the unit that plans are made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_ext.tvm_api import IRModule, PrimFunc, relax, tvm

ELEMENTWISE = "tvm_ext.elementwise"
"""Attribute of functions that work element by element where TVM does not see it: it takes a lookup
for something it must not fuse."""
_PATTERN, _BY_ELEMENT = "op_pattern", 0


@tvm.transform.module_pass(opt_level=0, name="MarkElementwise")
def _mark_elementwise(mod: IRModule, _: Any) -> IRModule:
    """Gives such functions TVM's own pattern, which it does not take from others."""
    result = mod.clone()
    for variable, function in mod.functions.items():
        if isinstance(function, PrimFunc) and function.attrs and ELEMENTWISE in function.attrs:
            result[variable] = function.with_attr(_PATTERN, _BY_ELEMENT)
    return result


@tvm.transform.module_pass(opt_level=0, name="Fuse")
@dataclass(frozen=True)
class Fuse:
    """Elementwise epilogues into convolutions and products, elementwise chains into each other, and
    elementwise producers into reductions, by TVM's pattern kinds. What only reshapes becomes a
    view."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """call_tir(conv); call_tir(add); call_tir(relu)  →  call_tir(fused_conv_add_relu)."""
        transform = relax.transform
        return tvm.transform.Sequential(
            [
                transform.AnnotateTIROpPattern(),
                _mark_elementwise,
                transform.FuseOps(),
                transform.FuseTIR(),
                transform.RewriteDataflowReshape(),
                transform.DeadCodeElimination(),
            ]
        )(mod)
