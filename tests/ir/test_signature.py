"""Task signatures: what changes them, and what must not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tvm_ext.tir.signature import hash_func, signature
from tvm_ext.tvm_api import Target, te, tirx, topi, tvm
from tvm_ext.tvm_steal import mark_steal

PINNED = "bf86918b6b6f997c"


def matmul(m=4, n=5, k=6, dtype="float32", prefix="", act=tirx.exp):
    a = te.placeholder((m, k), dtype, name=prefix + "a")
    b = te.placeholder((k, n), dtype, name=prefix + "b")
    r = te.reduce_axis((0, k), name=prefix + "r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name=prefix + "c")
    d = te.compute((m, n), lambda i, j: act(c[i, j]), name=prefix + "d")
    return te.create_prim_func([a, b, d])


def softmax(shape, axis=-1):
    x = te.placeholder(shape, name="x")
    return te.create_prim_func([x, topi.nn.softmax(x, axis)])


def conv(strides=1, padding=1, dilation=1):
    x, w = te.placeholder((1, 4, 9, 9), name="x"), te.placeholder((8, 4, 3, 3), name="w")
    return te.create_prim_func([x, w, topi.nn.conv2d_nchw(x, w, strides, padding, dilation)])


def opaque(kind):
    x = te.placeholder((4, 9), name="x")
    with Target("llvm"):
        outs = {
            "sort": lambda: [topi.sort(x)],
            "sort_down": lambda: [topi.sort(x, is_ascend=0)],
            "topk": lambda: topi.topk(x, 3),
            "topk_of_4": lambda: topi.topk(x, 4),
            "cumsum": lambda: [topi.cumsum(x, 1)],
            "cumprod": lambda: [topi.cumprod(x, 1)],
            "scatter": lambda: [topi.scatter_elements(x, topi.cast(x, "int64"), x)],
        }[kind]()
        return te.create_prim_func([x, *outs])


def nms():
    boxes = te.placeholder((1, 20, 6), name="boxes")
    with Target("llvm"):
        return te.create_prim_func([boxes, *topi.vision.get_valid_counts(boxes, 0.5)])


def symbolic(twice=False):
    n = te.var("n", "int64")
    m = n if twice else te.var("m", "int64")
    x = te.placeholder((n, m), name="x")
    return te.create_prim_func([x, topi.nn.softmax(x)])


def test_form():
    assert len(signature(matmul())) == 16
    assert int(signature(matmul()), 16) >= 0


def test_names_do_not_matter():
    other = matmul(prefix="other_").with_attr("global_symbol", "other")
    assert signature(other) == signature(matmul())
    schedule = tvm.s_tir.Schedule(softmax((3, 4)))
    renamed = schedule.mod["main"].script().replace("T_softmax", "U_hardmax").replace("i0", "zz")
    assert renamed != schedule.mod["main"].script()
    assert signature(tvm.script.from_source(renamed)) == signature(softmax((3, 4)))


def test_attributes_and_hints_do_not_matter():
    func = matmul()
    noisy = func.with_attr({"op_pattern": 4, "tirx.is_scheduled": 1, "layout_free_buffers": [1]})
    assert signature(noisy) == signature(func)
    schedule = tvm.s_tir.Schedule(func)
    schedule.annotate(schedule.get_sblock("c"), "schedule_rule", "none")
    assert signature(schedule.mod["main"]) == signature(func)


def test_what_is_computed_matters():
    funcs = [
        matmul(),
        matmul(m=5),
        matmul(m=5, n=4),
        matmul(k=7),
        matmul(dtype="float64"),
        matmul(act=tirx.sqrt),
        matmul(act=lambda x: x + 1.0),
        matmul(act=lambda x: x + 2.0),
        matmul(act=lambda x: 1.0 - x),
        matmul(act=lambda x: x - 1.0),
        softmax((3, 4)),
        softmax((4, 3)),
        softmax((4, 3), axis=0),
        conv(),
        conv(strides=2),
        conv(padding=0),
        conv(dilation=2),
        symbolic(),
        symbolic(twice=True),
        nms(),
        *map(opaque, ("sort", "sort_down", "topk", "topk_of_4", "cumsum", "cumprod", "scatter")),
    ]
    assert len({signature(func) for func in funcs}) == len(funcs)


def test_which_operand_is_which_matters():
    def minus(swap):
        x, y = te.placeholder((4,), name="x"), te.placeholder((4,), name="y")
        first, second = (y, x) if swap else (x, y)
        return te.create_prim_func(
            [x, y, te.compute((4,), lambda i: first[i] - second[i], name="z")]
        )

    assert signature(minus(False)) != signature(minus(True))


def test_loops_matter():
    func = matmul()
    schedule = tvm.s_tir.Schedule(func)
    schedule.parallel(schedule.get_loops(schedule.get_sblock("d"))[0])
    parallel = schedule.mod["main"]
    schedule.annotate(schedule.get_loops(schedule.get_sblock("d"))[1], "pragma_unroll_explicit", 1)
    assert len({signature(f) for f in (func, parallel, schedule.mod["main"])}) == 3


def test_a_kernel_is_known_by_all_that_makes_it_another_but_names():
    def kernel(prefix="", lanes=5, hint=None, cached=False):
        schedule = tvm.s_tir.Schedule(matmul(prefix=prefix))
        block = schedule.get_sblock(prefix + "c")
        if hint:
            schedule.annotate(block, hint, 1)
        if cached:
            schedule.cache_read(block, 0, "global")
        schedule.split(schedule.get_loops(block)[1], [None, lanes])
        return schedule.mod["main"]

    assert hash_func(kernel()) == hash_func(kernel("other_").with_attr("global_symbol", "other"))
    others = [kernel(lanes=2), kernel(hint="tvm_ext.some"), kernel(cached=True)]
    funcs = [kernel(), mark_steal(kernel()), *others]
    assert len({hash_func(func) for func in funcs}) == len(funcs)


def test_an_unknown_kind_of_node_is_told_apart_by_its_fields():
    def assertion(message):
        kind, text = tvm.ir.StringImm("ValueError"), tvm.ir.StringImm(message)
        stop = tirx.AssertStmt(tirx.const(True, "bool"), kind, [text])
        return tirx.PrimFunc([], stop)

    assert signature(assertion("one")) == signature(assertion("one"))
    assert signature(assertion("one")) != signature(assertion("two"))


def test_the_signature_is_pinned():
    """Logs written long ago are found by it: if this fails, every shipped log is lost."""
    assert signature(matmul()) == PINNED


@pytest.mark.parametrize("seed", ["0", "4711"])
def test_other_processes_agree(seed):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_signature as t;"
        "print(t.signature(t.matmul()), t.signature(t.nms()), t.signature(t.symbolic()))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, os.path.dirname(__file__)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.split() == [signature(f) for f in (matmul(), nms(), symbolic())]
