"""The gradients of attention by queries, keys and values, all three in one op: they share most of the work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.errors import ShapeError
from pumice.ir.gradients.attention import composed_gradient
from pumice.ir.ops.attention_errors import attention_gradient_error
from pumice.ir.ops.attention_math import attended_pairs, hidden, probabilities, scale_of
from pumice.ir.registry import Array, Attrs, OpSpec, Routine, Sample, Types, get_op, register
from pumice.ir.rules import given, require_kind, rng
from pumice.ir.traits import Traits
from pumice.ir.types import TensorType

# Samples of attention that add no coverage for the gradient.
_LEFT_OUT = {
    "MQA",
    "causal, more keys",
    "causal, offset of one entry",
    "kv_len",
    "kv_len beyond the keys",
    "window 1 attends to itself",
    "scale",
    "mask [B,1,1,Sk]",
    "nothing to attend anywhere",
    "bias per head, causal",
    "bias after softcap",
    "decode",
    "decode, batch with offsets",
    "D=8",
    "f16 with bias, bshd",
    "no batch",
}
_ATTRS = {"layout": "bhsd", "causal": False, "window": None, "scale": None, "softcap": None}


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    q, k, v, dy = given(types[:4])
    (result,) = get_op("attention").result_types([q, k, v, *types[4:], None, None, None, None], attrs)
    require_kind(dy, "float")
    if dy.shape != result.shape:
        raise ShapeError(f"dy must have the shape of the result, {result.describe()}, it is {dy.describe()}", operand="dy")
    return tuple(TensorType(dtypes.f32, t.shape) for t in (q, k, v))


def _reference(arrays: Sequence[Any], attrs: Attrs, out: object) -> tuple[Array, ...]:
    q, k, v, dy, mask, bias, offset, kv_len = arrays
    swapped = attrs["layout"] == "bshd"
    if swapped:
        q, k, v, dy = (a.swapaxes(1, 2) for a in (q, k, v, dy))
    (batch, heads, sq, depth), (_, kv_heads, sk, _) = q.shape, k.shape
    lead = (batch, kv_heads, heads // kv_heads)
    queries, grads = q.reshape(*lead, sq, depth), dy.reshape(*lead, sq, v.shape[3])
    keys, values, scale = k[:, :, None], v[:, :, None], scale_of(attrs, depth)
    with np.errstate(invalid="ignore", over="ignore"):
        scores = np.matmul(queries, keys.swapaxes(-1, -2)).reshape(batch, heads, sq, sk)
        capped = None if attrs["softcap"] is None else np.tanh(scores * (scale / attrs["softcap"]))
        unseen = hidden(attrs, batch, sq, sk, mask, offset, kv_len)
        p = probabilities(scores, scale, attrs["softcap"], bias, unseen)
        weighted = np.matmul(grads, values.swapaxes(-1, -2)).reshape(p.shape) * p
        inner = weighted - p * weighted.sum(axis=-1, keepdims=True)
    if capped is not None:
        inner *= 1 - capped * capped
    inner = (inner * scale).reshape(*lead, sq, sk)
    found = (
        np.matmul(inner, keys).reshape(q.shape),
        np.matmul(inner.swapaxes(-1, -2), queries).sum(axis=2),
        np.matmul(p.reshape(inner.shape).swapaxes(-1, -2), grads).sum(axis=2),
    )
    return tuple(a.swapaxes(1, 2) if swapped else a for a in found)


def _samples() -> Iterator[Sample]:
    """Samples of attention that this op has operands for, with a gradient of its result."""
    spec, r = get_op("attention"), rng(2)
    for s in spec.samples():
        operands, further = s.inputs[:7], s.inputs[7:]
        if any(operand is not None for operand in further) or s.label in _LEFT_OUT:
            continue
        q, k, v, *extras = operands
        assert isinstance(q, np.ndarray)
        types = [TensorType(dtypes.dtype(a.dtype), a.shape) if isinstance(a, np.ndarray) else None for a in s.inputs]
        shape = spec.result_types(types, s.attrs)[0].static_shape
        dy = r.standard_normal(shape).astype(np.float32).astype(q.dtype)
        yield Sample(s.label, (q, k, v, dy, *extras), {name: s.attrs[name] for name in _ATTRS})


register(
    OpSpec(
        name="attention_gradient",
        family="attention",
        summary="the gradients of attention by q, k and v",
        operands=("q", "k", "v", "dy", "mask?", "bias?", "offset?", "kv_len?"),
        infer=_infer,
        reference=_reference,
        lowering=Routine("attention_gradient"),
        samples=_samples,
        composed=composed_gradient,
        attrs=_ATTRS,
        cost="compute",
        traits=Traits(flops=lambda of, attrs, out: attended_pairs(of, attrs) * 2 * (3 * of["q"][3] + 2 * of["v"][3])),
        error=attention_gradient_error,
        rules=(
            "Operands and attributes as for attention; dy is the gradient of its result. The results are f32. Rows that see "
            "nothing give zeros."
        ),
        results=("dq", "dk", "dv"),
    )
)
