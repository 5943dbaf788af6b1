"""Defects that an existing engine has, each stated as a test of ours: what single ops compute, and dtypes.

The list is `docs/known-bugs.md`. What is expected is written out in NumPy here, apart from the reference interpreter.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pumice as pm
from engine.cases import Array, close, floats, on_all, on_both, once
from pumice import errors

from harness import device


def softmax(s: Array) -> Array:
    """Over the last axis; a row of nothing but -inf gives zeros."""
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isfinite(top), top, 0.0))
    total = e.sum(-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


# -- norms, reductions, scans ------------------------------------------------------------------------------------------
# 2.2: without a beta the gamma was added once more in its place.
@on_all
def test_layer_norm_without_a_bias(target: str) -> None:
    x, g = floats(4, 7), floats(7)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    plain, scaled = once(target, lambda params, x: (pm.layer_norm(x), pm.layer_norm(x, params["g"])), {"g": g}, x=x)
    close(plain, want)
    close(scaled, want * g)


# 2.2, 7.7: whatever axes a norm was given, it took the last one.
@on_all
def test_norms_over_several_axes(target: str) -> None:
    x, g, b = floats(3, 4, 5), floats(4, 5), floats(4, 5)

    def f(params: Any, x: Any) -> Any:
        return pm.layer_norm(x, params["g"], params["b"], axes=2), pm.rms_norm(x, params["g"], axes=2)

    mean, square = x.mean((1, 2), keepdims=True), (x * x).mean((1, 2), keepdims=True)
    normed, scaled = once(target, f, {"g": g, "b": b}, x=x)
    close(normed, (x - mean) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5) * g + b)
    close(scaled, x / np.sqrt(square + 1e-6) * g)


# 2.2: softmax, scans and selections took the last axis only, reductions neighbouring axes only.
@on_all
def test_reductions_and_scans_over_any_axis(target: str) -> None:
    x = floats(3, 4, 5)

    def f(x: Any) -> Any:
        return (
            pm.softmax(x, axis=0), pm.cumsum(x, axis=1), pm.cumsum(x, axis=0, exclusive=True), pm.sum(x, axis=(0, 2)),
            pm.max(x, axis=(0, 2), keepdims=True), pm.argmax(x, axis=1), pm.sum(x, axis=()),
        )  # fmt: skip

    wants = (
        softmax(x.transpose(1, 2, 0)).transpose(2, 0, 1), x.cumsum(1), x.cumsum(0) - x, x.sum((0, 2)),
        x.max((0, 2), keepdims=True), x.argmax(1), x,
    )  # fmt: skip
    for got, want in zip(once(target, f, x=x), wants, strict=True):
        assert got.shape == want.shape
        close(got, want)


# 2.2: selections came as floats; ties have one answer, the smaller index.
@on_all
def test_top_k_gives_whole_numbers_and_breaks_ties(target: str) -> None:
    x = np.float32([[1, 3, 3, 0, 3], [2, 2, 2, 2, 2]])
    values, indices = once(target, lambda x: pm.top_k(x, 3), x=x)
    assert indices.dtype == np.int32 and indices.tolist() == [[1, 2, 4], [0, 1, 2]]
    assert values.tolist() == [[3, 3, 3], [2, 2, 2]]


# 2.2: what is added up by index has duplicates, and starts from what it is added to.
@on_all
def test_scatter_add_of_many_updates_to_few_rows(target: str) -> None:
    x, ids, updates = floats(5, 3), np.int32(np.arange(700) % 4), floats(700, 3)
    want = x.astype(np.float64)
    np.add.at(want, ids, updates.astype(np.float64))
    close(once(target, lambda x, ids, u: pm.scatter_add(x, ids, u), x=x, ids=ids, u=updates), want, atol=1e-4)


# Appendix C: the results of empty reductions and of indices out of range were undefined.
@on_all
def test_empty_reductions_and_indices_out_of_range_are_defined(target: str) -> None:
    def f(x: Any, ids: Any) -> Any:
        return pm.sum(x, axis=0), pm.prod(x, axis=0), pm.max(x, axis=0), pm.gather(pm.arange(5), ids), pm.one_hot(ids, 5, "i32")

    ids = np.int32([0, -1, 9, -9])
    with pm.compile(f, x=pm.spec("N", 2, max=4), ids=pm.spec(4, dtype="i32"), check_indices=False, device=device(target)) as exe:
        total, product, most, rows, hot = exe.run(x=np.zeros((0, 2), "f4"), ids=ids)
    assert (total.tolist(), product.tolist(), most.tolist()) == ([0, 0], [1, 1], [-np.inf, -np.inf])
    assert rows.tolist() == [0, 4, 4, 0] and hot.sum(1).tolist()[0] == 1 and hot.sum(1).tolist()[2:] == [0, 0]


# -- dot products -------------------------------------------------------------------------------------------------------
# 2.3: the inner sizes of a matmul were not compared.
def test_matmuls_of_unfitting_sizes_are_refused_with_both_shapes() -> None:
    for a, b in (((2, 3), (4, 5)), ((2, 3, 4), (3, 3, 5)), ((3,), (4,)), ((2, 5, 4), (2, 5, 4))):
        with pytest.raises(errors.ShapeError) as e:
            pm.trace(lambda a, b: a @ b, a=pm.spec(*a), b=pm.spec(*b))
        assert str(a) in str(e.value) and str(b) in str(e.value)
    with pytest.raises(errors.ShapeError):
        pm.trace(lambda x, w: pm.qmatmul(x, w), x=pm.spec(2, 32), w=pm.spec(4, 64, dtype="q8_0"))


# 2.3: batches had to be identical, and vectors were a panic.
@on_all
def test_products_broadcast_batches_and_take_vectors(target: str) -> None:
    a, b, v = floats(4, 1, 2, 3), floats(5, 3, 2), floats(3)
    got = once(target, lambda a, b, v: (a @ b, v @ b, a @ v, v @ v), a=a, b=b, v=v)
    for g, want in zip(got, (a @ b, v @ b, a @ v, v @ v), strict=True):
        assert g.shape == np.shape(want)
        close(g, want)


# 2.1: elementwise ops compared the number of elements, not shapes.
@on_all
def test_elementwise_ops_broadcast_by_shape(target: str) -> None:
    a, b, c = floats(3, 1), floats(1, 4), np.array([True, False, True, True])
    got = once(target, lambda a, b, c: (a * b, pm.where(c, a, b), a < b), a=a, b=b, c=c)
    for g, want in zip(got, (a * b, np.where(c, a, b), a < b), strict=True):
        np.testing.assert_array_equal(g, want)
    with pytest.raises(errors.ShapeError):
        pm.trace(lambda a, b: a + b, a=pm.spec(2, 3), b=pm.spec(3, 2))


# -- attention and rotary positions ------------------------------------------------------------------------------------
def attend(q: Array, k: Array, v: Array, *, scale: float, cap: float = 0.0, bias: Any = 0.0, keep: Any = True) -> Array:
    """Attention in double precision; `keep` says which pairs count."""
    q, k, v = (t.astype(np.float64) for t in (q, k, v))
    k, v = (np.repeat(t, q.shape[1] // t.shape[1], axis=1) for t in (k, v))
    s = q @ k.transpose(0, 1, 3, 2) * scale
    s = cap * np.tanh(s / cap) if cap else s
    return softmax(np.where(keep, s + bias, -np.inf)) @ v


Q, K, V = floats(2, 4, 3, 8), floats(2, 4, 6, 8), floats(2, 4, 6, 8)
PLAIN = {"scale": 8**-0.5}
ROWS = np.arange(3)[:, None]
MASK = np.random.default_rng(5).random((2, 4, 3, 6)) < 0.6
BIAS = floats(2, 4, 3, 6)
LATER = {
    "scale": ({"scale": 0.3}, {"scale": 0.3}),
    "softcap": ({"softcap": 0.7}, {**PLAIN, "cap": 0.7}),
    "causal with more keys than queries": ({"causal": True}, {**PLAIN, "keep": np.arange(6) <= ROWS + 3}),
    "causal with an offset": ({"causal": True, "offset": np.int32([1, 2])}, {
        **PLAIN, "keep": np.arange(6) <= ROWS + np.int32([1, 2])[:, None, None, None]}),
    "window": ({"causal": True, "window": 2}, {**PLAIN, "keep": (np.arange(6) <= ROWS + 3) & (np.arange(6) > ROWS + 1)}),
    "mask": ({"mask": MASK}, {**PLAIN, "keep": MASK}),
    "mask of keys": ({"mask": MASK[:, :1, :1]}, {**PLAIN, "keep": MASK[:, :1, :1]}),
    "mask of one head": ({"mask": MASK[:1, :1]}, {**PLAIN, "keep": MASK[:1, :1]}),
    "nothing to attend to": ({"mask": np.zeros((1, 1, 1, 6), bool)}, {**PLAIN, "keep": np.zeros((1, 1, 1, 6), bool)}),
    "additive bias": ({"bias": BIAS}, {**PLAIN, "bias": BIAS}),
    "bias of one head": ({"bias": BIAS[:, :1]}, {**PLAIN, "bias": BIAS[:, :1]}),
    "bias, mask, cap and scale": ({"bias": BIAS, "mask": MASK, "softcap": 2.0, "scale": 0.5}, {
        "bias": BIAS, "keep": MASK, "cap": 2.0, "scale": 0.5}),
}  # fmt: skip


# 2.4, 7.7: scale and softcap were ignored; an additive bias was taken for a mask; causal masks had no offset; masks were not
# broadcast.
@on_both
@pytest.mark.parametrize("case", LATER)
def test_attention_heeds_all_it_is_given(target: str, case: str) -> None:
    given, want = LATER[case]
    arrays = {n: a for n, a in given.items() if isinstance(a, np.ndarray)}
    plain = {n: a for n, a in given.items() if n not in arrays}
    got = once(target, lambda q, k, v, **more: pm.attention(q, k, v, **plain, **more), q=Q, k=K, v=V, **arrays)
    close(got, attend(Q, K, V, **want))


# 2.4: fewer heads of keys than of queries had to be repeated by the caller; heads wider than 128 did not fit.
@on_all
@pytest.mark.parametrize(("heads", "width"), [(1, 8), (2, 8), (2, 160)])
def test_attention_shares_keys_between_heads_of_any_width(target: str, heads: int, width: int) -> None:
    q, k, v = floats(1, 4, 3, width), floats(1, heads, 5, width), floats(1, heads, 5, 4)
    close(once(target, lambda q, k, v: pm.attention(q, k, v), q=q, k=k, v=v), attend(q, k, v, scale=width**-0.5))


# 2.4: which axis is which was guessed from the sizes.
@on_all
def test_attention_is_told_its_layout(target: str) -> None:
    q, k, v = floats(2, 4, 4, 8), floats(2, 4, 4, 8), floats(2, 4, 4, 8)
    turned = [t.transpose(0, 2, 1, 3) for t in (q, k, v)]
    got = once(target, lambda q, k, v: (pm.attention(q, k, v), pm.attention(q, k, v, layout="bshd")), q=q, k=k, v=v)
    close(got[0], attend(q, k, v, **PLAIN))
    close(got[1], attend(*turned, **PLAIN).transpose(0, 2, 1, 3))


# 2.4: gradients took the number of heads from the wrong axis in one of the layouts.
@on_both
def test_gradients_of_attention_do_not_depend_on_the_layout(target: str) -> None:
    q, k, v = floats(2, 4, 3, 8), floats(2, 2, 5, 8), floats(2, 2, 5, 8)

    def gradients(layout: str) -> Any:
        def loss(params: Any) -> Any:
            y = pm.attention(params["q"], params["k"], params["v"], causal=True, softcap=3.0, layout=layout)
            return pm.sum(pm.sin(y))

        turn = (0, 2, 1, 3) if layout == "bshd" else (0, 1, 2, 3)
        params = {n: np.ascontiguousarray(a.transpose(turn)) for n, a in {"q": q, "k": k, "v": v}.items()}
        found = once(target, lambda params: pm.grad(loss)(params), params)
        return {n: g.transpose(turn) for n, g in found.items()}

    def loss(v: Array) -> float:
        s = np.repeat(k.astype(np.float64), 2, 1)
        s = q.astype(np.float64) @ s.transpose(0, 1, 3, 2) / 8**0.5
        keep = np.arange(5) <= ROWS + 2
        return float(np.sin(softmax(np.where(keep, 3 * np.tanh(s / 3), -np.inf)) @ np.repeat(v, 2, 1)).sum())

    one, other = gradients("bhsd"), gradients("bshd")
    for name in "qkv":
        close(one[name], other[name])
    step = np.zeros(v.shape)
    step[1, 1, 2, 3] = 1e-5
    close(one["v"][1, 1, 2, 3], (loss(v + step) - loss(v - step)) / 2e-5, atol=1e-4)


# 2.4, 7.7: a rotation of part of the head rotated all of it.
@on_all
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_rotates_no_more_than_it_is_told(target: str, interleaved: bool) -> None:
    x = floats(2, 3, 5, 12)
    angles = (np.arange(5) + 7)[:, None] * 100.0 ** (-np.arange(4) / 4)
    at = (slice(0, 8, 2), slice(1, 8, 2)) if interleaved else (slice(0, 4), slice(4, 8))
    want = x.astype(np.float64)
    a, b = x[..., at[0]], x[..., at[1]]
    want[..., at[0]], want[..., at[1]] = a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)
    got = once(target, lambda x: pm.rope(x, offset=7, rotary_dim=8, theta=100.0, interleaved=interleaved), x=x)
    close(got, want, atol=1e-4)
    np.testing.assert_array_equal(got[..., 8:], x[..., 8:])


# -- dtypes ------------------------------------------------------------------------------------------------------------
# 2.1, 7.8: a cast did nothing.
@on_all
def test_casts_convert(target: str) -> None:
    x = np.float32([0.1, -2.7, 2.5, 3.99, 1 / 3, 1000.1, -0.5])

    def f(x: Any) -> Any:
        there = [x.astype(d) for d in ("i32", "f16", "bf16", "bool")]
        return *there, x.astype("f16").astype("f32"), x.astype("i32").astype("f32"), (x.astype("i32") + 200).astype("u8")

    i32, f16, bf16, truth, through, whole, wrapped = once(target, f, x=x)
    assert i32.tolist() == [0, -2, 2, 3, 0, 1000, 0] and whole.tolist() == i32.tolist()
    np.testing.assert_array_equal(f16, x.astype(np.float16))
    np.testing.assert_array_equal(bf16, x.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(through, x.astype(np.float16).astype(np.float32))
    assert truth.all() and wrapped.tolist() == ((i32 + 200) % 256).tolist()


# 7.8: ids were floats, exact only below 2^24.
@on_all
def test_whole_numbers_above_sixteen_million_are_exact(target: str) -> None:
    big = 2**24
    table = np.zeros((big + 8, 1), "u1")
    table[big - 1 :, 0] = np.arange(9)
    ids = np.int32([big - 1, big + 1, big + 3, big + 7])

    def f(params: Any, ids: Any) -> Any:
        return pm.gather(params["t"], ids), ids + 1, ids * 2 + 1, pm.arange(big - 1, big + 5), pm.sum(ids - big), pm.max(ids)

    rows, after, odd, counted, total, most = once(target, f, {"t": table}, ids=ids)
    assert rows[:, 0].tolist() == [0, 2, 4, 8]
    assert after.tolist() == [big, big + 2, big + 4, big + 8] and odd.tolist() == (ids * 2 + 1).tolist()
    assert counted.tolist() == list(range(big - 1, big + 5)) and total == 10 and most == big + 7


# 2.1, 7.8: the bytes of constants were taken as they were, whatever the dtype of their place.
@on_all
def test_constants_have_the_value_they_were_given(target: str) -> None:
    def f(x: Any, i: Any, h: Any, u: Any) -> Any:
        return x + np.float64([0.1, 0.2]), x * 3, i + np.int64([2**30, -7]), h * 0.5, u + np.array([250, 1], "u1"), u > 1

    x, i, h, u = np.float32([1, 2]), np.int32([1, 2]), np.float16([3, 5]), np.uint8([1, 2])
    got = once(target, f, x=x, i=i, h=h, u=u)
    wants = (x + np.float32([0.1, 0.2]), x * 3, i + np.int32([2**30, -7]), h * np.float16(0.5), u + np.uint8([250, 1]), u > 1)
    for g, want in zip(got, wants, strict=True):
        assert g.dtype == want.dtype
        np.testing.assert_array_equal(g, want)


# 1, 7.8: the dtype of an output was a label on floats.
@on_all
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i32", "u32", "i8", "u8", "bool"])
def test_outputs_come_in_the_dtype_they_declare(target: str, dtype: str) -> None:
    x = np.float32([0, 1, 2, 3, 1, 0, 1])
    got = once(target, lambda x: (x + 0.0).astype(dtype), x=x)
    want = x.astype({"bf16": ml_dtypes.bfloat16, "bool": bool}.get(dtype) or np.dtype(dtype[0] + str(int(dtype[1:]) // 8)))
    assert got.dtype == want.dtype and got.shape == x.shape
    np.testing.assert_array_equal(got, want)


# 2: both GELUs were the approximation, and rounding took halves away from zero.
@on_all
def test_gelu_is_exact_and_halves_round_to_even(target: str) -> None:
    from math import erf

    x = np.float32([-3, -1.5, -0.5, 0.5, 1.5, 2.5, 3])
    exact, rough, rounded = once(target, lambda x: (pm.gelu(x), pm.gelu(x, approximate="tanh"), pm.round(x)), x=x)
    close(exact, [v * (1 + erf(v / 2**0.5)) / 2 for v in x.astype(float)], rtol=1e-5, atol=2e-6)
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x.astype(np.float64) ** 3)
    close(rough, x * (1 + np.tanh(inner)) / 2, atol=2e-6)
    assert rounded.tolist() == [-3, -2, -0.0, 0, 2, 2, 3]


# 2.2: the seed was part of the graph: every run drew the same numbers, or numbers that could not be reproduced.
@on_all
def test_random_numbers_follow_their_key_and_nothing_else(target: str) -> None:
    def f(key: Any) -> Any:
        step = pm.state("step", (), "i32")
        pm.set_state(step, step + 1)
        return pm.random.uniform(key, (40,)), pm.random.uniform(pm.random.fold_in(key, step), (40,))

    one, two = np.uint32([0, 1]), np.uint32([0, 2])
    with pm.compile(f, key=pm.spec(2, dtype="u32"), device=device(target)) as exe:
        runs = [exe.run(key=k) for k in (one, one, two)]
        np.testing.assert_array_equal(runs[0][0], runs[1][0])
        assert (runs[0][0] != runs[2][0]).mean() > 0.9 and (runs[0][1] != runs[1][1]).mean() > 0.9
        exe.state.reset()
        np.testing.assert_array_equal(exe.run(key=one)[1], runs[0][1])
