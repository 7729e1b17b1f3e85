"""Memory of models with open extents: what a run needs, whatever runs came before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper
from onnx_models import make_model, value

import tvm_ext

KEPT = 1 << 16
"""Numbers that a word adds to what is kept, a quarter of a MB."""


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in status if line.startswith("VmRSS"))) * 1024


def test_lengths_that_were_are_not_kept_room_for() -> None:
    """What grows word by word takes as much as it is long, not as all lengths together."""
    nodes = [helper.make_node("Concat", ["kept", "word"], ["y"], axis=0)]
    model = make_model(nodes, [value("kept", "p", KEPT), value("word", 1, KEPT)], ["y"], {})
    compiled = tvm_ext.compile(model, shapes={"kept": ("p", KEPT)})
    word = np.ones((1, KEPT), np.float32)
    kept = word
    before = resident_bytes()
    for _ in range(60):
        (kept,) = compiled(kept, word)
    assert kept.shape == (61, KEPT)
    assert (kept == 1).all()
    assert resident_bytes() - before < 8 * kept.nbytes, "one of each length is 30 times as much"


def test_extents_that_do_not_meet_do_not_multiply() -> None:
    """Images and texts by hundreds: a tensor of both would take 20 GB."""
    nodes = [
        helper.make_node("Exp", ["images"], ["a"]),
        helper.make_node("ReduceMax", ["a"], ["b"], axes=[1], keepdims=1),
        helper.make_node("Sub", ["a", "b"], ["c"]),
        helper.make_node("Softmax", ["c"], ["y"], axis=1),
        helper.make_node("Exp", ["texts"], ["d"]),
        helper.make_node("ReduceMax", ["d"], ["e"], axes=[1], keepdims=1),
        helper.make_node("Sub", ["d", "e"], ["f"]),
        helper.make_node("Softmax", ["f"], ["z"], axis=1),
    ]
    model = make_model(nodes, [value("images", "i", 512), value("texts", "t", 96)], ["y", "z"], {})
    compiled = tvm_ext.compile(model, shapes={"images": ("i", 512), "texts": ("t", 96)})
    before = resident_bytes()
    y, z = compiled(np.zeros((500, 512), np.float32), np.zeros((700, 96), np.float32))
    np.testing.assert_allclose(y, 1 / 512, rtol=1e-5)
    np.testing.assert_allclose(z, 1 / 96, rtol=1e-5)
    assert resident_bytes() - before < 1 << 26
