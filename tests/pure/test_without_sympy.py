"""sympy comes when somebody uses it, and is the real one for everybody else."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTED = (
    "import sys\n"
    "from tvm_ext.without_sympy import without_sympy\n"
    "with without_sympy():\n"
    "    import onnx_ir\n"
)


def check(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "use",
    [
        "assert 'sympy' not in sys.modules",
        "shape = onnx_ir.Shape(['n', 3]); assert 'sympy' not in sys.modules; shape[0] + 1",
        "assert str(onnx_ir.SymbolicDim('max(n, 4)').simplify()).lower() == 'max(4, n)'",
        "assert (onnx_ir.SymbolicDim('n') * 2 + 3).evaluate({'n': 5}) == 13",
        "import sympy; assert sympy.Symbol('n') + 0 == sympy.Symbol('n')",
        "import sympy; assert onnx_ir.SymbolicDim(sympy.Symbol('n') + 1).value == 'n + 1'",
    ],
)
def test_it_is_there_when_it_is_used(use: str) -> None:
    check(IMPORTED + use)


def test_one_that_is_there_stays() -> None:
    check(f"import sympy\n{IMPORTED}assert onnx_ir._core.sympy is sympy is sys.modules['sympy']")
