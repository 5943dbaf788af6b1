"""Products, neural network functions and random numbers of the front end, run by the reference interpreter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core import dtypes
from pumice.core.blocks import dequantize_rows, quantize_rows
from pumice.errors import DTypeError, FormatError, InputError, ShapeError
from pumice.reference.interpreter import evaluate_graph

rng = np.random.default_rng(1)


def same(got: Any, want: Any, tol: float = 1e-5) -> None:
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


# --- products ---


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,kj", [(2, 3), (4, 3)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ij->", [(2, 3)]),
        ("ijk->kj", [(2, 3, 4)]),
        ("ij,ij->", [(2, 3), (2, 3)]),
        ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
        ("ab,ab,b->a", [(2, 3), (2, 3), (3,)]),
        ("ij,ik->i", [(2, 3), (2, 4)]),
        ("i,->i", [(3,), ()]),
        ("ij,ij->ij", [(2, 3), (1, 3)]),
        ("ii->i", [(3, 3)]),
        ("iij,j->i", [(2, 2, 3), (3,)]),
    ],
)
def test_einsum_as_numpy(subscripts: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    same(pm.interpret(lambda *a: pm.einsum(subscripts, *a), *arrays), np.einsum(subscripts, *arrays))


@pytest.mark.parametrize("subscripts", ["ij->ik", "ij,jk->ik", "ijk->i", "i?->i"])
def test_bad_einsum_is_refused(subscripts: str) -> None:
    with pytest.raises(FormatError, match="einsum"):
        pm.trace(lambda x: pm.einsum(subscripts, x), x=pm.spec(2, 2))


def test_dot_general_orders_batch_then_free_axes() -> None:
    a, b = rng.standard_normal((2, 3, 4, 5)).astype(np.float32), rng.standard_normal((4, 3, 6)).astype(np.float32)
    got = pm.interpret(lambda x, y: pm.dot_general(x, y, ((2,), (0,)), ((1,), (1,))), a, b)
    same(got, np.einsum("abcd,cbe->bade", a, b))
    with pytest.raises(ShapeError, match="contract axes"):
        pm.trace(lambda x: pm.dot_general(x, x, ((0,), (1,))), x=pm.spec(2, 3))


def test_products_with_quantised_weights() -> None:
    w = rng.standard_normal((3, 64)).astype(np.float32)
    x = rng.standard_normal((2, 64)).astype(np.float32)
    blocks = quantize_rows(dtypes.q8_0, w)
    graph = pm.trace(
        lambda params, x: (pm.qmatmul(x, params["w"]), pm.dequantize(params["w"]), pm.embedding(params["w"], [2, 0])),
        params={"w": pm.spec(3, 64, dtype="q8_0")},
        x=pm.spec("B", 64),
    )
    product, plain, rows = evaluate_graph(graph, {"x": x}, {"w": blocks}).outputs
    want = dequantize_rows(dtypes.q8_0, blocks, 64)
    same(product, x @ want.T, 1e-4)
    same(plain, want)
    same(rows, want[[2, 0]])


# --- nn ---


def rotated(x: Any, positions: Any, width: int, interleaved: bool) -> Any:
    frequencies = 10000.0 ** (-np.arange(0, width, 2) / width)
    angle = positions[..., None] * frequencies
    out = x.copy()
    pairs = (slice(0, width, 2), slice(1, width, 2)) if interleaved else (slice(0, width // 2), slice(width // 2, width))
    first, second = x[..., pairs[0]], x[..., pairs[1]]
    out[..., pairs[0]] = first * np.cos(angle) - second * np.sin(angle)
    out[..., pairs[1]] = second * np.cos(angle) + first * np.sin(angle)
    return out


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(interleaved: bool) -> None:
    x = rng.standard_normal((2, 3, 5, 8)).astype(np.float32)
    places = np.array([[[4, 0, 9, 1, 2]], [[7, 7, 3, 0, 1]]], np.int32)
    options: dict[str, Any] = {"interleaved": interleaved}
    same(pm.interpret(lambda t: pm.rope(t, **options), x), rotated(x, np.arange(5), 8, interleaved))
    same(pm.interpret(lambda t: pm.rope(t, offset=3, rotary_dim=4, **options), x), rotated(x, np.arange(3, 8), 4, interleaved))
    same(pm.interpret(lambda t, n: pm.rope(t, offset=n, **options), x, np.int32(2)), rotated(x, np.arange(2, 7), 8, interleaved))
    same(pm.interpret(lambda t, p: pm.rope(t, p, **options), x, places), rotated(x, places, 8, interleaved))
    with pytest.raises(ShapeError, match="rotary_dim"):
        pm.trace(lambda t: pm.rope(t, rotary_dim=3), t=pm.spec(2, 8))


def attended(q: Any, k: Any, v: Any, seen: Any) -> Any:
    k, v = np.repeat(k, q.shape[1] // k.shape[1], 1), np.repeat(v, q.shape[1] // v.shape[1], 1)
    scores = np.where(seen, q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def test_attention() -> None:
    q = rng.standard_normal((2, 4, 3, 8)).astype(np.float32)
    k, v = (rng.standard_normal((2, 2, 6, 8)).astype(np.float32) for _ in range(2))
    keys, queries = np.arange(6), np.arange(3)[:, None]
    same(pm.interpret(pm.attention, q, k, v), attended(q, k, v, True), 1e-4)
    causal = pm.interpret(lambda *a: pm.attention(*a, causal=True), q, k, v)
    same(causal, attended(q, k, v, keys <= queries + 3), 1e-4)
    window = pm.interpret(lambda *a: pm.attention(*a, causal=True, offset=2, window=2), q, k, v)
    same(window, attended(q, k, v, (keys <= queries + 2) & (keys > queries)), 1e-4)
    short = pm.interpret(lambda *a: pm.attention(*a, kv_len=np.int32([4, 5])), q, k, v)
    same(short, attended(q, k, v, keys < np.array([4, 5])[:, None, None, None]), 1e-4)
    masked = pm.interpret(lambda *a: pm.attention(*a, mask=keys % 2 == 0), q, k, v)
    same(masked, attended(q, k, v, keys % 2 == 0), 1e-4)
    turned = pm.interpret(lambda *a: pm.attention(*[t.swapaxes(1, 2) for t in a], layout="bshd").swapaxes(1, 2), q, k, v)
    same(turned, attended(q, k, v, True), 1e-4)
    picked = pm.interpret(lambda *a: pm.attention(*a, kv_index=[1, 1]), q, k, v)
    same(picked, attended(q, k[[1, 1]], v[[1, 1]], True), 1e-4)


def test_attention_and_matmul_leave_half_operands_as_they_are() -> None:
    cache, w = pm.spec(2, 2, 6, 8, dtype="f16"), pm.spec(8, 5, dtype="bf16")
    graph = pm.trace(lambda q, k, v, w: pm.attention(q, k, v) @ w, q=pm.spec(2, 4, 3, 8), k=cache, v=cache, w=w)
    assert [n.op for n in graph.nodes if n.op not in ("input", "param")] == ["attention", "matmul"]
    assert str(graph.nodes[-1].type) == "f32[2,4,3,5]"
    narrow = pm.trace(pm.attention, q=pm.spec(2, 4, 3, 8, dtype="f16"), k=pm.spec(2, 2, 6, 8), v=pm.spec(2, 2, 6, 8))
    assert str(narrow.nodes[-1].type) == "f32[2,4,3,8]"


def test_dropout_keeps_the_mean() -> None:
    x = np.ones(20_000, np.float32)
    out = pm.interpret(lambda t, key: pm.dropout(t, key, 0.25), x, np.uint32([1, 2]))
    np.testing.assert_allclose(np.unique(out), [0, 4 / 3], rtol=1e-6)
    assert abs(out.mean() - 1) < 0.02
    same(pm.interpret(lambda t: pm.dropout(t, pm.random.key(0), 0.0), x), x)
    with pytest.raises(InputError, match="rate"):
        pm.trace(lambda t: pm.dropout(t, pm.random.key(0), 1.0), t=pm.spec(2))


# --- random ---


def test_random_streams_differ_by_key_and_repeat() -> None:
    def draw(x: Any) -> Any:
        first = pm.random.key(0)
        children = pm.random.split(first, 3)
        folded = [pm.random.fold_in(pm.random.key(seed), step) for seed in (0, 1) for step in (0, 1, 2**31)]
        keys = [first, *children, *folded, pm.random.fold_in(first, x[0])]
        return pm.stack([pm.random.random_bits(k, (4,)) for k in keys])

    x = np.int32([5])
    bits = pm.interpret(draw, x)
    assert len(np.unique(bits, axis=0)) == len(bits)
    same(pm.interpret(draw, x), bits)
    folded = [pm.interpret(lambda t: pm.random.fold_in(pm.random.key(3), t), np.int32(n)) for n in (7, -1)]
    same(pm.interpret(lambda t: pm.random.fold_in(pm.random.key(3), 7), x), folded[0])
    same(pm.interpret(lambda t: pm.random.fold_in(pm.random.key(3), -1), x), folded[1])


def test_random_distributions() -> None:
    def draw(k: Any) -> Any:
        a, b, c = pm.random.split(k, 3)
        return pm.random.uniform(a, 20_000, -1, 3), pm.random.normal(b, 20_000), pm.random.bernoulli(c, 0.3, 20_000)

    uniform, normal, flags = pm.interpret(draw, np.uint32([0, 9]))
    assert uniform.min() >= -1 and uniform.max() < 3 and abs(uniform.mean() - 1) < 0.03
    assert abs(normal.mean()) < 0.03 and abs(normal.std() - 1) < 0.03
    assert abs(flags.mean() - 0.3) < 0.02


def test_categorical_follows_the_logits() -> None:
    logits = np.log(np.float32([0.1, 0.6, 0.3]))
    drawn = pm.interpret(lambda t: pm.random.categorical(pm.random.key(1), pm.broadcast_to(t, (20_000, 3))), logits)
    np.testing.assert_allclose(np.bincount(drawn) / 20_000, [0.1, 0.6, 0.3], atol=0.02)


def test_bad_keys_and_probabilities_are_refused() -> None:
    with pytest.raises(DTypeError, match=r"a key is u32\[2\]"):
        pm.trace(lambda x: pm.random.normal(x, (2,)), x=pm.spec(2))
    with pytest.raises(InputError, match="seed"):
        pm.trace(lambda x: pm.random.key(-1), x=pm.spec(2))
    with pytest.raises(InputError, match="probability"):
        pm.trace(lambda k: pm.random.bernoulli(k, 1.5, (2,)), k=pm.spec(2, dtype="u32"))
