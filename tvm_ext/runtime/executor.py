"""`Compiled`: a model ready to run, from a fresh compile or a loaded artifact."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np

from tvm_ext.arguments import is_path, thread_count
from tvm_ext.errors import ArtifactError, InputError
from tvm_ext.extents import assigned, evaluated, names
from tvm_ext.hardware import cpu_features, physical_cores
from tvm_ext.hardware.isa import AMX
from tvm_ext.one_at_a_time import one_at_a_time
from tvm_ext.records.manifest import Manifest, TensorInfo
from tvm_ext.records.profile import Profile
from tvm_ext.runtime.artifact import copy, load_artifact
from tvm_ext.runtime.machine import Machine, shared, tensor, to_arrays, wait
from tvm_ext.runtime.profile import profile, random_inputs
from tvm_ext.runtime.threads import use_threads
from tvm_ext.tile.amx import INSTRUCTION

if TYPE_CHECKING:
    from tvm_ext.runtime.export import Parts


def load(path: str | os.PathLike[str], num_threads: int | None = None) -> Compiled:
    """Loads an artifact written by `Compiled.save`. Raises ArtifactError, TargetError.

    Needs TVM's runtime library only: neither its compiler nor ONNX is imported.
    """
    if not is_path(path):
        raise ArtifactError(f"artifact {path!r}: is no path; give that of a file")
    threads = thread_count(num_threads)
    use_threads(threads or physical_cores(), asked=threads is not None)
    module, manifest = load_artifact(Path(path))
    return Compiled(module, manifest, source=Path(path))


class Compiled:
    """A compiled model. Call it with a dict of arrays by name, or with arrays in model order.

    It has one set of activations: it serves one call at a time, and threads wait for each other.
    Load the artifact once per thread to run side by side.
    """

    def __init__(
        self,
        module: Any,
        manifest: Manifest,
        *,
        source: Path | None = None,
        parts: Callable[[], Parts] | None = None,
    ) -> None:
        self._module = module
        self._source = source
        self._parts = parts
        self._names = tuple(info.name for info in manifest.inputs)
        self._open = any(isinstance(e, str) for info in manifest.inputs for e in info.shape)
        self._device = manifest.device
        self._shares = manifest.anywhere and self._device == "cpu"
        self.manifest = manifest
        self._turn = RLock()

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What the model takes, in order."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What the model returns, in order."""
        return self.manifest.outputs

    def __call__(self, *given: Any, **named: Any) -> list[np.ndarray]:
        """Runs the model once. Raises InputError for a wrong name, count, dtype or shape, or for
        more along an extent that was left open than the model has values for.

        Inputs are not copied unless they have gaps or are read-only, large outputs not at all.
        """
        bound = self.bind(*given, **named)
        with self._turn:
            result = self._main(*(map(shared, bound) if self._shares else self._moved(bound)))
            return to_arrays(result, self.manifest.own_outputs)

    @cached_property
    def _main(self) -> Any:
        """The model's entry, loaded at first use: an artifact for another machine only ships.
        Raises ArtifactError where this CPU lacks what its kernels are made of."""
        if missing := self._missing():
            raise ArtifactError(
                f"artifact {self._source or self.manifest.model}: its kernels are for a CPU with "
                f"{', '.join(missing)}, which this one lacks or keeps back; compile it here"
            )
        return Machine(self._module, self._device, is_open=self._open).main

    def _missing(self) -> list[str]:
        """Instruction sets that kernels may use and this CPU lacks; AMX only where some do."""
        plans = (group.plan for group in self.manifest.groups if group.plan is not None)
        unit = any(part.instruction == INSTRUCTION for plan in plans for part in plan.parts())
        needed = {name for name in self.manifest.isa if unit or not name.startswith(AMX)}
        here = cpu_features()
        return sorted(needed.difference(here)) if here else []

    def bind(self, *arrays: Any, **named: Any) -> list[np.ndarray]:
        """The inputs as contiguous arrays in model order, checked."""
        given: dict[str, Any] = dict(named)
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            given |= arrays[0]
            arrays = ()
        names = self._names
        if len(arrays) > len(names):
            raise InputError(
                f"inputs: {len(arrays)} given, the model takes {len(names)}: {', '.join(names)}"
            )
        given |= zip(names, arrays, strict=False)
        if given.keys() != set(names):
            raise InputError(_other_names(given, names))
        checked = [_checked(info, given[info.name]) for info in self.inputs]
        if self._open:
            _check_alike(self.inputs, checked, self.manifest)
        return checked

    def _moved(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """Copies where the kernels run."""
        return [tensor(array, self._device) for array in arrays]

    def seconds(self, *arrays: Any, repeats: int = 10, **named: Any) -> list[float]:
        """Wall-clock seconds of `repeats` runs after one warm-up, inputs already in place."""
        tensors = self._moved(self.bind(*arrays, **named))
        times = []
        with self._turn:
            main = self._main
            main(*tensors)
            wait(self._device)
            for _ in range(repeats):
                start = time.perf_counter()
                main(*tensors)
                wait(self._device)
                times.append(time.perf_counter() - start)
        return times

    def profile(
        self,
        *arrays: Any,
        runs: int = 20,
        read_peak: Callable[[], float] | None = None,
        **named: Any,
    ) -> Profile:
        """Median time of every kernel while the model runs, on random inputs if none are given;
        `read_peak` tells the machine's peak beside every run (`runtime.peak.Peak.gflops`)."""
        given = bool(arrays or named)
        inputs = (
            self.bind(*arrays, **named)
            if given
            else random_inputs(self.inputs, extents=self.manifest.extents())
        )
        names = [group.name for group in self.manifest.groups]
        with self._turn:
            return profile(self._module, names, inputs, runs, read_peak, self._device)

    def save(
        self, path: str | os.PathLike[str], *, check: Callable[[], object] | None = None
    ) -> Path:
        """Writes one shared library that stock TVM loads. Raises ArtifactError, and what a `check`
        raises, which is called when all is linked: nothing has taken the path's place by then."""
        if self._source is not None:
            if check is not None:
                check()
            return copy(self._source, Path(path))
        if self._parts is None:
            raise ArtifactError(f"artifact {os.fspath(path)}: this model was made to run here only")
        from tvm_ext.runtime.export import export

        with one_at_a_time():
            return export(self._parts(), Path(path), self.manifest, check)

    def __reduce__(self) -> NoReturn:
        """Copying and pickling end here: machine code is no Python object. Raises ArtifactError."""
        raise ArtifactError(
            f"model {self.manifest.model}: cannot be copied or pickled; save(path) writes it, and "
            "tvm_ext.load(path) reads it again, in another process too"
        )

    @property
    def report(self) -> Report:
        """Every kernel with its plan, its bound and its fallback."""
        return Report(self.manifest)


class Report:
    """A readable view of a manifest: `print(compiled.report)`."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    def __str__(self) -> str:
        from tvm_ext.report.groups import groups_text

        return groups_text(self.manifest)

    def to_dict(self) -> dict[str, Any]:
        """The manifest as plain data, ready for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self.manifest)
        return plain


def _other_names(given: Iterable[str], names: Sequence[str]) -> str:
    """What is wrong with inputs that do not have the model's names."""
    unknown = sorted(set(given).difference(names))
    if unknown:
        return f"input {unknown[0]!r}: the model has no such input; it takes {', '.join(names)}"
    missing = next(name for name in names if name not in given)
    return f"input {missing!r}: not given; the model takes {', '.join(names)}"


_dtype_name = cache(str)
"""The name of a numpy type, which takes numpy longer to make than a small model to run."""


def _checked(info: TensorInfo, value: Any) -> np.ndarray:
    array = value if isinstance(value, np.ndarray) else _as_array(info, value)
    if _dtype_name(array.dtype) != info.dtype:
        raise InputError(
            f"input {info.name!r}: dtype {array.dtype}, the model takes {info.dtype}; "
            f"convert it with {'' if hasattr(value, 'astype') else 'numpy.asarray(x)'}"
            f".astype({info.dtype!r})"
        )
    if array.shape != info.shape and not _fits(array.shape, info.shape):
        raise InputError(
            f"input {info.name!r}: shape {array.shape}, the model was compiled for {info.shape}; "
            "compile again with other shapes"
        )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _as_array(info: TensorInfo, value: Any) -> np.ndarray:
    """Raises InputError for what numpy makes no numbers of."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        array = np.asarray(None)
    if array.dtype.kind in "OSU":
        raise InputError(
            f"input {info.name!r}: {type(value).__name__} is no array of numbers; give a numpy "
            f"array of {info.dtype} and shape {info.shape} (of a tensor, tensor.numpy())"
        )
    return array


def _fits(shape: tuple[int, ...], declared: tuple[int | str, ...]) -> bool:
    """Whether a shape is the declared one but for what is left open there."""
    return len(shape) == len(declared) and all(
        isinstance(known, str) or own == known for own, known in zip(shape, declared, strict=True)
    )


def _check_alike(
    infos: Sequence[TensorInfo], arrays: Sequence[np.ndarray], manifest: Manifest
) -> None:
    """Raises InputError where what is open has two values, or too small or large a one, and where a
    sum is not that of its names, each of which is somewhere an extent by itself."""
    found = [
        (text, extent, info.name)
        for info, array in zip(infos, arrays, strict=True)
        for extent, text in zip(array.shape, info.shape, strict=True)
        if isinstance(text, str)
    ]
    values: dict[str, int] = {}
    told: dict[str, str] = {}
    for text, extent, source in found:
        if names(text) != {text}:
            continue
        _check_limits(f"input {source!r}", text, extent, manifest)
        known, where = values.setdefault(text, extent), told.setdefault(text, source)
        if known != extent:
            raise InputError(
                f"input {source!r}: {text} is {extent}, but {known} in input {where!r}; "
                "give both the same"
            )
    for text in (*manifest.fewest, *manifest.most):
        value = evaluated(text, values)
        if value is not None:
            _check_limits("inputs", text, value, manifest)
    for text, extent, source in found:
        value = evaluated(text, values)
        if value is not None and value != extent:
            of = assigned({name: own for name, own in values.items() if name in names(text)})
            raise InputError(
                f"input {source!r}: {text} is {extent}, but {value} with {of}; give {value}"
            )


def _check_limits(subject: str, text: str, value: int, manifest: Manifest) -> None:
    """Raises InputError for less or more of an extent, or of a sum, than the model was compiled
    for; of a sum nothing is too little that the model does not say."""
    least = manifest.fewest.get(text, 1 if names(text) == {text} else value)
    most = manifest.most.get(text, value)
    if value < least:
        raise InputError(f"{subject}: {text} is {value}; {text} is {least} or more; give more")
    if value > most:
        raise InputError(
            f"{subject}: {text} is {value}; {text} is {most} at most; give less at once"
        )
