"""Operators of Microsoft's domain: ONNX Runtime's results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.frontend.microsoft import RESTATED
from tvm_ext.frontend.quantised import MICROSOFT

B, S, P, N, KV, H = 2, 5, 3, 4, 2, 16
D, T = N * H, P + S
Arrays = dict[str, np.ndarray]
KINDS = {"count": TensorProto.INT32}
"""Types of results that are no floats."""


class Case:
    """A model of one operator: what it is given, which of that is constant, and its attributes."""

    def __init__(self, op_type: str, *names: str, results: int = 1, **attributes: Any) -> None:
        self.op_type, self.names, self.attributes = op_type, names, attributes
        self.results = [f"y{place}" for place in range(results)]
        self.inputs: Arrays = {}
        self.constants: Arrays = {}
        self.domain = MICROSOFT
        self.rng = np.random.default_rng(sum(map(ord, op_type)))

    def given(self, **shapes: tuple[int, ...]) -> Case:
        """Inputs of random floats."""
        for name, shape in shapes.items():
            self.inputs[name] = self.rng.standard_normal(shape).astype(np.float32)
        return self

    def fixed(self, **shapes: tuple[int, ...]) -> Case:
        """Constants of random floats."""
        for name, shape in shapes.items():
            self.constants[name] = self.rng.standard_normal(shape).astype(np.float32)
        return self

    def having(self, **values: Any) -> Case:
        """Inputs of these values."""
        self.inputs |= {name: np.asarray(value) for name, value in values.items()}
        return self

    def holding(self, **values: Any) -> Case:
        """Constants of these values."""
        self.constants |= {name: np.asarray(value) for name, value in values.items()}
        return self

    def named(self, *results: str) -> Case:
        """Results of these names; one that is empty is not asked for."""
        self.results = list(results)
        return self

    def model(self) -> onnx.ModelProto:
        node = helper.make_node(
            self.op_type, self.names, self.results, name="it", domain=self.domain, **self.attributes
        )

        def info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            return helper.make_tensor_value_info(name, kind, array.shape)

        graph = helper.make_graph(
            [node],
            "one",
            [info(*pair) for pair in self.inputs.items()],
            [
                helper.make_tensor_value_info(name, KINDS.get(name, TensorProto.FLOAT), None)
                for name in self.results
                if name
            ],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def ids(*shape: int, most: int = 7) -> np.ndarray:
    return np.random.default_rng(3).integers(0, most, shape).astype(np.int32)


def caches(length: int = 16, half: int = H // 2) -> Mapping[str, np.ndarray]:
    angles = np.arange(length)[:, None] / 10.0 ** np.arange(half)
    return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


def attention(*names: str, results: int = 1, **attributes: Any) -> Case:
    case = Case("Attention", "x", "w", *names, results=results, num_heads=N, **attributes)
    return case.given(x=(B, S, D)).fixed(w=(D, 3 * D))


def heads(*names: str, results: int = 1, **attributes: Any) -> Case:
    case = Case("MultiHeadAttention", "q", *names, results=results, num_heads=N, **attributes)
    return case.given(q=(B, S, D))


def group(
    *names: str, batch: int = B, new: int = S, packed: bool = False, **attributes: Any
) -> Case:
    own = ("q", "", "") if packed else ("q", "k", "v")
    case = Case(
        "GroupQueryAttention",
        *own,
        *names,
        results=3,
        num_heads=N,
        kv_num_heads=KV,
        **attributes,
    )
    if packed:
        return case.given(q=(batch, new, (N + 2 * KV) * H))
    return case.given(q=(batch, new, D), k=(batch, new, KV * H), v=(batch, new, KV * H))


def lengths(batch: int, total: int) -> dict[str, np.ndarray]:
    return {"last": np.full(batch, total - 1, np.int32), "total": np.array(total, np.int32)}


PAST = {"pk": (B, KV, P, H), "pv": (B, KV, P, H)}
MASK = np.array([[1] * T, [1] * 5 + [0] * (T - 5)], np.int32)

CASES: dict[str, Callable[[], Case]] = {
    "skip": lambda: (
        Case("SkipLayerNormalization", "x", "s", "g", "b", "c", results=1)
        .given(x=(B, S, D), s=(B, S, D))
        .fixed(g=(D,), b=(D,), c=(D,))
    ),
    "skip that broadcasts": lambda: (
        Case("SkipLayerNormalization", "x", "s", "g").given(x=(B, S, D), s=(S, D)).fixed(g=(D,))
    ),
    "rms": lambda: (
        Case("SkipSimplifiedLayerNormalization", "x", "s", "g", epsilon=1e-6)
        .given(x=(B, S, D), s=(B, S, D))
        .fixed(g=(D,))
    ),
    "quick": lambda: Case("QuickGelu", "x", alpha=1.5).given(x=(B, S, D)),
    "product": lambda: (
        Case("FusedMatMul", "x", "w", transA=1, transB=1, alpha=0.5)
        .given(x=(B, 6, S))
        .fixed(w=(9, 6))
    ),
    "convolution": lambda: (
        Case("FusedConv", "x", "w", "b", "z", activation="Relu", pads=[1] * 4)
        .given(x=(1, 4, 6, 5), z=(1, 8, 6, 5))
        .fixed(w=(8, 4, 3, 3), b=(8,))
    ),
    "leaky convolution": lambda: (
        Case("FusedConv", "x", "w", activation="LeakyRelu", activation_params=[0.2])
        .given(x=(1, 4, 6, 5))
        .fixed(w=(8, 4, 3, 3))
    ),
    "gemm": lambda: (
        Case("FusedGemm", "x", "w", "b", activation="LeakyRelu", activation_alpha=0.3, transB=1)
        .given(x=(S, 6))
        .fixed(w=(9, 6), b=(9,))
    ),
    "embeddings": lambda: (
        Case("EmbedLayerNormalization", "i", "t", "w", "p", "k", "g", "b", "m", "at")
        .having(i=ids(B, S), t=ids(B, S, most=2), m=MASK[:, P:].copy(), at=ids(B, S))
        .named("y", "count", "sum")
        .fixed(w=(7, D), p=(9, D), k=(2, D), g=(D,), b=(D,))
    ),
    "rotary": lambda: (
        Case("RotaryEmbedding", "x", "at", "cos", "sin")
        .given(x=(B, S, D))
        .having(at=np.array([[0, 1, 2, 3, 4], [2, 3, 4, 5, 6]]))
        .holding(**caches())
    ),
    "rotary of heads": lambda: (
        Case("RotaryEmbedding", "x", "at", "cos", "sin", interleaved=1)
        .given(x=(B, N, S, H))
        .having(at=np.array([2]))
        .holding(**caches())
    ),
    "rotary in part": lambda: (
        Case("RotaryEmbedding", "x", "at", "cos", "sin", num_heads=N, rotary_embedding_dim=H // 2)
        .given(x=(B, S, D))
        .having(at=np.array([1]))
        .holding(**caches(half=H // 4))
    ),
    "attention": lambda: attention("b").fixed(b=(3 * D,)),
    "attention, masked": lambda: (
        attention("b", "m").fixed(b=(3 * D,)).having(m=MASK[:, -S:].copy())
    ),
    "attention, masked by words": lambda: attention("", "m").having(
        m=np.tril(np.ones((B, S, S), np.int32))
    ),
    "attention, causal, with a past": lambda: (
        attention("b", "", "past", results=2, unidirectional=1, scale=0.3)
        .fixed(b=(3 * D,))
        .given(past=(2, B, N, P, H))
    ),
    "attention of values of another width": lambda: (
        Case("Attention", "x", "w", "b", num_heads=N, qkv_hidden_sizes=[D, D, 2 * D])
        .given(x=(B, S, D))
        .fixed(w=(D, 4 * D), b=(4 * D,))
    ),
    "heads": lambda: heads("k", "v", "b").given(k=(B, T, D), v=(B, T, D)).fixed(b=(3 * D,)),
    "heads, masked": lambda: (
        heads("k", "v", "", "m", "a").given(k=(B, T, D), v=(B, T, D), a=(1, N, S, T)).having(m=MASK)
    ),
    "heads, given as such": lambda: heads("k", "v").given(k=(B, N, T, H), v=(B, N, T, H)),
    "heads, causal, with a past": lambda: heads(
        "k", "v", "", "", "", "pk", "pv", results=3, unidirectional=1
    ).given(k=(B, S, D), v=(B, S, D), pk=(B, N, P, H), pv=(B, N, P, H)),
    "group": lambda: group("", "", "last", "total").having(**lengths(B, S)),
    "group with a past": lambda: (
        group("pk", "pv", "last", "total", batch=1, new=1, scale=0.4, softcap=3.0)
        .given(pk=(1, KV, P, H), pv=(1, KV, P, H))
        .having(**lengths(1, P + 1))
    ),
    "group, turned": lambda: (
        group("pk", "pv", "last", "total", "cos", "sin", new=1, do_rotary=1)
        .given(**PAST)
        .having(**lengths(B, P + 1))
        .holding(**caches())
    ),
    "group, packed, turned": lambda: (
        group(
            *("", "", "last", "total", "cos", "sin"),
            packed=True,
            do_rotary=1,
            rotary_interleaved=1,
        )
        .having(**lengths(B, S))
        .holding(**caches())
    ),
    "group, windowed": lambda: group("", "", "last", "total", local_window_size=2).having(
        **lengths(B, S)
    ),
}


def compared(model: onnx.ModelProto, inputs: Arrays) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(None, inputs)
    found = tvm_ext.compile(model, num_threads=2)(inputs)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_onnx_runtime(name: str) -> None:
    case = CASES[name]()
    compared(case.model(), case.inputs)


@pytest.mark.parametrize("op_type", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_the_sum_is_a_result_too(op_type: str) -> None:
    case = Case(op_type, "x", "s", "g").given(x=(B, S, D), s=(B, S, D)).fixed(g=(D,))
    case.named("y", "", "", "sum")
    compared(case.model(), case.inputs)


@pytest.mark.parametrize("taken", ["y_Mul_1", "y_Sigmoid_2"])
def test_tensors_that_are_made_take_no_name_of_others(taken: str) -> None:
    case = Case("QuickGelu", taken).named("y").given(**{taken: (B, S)})
    compared(case.model(), case.inputs)


def test_norms_stand_in_onnx_own_domain_too() -> None:
    case = Case("SimplifiedLayerNormalization", "x", "g", epsilon=1e-6, axis=-1)
    case.domain = ""
    case.given(x=(B, S, D)).fixed(g=(D,))
    compared(case.model(), case.inputs)


@pytest.mark.parametrize("parts", [3, 2])
def test_heads_side_by_side(parts: int) -> None:
    """ONNX Runtime has no such kernel for a CPU: it is asked with them apart."""
    rng = np.random.default_rng(0)
    together = rng.standard_normal((B, T, N, parts, H)).astype(np.float32)
    apart = [together[:, :, :, place].reshape(B, T, D) for place in range(parts)]
    query = [apart.pop(0)] if parts == 3 else [rng.standard_normal((B, S, D)).astype(np.float32)]
    known = heads("k", "v").having(q=query[0], k=apart[0], v=apart[1])
    session = onnxruntime.InferenceSession(known.model().SerializeToString())
    packed = Case("MultiHeadAttention", "q", num_heads=N).having(q=together)
    if parts == 2:
        packed = heads("kv").having(q=query[0], kv=together)
    (found,) = tvm_ext.compile(packed.model(), num_threads=2)(packed.inputs)
    np.testing.assert_allclose(found, session.run(None, known.inputs)[0], rtol=1e-4, atol=2e-5)


def test_products_of_bytes() -> None:
    """What ONNX Runtime writes of `quantize_dynamic`'s operators when it saves a model. By AVX2 it
    adds two products up in 16 bits, which hold weights of seven bits."""
    rng = np.random.default_rng(0)
    weight = rng.integers(-64, 64, (6, 9)).astype(np.int8)
    case = Case("DynamicQuantizeMatMul", "x", "w", "s", "p", "b")
    case.given(x=(S, 6)).fixed(b=(9,))
    case.holding(w=weight, s=np.float32([0.01]), p=np.int8([0]))
    compared(case.model(), case.inputs)
    case = Case("MatMulIntegerToFloat", "x", "w", "xs", "s", "xp", "", "b")
    case.having(x=rng.integers(0, 255, (S, 6)).astype(np.uint8)).fixed(b=(9,))
    case.holding(w=weight, s=np.float32([0.01]), xs=np.float32([0.02]), xp=np.uint8([120]))
    compared(case.model(), case.inputs)


def test_every_operator_is_tested() -> None:
    tested = {make().op_type for make in CASES.values()}
    tested |= {"SimplifiedLayerNormalization", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"}
    assert tested | {"TransposeMatMul"} == RESTATED.keys()


def test_forms_that_are_not_read_are_named() -> None:
    case = group("", "", "last", "total", smooth_softmax=1).having(**lengths(B, S))
    with pytest.raises(ModelError, match="GroupQueryAttention"):
        tvm_ext.compile(case.model())
