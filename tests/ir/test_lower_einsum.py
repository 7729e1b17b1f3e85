"""Einsums that become matrix products, beside numpy's; and those that stay."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.graph.lower_einsum import Contraction, LowerEinsum, contraction, explicit
from tvm_ext.tvm_api import IRModule, ir, op_name, relax, tvm

EXTENTS = dict(zip("abchlktvij", (2, 3, 4, 3, 5, 7, 6, 8, 1, 2), strict=True))


def module(subscripts: str) -> tuple[IRModule, list[np.ndarray]]:
    """main(x, y, ...) = einsum(subscripts, x, y, ...), and random operands."""
    names, _ = explicit(subscripts)
    shapes = [[EXTENTS[letter] for letter in name] for name in names]
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(relax.op.einsum(params, subscripts)))
    source = np.random.default_rng(0)
    return builder.finalize(), [source.standard_normal(s, dtype="float32") for s in shapes]


def operators(mod: IRModule) -> set[str]:
    found: set[str] = set()
    relax.analysis.post_order_visit(mod["main"], lambda node: found.add(op_name(node)))
    return found


PRODUCTS = {
    "attention scores": "bhlk,bhtk->bhlt",
    "attention values": "bhlt,bhtv->bhlv",
    "heads inside": "blhk,bthk->bhlt",
    "result turned": "bhlt,bhtv->bvlh",
    "right before left": "ak,kb->ba",
    "several of each": "abk,kcv->acbv",
    "two summed": "akt,tkb->ab",
    "no rows": "bk,bkv->bv",
    "no columns": "bak,bk->ba",
    "neither": "bk,bk->b",
    "all summed": "kt,kt->",
    "implicit": "ck,ka",
    "spaces and an extent of one": "a i k, i k b -> a b i",
}


@pytest.mark.parametrize("subscripts", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_a_product(subscripts: str) -> None:
    mod, arrays = module(subscripts)
    lowered = LowerEinsum()(mod)
    assert "relax.matmul" in operators(lowered)
    assert "relax.einsum" not in operators(lowered)
    ir.assert_structural_equal(lowered["main"].ret_ty, mod["main"].ret_ty)
    executable = tvm.compile(relax.transform.LegalizeOps()(lowered), "llvm")
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays))
    np.testing.assert_allclose(result.numpy(), np.einsum(subscripts, *arrays), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "subscripts", ["ak->ka", "aka->k", "ak,bt->abkt", "akt,kb->ab", "ak,kb,bc->ac", "ak,ab->abk"]
)
def test_no_product(subscripts: str) -> None:
    if subscripts != "aka->k":
        mod, _ = module(subscripts)
        ir.assert_structural_equal(LowerEinsum()(mod), mod)
    assert contraction(*explicit(subscripts)) is None


def test_letters_have_their_place() -> None:
    assert contraction(["blhk", "bthk"], "bhlt") == Contraction("bh", "l", "t", "k")
    assert explicit("ck, ka") == (["ck", "ka"], "ac")
    assert contraction(["...k", "kb"], "...b") is None
