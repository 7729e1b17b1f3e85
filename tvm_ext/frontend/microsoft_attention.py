"""Attention as Microsoft's domain has it, in products and a softmax.

    GroupQueryAttention(q, k, v, past)   →   q, k turned by their positions; k, v behind the past's
                                             Softmax(scale q kᵀ, of what came before) v

Heads are counted by an attribute, and everything else by shapes, which folding knows later. A cache
grows: what is new stands behind the past, all of which is taken to be there; texts of a batch that
have pasts of several lengths are not told apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from tvm_ext.frontend.quantised import MICROSOFT
from tvm_ext.frontend.writer import Restate, Writer

MASKED = -10000.0
"""What is added to the scores that a mask leaves out, if a node does not say."""
LEAST = -65504.0
"""A score that no softmax sees, and a half can hold."""


def counts_words(node: onnx.NodeProto) -> bool:
    """Whether an operator is told how many words its cache holds, and reads no more of them."""
    return (node.domain, node.op_type) == (MICROSOFT, "GroupQueryAttention")


def _heads(w: Writer, x: str, count: int) -> str:
    """[B, S, N H] → [B, N, S, H]"""
    return w("Transpose", w("Reshape", x, w.ints(0, 0, count, -1)), perm=[0, 2, 1, 3])


def _repeated(w: Writer, x: str, heads: int, times: int) -> str:
    """Each head of [B, N, T, H] so many times, side by side."""
    if times == 1:
        return x
    apart = w("Expand", w.axis("Unsqueeze", x, 2), w.ints(1, 1, times, 1, 1))
    rest = w("Slice", w("Shape", x), w.ints(2), w.ints(4), w.ints(0))
    return w("Reshape", apart, w("Concat", w.ints(0, heads * times), rest, axis=0))


def _behind(w: Writer, past: str | None, x: str, output: str | None) -> str:
    """What is new behind the past, along the axis of words; as a result, if it is one."""
    if past is not None:
        return w("Concat", past, x, axis=2, output=output or "")
    return w("Identity", x, output=output) if output else x


def _attended(
    w: Writer,
    q: str,
    k: str,
    v: str,
    *,
    bias: Sequence[str] = (),
    seen: str | None = None,
) -> None:
    """The result, from heads [B, N, S, H]; `bias` is added to scores, and those that are not `seen`
    have no part."""
    given = w.number("scale", 0.0)
    root = w("Sqrt", w.as_floats(w.extent(q, 3)))
    factor = w.real(given) if given else w("Reciprocal", root)
    scores = w("Mul", w("MatMul", q, w("Transpose", k, perm=[0, 1, 3, 2])), factor)
    cap = w.number("softcap", 0.0)
    if cap:
        scores = w("Mul", w("Tanh", w("Div", scores, w.real(cap))), w.real(cap))
    for one in bias:
        scores = w("Add", scores, one)
    if seen is not None:
        scores = w("Where", seen, scores, w.real(LEAST))
    mixed = w("MatMul", w("Softmax", scores, axis=-1), v)
    joined = w("Transpose", mixed, perm=[0, 2, 1, 3])
    w("Reshape", joined, w.ints(0, 0, -1), output=w.outputs[0])


def _causal(w: Writer, q: str, k: str) -> str:
    """Which words [S, T] come before each of the last S, itself among them."""
    words, new = w.extent(k, 2), w.extent(q, 2)
    at = w.axis("Unsqueeze", w("Add", w.counted(new), w("Sub", words, new)), -1)
    return _reached(w, at, w.counted(words))


def _reached(w: Writer, at: str, words: str) -> str:
    """Which words those at [.., S, 1] have come to."""
    return w("Not", w("Less", at, words))


def _biases(w: Writer, place: int) -> list[str] | None:
    """What is added to scores by a mask [B, T] or [B, S, T] at that place among the inputs, and by
    a bias; None if the mask has another form."""
    found = []
    if place in w.inputs:
        kept = w.inputs[place]
        rank = w.known.rank(kept)
        if rank not in (2, 3):
            return None
        for _ in range(4 - rank):
            kept = w.axis("Unsqueeze", kept, 1)
        missing = w("Sub", w.real(1.0), w.as_floats(kept))
        found.append(w("Mul", missing, w.real(w.number("mask_filter_value", MASKED))))
    return [*found, w.inputs[5]] if 5 in w.inputs else found


def _attention(w: Writer) -> bool:
    """Projections, whose weights are side by side, and attention."""
    shape = w.known.shape(w.inputs[1])
    if w.count("do_rotary") or w.count("past_present_share_buffer") or not shape or not shape[-1]:
        return False
    biases = _biases(w, 3)
    if biases is None:
        return False
    heads = w.count("num_heads")
    given = w.attributes.get("qkv_hidden_sizes")
    sizes = [int(n) for n in given] if given else [shape[-1] // 3] * 3
    projected = w("MatMul", w.inputs[0], w.inputs[1])
    if 2 in w.inputs:
        projected = w("Add", projected, w.inputs[2])
    ends = [sum(sizes[: place + 1]) for place in range(3)]
    q, k, v = (
        _heads(w, w.part(projected, 2, end - size, end), heads)
        for end, size in zip(ends, sizes, strict=True)
    )
    if 4 in w.inputs:
        k, v = (
            w("Concat", w("Gather", w.inputs[4], w.whole(at), axis=0), one, axis=2)
            for at, one in enumerate((k, v))
        )
    if 1 in w.outputs:
        both = [w.axis("Unsqueeze", one, 0) for one in (k, v)]
        w("Concat", *both, axis=0, output=w.outputs[1])
    seen = _causal(w, q, k) if w.count("unidirectional") else None
    _attended(w, q, k, v, bias=biases, seen=seen)
    return True


def _multi_head(w: Writer) -> bool:
    """Attention of what was projected before."""
    heads = w.count("num_heads")
    query, key, value = (w.inputs.get(at) for at in range(3))
    added = _biases(w, 4)
    if (
        added is None
        or query is None
        or w.outputs.keys() - {0, 1, 2}
        or w.inputs.keys() - set(range(8))
    ):
        return False
    biases: list[str | None] = [w.inputs.get(3)] * 3
    if key is None or value is None:  # packed: [B, S, N, 3, H], or [B, T, N, 2, H] beside q
        if w.inputs.get(3) or (key is not None and w.known.rank(key) != 5):
            return False
        source, count = (query, 3) if key is None else (key, 2)
        parts = [
            w("Transpose", w("Gather", source, w.whole(at), axis=3), perm=[0, 2, 1, 3])
            for at in range(count)
        ]
        q, k, v = parts if count == 3 else [_heads(w, query, heads), *parts]
    else:
        if w.inputs.get(3):
            width = w.axis("Unsqueeze", w.extent(query, 2), 0)
            twice, none = w("Add", width, width), w.ints(0)
            limits = [(none, width), (width, twice), (twice, w.ints(2**31 - 1))]
            biases = [w("Slice", w.inputs[3], begin, end, none) for begin, end in limits]
        made = []
        for name, bias in zip((query, key, value), biases, strict=True):
            if w.known.rank(name) == 4:  # heads already, of which nothing is biased
                made.append(name)
                continue
            made.append(_heads(w, w("Add", name, bias) if bias else name, heads))
        q, k, v = made
    k = _behind(w, w.inputs.get(6), k, w.outputs.get(1))
    v = _behind(w, w.inputs.get(7), v, w.outputs.get(2))
    seen = _causal(w, q, k) if w.count("unidirectional") else None
    _attended(w, q, k, v, bias=added, seen=seen)
    return True


def _turned(
    w: Writer, x: str, at: str, caches: Sequence[str], half: int, *, interleaved: bool
) -> str:
    """Heads [B, N, S, H] turned by their words' positions [B, S], or [S]: each of `half` pairs of
    elements in its plane, as the caches of cosines and sines say. What is beyond them is left."""
    cosine, sine = (w.axis("Unsqueeze", w("Gather", cache, at), -3) for cache in caches)
    rest = w.part(x, 3, 2 * half, 2**31 - 1)
    if interleaved:
        one, other = (w.part(x, 3, begin, 2 * half, 2) for begin in (0, 1))
    else:
        one, other = (w.part(x, 3, begin, begin + half) for begin in (0, half))
    first = w("Sub", w("Mul", one, cosine), w("Mul", other, sine))
    second = w("Add", w("Mul", other, cosine), w("Mul", one, sine))
    if not interleaved:
        return w("Concat", first, second, rest, axis=3)
    pairs = w("Concat", *(w.axis("Unsqueeze", part, 4) for part in (first, second)), axis=4)
    return w("Concat", w("Reshape", pairs, w.ints(0, 0, 0, -1)), rest, axis=3)


def _rotary(w: Writer) -> bool:
    """`RotaryEmbedding` of [B, S, N H], or [B, N, S, H]."""
    x, at, *caches = (w.inputs[place] for place in range(4))
    shape, places = w.known.shape(caches[0]), w.known.shape(at)
    if not shape or not shape[-1] or w.count("is_packed_batching") or w.number("scale", 1.0) != 1.0:
        return False
    apart = w.known.rank(x) == 4
    head = w.count("rotary_embedding_dim") and w.count("num_heads")
    rows = x
    if not apart and head:
        rows = _heads(w, x, head)
    elif not apart:
        heads = w("Reshape", x, w.ints(0, 0, -1, 2 * shape[-1]))
        rows = w("Transpose", heads, perm=[0, 2, 1, 3])
    if places is not None and len(places) == 1:  # where the first word stands
        at = w("Add", w.counted(w.extent(rows, 2)), at)
    turned = _turned(w, rows, at, caches, shape[-1], interleaved=bool(w.count("interleaved")))
    if apart:
        w("Identity", turned, output=w.outputs[0])
    else:
        back = w("Transpose", turned, perm=[0, 2, 1, 3])
        w("Reshape", back, w.ints(0, 0, -1), output=w.outputs[0])
    return True


def _group_query(w: Writer) -> bool:
    """Heads that share keys and values, words that see those before them, and a cache."""
    heads, shared = w.count("num_heads"), w.count("kv_num_heads")
    plain = ("smooth_softmax", "k_quant_type", "v_quant_type", "qk_output")
    strange = [w.attributes.get(name, 0) not in (0, b"NONE") for name in plain]
    caches = [w.inputs[place] for place in (7, 8) if place in w.inputs]
    shape = w.known.shape(caches[0]) if len(caches) == 2 else None
    half = shape[-1] if shape else None
    unread = w.inputs.keys() - set(range(11)) or w.outputs.keys() - {0, 1, 2}
    if any(strange) or unread or 5 not in w.inputs or (w.count("do_rotary") and not half):
        return False
    if 1 in w.inputs:
        counts = (heads, shared, shared)
        q, k, v = (_heads(w, w.inputs[at], n) for at, n in enumerate(counts))
    else:
        every = _heads(w, w.inputs[0], heads + 2 * shared)
        ends = (0, heads, heads + shared, heads + 2 * shared)
        q, k, v = (w.part(every, 1, ends[at], ends[at + 1]) for at in range(3))
    new = w.extent(q, 2)
    at = w.counted(new)
    if 3 in w.inputs:  # behind what came before them, which a text of its own length does not have
        length = w("Add", w("Cast", w.inputs[5], to=onnx.TensorProto.INT64), w.whole(1))
        before = w("Sub", w("Reshape", length, w.ints(-1, 1)), new)
        at = w("Add", at, w("Max", before, w.whole(0)))
    if w.count("do_rotary") and half:
        places = w.inputs.get(9, at)
        interleaved = bool(w.count("rotary_interleaved"))
        q, k = (_turned(w, x, places, caches, half, interleaved=interleaved) for x in (q, k))
    k = _behind(w, w.inputs.get(3), k, w.outputs.get(1))
    v = _behind(w, w.inputs.get(4), v, w.outputs.get(2))
    words = w.counted(w.extent(k, 2))
    own = w.axis("Unsqueeze", at, -1)
    seen = _reached(w, own, words)
    window = w.count("local_window_size", -1)
    if window > 0:
        seen = w("And", seen, w("Less", w("Sub", own, w.whole(window)), words))
    if 3 in w.inputs:
        seen = w.axis("Unsqueeze", seen, 1)  # of each text, for all of its heads
    bias = [w.inputs[10]] if 10 in w.inputs else []
    k, v = (_repeated(w, one, shared, heads // shared) for one in (k, v))
    _attended(w, q, k, v, bias=bias, seen=seen)
    return True


ATTENTION: dict[str, Restate] = {
    "Attention": _attention,
    "GroupQueryAttention": _group_query,
    "MultiHeadAttention": _multi_head,
    "RotaryEmbedding": _rotary,
}
