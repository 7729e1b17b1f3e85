"""Projections joined to one product compute what they did apart."""

from __future__ import annotations

import numpy as np
import pytest
from projections import MODEL, POSITIONS, Projections, module, split_module

from tvm_ext import compile
from tvm_ext.tvm_api import IRModule

BOUND = 5e-6


def error_of(mod: IRModule, drawn: Projections, sources: tuple[int, ...]) -> float:
    rng = np.random.default_rng(1)
    count = max(sources) + 1
    given = [rng.standard_normal((1, POSITIONS, MODEL)).astype("float32") for _ in range(count)]
    names = [str(param.name) for param in mod["main"].params]
    (found,) = compile(mod)(dict(zip(names, given, strict=True)))
    wanted = drawn.expected(*(given[source] for source in sources))
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("sources", [(0, 0, 0), (0, 1, 1), (1, 0, 1)])
@pytest.mark.parametrize("biased", [(True, True, True), (True, False, True), (False,) * 3])
def test_projections(sources: tuple[int, ...], biased: tuple[bool, ...]) -> None:
    drawn = Projections.drawn(biased)
    assert error_of(module(drawn, sources), drawn, sources) < BOUND


def test_a_split_of_the_models_own() -> None:
    drawn = Projections.drawn()
    assert error_of(split_module(drawn), drawn, (0, 0, 0)) < BOUND
