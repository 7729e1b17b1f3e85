"""Static shapes for a model's inputs: what the user gives, checked against what the model says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from operator import index
from typing import Any

import onnx

from tvm_ext.errors import ShapeError
from tvm_ext.extents import at_extents, evaluated, names

Dim = int | str | None
"""A static extent, the name of a symbolic one, or an unnamed symbolic one."""


def parse_shape(text: str) -> tuple[str, tuple[int | str, ...]]:
    """The name and shape in `name=1,3,224,224`, as given to `--shape`; a name in place of a number,
    as in `name=n,3,224,224`, leaves it open, and another extent may be a sum with it: `mask=1,n+1`.

    Raises ShapeError: no name, no dimensions, or a dimension that is neither.
    """
    name, equals, numbers = text.rpartition("=")
    example = "write it as name=1,3,224,224, or name=n,3,224,224 to leave the first one open"
    if not equals or not name.strip():
        raise ShapeError(f"--shape {text!r} names no input; {example}")
    shape: list[int | str] = []
    for number in map(str.strip, numbers.split(",")):
        if number.isdecimal() and int(number) > 0:
            shape.append(int(number))
        elif names(number):
            shape.append(number)
        else:
            raise ShapeError(
                f"--shape {text!r}: {number!r} is neither a positive integer nor a name; {example}"
            )
    return name.strip(), tuple(shape)


def runtime_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The graph inputs a caller must supply; an initialiser listed as an input is none."""
    initialisers = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in initialisers]


def resolve_shapes(
    model: onnx.ModelProto,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    extents: int | Mapping[str, int] = 1,
) -> dict[str, tuple[int, ...]]:
    """A static shape for every input of `model`.

    shapes  by input name, or by the name of a symbolic dimension with its one value:
            `{"x": (1, 3, 224, 224)}` or `{"batch": (1,)}`. A symbol bound in one input holds in
            all the others.
    extents what names in place of numbers stand for, be it in a sum

    Raises ShapeError: an unknown name, a wrong rank, a value that is not positive or contradicts
    a static dimension or the same symbol elsewhere, or symbolic dimensions left without a value.
    """
    declared = {value.name: _dims(value) for value in runtime_inputs(model)}
    symbols: dict[str, tuple[int, str]] = {}
    given: dict[str, tuple[int, ...]] = {}
    known = {dim for dims in declared.values() for dim in dims or () if isinstance(dim, str)}
    for name, shape in (shapes or {}).items():
        checked = _positive(name, _with_numbers(name, shape, declared.get(name), extents))
        dims = declared.get(name)
        is_symbol = name in known and len(checked) == 1  # which an input may be called like
        if name in declared and not (is_symbol and dims is not None and len(dims) > 1):
            given[name] = checked
        elif is_symbol:
            symbols[name] = (checked[0], "the shape given for it")
        else:
            raise ShapeError(_unknown(name, declared, known))
    for name, shape in given.items():
        dims = declared[name]
        if dims is not None:
            _fit(name, shape, dims, symbols)
    resolved = {
        name: given.get(name) or _substitute(dims, symbols) for name, dims in declared.items()
    }
    missing = [name for name, shape in resolved.items() if shape is None]
    if missing:
        raise ShapeError(_missing({name: declared[name] for name in missing}, symbols))
    return {name: shape for name, shape in resolved.items() if shape is not None}


def apply_shapes(model: onnx.ModelProto, resolved: Mapping[str, Sequence[int]]) -> None:
    """Write static shapes onto the inputs of `model`, in place.

    Where a shape changes, the shapes recorded for inner values and outputs are dropped: they were
    inferred for the symbolic model, and some exporters record those of the one batch they saw.
    """
    changed = False
    for value in runtime_inputs(model):
        shape = resolved.get(value.name)
        if shape is None or _dims(value) == tuple(shape):
            continue
        changed = True
        tensor_type = value.type.tensor_type
        del tensor_type.shape.dim[:]
        for extent in shape:
            tensor_type.shape.dim.add().dim_value = extent
    if changed:
        del model.graph.value_info[:]
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")


def _dims(value: onnx.ValueInfoProto) -> tuple[Dim, ...] | None:
    """Dimensions of an input; None if even the rank is unknown."""
    tensor_type = value.type.tensor_type
    if not tensor_type.HasField("shape"):
        return None
    # Exporters write 0 and -1 for "any", and an empty name.
    return tuple(
        dim.dim_value if dim.dim_value > 0 else dim.dim_param or None
        for dim in tensor_type.shape.dim
    )


def _with_numbers(
    name: str,
    shape: Sequence[int | str],
    dims: tuple[Dim, ...] | None,
    extents: int | Mapping[str, int],
) -> Any:
    """The shape with numbers for names. Raises ShapeError where one stands for what the model
    fixes."""
    if isinstance(shape, str):
        return shape  # no shape at all, and a number is not what is missing
    for position, (own, dim) in enumerate(zip(shape, dims or (), strict=False)):
        if isinstance(own, str) and isinstance(dim, int):
            raise ShapeError(
                f"shape of input {name!r} leaves {own!r} open at position {position}, but the "
                f"model fixes it to {dim}: {_show(dims)}; give {dim} there"
            )
    return [at_extents(own, extents) for own in shape]


def _positive(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    try:
        checked = tuple(index(extent) for extent in shape)
    except TypeError:
        raise ShapeError(
            f"shape of {name!r} is {shape!r}; give a tuple of integers such as (1, 3, 224, 224)"
        ) from None
    bad = next((extent for extent in checked if extent < 1), None)
    if bad is not None:
        raise ShapeError(f"shape of {name!r} is {checked}: {bad} is not positive; give 1 or more")
    return checked


def _fit(
    name: str,
    shape: tuple[int, ...],
    dims: tuple[Dim, ...],
    symbols: dict[str, tuple[int, str]],
) -> None:
    """Check one given shape, and bind the symbols it gives a value to."""
    if len(shape) != len(dims):
        raise ShapeError(
            f"shape {shape} given for input {name!r} has {len(shape)} dimensions, but the model "
            f"declares {len(dims)}: {_show(dims)}; give one value for each"
        )
    for position, (extent, dim) in enumerate(zip(shape, dims, strict=True)):
        if isinstance(dim, int) and extent != dim:
            raise ShapeError(
                f"shape {shape} given for input {name!r} has {extent} at position {position}, but "
                f"the model fixes it to {dim}: {_show(dims)}; give {dim} there"
            )
        if isinstance(dim, str):
            bound, where = symbols.setdefault(dim, (extent, f"input {name!r}"))
            if bound != extent:
                raise ShapeError(
                    f"shape {shape} given for input {name!r} sets dimension {dim!r} to {extent}, "
                    f"but {where} sets it to {bound}; give one value for both"
                )


def _substitute(
    dims: tuple[Dim, ...] | None, symbols: Mapping[str, tuple[int, str]]
) -> tuple[int, ...] | None:
    """The static shape, if the symbols bound so far give one."""
    bound = [None] if dims is None else _bind(dims, symbols)
    shape = tuple(extent for extent in bound if extent is not None)
    return shape if len(shape) == len(bound) else None


def _bind(dims: tuple[Dim, ...], symbols: Mapping[str, tuple[int, str]]) -> list[int | None]:
    """Each dimension's extent where it is known, or the sum of some that are."""
    values = {symbol: value for symbol, (value, _) in symbols.items()}
    return [
        values.get(dim, evaluated(dim, values)) if isinstance(dim, str) else dim for dim in dims
    ]


def _unknown(name: str, declared: Mapping[str, tuple[Dim, ...] | None], symbols: set[str]) -> str:
    names = [*declared, *sorted(symbols)]
    close = get_close_matches(name, names, n=1)
    listed = ", ".join(
        f"{known!r} {_show(declared[known])}"
        for known in sorted(declared, key=lambda known: known not in close)
    )
    hint = f"; did you mean {close[0]!r}?" if close else "; use one of them"
    return f"the model has no input {name!r}; its inputs are {listed or 'none'}{hint}"


def _missing(
    declared: Mapping[str, tuple[Dim, ...] | None], symbols: Mapping[str, tuple[int, str]]
) -> str:
    listed = ", ".join(f"{name!r} {_show(dims)}" for name, dims in declared.items())
    give = " ".join(f"--shape {name}={_example(dims, symbols)}" for name, dims in declared.items())
    return (
        f"symbolic dimensions need a value in input {listed}; give {give}, or your own sizes, or "
        "names in place of some to leave them open"
    )


def _example(dims: tuple[Dim, ...] | None, symbols: Mapping[str, tuple[int, str]]) -> str:
    """Dimensions to copy: known ones as they are, 1 for the first, usual sizes for the others."""
    if dims is None:
        return "1,128"
    usual = [1, *[128] * (len(dims) - 1)] if len(dims) < 4 else [1, 3, *[224] * (len(dims) - 2)]
    return ",".join(
        str(size if bound is None else bound)
        for bound, size in zip(_bind(dims, symbols), usual, strict=True)
    )


def _show(dims: tuple[Dim, ...] | None) -> str:
    if dims is None:
        return "(rank unknown)"
    return f"({', '.join('?' if dim is None else str(dim) for dim in dims)})"
