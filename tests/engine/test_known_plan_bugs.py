"""Defects that an existing engine has, each stated as a test of ours: memory, fusion and the choice of kernels.

The list is `docs/known-bugs.md`.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import pumice as pm
from engine.cases import close, floats, on_all, once
from pumice import errors
from pumice.core.caps import Caps
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan


# -- 3: memory ---------------------------------------------------------------------------------------------------------
def block(params: Any, x: Any) -> Any:
    """A transformer block: every kind of step that a model has."""
    h = pm.layer_norm(x, params["g"], params["b"])
    q, k, v = (pm.reshape(t, (2, 6, 4, 8)) for t in pm.split(h @ params["qkv"], 3, axis=-1))
    a = pm.reshape(
        pm.attention(pm.rope(q.swapaxes(1, 2)), pm.rope(k.swapaxes(1, 2)), v.swapaxes(1, 2), causal=True).swapaxes(1, 2),
        (2, 6, 32),
    )
    x = x + a @ params["o"]
    return x + pm.gelu(pm.rms_norm(x) @ params["up"]) @ params["down"]


BLOCK = {
    "g": pm.spec(32), "b": pm.spec(32), "qkv": pm.spec(32, 96), "o": pm.spec(32, 32),
    "up": pm.spec(32, 64), "down": pm.spec(64, 32),
}  # fmt: skip


def parts(plan: Plan, step: Any, *, written: bool) -> list[tuple[int, int, int]]:
    """Buffer, start and end of what a step writes, or only reads."""
    found = [plan.values[b.value].parts[b.part] for b in step.bindings if (b.access != "read") == written]
    return [(p.buffer, p.offset, p.offset + p.nbytes) for p in found]


# 3, 2.4: outputs could overlap inputs of the same dispatch (attention on Q, K, V), noticed case by case or not at all.
@pytest.mark.parametrize("preset", ["browser-baseline", "lavapipe", "h200", "host"])
def test_no_step_writes_where_it_reads(preset: str) -> None:
    plan = build_plan(pm.trace(block, params=BLOCK, x=pm.spec(2, 6, 32)), Caps.preset(preset))
    for step in plan.steps:
        for buffer, start, end in parts(plan, step, written=True):
            for other, first, last in parts(plan, step, written=False):
                assert buffer != other or (preset == "host" and (end <= first or last <= start)), step.label
        assert len(set(parts(plan, step, written=True))) == len(parts(plan, step, written=True))


# 3 (a)-(e): weights beyond a binding were overwritten by the copies that were to make them fit, or read at stale offsets.
@pytest.mark.gpu
def test_weights_larger_than_a_binding_are_used_whole_and_stay_as_they_are() -> None:
    from pumice.backends.webgpu.device import WebGpuDevice

    small = WebGpuDevice(caps=Caps.preset("browser-baseline").with_(max_binding_bytes=1 << 15, max_buffer_bytes=1 << 16))
    params = {"w": floats(200, 64), "t": floats(300, 32), "b": floats(200)}

    def f(params: Any, x: Any, ids: Any) -> Any:
        h = pm.relu(x @ params["w"].T + params["b"])
        return h @ params["w"], pm.embedding(params["t"], ids), pm.sum(params["t"], axis=0)

    x, ids = floats(7, 64), np.int32([0, 127, 128, 255, 299])
    specs = {name: pm.spec(*a.shape) for name, a in params.items()}
    with pm.compile(f, params=specs, x=pm.spec("B", 64, max=16), ids=pm.spec(5, dtype="i32"), device=small) as exe:
        exe.set_params(params)
        sharded = [v for v in exe.plan.values.values() if len(v.parts) > 1]
        assert len(sharded) == 2 and all(p.nbytes <= 1 << 15 for v in exe.plan.values.values() for p in v.parts)
        for _ in range(2):
            got = exe.run(x=x, ids=ids)
            close(got[0], np.maximum(x @ params["w"].T + params["b"], 0) @ params["w"], atol=1e-3)
            np.testing.assert_array_equal(got[1], params["t"][ids])
            close(got[2], params["t"].sum(0), atol=1e-4)
        for name, array in exe.params().items():
            np.testing.assert_array_equal(array, params[name])


# 3 (f): byte offsets had 32 bits: memory from 4 GiB on wrapped round silently.
@pytest.mark.parametrize("preset", ["host", "h200"])
def test_offsets_beyond_four_gibibytes_are_exact(preset: str) -> None:
    side = 40_000 if preset == "host" else 20_000
    f = lambda x: [pm.softmax(x * float(k), axis=1) for k in range(1, 6)]  # noqa: E731
    plan = build_plan(pm.trace(f, x=pm.spec(side, side)), Caps.preset(preset))
    total = sum(b.nbytes for b in plan.buffers if b.kind == "arena")
    assert total >= 5 * 4 * side * side > 2**32
    if preset == "host":
        assert max(p.offset for v in plan.values.values() for p in v.parts) > 2**32
    for (_, a), (_, b) in itertools.combinations(plan.graph.outputs, 2):
        (p,), (q,) = plan.values[a].parts, plan.values[b].parts
        assert p.buffer != q.buffer or p.offset + p.nbytes <= q.offset or q.offset + q.nbytes <= p.offset


# 3: what exceeds the device's limits came out as a panic listing numbers, or not at all.
def test_a_tensor_beyond_the_limits_is_named_when_planning() -> None:
    graph = pm.trace(lambda x: pm.capture("wide", pm.softmax(x @ x.T, axis=1)) @ x, x=pm.spec(10_000, 8))
    with pytest.raises(errors.LimitError) as e:
        build_plan(graph, Caps.preset("browser-baseline"))
    assert e.value.fields["nbytes"] >= 400_000_000 and "10000" in str(e.value)


# 3: every element took four bytes, packed weights four times their size; 64 MiB of scratch were always reserved.
@pytest.mark.parametrize("preset", ["host", "browser-baseline", "h200"])
def test_values_take_the_bytes_of_their_dtype_and_nothing_is_reserved(preset: str) -> None:
    params = {"q": pm.spec(64, 256, dtype="q4_0"), "h": pm.spec(64, dtype="f16"), "u": pm.spec(64, dtype="u8")}
    f = lambda params, x: pm.qmatmul(x, params["q"]) * params["h"].astype("f32") + params["u"].astype("f32")  # noqa: E731
    plan = build_plan(pm.trace(f, params=params, x=pm.spec(1, 256)), Caps.preset(preset))
    assert plan.memory["param"] == 64 * 256 // 32 * 18 + 64 * 2 + 64
    assert plan.memory.get("arena", 0) <= 16 << 10


# -- 4: fusion ---------------------------------------------------------------------------------------------------------
# 4.1, 4.2: a packed projection whose parts, or which itself, are results: an index panic, or values that were never written.
@on_all
@pytest.mark.parametrize("asked", ["parts and parent", "attention, parts and parent", "unequal parts"])
def test_parts_of_a_packed_projection_may_be_results(target: str, asked: str) -> None:
    w, b, x = floats(8, 24), floats(24), floats(2, 5, 8)

    def f(params: Any, x: Any) -> Any:
        packed = x @ params["w"] + params["b"]
        if asked == "unequal parts":
            return packed[..., :4], packed[..., 4:7], packed[..., 7:]
        q, k, v = pm.split(packed, 3, axis=-1)
        if asked == "parts and parent":
            return q, k, v, packed
        return pm.attention(*(pm.reshape(t, (2, 5, 2, 4)) for t in (q, k, v)), layout="bshd"), q, k, v, packed

    packed = x.astype(np.float64) @ w + b
    q, k, v = np.split(packed, 3, axis=-1)
    qh, kh, vh = (t.reshape(2, 5, 2, 4).transpose(0, 2, 1, 3) for t in (q, k, v))
    e = np.exp(qh @ kh.transpose(0, 1, 3, 2) / 2)
    attended = (e / e.sum(-1, keepdims=True) @ vh).transpose(0, 2, 1, 3)
    wants = {
        "parts and parent": (q, k, v, packed),
        "attention, parts and parent": (attended, q, k, v, packed),
        "unequal parts": (packed[..., :4], packed[..., 4:7], packed[..., 7:]),
    }[asked]
    for got, want in zip(once(target, f, {"w": w, "b": b}, x=x), wants, strict=True):
        close(got, want)


# 4.3: the sum of a residual appeared only where its norm was computed; users in between read the old content.
@on_all
def test_a_residual_sum_may_be_read_before_and_after_its_norm(target: str) -> None:
    g, b = floats(6), floats(6)

    def f(params: Any, x: Any, y: Any) -> Any:
        s = x + y
        between = pm.softmax(s @ s.T, axis=1) @ s
        n = pm.layer_norm(s, params["g"], params["b"])
        return between, n, s * 3.0, n @ n.T, s

    x, y = floats(4, 6), floats(4, 6)
    s = (x + y).astype(np.float64)
    e = np.exp(s @ s.T - (s @ s.T).max(1, keepdims=True))
    n = (s - s.mean(1, keepdims=True)) / np.sqrt(s.var(1, keepdims=True) + 1e-5) * g + b
    wants = (e / e.sum(1, keepdims=True) @ s, n, s * 3, n @ n.T, s)
    for got, want in zip(once(target, f, {"g": g, "b": b}, x=x, y=y), wants, strict=True):
        close(got, want, atol=1e-4)


# 4.4: chains of more than 32 ops or 16 operands were a panic; broadcasts only as a repetition of trailing axes.
@on_all
def test_long_chains_with_many_operands_and_any_broadcast(target: str) -> None:
    arrays = {f"x{k}": floats(3 if k % 2 else 1, 1 if k % 3 else 5) for k in range(24)}

    def f(**xs: Any) -> Any:
        y = pm.zeros((3, 5))
        for x in xs.values():
            y = pm.where(x > 0.0, y + x, y * 0.5 - pm.abs(x))
        return y

    want = np.zeros((3, 5))
    for x in arrays.values():
        want = np.where(x > 0, want + x, want * 0.5 - np.abs(x))
    close(once(target, lambda **xs: f(**xs), **arrays), want)


# 5: large weights were silently computed with in half precision, and weights that do not suit it went wrong.
@on_all
def test_weights_that_no_half_can_hold_keep_their_precision(target: str) -> None:
    w, x = floats(64, 64) * np.float32(1e6), floats(40, 64) * np.float32(1e-6)
    w[0, 0], w[1, 1] = 3e38, 1e-30
    x[:, :2] = 0.0
    close(once(target, lambda params, x: x @ params["w"], {"w": w}, x=x), x.astype(np.float64) @ w, atol=1e-4)
