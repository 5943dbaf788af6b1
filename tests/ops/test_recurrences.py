"""Recurrences of sequence models against their definitions step by step, in parts, across starts, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from ad.gradient_cases import disagreement, usable_samples
from pumice.errors import PumiceError
from pumice.ir.registry import get_op

Array = np.ndarray[Any, Any]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", ["selective_scan", "linear_attention", "delta_rule"])
def test_gradients_agree_with_difference_quotients(name: str) -> None:
    spec = get_op(name)
    samples = [s for s in usable_samples(spec) if "large" not in s.label]
    assert len(samples) > 4
    failures = [f"{s.label}: {e}" for s in samples if (e := disagreement(spec, s))]
    assert not failures, "\n".join(failures)


def test_the_delta_rules_gradient_asks_for_a_number_of_steps() -> None:
    with pytest.raises(PumiceError, match="the gradient of delta_rule needs a number of steps, not T"):
        pm.trace(pm.grad(lambda x: pm.delta_rule(x, x, x, x, x)[0].sum()), x=pm.spec(1, "T", 1, 3))


def test_ssd_is_a_selective_scan_with_one_decay_a_head() -> None:
    """Each head of Mamba-2 is as many channels of Mamba that share a decay."""
    x, delta = numbers(2, 9, 3, 4), np.abs(numbers(2, 9, 3, seed=1))
    a, d = -np.abs(numbers(3, seed=2)), numbers(3, seed=3)
    b, c, state = numbers(2, 9, 1, 5, seed=4), numbers(2, 9, 1, 5, seed=5), numbers(2, 3, 5, 4, seed=6)
    y, last = pm.interpret(lambda x: pm.ssd(x, delta, a, b, c, d, state), x)
    flat = pm.interpret(
        lambda x: pm.selective_scan(
            x.reshape(2, 9, 12),
            np.repeat(delta, 4, axis=2),
            np.repeat(a, 4)[:, None] * np.ones(5, np.float32),
            b[:, :, 0],
            c[:, :, 0],
            np.repeat(d, 4),
            state=state.transpose(0, 1, 3, 2).reshape(2, 12, 5),
        ),
        x,
    )
    np.testing.assert_allclose(y.reshape(2, 9, 12), flat[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last.transpose(0, 1, 3, 2).reshape(2, 12, 5), flat[1], rtol=1e-4, atol=1e-5)


def test_a_gated_delta_net_step_by_step() -> None:
    q, k, v = numbers(1, 11, 2, 4), numbers(1, 11, 2, 4, seed=1), numbers(1, 11, 4, 3, seed=2)
    k /= np.linalg.norm(k, axis=3, keepdims=True)
    g, beta = -np.abs(numbers(1, 11, 4, seed=3)), 1 / (1 + np.exp(-numbers(1, 11, 4, seed=4)))
    state = numbers(1, 4, 4, 3, seed=5)
    y, last = pm.interpret(lambda v: pm.gated_delta_net(q, k, v, g, beta, state), v)
    held, found = state[0].astype(np.float64), np.empty((11, 4, 3))
    for t in range(11):
        for h in range(4):
            key = k[0, t, h // 2].astype(np.float64)
            held[h] *= np.exp(g[0, t, h])
            held[h] += np.outer(key, beta[0, t, h] * (v[0, t, h] - key @ held[h]))
            found[t, h] = q[0, t, h // 2] / 2 @ held[h]
    np.testing.assert_allclose(y[0], found, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last[0], held, rtol=1e-4, atol=1e-5)


def test_rwkv7_step_by_step() -> None:
    """State [values, keys] as its authors write it: S = S (diag(w) - κ (κ a)ᵀ) + v kᵀ."""
    r, k, v, w, kappa, rate = (numbers(1, 8, 2, 3, seed=s) for s in range(6))
    kappa /= np.linalg.norm(kappa, axis=3, keepdims=True)
    w, rate = np.exp(-np.exp(w)), 1 / (1 + np.exp(-rate))
    y, last = pm.interpret(lambda v: pm.delta_rule(r, k, v, kappa * rate, -kappa, w), v)
    held, found = np.zeros((2, 3, 3)), np.empty((8, 2, 3))
    for t in range(8):
        for h in range(2):
            change = np.diag(w[0, t, h]) - np.outer(kappa[0, t, h], kappa[0, t, h] * rate[0, t, h])
            held[h] = held[h] @ change + np.outer(v[0, t, h], k[0, t, h])
            found[t, h] = held[h] @ r[0, t, h]
    np.testing.assert_allclose(y[0], found, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last[0], held.transpose(0, 2, 1), rtol=1e-4, atol=1e-5)


def test_a_start_forgets_everything_even_nan() -> None:
    q, k, v = numbers(1, 7, 1, 2), numbers(1, 7, 1, 2, seed=1), numbers(1, 7, 1, 2, seed=2)
    starts = np.array([[True, False, False, False, True, False, False]])
    nothing = np.full((1, 1, 2, 2), np.nan, np.float32)

    def run(starts: Array, q: Any, k: Any, v: Any) -> Any:
        x = v.reshape(1, v.shape[1], 2)
        a, b, h = -np.ones((2, 1), np.float32), x[:, :, :1], nothing[0, :, :, :1]
        return (
            pm.linear_attention(q, k, v, None, nothing, starts),
            pm.delta_rule(q, k, v, k * -0.2, k, None, nothing, starts),
            pm.selective_scan(x, abs(x), a, b, b, state=h, starts=starts),
        )

    whole = pm.interpret(lambda *x: run(starts, *x), q, k, v)
    parts = pm.interpret(lambda *x: run(starts[:, 4:], *x), q[:, 4:], k[:, 4:], v[:, 4:])
    for (y, last), (later, same) in zip(whole, parts, strict=True):
        assert np.isfinite(y).all()
        np.testing.assert_allclose(y[:, 4:], later, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(last, same, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("operand", ["q", "v"])
def test_what_is_no_number_stays_out_of_the_steps_before_it(operand: str, bad: float) -> None:
    """On the host, whose chunks are matmuls over all their steps."""
    given = {name: numbers(1, 45, 1, 3, seed=k) for k, name in enumerate("qkv")}

    def run(q: Any, k: Any, v: Any) -> Any:
        return pm.linear_attention(q, k, v)[0], pm.delta_rule(q, k * 0.1, v, k * -0.1, k * 0.1)[0]

    with pm.compile(run, **{name: pm.spec(1, 45, 1, 3) for name in given}, device="host") as exe:
        want = exe.run(**given)
        given[operand][0, 40, 0, 1] = bad
        found = exe.run(**given)
    for before, after in zip(want, found, strict=True):
        np.testing.assert_array_equal(after[:, :32], before[:, :32])
        np.testing.assert_allclose(after[:, 32:40], before[:, 32:40], rtol=1e-4, atol=1e-5)
        assert not np.isfinite(after[:, 40]).all()


@pytest.mark.parametrize("target", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_one_plan_serves_a_step_and_a_long_sequence_and_goes_on_from_its_state(target: str) -> None:
    def run(x: Any, delta: Any, b: Any, c: Any, h: Any, s: Any) -> Any:
        selected = pm.selective_scan(
            x, delta, np.float32([[-1, -0.5], [-2, -0.1], [-0.3, -3]]), b, c, np.ones(3, np.float32), x, h
        )
        heads = x.reshape(*x.shape, 1)
        attended = pm.linear_attention(heads, heads, heads, pm.exp(-pm.expand_dims(delta, 3)), s)
        return selected, attended

    specs: dict[str, Any] = {
        "x": pm.spec(1, "T", 3),
        "delta": pm.spec(1, "T", 3),
        "b": pm.spec(1, "T", 2),
        "c": pm.spec(1, "T", 2),
    }
    exe = pm.compile(run, **specs, h=pm.spec(1, 3, 2), s=pm.spec(1, 3, 1, 1), max={"T": 200}, device=target)
    x, delta, b, c = numbers(1, 199, 3), np.abs(numbers(1, 199, 3, seed=1)), numbers(1, 199, 2), numbers(1, 199, 2, seed=2)
    h, s = numbers(1, 3, 2, seed=3), numbers(1, 3, 1, 1, seed=4)
    with exe:
        (whole, h_end), (attended, s_end) = exe.run(x=x, delta=delta, b=b, c=c, h=h, s=s)
        parts = []
        for start, stop in ((0, 1), (1, 20), (20, 199)):
            at = {name: array[:, start:stop] for name, array in (("x", x), ("delta", delta), ("b", b), ("c", c))}
            (y, h), (z, s) = exe.run(**at, h=h, s=s)
            parts.append((y, z))
    np.testing.assert_allclose(np.concatenate([p[0] for p in parts], 1), whole, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.concatenate([p[1] for p in parts], 1), attended, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(h, h_end, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(s, s_end, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_states_may_be_of_any_size(target: str) -> None:
    """More than any private array holds, and a prime number, which does not split into parts."""
    for size in (260, 31):
        x, delta = numbers(1, 3, 2), np.abs(numbers(1, 3, 2, seed=1))
        a, b, c = -np.abs(numbers(2, size, seed=2)), numbers(1, 3, size, seed=3), numbers(1, 3, size, seed=4)
        exe = pm.compile(lambda x, a=a, b=b, c=c, d=delta: pm.selective_scan(x, d, a, b, c), x=pm.spec(1, 3, 2), device=target)
        with exe:
            y, last = exe.run(x=x)
        h, found = np.zeros((2, size)), np.empty((3, 2))
        for t in range(3):
            h = np.exp(delta[0, t, :, None] * a.astype(np.float64)) * h + (delta * x)[0, t, :, None] * b[0, t]
            found[t] = h @ c[0, t]
        np.testing.assert_allclose(y[0], found, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(last[0], h, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: pm.selective_scan(x, x, x, x, x), "a \\[channels, size\\]"),
        (lambda x: pm.linear_attention(x, x, x), "\\[batch, steps, heads, size\\]"),
        (lambda x: pm.linear_attention(x.reshape(2, 3, 2, 2), x.reshape(2, 3, 4, 1), x.reshape(2, 3, 2, 2)), "k has the shape"),
        (lambda x: pm.linear_attention(*(x[:, :, None, :0],) * 2, x[:, :, None]), "a head has one key or more"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(call: Any, text: str) -> None:
    with pytest.raises(PumiceError, match=text):
        pm.trace(call, x=pm.spec(2, 3, 4))
