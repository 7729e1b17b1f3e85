"""Static shapes for a model's inputs: what the user gives, checked against what the model says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import prod

import onnx

from tvm_ext.errors import ModelError, ShapeError
from tvm_ext.extents import Shapes, as_shapes, at_extents, evaluated, names

Dim = int | str | None
"""A static extent, the name of a symbolic one, or an unnamed symbolic one."""
Symbols = dict[str, tuple[int | str, str]]
"""What is given for symbolic dimensions, by their names, and where."""
MOST_ELEMENTS = 1 << 40
"""What an input may have: more is a slip of the pen, and nothing is made to plan for it."""


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
    model: onnx.ModelProto, shapes: Shapes | None = None, extents: int | Mapping[str, int] = 1
) -> dict[str, tuple[int, ...]]:
    """A static shape for every input of `model`.

    shapes  by input name, or by the name of a symbolic dimension with its one value:
            `{"x": (1, 3, 224, 224)}` or `{"batch": 1}`. A symbol bound in one input holds in all
            the others.
    extents what names in place of numbers stand for, be it in a sum

    Raises ShapeError: an unknown name, a wrong rank, a value that is not positive or contradicts
    a static dimension or the same symbol elsewhere, symbolic dimensions left without a value, or
    more than MOST_ELEMENTS. ModelError for a sum that is not positive with those numbers.
    """
    declared = {value.name: _dims(value) for value in runtime_inputs(model)}
    symbols: Symbols = {}
    given: dict[str, tuple[int | str, ...]] = {}
    known = {dim for dims in declared.values() for dim in dims or () if isinstance(dim, str)}
    for name, shape in as_shapes(shapes).items():
        dims = declared.get(name)
        is_symbol = name in known and len(shape) == 1  # which an input may be called like
        if name in declared and not (is_symbol and dims is not None and len(dims) > 1):
            given[name] = shape
        elif is_symbol:
            symbols[name] = (shape[0], "the shape given for it")
        else:
            raise ShapeError(_unknown(name, shape, declared, known))
    for name, shape in given.items():
        dims = declared[name]
        if dims is not None:
            _fit(name, shape, dims, symbols, extents)
    written: dict[str, tuple[Dim, ...]] = {
        name: given[name] if name in given else _substitute(dims, symbols, extents)
        for name, dims in declared.items()
    }
    missing = {name: declared[name] for name, shape in written.items() if None in shape}
    if missing:
        raise ShapeError(_missing(missing, symbols, extents))
    return {name: _numbers(name, shape, extents) for name, shape in written.items()}


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


def _numbers(
    name: str, shape: tuple[Dim, ...], extents: int | Mapping[str, int]
) -> tuple[int, ...]:
    """The shape with numbers for names. Raises ModelError where one is not positive, ShapeError for
    too many elements."""
    found = {own: at_extents(own, extents) for own in shape if own is not None}
    less = next((own for own, extent in found.items() if extent < 1), None)
    if less is not None:
        raise ModelError(f"extent {less!r} of input {name!r} is {found[less]}; it is 1 or more")
    numbers = tuple(found[own] for own in shape if own is not None)
    if prod(numbers) > MOST_ELEMENTS:
        raise ShapeError(
            f"shape of input {name!r} is {_show(shape)}: that is more than {MOST_ELEMENTS} "
            "elements; give less"
        )
    return numbers


def _fit(
    name: str,
    shape: tuple[int | str, ...],
    dims: tuple[Dim, ...],
    symbols: Symbols,
    extents: int | Mapping[str, int],
) -> None:
    """Check one given shape, and bind the symbols it gives a value to."""
    if len(shape) != len(dims):
        raise ShapeError(
            f"shape {_show(shape)} given for input {name!r} has {len(shape)} dimensions, but the "
            f"model declares {len(dims)}: {_show(dims)}; give one value for each"
        )
    for position, (own, dim) in enumerate(zip(shape, dims, strict=True)):
        if isinstance(dim, int) and isinstance(own, str):
            raise ShapeError(
                f"shape of input {name!r} leaves {own!r} open at position {position}, but the "
                f"model fixes it to {dim}: {_show(dims)}; give {dim} there"
            )
        if isinstance(dim, int) and own != dim:
            raise ShapeError(
                f"shape {_show(shape)} given for input {name!r} has {own} at position {position}, "
                f"but the model fixes it to {dim}: {_show(dims)}; give {dim} there"
            )
        if isinstance(dim, str):
            bound, where = symbols.setdefault(dim, (own, f"input {name!r}"))
            if at_extents(bound, extents) != at_extents(own, extents):
                raise ShapeError(
                    f"shape {_show(shape)} given for input {name!r} sets dimension {dim!r} to "
                    f"{own}, but {where} sets it to {bound}; give one value for both"
                )


def _substitute(
    dims: tuple[Dim, ...] | None, symbols: Symbols, extents: int | Mapping[str, int]
) -> tuple[Dim, ...]:
    """Each dimension as it is given, or the sum of some that are; None where nothing tells it."""
    if dims is None:
        return (None,)
    given = {symbol: own for symbol, (own, _) in symbols.items()}
    numbers = {symbol: at_extents(own, extents) for symbol, own in given.items()}
    return tuple(
        given.get(dim, evaluated(dim, numbers)) if isinstance(dim, str) else dim for dim in dims
    )


def _unknown(
    name: str,
    shape: tuple[int | str, ...],
    declared: Mapping[str, tuple[Dim, ...] | None],
    symbols: set[str],
) -> str:
    if name in symbols:
        having = {known: dims for known, dims in declared.items() if dims and name in dims}
        return (
            f"{name!r} is a dimension, of input {_listed(having)}, and {_show(shape)} is given for "
            "it; give it one number or name, or the shape of the input"
        )
    close = get_close_matches(name, [*declared, *sorted(symbols)], n=1)
    first = sorted(declared, key=lambda known: known not in close)
    listed = _listed({known: declared[known] for known in first})
    hint = f"; did you mean {close[0]!r}?" if close else "; use one of them"
    return f"the model has no input {name!r}; its inputs are {listed or 'none'}{hint}"


def _listed(declared: Mapping[str, tuple[Dim, ...] | None]) -> str:
    return ", ".join(f"{name!r} {_show(dims)}" for name, dims in declared.items())


def _missing(
    declared: Mapping[str, tuple[Dim, ...] | None],
    symbols: Symbols,
    extents: int | Mapping[str, int],
) -> str:
    give = " ".join(
        f"--shape {name}={_example(dims, symbols, extents)}" for name, dims in declared.items()
    )
    return (
        f"symbolic dimensions need a value in input {_listed(declared)}; give {give}, or your own "
        "sizes, or names in place of some to leave them open"
    )


def _example(
    dims: tuple[Dim, ...] | None, symbols: Symbols, extents: int | Mapping[str, int]
) -> str:
    """Dimensions to copy: known ones as they are, 1 for the first, usual sizes for the others."""
    if dims is None:
        return "1,128"
    usual = [1, *[128] * (len(dims) - 1)] if len(dims) < 4 else [1, 3, *[224] * (len(dims) - 2)]
    return ",".join(
        str(size if bound is None else bound)
        for bound, size in zip(_substitute(dims, symbols, extents), usual, strict=True)
    )


def _show(dims: tuple[Dim, ...] | None) -> str:
    if dims is None:
        return "(rank unknown)"
    return f"({', '.join('?' if dim is None else str(dim) for dim in dims)})"
