"""`Fuse`: operators into groups, one PrimFunc each, the unit that plans are made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_ext.tvm_api import IRModule, relax, tvm


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
                transform.FuseOps(),
                transform.FuseTIR(),
                transform.RewriteDataflowReshape(),
                transform.DeadCodeElimination(),
            ]
        )(mod)
