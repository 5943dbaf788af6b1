"""Rotary position embedding and scaled dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.dims import Dim, Shape, shape_text
from pumice.core.dtypes import DType
from pumice.core.precisions import FLOAT_PRECISIONS, check_precision
from pumice.errors import DTypeError, InputError, ShapeError
from pumice.ir.gradients.attention import attention as attention_gradient
from pumice.ir.gradients.linear import rope as rope_gradient
from pumice.ir.ops.attention_errors import attention_error, rope_error
from pumice.ir.ops.attention_math import (
    attended_pairs,
    head_groups,
    hidden,
    pages_of,
    probabilities,
    scale_of,
    usual_layout,
)
from pumice.ir.registry import REQUIRED, Array, Attrs, OpSpec, Pull, Routine, Sample, Types, register
from pumice.ir.rules import broadcast, given, require_kind, rng, same_dtype
from pumice.ir.traits import Sizes, Traits
from pumice.ir.types import TensorType

_ATTENTION_ATTRS = {
    "layout": "bhsd",
    "causal": False,
    "window": None,
    "scale": None,
    "softcap": None,
    "precision": "exact",
    "own_rows": False,
}


def _check_kind(t: TensorType, name: str, kind: str) -> None:
    try:
        require_kind(t, kind)
    except DTypeError as e:
        raise DTypeError(f"{name} {e.message}", hint=e.hint, operand=name, **e.fields) from None


def _check_fits(t: TensorType, name: str, target: Shape, meaning: str) -> None:
    """Refuses an operand that does not broadcast to `target` as it stands; `meaning` names the target's axes."""
    try:
        fits = broadcast(t.shape, target) == target
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{name} must broadcast to {meaning} = {shape_text(target)}, its shape is {shape_text(t.shape)}",
            hint="each axis, counted from the last, is 1 or equal to the target's",
            operand=name,
            target=target,
            got=t.shape,
        )


def _infer_rope(types: Types, attrs: Attrs) -> TensorType:
    x, cos, sin = given(types)
    rotary = attrs["rotary_dim"]
    for t, name in ((x, "x"), (cos, "cos"), (sin, "sin")):
        _check_kind(t, name, "float")
    same_dtype((cos, sin))
    depth = x.shape[-1] if x.rank >= 2 else None
    if not isinstance(depth, int):
        raise ShapeError(
            f"x must have the shape [..., S, D] with a static D, it is {shape_text(x.shape)}",
            hint="the rotated entries are along the last axis",
            x=x.shape,
        )
    if rotary % 2 or not 2 <= rotary <= depth:
        raise ShapeError(
            f"rotary_dim must be even and in 2…{depth}, the last axis of x {shape_text(x.shape)}; it is {rotary}",
            hint="it counts the entries that rotate, two for each angle",
            rotary_dim=rotary,
            x=x.shape,
        )
    target = (*x.shape[:-1], rotary // 2)
    for t, name in ((cos, "cos"), (sin, "sin")):
        _check_fits(t, name, target, "x's leading axes and rotary_dim/2")
    return x


def _rope(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, cos, sin = arrays
    rotary: int = attrs["rotary_dim"]
    half = rotary // 2
    pair = (slice(0, rotary, 2), slice(1, rotary, 2)) if attrs["interleaved"] else (slice(0, half), slice(half, rotary))
    first, second = (x[..., s] for s in pair)
    result: Array = x.copy()
    result[..., pair[0]] = first * cos - second * sin
    result[..., pair[1]] = second * cos + first * sin
    return result


def _axes(shape: Shape, layout: str) -> tuple[Dim, Dim, Dim, Dim]:
    """Batch, heads, sequence and depth of a rank 4 shape."""
    b, x, y, d = shape
    return (b, x, y, d) if layout == "bhsd" else (b, y, x, d)


def _infer_attention(types: Types, attrs: Attrs) -> TensorType:
    q, k, v = given(types[:3])
    _check_kind(q, "q", "float")
    same_dtype((k, v))
    _check_scales(k, v, types[8], types[9])
    _check_attention_attrs(attrs)
    check_precision(attrs.get("precision", "exact"), FLOAT_PRECISIONS)  # the gradient, whose operands are the same, has none
    layout = attrs["layout"]
    order = "[B, H, S, D]" if layout == "bhsd" else "[B, S, H, D]"
    shapes = f"q {shape_text(q.shape)}, k {shape_text(k.shape)}, v {shape_text(v.shape)}"
    fields = {"q": q.shape, "k": k.shape, "v": v.shape, "layout": layout}
    if not q.rank == k.rank == v.rank == 4:
        raise ShapeError(f"q, k and v must have rank 4, {order}: {shapes}", hint="add a batch axis of 1", **fields)
    batch, heads, sq, depth = _axes(q.shape, layout)
    kv_batch, kv_heads, sk, k_depth = _axes(k.shape, layout)
    if _axes(v.shape, layout)[:3] != (kv_batch, kv_heads, sk):
        raise ShapeError(f"k and v must agree in batch, heads and sequence, {order}: {shapes}", **fields)
    if k_depth != depth:
        raise ShapeError(f"q and k must agree in depth, {order}: {shapes}", **fields)
    sk = sk * _check_kv_index(types[7], batch, kv_batch, f"{order}: {shapes}")
    static = [d for d in (heads, kv_heads, depth, v.shape[3]) if isinstance(d, int) and d > 0]
    if len(static) < 4:
        raise ShapeError(f"heads and depths must be static and at least 1, {order}: {shapes}", **fields)
    if static[0] % static[1]:
        raise ShapeError(
            f"the {heads} heads of q must be a multiple of the {kv_heads} heads of k and v, {order}: {shapes}",
            hint="layout='bshd' puts the sequence before the heads, layout='bhsd' after them",
            **fields,
        )
    _check_attention_extras(types[3:7], batch, (batch, heads, sq, sk))
    for sinks in given(types[10:]):
        _check_kind(sinks, "sinks", "float")
        if sinks.shape != (heads,):
            raise ShapeError(f"sinks must be [H] = [{heads}], their shape is {shape_text(sinks.shape)}", operand="sinks")
    return TensorType(q.dtype, (*q.shape[:3], v.shape[3]))


def _check_scales(k: TensorType, v: TensorType, k_scale: TensorType | None, v_scale: TensorType | None) -> None:
    """Keys and values are floats, or i8 with a factor for each vector of them."""
    if k_scale is None and v_scale is None:
        _check_kind(k, "k", "float")
        _check_kind(v, "v", "float")
        return
    if k_scale is None or v_scale is None:
        raise ShapeError("k_scale and v_scale go together", hint="give both, or neither with float keys and values")
    for t, scale, name in ((k, k_scale, "k"), (v, v_scale, "v")):
        if t.dtype != dtypes.i8:
            raise DTypeError(f"with scales {name} takes i8, not {t.dtype}", hint="leave the scales out for floats", operand=name)
        if scale.dtype != dtypes.f32 or scale.shape != t.shape[:-1]:
            raise ShapeError(
                f"{name}_scale must be f32 of the shape of {name} without its depth, {shape_text(t.shape[:-1])}, "
                f"it is {scale.describe()}",
                operand=f"{name}_scale",
            )


def _check_kv_index(index: TensorType | None, batch: Dim, kv_batch: Dim, shapes: str) -> Dim:
    """How many entries of k and v each entry of q reads, one after the other."""
    if index is None:
        if kv_batch != batch:
            raise ShapeError(
                f"without kv_index q and k must agree in batch, {shapes}",
                hint="kv_index names the entry of k and v that each entry of q reads",
            )
        return 1
    if index.dtype != dtypes.i32:
        raise DTypeError(f"kv_index takes i32, not {index.dtype}", hint="cast with .astype('i32')", operand="kv_index")
    if index.rank not in (1, 2) or index.shape[0] != batch:
        raise ShapeError(
            f"kv_index must be [B] or [B, pages] with B = {batch}, its shape is {shape_text(index.shape)}", operand="kv_index"
        )
    if kv_batch == 0 and batch != 0:
        raise ShapeError(f"k and v have no entry that kv_index could name, {shapes}", operand="kv_index")
    return pages_of(index.shape)


def _check_attention_attrs(attrs: Attrs) -> None:
    rules = (
        ("layout", attrs["layout"] in ("bhsd", "bshd"), "'bhsd' or 'bshd'"),
        ("window", attrs["window"] is None or attrs["window"] >= 1, "None or at least 1"),
        ("scale", attrs["scale"] is None or math.isfinite(attrs["scale"]), "None or finite"),
        ("softcap", attrs["softcap"] is None or 0 < attrs["softcap"] < math.inf, "None or positive and finite"),
    )
    for name, holds, rule in rules:
        if not holds:
            raise InputError(f"{name} must be {rule}, it is {attrs[name]!r}", attr=name, got=attrs[name])


def _check_attention_extras(types: Types, batch: Dim, scores: Shape) -> None:
    mask, bias, offset, kv_len = types
    for t, name, kind in ((mask, "mask", "bool"), (bias, "bias", "float")):
        if t is not None:
            _check_kind(t, name, kind)
            _check_fits(t, name, scores, "[B, H, Sq, Sk]")
    for t, name in ((offset, "offset"), (kv_len, "kv_len")):
        if t is not None:
            if t.dtype != dtypes.i32:
                raise DTypeError(f"{name} takes i32, not {t.dtype}", hint="cast with .astype('i32')", operand=name)
            _check_fits(t, name, (batch,), "[B]")


def _attention(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    mask, bias, offset, kv_len, kv_index = arrays[3:8]
    (sinks,) = arrays[10:] or (None,)
    if kv_index is not None and len(arrays[1]) == 0:
        return np.zeros(out.static_shape, arrays[0].dtype)
    q, k, v = usual_layout(arrays, attrs)
    (batch, heads, sq, depth), (_, kv_heads, sk, _) = q.shape, k.shape
    grouped = head_groups(q, kv_heads)
    with np.errstate(invalid="ignore", over="ignore"):
        scores = np.matmul(grouped, k[:, :, None].swapaxes(-1, -2)).reshape(batch, heads, sq, sk)
        weights = probabilities(
            scores, scale_of(attrs, depth), attrs["softcap"], bias, hidden(attrs, batch, sq, sk, mask, offset, kv_len), sinks
        )
        result: Array = np.matmul(head_groups(weights, kv_heads), v[:, :, None])
    result = result.reshape(batch, heads, sq, v.shape[3])
    return result.swapaxes(1, 2) if attrs["layout"] == "bshd" else result


def _angles(positions: Array, half: int) -> tuple[Array, Array]:
    """Cosines and sines of the usual angles, [..., S, half]."""
    angle = positions[..., None] * 10000.0 ** -(np.arange(half) / half)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def _rope_samples() -> Iterator[Sample]:
    def sample(
        label: str,
        shape: tuple[int, ...],
        rotary: int,
        positions: Array,
        *,
        interleaved: bool = False,
        dtype: DType = dtypes.f32,
        table: DType = dtypes.f32,
    ) -> Sample:
        x = rng().standard_normal(shape).astype(dtype.np)
        cos, sin = (a.astype(table.np) for a in _angles(positions, rotary // 2))
        return Sample(label, (x, cos, sin), {"rotary_dim": rotary, "interleaved": interleaved})

    six = np.arange(6)
    yield sample("full", (6, 8), 8, six)
    yield sample("full interleaved", (6, 8), 8, six, interleaved=True)
    yield sample("partial", (6, 10), 6, six)
    yield sample("partial interleaved", (6, 10), 6, six, interleaved=True)
    yield sample("odd depth", (6, 9), 8, six)
    yield sample("odd depth interleaved", (6, 9), 4, six, interleaved=True)
    yield sample("one angle", (6, 2), 2, six)
    yield sample("heads share the table", (2, 3, 6, 16), 16, six)
    yield sample("positions per batch", (2, 3, 6, 16), 8, np.stack([six, six + 40])[:, None])
    yield sample("sequence before heads", (2, 6, 3, 16), 16, six[:, None])
    yield sample("sequence before heads, per batch", (2, 6, 3, 16), 12, np.stack([six, six + 5])[:, :, None], interleaved=True)
    yield sample("table of full rank", (2, 3, 6, 8), 8, np.broadcast_to(six, (2, 3, 6)))
    yield sample("offset positions", (2, 6, 8), 8, six + 1000)
    yield sample("one step at 70", (1, 4, 1, 64), 64, np.array([70]))
    yield sample("empty sequence", (2, 0, 8), 8, six[:0])
    yield sample("f16", (3, 6, 10), 10, six, dtype=dtypes.f16, table=dtypes.f16)
    yield sample("f16 odd depth, f32 table", (3, 6, 7), 6, six, dtype=dtypes.f16)
    yield sample("bf16 interleaved, f32 table", (3, 6, 8), 4, six, interleaved=True, dtype=dtypes.bf16)


def _attention_sample(
    label: str,
    *,
    b: int = 2,
    h: int = 4,
    hkv: int | None = None,
    sq: int = 6,
    sk: int | None = None,
    d: int = 16,
    dv: int | None = None,
    dtype: DType = dtypes.f32,
    mask: Array | None = None,
    bias: Array | None = None,
    offset: Sequence[int] | int | None = None,
    kv_len: Sequence[int] | int | None = None,
    kv_index: Sequence[int] | Sequence[Sequence[int]] | None = None,
    entries: int | None = None,
    kv_dtype: DType | None = None,
    eight_bits: bool = False,
    sinks: Sequence[float] | None = None,
    **attrs: Any,
) -> Sample:
    r = rng()
    hkv, sk, dv = (h if hkv is None else hkv), (sq if sk is None else sk), (d if dv is None else dv)
    s = b if entries is None else entries
    stored = ((b, h, sq, d), dtype), ((s, hkv, sk, d), kv_dtype or dtype), ((s, hkv, sk, dv), kv_dtype or dtype)
    qkv = [r.standard_normal(shape).astype(np.float32).astype(t.np) for shape, t in stored]
    if attrs.get("layout") == "bshd":
        qkv = [np.ascontiguousarray(a.swapaxes(1, 2)) for a in qkv]
    ints = (None if p is None else np.array(p, np.int32) for p in (offset, kv_len, kv_index))
    scales: list[Array | None] = [None, None]
    if eight_bits:
        scales = [(np.abs(a).max(axis=-1) / 127).astype(np.float32) for a in qkv[1:]]
        qkv[1:] = [np.rint(a / s[..., None]).astype(np.int8) for a, s in zip(qkv[1:], scales, strict=True) if s is not None]
    ending = None if sinks is None else np.array(sinks, np.float32)
    return Sample(label, (*qkv, mask, bias, *ints, *scales, ending), {**_ATTENTION_ATTRS, **attrs})


def _attention_samples() -> Iterator[Sample]:
    make, r = _attention_sample, rng(1)
    yield make("one head", b=1, h=1, sq=5, d=8)
    yield make("MHA")
    yield make("GQA", hkv=2)
    yield make("MQA", hkv=1)
    yield make("MHA bshd", layout="bshd")
    yield make("GQA bshd causal", hkv=2, sk=9, layout="bshd", causal=True)
    yield make("causal square", causal=True)
    yield make("causal, more keys", sq=3, sk=11, causal=True)
    yield make("causal, fewer keys: first rows are zeros", sq=7, sk=4, causal=True)
    yield make("causal, one offset", sk=20, causal=True, offset=5)
    yield make("causal, offset per batch", hkv=2, sk=20, causal=True, offset=[0, 9])
    yield make("causal, offset of one entry", sk=9, causal=True, offset=[2])
    yield make("kv_len", sk=12, kv_len=7)
    yield make("kv_len per batch", sk=12, kv_len=[3, 12])
    yield make(
        "kv_len and offset per batch, bshd", hkv=1, sq=2, sk=24, causal=True, offset=[3, 17], kv_len=[5, 19], layout="bshd"
    )
    yield make("kv_len 0 gives zeros", sk=5, kv_len=[0, 5])
    yield make("kv_len beyond the keys", sk=5, kv_len=9)
    yield make("window", sq=9, causal=True, window=3)
    yield make("window 1 attends to itself", sq=5, causal=True, window=1)
    yield make("window, not causal", sq=5, sk=9, window=4)
    yield make("window and offset, several chunks", sq=2, sk=130, causal=True, window=40, offset=[60, 120])
    yield make("softcap", softcap=1.5)
    yield make("precision f16", sq=20, sk=40, d=16, causal=True, precision="f16")
    yield make("precision bf16, GQA", hkv=2, sq=20, sk=40, d=32, precision="bf16")
    yield make("scale", scale=0.5)
    yield make("scale, softcap, causal", hkv=2, scale=2.0, softcap=3.0, causal=True)
    yield make("mask [1,1,Sq,Sk]", sk=8, mask=r.random((1, 1, 6, 8)) < 0.6)
    yield make("mask [B,1,1,Sk]", sk=8, mask=r.random((2, 1, 1, 8)) < 0.6)
    yield make("mask [Sq,Sk] and causal, bshd", sk=8, mask=r.random((6, 8)) < 0.7, causal=True, layout="bshd")
    yield make("mask of full shape, GQA", hkv=2, sk=8, mask=r.random((2, 4, 6, 8)) < 0.6)
    empty = np.ones((1, 1, 6, 6), np.bool_)
    empty[..., 2, :] = False
    yield make("a row masked in full gives zeros", mask=empty)
    yield make("nothing to attend anywhere", mask=np.zeros((1, 1, 1, 1), np.bool_))
    yield make("bias", sk=8, bias=r.standard_normal((2, 4, 6, 8)).astype(np.float32))
    yield make("bias per head, causal", bias=r.standard_normal((1, 4, 1, 6)).astype(np.float32), causal=True)
    yield make("bias after softcap", softcap=1.0, bias=3 * r.standard_normal((6, 6)).astype(np.float32))
    yield make("bias and mask", bias=r.standard_normal((6, 6)).astype(np.float32), mask=r.random((2, 1, 6, 6)) < 0.6)
    yield make("decode", b=1, hkv=2, sq=1, sk=67, d=64, causal=True)
    yield make("decode, batch with offsets", sq=1, sk=67, d=64, causal=True, offset=[20, 66], kv_len=[21, 67])
    for d in (1, 8, 40, 64, 128):
        yield make(f"D={d}", b=1, h=2, d=d)
    yield make("Dv other than D", d=16, dv=24)
    yield make("Dv odd, bshd", hkv=2, d=8, dv=5, layout="bshd")
    yield make("several chunks", b=1, h=2, sq=5, sk=130)
    yield make("several chunks, causal square", b=1, h=2, hkv=1, sq=130, sk=130, d=8, causal=True)
    yield make("large scores", scale=40.0)
    yield make("f16", sk=9, dtype=dtypes.f16)
    yield make("f16 GQA causal, odd sizes", b=1, hkv=2, sq=5, sk=7, d=9, dtype=dtypes.f16, causal=True)
    half_bias = r.standard_normal((6, 6)).astype(np.float16)
    yield make("f16 with bias, bshd", dtype=dtypes.f16, bias=half_bias, layout="bshd")
    yield make("bf16", hkv=2, dtype=dtypes.bf16, causal=True)
    yield make("f32 queries, f16 keys and values", hkv=2, sk=9, kv_dtype=dtypes.f16, causal=True)
    yield make("f32 queries, bf16 keys and values, odd depth", sk=9, d=7, kv_dtype=dtypes.bf16, layout="bshd")
    yield make("kv_index", b=3, sk=9, entries=5, kv_index=[4, 0, 4])
    yield make(
        "kv_index into fewer entries, bshd, f16 cache",
        b=4,
        sk=9,
        entries=2,
        kv_index=[1, 1, 0, 1],
        layout="bshd",
        dtype=dtypes.f16,
    )
    yield make(
        "kv_index, offset and kv_len, decode",
        b=3,
        hkv=2,
        sq=1,
        sk=70,
        entries=6,
        kv_index=[5, 2, 0],
        offset=[60, 0, 33],
        kv_len=[61, 1, 34],
        causal=True,
    )
    yield make("kv_index negative and out of range", b=4, sk=5, entries=3, kv_index=[-1, 3, -9, 100])
    yield make("eight bits", b=2, h=4, hkv=2, sq=3, sk=37, d=16, eight_bits=True, causal=True)
    yield make("eight bits, bshd, decode", b=1, h=4, hkv=2, sq=1, sk=130, d=32, offset=[70], kv_len=[71], eight_bits=True,
               layout="bshd", causal=True)  # fmt: skip
    yield make("eight bits, kv_index, odd depth", b=3, sq=5, sk=9, d=13, dv=7, entries=4, kv_index=[3, 0, 1], eight_bits=True)
    yield make("pages", b=2, h=2, sq=3, sk=4, entries=7, kv_index=[[6, 0, 3], [1, 1, 5]])
    yield make("pages, bshd, decode", b=3, hkv=2, sq=1, sk=16, d=64, entries=9, layout="bshd", causal=True,
               kv_index=[[8, 2, 5, 0], [1, 0, 0, 0], [7, 6, 0, 0]], offset=[60, 3, 16], kv_len=[61, 4, 17])  # fmt: skip
    yield make("pages, prefill of a chunk, GQA", b=1, hkv=2, sq=9, sk=8, d=32, entries=6, layout="bshd", causal=True,
               kv_index=[[5, 1, 4, 2]], offset=[13], kv_len=[22])  # fmt: skip
    yield make("pages, many queries and keys", b=1, h=2, hkv=1, sq=70, sk=32, d=32, entries=8, layout="bshd", causal=True,
               kv_index=[[7, 3, 0, 5, 1]], offset=[64], kv_len=[134])  # fmt: skip
    yield make("pages, window, f16 cache", b=2, sq=2, sk=16, entries=10, kv_index=[[2, 9, 4, 7, 1], [0, 3, 5, 6, 8]],
               offset=[40, 70], causal=True, window=20, kv_dtype=dtypes.f16)  # fmt: skip
    yield make("pages, eight bits, odd depth", b=2, hkv=2, sq=2, sk=8, d=13, dv=7, entries=5, kv_index=[[4, 0], [2, 3]],
               kv_len=[11, 16], eight_bits=True, layout="bshd")  # fmt: skip
    yield make("pages, mask and bias", b=2, sq=3, sk=4, entries=3, kv_index=[[2, 0], [1, 2]], mask=r.random((2, 1, 3, 8)) < 0.6,
               bias=r.standard_normal((1, 4, 3, 8)).astype(np.float32))  # fmt: skip
    yield make("pages negative and out of range", b=2, sq=2, sk=3, entries=3, kv_index=[[-1, 3], [-9, 100]])
    yield make("no pages gives zeros", b=2, sq=3, sk=4, entries=3, kv_index=[[], []])
    yield make("kv_index, window", b=2, sq=2, sk=130, entries=3, kv_index=[2, 1], offset=[60, 120], causal=True, window=40)
    yield make("no queries", sq=0, sk=5)
    yield make("no keys gives zeros", sq=3, sk=0)
    yield make("no batch", b=0)
    for label, size in (("one query", {"sq": 1, "sk": 70}), ("many queries", {"sq": 40}), ("few queries", {"sq": 5, "sk": 9})):
        yield make(f"sinks, {label}", hkv=2, causal=True, sinks=(0.5, -3.0, 9.0, 200.0), **size)  # type: ignore[arg-type]
    yield make("sinks, nothing to see", kv_len=(0, 3), sinks=(0.0, 1.0, -200.0, 2.0), layout="bshd", window=2)


def _attention_sizes(of: Sizes, attrs: Attrs, out: tuple[int, ...]) -> str:
    head, seq = (2, 1) if attrs["layout"] == "bshd" else (1, 2)
    q, k = of["q"], of["k"]
    return f"{q[seq]} queries, {k[seq] * pages_of(of.get('kv_index', ()))} keys, {q[0]}x{q[head]} heads of {q[3]}"


def _attention_demand(operand: str, of: Sizes, attrs: Attrs, out: tuple[int, ...]) -> int:
    """All of it, of keys and values the entries that kv_index can name."""
    size = prod(of[operand])
    picked = "kv_index" in of and operand in ("k", "v")
    return size // max(1, of[operand][0]) * prod(of["kv_index"]) if picked else size


register(
    OpSpec(
        name="rope",
        family="attention",
        summary="rotary position embedding from tables of cosines and sines",
        operands=("x", "cos", "sin"),
        infer=_infer_rope,
        reference=_rope,
        lowering=Pull("rope"),
        samples=_rope_samples,
        error=rope_error,
        gradient=rope_gradient,
        attrs={"rotary_dim": REQUIRED, "interleaved": False},
        traits=Traits(reads=2),
        rules=(
            "x is [..., S, D]; cos and sin broadcast to x's leading axes and rotary_dim/2, so any axis may hold the positions. "
            "Pair i is (i, i + rotary_dim/2), or (2i, 2i+1) if interleaved; (a, b) becomes (a cos - b sin, b cos + a sin). "
            "Entries from rotary_dim on pass through unchanged. rotary_dim is even and in 2…D. cos and sin share a float "
            "dtype, which may differ from x's; the arithmetic is f32 and the result has x's dtype."
        ),
    )
)

register(
    OpSpec(
        name="attention",
        family="attention",
        summary="scaled dot-product attention with grouped heads, masks and key caches",
        operands=("q", "k", "v", "mask?", "bias?", "offset?", "kv_len?", "kv_index?", "k_scale?", "v_scale?", "sinks?"),
        infer=_infer_attention,
        reference=_attention,
        lowering=Routine("attention"),
        samples=_attention_samples,
        error=attention_error,
        gradient=attention_gradient,
        attrs=_ATTENTION_ATTRS,
        implied=("precision", "own_rows"),
        cost="compute",
        traits=Traits(
            precisions=FLOAT_PRECISIONS,
            flops=lambda of, attrs, out: attended_pairs(of, attrs) * 2 * (of["q"][3] + of["v"][3]),
            sizes=_attention_sizes,
            demand=_attention_demand,
            pulls=("q",),
        ),
        rules=(
            "The order is: scale, softcap, bias, masks, softmax. s = scale * (q . k), scale None is 1/sqrt(D); then "
            "s = softcap * tanh(s / softcap); then s + bias; then every score that a mask hides is left out of the softmax. "
            "Hidden are: mask False; key index >= kv_len; causal: key index > offset + query index; window w: key index <= "
            "offset + query index - w, which alone, without causal, leaves later keys visible. A bias of -inf hides too. "
            "offset is the key index of query 0, one for each batch entry or for all; absent, it is Sk - Sq, whatever kv_len is. "
            "A row with nothing to attend gives zeros, never NaN. Query head h reads key head h // (H / Hkv). mask and bias "
            "broadcast to [B, H, Sq, Sk] in both layouts. kv_index [B]: entry b of q reads entry kv_index[b] of k and v, whose "
            "number of entries is then free; negative counts from the end, out of range is the nearest end. kv_index [B, P]: "
            "it reads P of them, one after the other, joined along the sequence: Sk is P times theirs. k and v share a float "
            "dtype, q and bias may have others; or they are i8 with k_scale and v_scale, f32 of their shapes without the "
            "depth, by which each vector is multiplied; the arithmetic is f32, the result has q's dtype, layout and Dv. Hidden "
            "keys must hold finite values: a weight of 0 may be multiplied. sinks [H] are the scores of one more key of each "
            "head, which every query sees and whose value is 0; scale, softcap and bias do not apply to them. A row with nothing "
            "else to attend gives zeros. With the precision f16 or bf16, a device that has matrix units for such floats may "
            "round q, k, v and the softmax's weights to them, as matmul does. own_rows promises that of the rows which a "
            "scatter_set of the same run put into k and v, one for each batch entry, an entry sees its own alone."
        ),
    )
)
