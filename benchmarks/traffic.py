"""Memory traffic with each fusion and without: what the model says beside what a cache does.

    python benchmarks/traffic.py                              # the chains of chains.py
    python benchmarks/traffic.py bench_models/light_squeezenet.onnx --cache 65536

Every form is compiled for one core with AVX2 and run under cachegrind (`valgrind` must be
installed), whose last cache is made smaller than the tensors. Traffic is the lines that runs after
the first bring into it, `modelled` what kernels read and write if each finds nothing in a cache.
Exits with 1 if modelled and measured traffic do not fall together, with 2 on bad arguments.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import engines
import onnx
from chains import CHAINS, attention, chain

import tvm_ext
from tvm_ext.tvm_api import tvm

TARGET = "cpu/x86-avx2"  # what cachegrind knows
LINE_BYTES = 64
FIRST_LEVEL = f"32768,8,{LINE_BYTES}"
RUNS = 5
FORMS: dict[str, tuple[str, ...]] = {"fused": ()} | engines.FORMS
RUN = """
import sys, numpy, tvm_ext
model = tvm_ext.load(sys.argv[1], num_threads=1)
given = [numpy.ones(one.shape, one.dtype) for one in model.inputs]
for _ in range(int(sys.argv[2])):
    model(*given)
"""


class Traffic(NamedTuple):
    """Of one run of one form."""

    kernels: int
    modelled_mb: float
    measured_mb: float


def misses(log: str) -> int:
    """Lines fetched into the last cache, by cachegrind's summary. ValueError without one."""
    found = re.search(r"LLd misses:\s*([\d,]+)", log)
    if found is None:
        raise ValueError(f"cachegrind said nothing of its last cache: {log[-300:]}")
    return int(found[1].replace(",", ""))


def fetched(artifact: Path, runs: int, cache_bytes: int) -> int:
    """Lines that so many runs of an artifact bring into the last cache, loading it among them."""
    simulated = [
        f"--D1={FIRST_LEVEL}",
        f"--I1={FIRST_LEVEL}",
        f"--LL={cache_bytes},16,{LINE_BYTES}",
    ]
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=yes", *simulated]
    command += ["--cachegrind-out-file=/dev/null", sys.executable, "-c", RUN]
    done = subprocess.run(
        [*command, str(artifact), str(runs)], capture_output=True, text=True, check=True
    )
    return misses(done.stderr)


def traffic(model: Any, left_out: tuple[str, ...], cache_bytes: int) -> Traffic:
    """That of a model compiled without some passes."""
    with tvm.transform.PassContext(disabled_pass=list(left_out)):
        compiled = tvm_ext.compile(model, TARGET, num_threads=1)
    groups = compiled.manifest.groups
    modelled = sum(group.calls * group.io_bytes for group in groups)
    with tempfile.TemporaryDirectory() as folder:
        artifact = compiled.save(Path(folder) / "model.so")
        once, more = (fetched(artifact, runs, cache_bytes) for runs in (1, 1 + RUNS))
    measured = (more - once) * LINE_BYTES / RUNS
    return Traffic(sum(group.calls for group in groups), modelled / 1e6, measured / 1e6)


def fall_together(found: dict[str, Traffic]) -> bool:
    """Whether of two forms the one with less modelled traffic also has less measured."""
    forms = list(found.values())
    pairs = [(a, b) for a in forms for b in forms if a.modelled_mb < 0.9 * b.modelled_mb]
    return all(a.measured_mb < b.measured_mb for a, b in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="*", type=Path, help="ONNX files; the chains without any")
    parser.add_argument("--rows", type=int, default=256, help="of the chains")
    parser.add_argument("--columns", type=int, default=768, help="of the chains")
    parser.add_argument("--cache", type=int, default=1 << 18, help="bytes of the last cache")
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("traffic: valgrind is not installed; install it to count cache lines")
        return 2
    models: dict[str, Any] = {path.stem: onnx.load(str(path)) for path in args.models}
    if not models:
        models = {name: chain(name, args.rows, args.columns) for name in CHAINS}
        models["attention"] = attention(args.rows)
    head = "".join(f"{form:>28}" for form in FORMS)
    print(f"{'':20}{head}\n{'kernels, MB':20}" + f"{'n':>8}{'modelled':>10}{'measured':>10}" * 3)
    figures, wrong = {}, []
    for name, model in models.items():
        found = {form: traffic(model, passes, args.cache) for form, passes in FORMS.items()}
        figures[name] = {form: one._asdict() for form, one in found.items()}
        cells = (
            f"{n:8}{modelled:10.2f}{measured:10.2f}" for n, modelled, measured in found.values()
        )
        together = fall_together(found)
        wrong += [] if together else [name]
        print(f"{name:20}" + "".join(cells) + ("" if together else "  not together"), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"cache_bytes": args.cache, "models": figures}, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
