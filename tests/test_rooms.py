"""The house rules of the package, read from its imports: who may know whom, and what loads what."""

from __future__ import annotations

import ast
import graphlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tvm_ext"

LEVELS = {
    0: {
        "amx_permission",
        "arguments",
        "command",
        "cuda_libraries",
        "errors",
        "extents",
        "flags",
        "garbage",
        "one_at_a_time",
        "shield",
        "stand_by",
        "tvm_amx",
        "tvm_api",
        "tvm_counted",
        "tvm_dots",
        "tvm_extremes",
        "tvm_indices",
        "tvm_lowering",
        "tvm_pairs",
        "tvm_rounding",
        "tvm_stack",
        "tvm_masks",
        "tvm_steal",
        "tvm_strides",
        "tvm_tables",
        "vectors",
        "without_sympy",
        "without_torch",
    },
    1: {"tile", "hardware"},
    2: {"records", "tir", "frontend", "compute"},
    3: {"picker", "search", "measure", "graph", "report"},
    4: {"runtime"},
    5: {
        *(
            "assembly",
            "bounds",
            "check",
            "check_session",
            "check_steps",
            "costs",
            "edge_levels",
            "head_start",
            "loops",
            "planner",
            "verify",
            "passes",
            "flow",
            "source",
        ),
        *("symbolic", "symbolic_attention", "elastic"),
        *("trials", "tuner", "tuning"),
        *("metaschedule", "metaschedule_export", "metaschedule_import"),
    },
    6: {"cli"},
    7: {"tune", "compile", "replay", "run", "logs", "serve", "report.__main__"},
}
LEVEL = {room: level for level, rooms in LEVELS.items() for room in rooms}
SINGLE_FILES = (0, 5)
"""Rooms of these levels are one file each, and may import each other without a cycle."""

FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """`tir.write_tile`, `flow`, or the empty text for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {f"tvm_ext.{module_name(path)}" for path in FILES}


def room_of(module: str) -> str:
    """The room a module belongs to; `report.__main__` is a command, not a report."""
    return module if module in LEVEL else module.partition(".")[0]


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in the file, by its full name.

    `from tvm_ext.hardware import isa` gives `tvm_ext.hardware.isa`, because that is a module.
    """
    package = ["tvm_ext", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *base.split(".")])
            within = {f"{base}.{alias.name}" for alias in node.names}
            yield from sorted(within & MODULES)
            if not within <= MODULES and base != "tvm_ext":
                yield base


def ours(path: Path) -> Iterator[str]:
    """The package's own modules that a file imports, without the package's name."""
    prefix = "tvm_ext."
    yield from (name.removeprefix(prefix) for name in imports(path) if name.startswith(prefix))


def packages(path: Path) -> set[str]:
    """Top-level packages that a file imports from elsewhere."""
    return {name.partition(".")[0] for name in imports(path)} - {"tvm_ext", "__future__"}


def files_of(room: str) -> list[Path]:
    return [path for path in FILES if room_of(module_name(path)) == room]


def test_every_file_has_a_room() -> None:
    rooms = {room_of(module_name(path)) for path in FILES} - {""}
    assert rooms <= set(LEVEL), "a new room needs a level"


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_name(path) or "tvm_ext")
def test_imports_go_down(path: Path) -> None:
    room = room_of(module_name(path))
    if room == "":
        return
    for other in map(room_of, ours(path)):
        if other == room or LEVEL[other] == LEVEL[room] in SINGLE_FILES:
            continue
        assert LEVEL[other] < LEVEL[room], f"{room} must not import {other}"


def test_no_cycles_among_modules() -> None:
    graph = {module_name(path): set(ours(path)) for path in FILES if module_name(path)}
    graphlib.TopologicalSorter(graph).prepare()


def test_the_package_itself_imports_lazily() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    eager = [node for node in tree.body if not is_type_checking(node)]
    names = [ast.unparse(n) for n in eager if isinstance(n, ast.Import | ast.ImportFrom)]
    assert not [name for name in names if "tvm" in name]


@pytest.mark.parametrize("path", files_of("tile"), ids=module_name)
def test_tile_needs_nothing_but_msgspec(path: Path) -> None:
    assert packages(path) <= {"msgspec", *sys.stdlib_module_names}
    assert {room_of(name) for name in ours(path)} <= {"tile", "errors"}


@pytest.mark.parametrize("path", [*files_of("picker"), *files_of("search")], ids=module_name)
def test_choosing_a_plan_needs_no_tvm(path: Path) -> None:
    assert "tvm" not in packages(path)
    assert "tvm_api" not in ours(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_name(path) or "tvm_ext")
def test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def loaded_by(statement: str) -> tuple[float, set[str]]:
    """Seconds of processor time a fresh Python spends on an import, and the packages it loads."""
    code = (
        "import json, sys, time; start = time.process_time(); before = set(sys.modules)\n"
        f"{statement}\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(json.dumps([time.process_time() - start, sorted(loaded)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    seconds, loaded = json.loads(done.stdout.splitlines()[-1])
    return seconds, set(loaded)


def test_importing_the_package_is_light() -> None:
    seconds, loaded = loaded_by("import tvm_ext")
    assert seconds < 1.0
    assert not loaded & {"tvm", "onnx", "xgboost", "numpy"}


def test_choosing_a_plan_loads_no_tvm() -> None:
    _, loaded = loaded_by("import tvm_ext.picker, tvm_ext.search, tvm_ext.hardware")
    assert not loaded & {"tvm", "onnx", "xgboost"}


def test_torch_is_not_imported_and_can_be_afterwards(tmp_path: Path) -> None:
    """tvm_ffi imports it wherever it finds it: here, an empty module of that name."""
    (tmp_path / "torch.py").write_text("")
    code = (
        "import sys, tvm_ext.flow, tvm_ext.tuner; from tvm_ext.runtime.machine import ffi; ffi()\n"
        "assert 'torch' not in sys.modules; import torch; print(torch.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{PACKAGE.parent}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == str(tmp_path / "torch.py"), done.stderr


def test_a_deployment_machine_needs_neither_compiler_nor_xgboost_nor_onnx() -> None:
    _, loaded = loaded_by("import tvm_ext.runtime.executor")
    assert not loaded & {"tvm", "xgboost", "onnx", "onnxruntime"}
