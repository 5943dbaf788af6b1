"""Tasks for compiled kernels of single ops: norms, sums, rotary embedding, cache updates, attention of few queries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pumice.backends.host.memory.arrays import numel
from pumice.backends.host.native.kernel_tasks import (
    FEW_QUERIES,
    Native,
    Task,
    address,
    bits,
    is_cache,
    is_dense,
    is_known,
)
from pumice.backends.host.native.sizes import LANES
from pumice.backends.host.routines.calls import NodeCall
from pumice.core import dtypes
from pumice.ir.registry import Array

# Elements that are worth a kernel to be added up.
_LEAST_SUMMED = 1 << 14
# Heads of a part of attention, and parts from which on it has all heads that share their keys: threads find enough of them.
_MOST_TOGETHER, _MANY_PARTS = 32, 8
# Operands of attention that have an axis of heads and one of positions.
_BY_SEQUENCE = ("q", "k", "v", "k_scale", "v_scale")


def norm(call: NodeCall) -> Native:
    """rms_norm and layer_norm."""
    columns, centred = numel(call.shape("x")[-call.attrs["axes"] :]), call.spec.name == "layer_norm"

    def make(operands: Sequence[Any], out: Array) -> list[Task] | None:
        of = call.named(operands)
        x, weight, bias = of["x"], of["weight"], of.get("bias")
        if not all(a is None or is_dense(a) for a in (x, weight, bias, out)):
            return None
        places = (address(x), address(weight), address(bias), address(out))
        return [Task("norm_f32", (*places, columns, bits(call.attrs["eps"]), int(centred)), out.size // columns, 2 * out.size)]

    return make


def sums(call: NodeCall) -> Native | None:
    """reduce_sum and reduce_mean over leading or trailing axes of something large."""
    axes, shape = call.attrs["axes"], call.shape("x")
    leading, trailing = (axes == tuple(a) for a in (range(len(axes)), range(len(shape) - len(axes), len(shape))))
    count = numel(tuple(shape[a] for a in axes))
    if not (leading or trailing) or count == numel(shape) or numel(shape) < _LEAST_SUMMED:
        return None
    factor = 1 / count if call.spec.name == "reduce_mean" else 1.0

    def make(operands: Sequence[Any], out: Array) -> list[Task] | None:
        (x,) = operands
        if not is_dense(x) or not is_dense(out):
            return None
        rows, columns = (count, x.size // count) if leading else (x.size // count, count)
        words = (address(x), address(out), rows, columns, bits(factor))
        name, parts = ("column_sums_f32", -(-columns // LANES)) if leading else ("row_sums_f32", rows)
        return [Task(name, words, parts, x.size)]

    return make


def rope(call: NodeCall) -> Native:
    """Rotary embedding."""
    rotary = call.attrs["rotary_dim"]

    def make(operands: Sequence[Any], out: Array) -> list[Task] | None:
        x, cos, sin = operands
        if not all(is_dense(a) for a in (x, cos, sin, out)) or cos.shape != sin.shape or cos.ndim > x.ndim:
            return None
        depth = x.shape[-1]
        own = np.arange(cos.size // (rotary // 2)).reshape(cos.shape[:-1])
        rows = np.ascontiguousarray(np.broadcast_to(own, x.shape[:-1]), np.int64)
        places = tuple(address(a) for a in (x, cos, sin, out, rows))
        words = (*places, depth, rotary, int(call.attrs["interleaved"]))
        return [Task("rope_f32", words, x.size // depth, 2 * x.size, (rows,))]

    return make


def scatter(call: NodeCall) -> Native | None:
    """Rows of a table replaced in place."""
    if call.spec.name != "scatter_set" or not call.in_place or call.attrs["axis"] != 0:
        return None

    def make(operands: Sequence[Any], out: Array) -> list[Task] | None:
        _, indices, updates = operands
        if not is_dense(indices, np.int32) or not is_dense(updates, out.dtype) or not out.flags.c_contiguous:
            return None
        words = (address(out), address(indices), address(updates), len(indices), len(out), out.nbytes // len(out))
        return [Task("scatter_rows", words, 1, updates.size)]

    return make


def attention(call: NodeCall) -> Native:
    """Attention of few queries without mask or bias."""
    attrs = call.attrs
    swap = attrs["layout"] == "bshd"

    def make(operands: Sequence[Any], out: Array) -> list[Task] | None:
        of = call.named(operands)
        if swap:
            of = {n: a.swapaxes(1, 2) if n in _BY_SEQUENCE and a is not None else a for n, a in of.items()}
            out = out.swapaxes(1, 2)
        q, k, v, table = of["q"], of["k"], of["v"], of["kv_index"]
        batch, heads, queries, depth = q.shape
        places, scales = (of["offset"], of["kv_len"]), (of["k_scale"], of["v_scale"])
        extra = any(of[name] is not None for name in ("mask", "bias", "sinks"))
        if queries > FEW_QUERIES or extra or not is_known(places, table, batch):
            return None
        if not all(a.dtype == np.float32 and a.strides[3] == 4 for a in (q, out)) or not is_cache((k, v), scales):
            return None
        caches, kv_heads, page, value_depth = v.shape
        pages = 1 if table is None else table.size // batch
        scale = 1 / math.sqrt(depth) if attrs["scale"] is None else attrs["scale"]
        group = heads // kv_heads
        together = group if group <= _MOST_TOGETHER and batch * kv_heads * queries >= _MANY_PARTS else 1
        words = (
            *(address(a) for a in (q, k, v, out, *places, table, *scales)),
            *(heads, group, together, queries, page, pages, caches, depth, value_depth),
            *(bits(scale), bits(attrs["softcap"] or 0.0), int(attrs["causal"]), attrs["window"] or 0),
            *(s for a in (q, k, v, out, *scales) for s in ((0, 0, 0) if a is None else a.strides[:3])),
        )
        name = f"attend_{dtypes.dtype(k.dtype)}"
        return [Task(name, words, batch * heads * queries // together, 2 * q.size * page * pages)]

    return make
