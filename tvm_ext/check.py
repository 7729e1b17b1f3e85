"""`check_model`: the whole model against another engine, on random inputs.

ONNX Runtime where it is installed (`pip install tvm_ext[verify]`), with its graph rewrites off: two
engines that fold a batch norm alike would agree on a mistake. On request onnx's own reference
evaluator, which needs nothing more but is slow.

A model that rounds on its way, a quantised one above all, has no answer to the last digit: a sum
that differs in its last bit rounds to the next step. Where an output is further off than BOUND, the
engine is asked again with its rewrites on, for inputs that differ in their last bits, and with such
scales (`check_steps`); its distance from itself widens the bound, and so does an output's own step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import compress
from typing import Any

import msgspec
import numpy as np
import onnx

from tvm_ext.check_session import Session
from tvm_ext.check_steps import nudged_scales, output_steps
from tvm_ext.errors import InputError, ModelError, VerifyError
from tvm_ext.frontend.load import load_onnx
from tvm_ext.frontend.microsoft_attention import counts_words
from tvm_ext.frontend.weights import tensors
from tvm_ext.measure.inputs import Argument, make_inputs
from tvm_ext.records.manifest import Manifest
from tvm_ext.runtime.executor import Compiled

BOUND = 1e-4
"""Largest difference over largest magnitude of a float32 output."""
SPREADS = 2.0
"""How many times its distance from itself an output may be off the other engine's."""
ROUNDED = {"FLOAT16": 2.0**-9, "BFLOAT16": 2.0**-6}
"""The same where the model holds numbers of 16 bits, four times what each is rounded by: which of
its results are rounded to them on the way differs from engine to engine."""
PRODUCTS = 2.0**-3
"""The same where products multiply bfloat16: errors of 8 bits, through all layers."""
NUDGE = 2.0**-21
"""What inputs are moved by at most, relative to themselves: the last four bits."""
QUICK = frozenset({"chain", "strassen"})
"""Rules by which products take fewer multiplications, Winograd's and Strassen's: they are off by
more than last bits."""
QUICK_NUDGE = 2.0**-18
"""What inputs are moved by where there are such (`compute/winograd.py`: 4e-6)."""
SCALES = 2
"""How often scales are moved so: few sums lie half way, and few of them are moved across."""
STEPS = 1.01
"""Of its own scale that an output may be off, and what that is rounded by."""
OPEN = (5, 67)
"""What extents that are left open are for the comparison, or as much as the model needs: tiles of
several sizes have a part in the first, which may be too few for the engine."""
RECOUNTED = 0.02
"""Share of elements, of as many as data say, that one engine finds and the other does not."""
TIES = 1e-3
"""Share of an integer output's elements that may differ: where rounding decides between equals."""


class ModelCheck(msgspec.Struct, frozen=True):
    """How far the model's outputs were from the other engine's: max|Δ| / max|y|, the worst one.

    spread  how far that engine is from itself with its rewrites on, or for inputs that differ in
            their last bits; asked only beyond BOUND
    undecided  outputs of which data say the extent, and rounding which elements: it has a few more
            or fewer, or others itself for inputs that differ in their last bits. Not compared
    """

    engine: str
    error: float
    spread: float = 0.0
    undecided: tuple[str, ...] = ()


def check_model(
    compiled: Compiled,
    model: Any,
    *,
    reference: bool = False,
    seed: int = 0,
    whole: bool = False,
    begun: Session | None = None,
) -> ModelCheck | None:
    """Compares all outputs on one random input; None if there is no engine to compare with.

    model      the path or onnx.ModelProto that was compiled
    reference  use onnx's reference evaluator where ONNX Runtime is not installed, or cannot run it
    whole      integers are ones, not 0 or 1: a mask of random words is none to a cache that counts
               them, and such a model is asked so if it differs
    begun      what `begin` has begun for the model, if the seed is 0

    Extents that are left open are the first of OPEN for which both run.

    Raises ModelError for another model than was compiled, VerifyError if an output is further off
    than BOUND and than SPREADS times the engine's distance from itself.
    """
    has_onnxruntime = find_spec("onnxruntime") is not None
    if not has_onnxruntime and not reference:
        return None
    engine, expected, found = "", None, []
    for feed in _feeds(compiled, seed, whole):
        engine, expected = "ONNX Runtime", None
        if has_onnxruntime:
            expected = begun.outputs() if begun else _onnxruntime(model, feed)
        begun = None
        if expected is None and reference:
            engine, expected = "onnx's reference evaluator", _reference(model, feed)
        if expected is None:
            continue
        try:
            found = compiled(feed)
            break
        except InputError:  # more along an open extent than the model has values for
            expected = None
    if expected is not None and len(expected) != len(found):
        _check_same(compiled, load_onnx(model), expected)
    undecided = _recounted(compiled.outputs, found, expected or [])
    errors = _distances(found, expected or [])
    spreads = [0.0] * len(errors)
    close = expected is not None and all(error <= BOUND for error in errors)
    known = None if close else load_onnx(model)
    if known is not None and not whole and any(map(counts_words, known.graph.node)):
        return check_model(compiled, model, reference=reference, seed=seed, whole=True)
    if known is not None:
        _check_same(compiled, known, expected)
    if expected is None:
        return None
    least = BOUND if known is None else _least_bound(known)
    if compiled.manifest.precision != "float32":
        least = PRODUCTS
    if engine == "ONNX Runtime" and known is not None:
        by = _nudge(compiled.manifest)
        nudged = {name: _nudged(array, seed, by) for name, array in feed.items()}
        others = [_onnxruntime(model, feed, rewrites=True), _onnxruntime(model, nudged)]
        for one in range(SCALES):
            scaled = nudged_scales(known, seed + one, by)
            others += [] if scaled is None else [_onnxruntime(scaled, feed)]
        for again in others:
            if again is not None:
                spreads = list(map(max, spreads, _distances(again, expected)))
    steps = [0.0] * len(errors) if known is None else _relative_steps(known, expected)
    checked = zip(compiled.outputs, errors, spreads, steps, strict=True)
    for info, error, spread, step in checked:
        if -1 in info.shape and not np.isfinite(spread):
            undecided.add(info.name)
        bound = max(least, step, SPREADS * spread if np.isfinite(spread) else 0.0)
        if not error <= bound and info.name not in undecided:
            raise VerifyError(
                f"output {info.name!r}: differs from {engine} by {error:.2g} of its largest "
                f"magnitude, the bound is {bound:.2g}; compile with --report and file the model"
            )
    told = [info.name not in undecided for info in compiled.outputs]
    error, spread = (max(compress(each, told), default=0.0) for each in (errors, spreads))
    return ModelCheck(engine, error, spread, tuple(sorted(undecided)))


def _feeds(compiled: Compiled, seed: int, whole: bool) -> Iterator[dict[str, np.ndarray]]:
    """Random inputs by name, once for each choice of numbers for what is left open."""
    span = (1 if whole else 0, 2)
    names = [info.name for info in compiled.inputs]
    tried: list[dict[str, int]] = []
    for least in OPEN:
        extents = compiled.manifest.extents(least)
        if extents not in tried:
            tried.append(extents)
            infos = [Argument(i.at(extents), i.dtype, span=span) for i in compiled.inputs]
            yield dict(zip(names, make_inputs(tuple(infos), seed), strict=True))


def _check_same(compiled: Compiled, model: onnx.ModelProto, expected: Any) -> None:
    """Raises ModelError for another model than was compiled."""
    if reason := _other_model(compiled, model, expected):
        raise ModelError(f"the model: is not the one that was compiled, {reason}; give that one")


def _other_model(compiled: Compiled, model: onnx.ModelProto, expected: Any) -> str:
    """In what a model is not the one that was compiled; empty if it may be."""
    taken = {info.name: info.type.tensor_type.shape.dim for info in model.graph.input}
    for info in compiled.inputs:
        if info.name not in taken:
            return f"it has no input {info.name!r}"
        extents = [dim.dim_value for dim in taken[info.name]]
        pairs = zip(extents, info.shape, strict=False)
        if any(isinstance(own, int) and one not in (0, own) for one, own in pairs):
            return f"its input {info.name!r} has the shape {extents}, not {list(info.shape)}"
    if expected is not None and len(expected) != len(compiled.outputs):
        return f"it has {len(expected)} outputs, not {len(compiled.outputs)}"
    return ""


def _recounted(outputs: Sequence[Any], ours: Sequence[Any], theirs: Sequence[Any]) -> set[str]:
    """Outputs that differ in an extent which data say, and by little."""
    names = set()
    for info, one, other in zip(outputs, ours, theirs, strict=False):
        said = [place for place, extent in enumerate(info.shape) if extent == -1]
        pairs = [(one.shape[place], np.shape(other)[place]) for place in said]
        differ = [pair for pair in pairs if pair[0] != pair[1]]
        rest = [np.delete(np.shape(each), said).tolist() for each in (one, other)]
        close = all(abs(a - b) <= RECOUNTED * max(a, b) for a, b in differ)
        if differ and close and rest[0] == rest[1]:
            names.add(info.name)
    return names


def _least_bound(model: onnx.ModelProto) -> float:
    """What an output of a model may be off at least."""
    kinds = {onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in tensors(model)}
    return max((bound for kind, bound in ROUNDED.items() if kind in kinds), default=BOUND)


def _relative_steps(model: onnx.ModelProto, expected: Sequence[Any]) -> list[float]:
    """The steps of quantised outputs over their largest magnitudes."""
    pairs = zip(output_steps(model), expected, strict=True)
    return [
        STEPS * step / max(float(np.abs(one).max(initial=0.0)), step) if step else 0.0
        for step, one in pairs
    ]


def _nudge(manifest: Manifest) -> float:
    """What inputs are moved by to see how far rounding in an artifact's kernels may carry."""
    plans = (part for group in manifest.groups if group.plan for part in group.plan.parts())
    return QUICK_NUDGE if any(part.rule in QUICK for part in plans) else NUDGE


def _nudged(array: np.ndarray, seed: int, most: float = NUDGE) -> np.ndarray:
    """Floats with other last bits; anything else as it is."""
    if array.dtype.kind != "f":
        return array
    by = np.random.default_rng(seed).uniform(-most, most, array.shape)
    return (array * (1 + by)).astype(array.dtype)


def _distances(ours: Sequence[Any], theirs: Sequence[Any]) -> list[float]:
    pairs = zip(ours, theirs, strict=True)
    return [distance(np.asarray(one), np.asarray(other)) for one, other in pairs]


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """max|Δ| / max|y| over finite elements; infinite if the others or the shapes differ.

    Of integers and booleans: 0, or infinite if more than a share TIES differ.
    """
    if ours.shape != theirs.shape:
        return float("inf")
    if not ours.size:
        return 0.0
    if ours.dtype.kind not in "fc":
        return 0.0 if np.mean(ours != theirs) <= TIES else float("inf")
    y, e = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(e)
    if not np.array_equal(y[~finite], e[~finite], equal_nan=True):
        return float("inf")
    scale = np.abs(e[finite]).max(initial=0.0)
    gap = np.abs(y[finite] - e[finite]).max(initial=0.0)
    return float(gap / scale) if scale else float(gap)


def begin(compiled: Compiled, model: Any) -> Session | None:
    """ONNX Runtime at work on what `check_model` asks first; None where it is not installed."""
    if find_spec("onnxruntime") is None:
        return None
    return Session(model, next(_feeds(compiled, seed=0, whole=False)))


def _onnxruntime(
    model: Any, feed: dict[str, np.ndarray], rewrites: bool = False
) -> list[Any] | None:
    """ONNX Runtime's outputs; None if it cannot run the model."""
    with Session(model, feed, rewrites) as session:
        return session.outputs()


def _reference(model: Any, feed: dict[str, np.ndarray]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    source = os.fspath(model) if isinstance(model, str | os.PathLike) else model
    found: list[Any] = ReferenceEvaluator(source).run(None, feed)
    return found
