"""`Normalise`: the tidy form later passes expect: dataflow blocks, inference operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_ext.graph.common_subexpr import eliminate_common
from tvm_ext.tvm_api import IRModule, relax, tvm


@tvm.transform.module_pass(opt_level=0, name="Normalise")
@dataclass(frozen=True)
class Normalise:
    """Dataflow blocks everywhere (FuseOps sees nothing else), batch norm taken apart, common
    subexpressions once, dead code gone."""

    def transform_module(self, mod: IRModule, _: Any) -> IRModule:
        """The tidy module; its meaning is unchanged."""
        transform = relax.transform
        tidied = tvm.transform.Sequential(
            [
                transform.ConvertToDataflow(),
                transform.CanonicalizeBindings(),
                transform.DecomposeOpsForInference(),
            ]
        )(mod)
        return transform.DeadCodeElimination()(eliminate_common(tidied))
