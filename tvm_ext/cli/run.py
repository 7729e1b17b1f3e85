"""`python -m tvm_ext.run`: run an artifact on given or random inputs, and time it."""

from __future__ import annotations

import argparse
import os
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tvm_ext.cli.common import (
    Answer,
    CommandError,
    Parser,
    add_common,
    check_output,
    natural,
    positive,
    run_main,
)
from tvm_ext.errors import InputError

REPEATS = 20
"""Runs that are timed where no number is given."""


def make_parser() -> Parser:
    """The command's arguments."""
    parser = Parser(
        prog="python -m tvm_ext.run",
        description="Run a compiled model once, and print what its outputs look like.",
        example="python -m tvm_ext.run model.so --input image.npz --output result.npz --time",
    )
    parser.add_argument("artifact", metavar="model.so")
    parser.add_argument(
        "--input", metavar="x.npz", help="inputs by name, as numpy.savez writes them (random ones)"
    )
    parser.add_argument("--output", metavar="out.npz", help="file to write the outputs to, by name")
    parser.add_argument("--seed", type=natural, default=0, help="of the random inputs (0)")
    parser.add_argument("--time", action="store_true", help="time it")
    parser.add_argument(
        "--repeats", type=positive, metavar="N", help=f"runs that are timed ({REPEATS})"
    )
    add_common(parser)
    return parser


def work(args: argparse.Namespace) -> Answer:
    """Runs the artifact and describes its outputs."""
    if args.repeats is not None and not args.time:
        raise CommandError(f"--repeats {args.repeats}: counts runs that are timed; add --time")
    output = None if args.output is None else check_output(args.output, ".npz")
    given = None if args.input is None else read_npz(Path(args.input))

    from tvm_ext.runtime.executor import load
    from tvm_ext.runtime.profile import random_inputs

    compiled = load(args.artifact, args.threads)
    inputs = given
    if inputs is None:
        arrays = random_inputs(compiled.inputs, args.seed, compiled.manifest.extents())
        inputs = {info.name: x for info, x in zip(compiled.inputs, arrays, strict=True)}
    arrays = compiled(inputs)
    names = [info.name for info in compiled.outputs]
    if output is not None:
        write_npz(output, dict(zip(names, arrays, strict=True)))
    described = [describe(name, array) for name, array in zip(names, arrays, strict=True)]
    data: dict[str, Any] = {
        "artifact": args.artifact,
        "model": compiled.manifest.model,
        "inputs": "random" if given is None else args.input,
        "outputs": described,
    }
    lines = [f"ran {args.artifact} on {'random inputs' if given is None else args.input}"]
    lines += [
        f"  {entry['name']}  {entry['dtype']} {tuple(entry['shape'])}  "
        f"mean {entry['mean']:.6g}  std {entry['std']:.6g}"
        for entry in described
    ]
    if output is not None:
        data["output"] = str(output)
        lines.append(f"outputs   {output}")
    if args.time:
        repeats = args.repeats or REPEATS
        times = compiled.seconds(inputs, repeats=repeats)
        data |= {
            "median_ms": 1e3 * median(times),
            "min_ms": 1e3 * min(times),
            "repeats": repeats,
            "num_threads": compiled.manifest.num_threads,
        }
        lines.append(
            f"latency   median {data['median_ms']:.3f} ms, min {data['min_ms']:.3f} ms, "
            f"{repeats} runs"
        )
    return Answer("\n".join(lines), data)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name. Raises InputError if it is missing or is none."""
    remedy = "write it with numpy.savez(path, name=array)"
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise InputError(f"input {path}: holds one array without a name; {remedy}")
        with content:
            return {name: content[name] for name in content.files}
    except FileNotFoundError:
        raise InputError(f"input {path}: no such file; check the path") from None
    except OSError as error:
        raise InputError(f"input {path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"input {path}: not an .npz file of plain arrays; {remedy}") from error


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays by name, whole or not at all; numpy.savez cannot take every name.

    Raises CommandError if the disk is full.
    """
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tvm_ext-") as folder:
            draft = Path(folder) / path.name
            with zipfile.ZipFile(draft, "w", allowZip64=True) as archive:
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, allow_pickle=False)
            os.replace(draft, path)
    except OSError as error:
        raise CommandError(
            f"output {path}: {error.strerror or error}; nothing was written"
        ) from error


def describe(name: str, array: np.ndarray) -> dict[str, Any]:
    """An output as people look at it first."""
    values = array.astype(np.float64)
    return {
        "name": name,
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "mean": float(values.mean()) if array.size else 0.0,
        "std": float(values.std()) if array.size else 0.0,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run_main(make_parser(), work, argv)
