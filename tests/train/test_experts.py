"""Mixtures of experts: routing against NumPy, experts that no token chose, ids that name none, quantised experts, adapters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import nn
from pumice.core import dtypes
from pumice.core.blocks import dequantize_rows, quantize_rows
from pumice.errors import InputError
from pumice.tensor import Tensor

from harness import device

Array = np.ndarray[Any, Any]
TARGETS = ["host", pytest.param("webgpu", marks=pytest.mark.gpu)]


def run(f: Any, target: str, params: dict[str, Array], specs: dict[str, Any] | None = None, **inputs: Array) -> Any:
    """A function of params and inputs on a device; `specs` are those of params that are packed."""
    packed = specs or {}
    of = {name: packed.get(name) or pm.spec(*a.shape, dtype=str(dtypes.dtype(a.dtype))) for name, a in params.items()}
    given = {name: pm.spec(*a.shape, dtype=str(dtypes.dtype(a.dtype))) for name, a in inputs.items()}
    with pm.compile(f, params=of, **given, device=device(target)) as exe:
        exe.set_params(params)
        return exe.run(inputs)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


# --- routing ---


def routed(router: nn.Router, x: Array, target: str = "host", **params: Array) -> tuple[Array, Array, Array]:
    def f(params: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with nn.bind(router, params):
            found = router(x)
        return found.ids, found.weights, found.scores

    ids, weights, scores = run(f, target, params, x=x)
    return ids, weights, scores


def token_choices(scores: Array, k: int) -> Array:
    return np.argsort(-scores, axis=-1, kind="stable")[:, :k]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["softmax", "normalised", "chosen", "corrected", "limited"])
def test_routing_equals_numpy(kind: str, target: str) -> None:
    rng = np.random.default_rng(3)
    x, weight = rng.standard_normal((7, 12)).astype("f4"), rng.standard_normal((8, 12)).astype("f4")
    bias = rng.standard_normal(8).astype("f4")
    logits = x.astype("f8") @ weight.T.astype("f8")
    options: dict[str, Any] = {
        "softmax": {},
        "normalised": {"normalised": True, "scale": 1.5},
        "chosen": {"score": "chosen", "bias": True},
        "corrected": {
            "score": "sigmoid",
            "corrected": True,
            "normalised": True,
            "groups": 4,
            "top_groups": 2,
            "group_score": "top2",
        },
        "limited": {"groups": 4, "top_groups": 2},
    }[kind]
    params = {"weight": weight}
    if kind == "chosen":
        params["bias"], logits = bias, logits + bias
    scores = 1 / (1 + np.exp(-logits)) if kind == "corrected" else logits if kind == "chosen" else softmax(logits)
    choice = scores
    if kind == "corrected":
        params["e_score_correction_bias"], choice = bias, scores + bias
    if kind in ("corrected", "limited"):
        by_group = choice.reshape(7, 4, 2)
        best = by_group.sum(-1) if kind == "corrected" else by_group.max(-1)
        kept = np.zeros((7, 4), bool)
        np.put_along_axis(kept, token_choices(best, 2), True, -1)
        choice = np.where(kept[..., None], by_group, -np.inf).reshape(7, 8)
    wanted = token_choices(choice, 3)
    weights = np.take_along_axis(scores, wanted, -1)
    if kind == "chosen":
        weights = softmax(weights)
    if options.get("normalised"):
        weights = weights / weights.sum(-1, keepdims=True)
    ids, got, _ = routed(nn.Router(12, 8, 3, **options), x, target, **params)
    np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_allclose(got, weights * options.get("scale", 1.0), rtol=2e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_a_router_may_be_quantised(target: str) -> None:
    rng = np.random.default_rng(4)
    x, weight = rng.standard_normal((7, 64)).astype("f4"), rng.standard_normal((8, 64)).astype("f4")
    packed = quantize_rows(dtypes.q8_0, weight)
    router = nn.Router(64, 8, 3)

    def f(params: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        with nn.bind(router, params):
            found = router(x)
        return found.ids, found.weights

    ids, weights = run(f, target, {"weight": packed}, {"weight": pm.spec(8, 64, dtype="q8_0")}, x=x)
    scores = softmax(x.astype("f8") @ dequantize_rows(dtypes.q8_0, packed, 64).T.astype("f8"))
    wanted = token_choices(scores, 3)
    np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_allclose(weights, np.take_along_axis(scores, wanted, -1), rtol=2e-5)


@pytest.mark.parametrize(
    ("experts", "k", "options", "named"),
    [
        (4, 5, {}, "k must be from 1 to the 4 experts, not 5"),
        (4, 0, {}, "k must be"),
        (6, 2, {"groups": 4}, "groups must be a divisor of the 6 experts"),
        (8, 2, {"groups": 4, "top_groups": 5}, "top_groups"),
        (8, 3, {"groups": 8, "top_groups": 2}, "at most the experts of 2 groups"),
        (8, 2, {"groups": 8, "top_groups": 2, "group_score": "top2"}, "two experts or more"),
        (8, 2, {"score": "tanh"}, "the score is"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(experts: int, k: int, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        nn.Router(8, experts, k, **options)


def test_rows_sorted_by_expert_keep_their_order_and_those_of_none_come_last() -> None:
    found = pm.interpret(lambda ids: vars(nn.sort_by_expert(ids, 4)), np.int32([3, 4, 0, -1, 3, 2**31 - 1, 0]))
    assert found["order"].tolist() == [2, 6, 0, 4, 1, 3, 5] and found["sizes"].tolist() == [2, 0, 0, 2]
    assert found["places"].tolist() == [2, 4, 0, 5, 3, 6, 1] and found["experts"].tolist() == [0, 0, 3, 3, 4, 4, 4]


# --- experts ---


def expert_params(count: int, width: int, hidden: int, bias: bool = False, seed: int = 0) -> dict[str, Array]:
    module = nn.Experts(count, width, hidden, bias=bias)
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(p.shape).astype("f4") / 4 for n, p in module.named_parameters().items()}


def by_loops(p: dict[str, Array], x: Array, ids: Array, weights: Array) -> Array:
    """Token by token, in float64."""
    out = np.zeros(x.shape)
    for t, row in enumerate(x.astype("f8")):
        for e, w in zip(ids[t], weights[t], strict=True):
            if not 0 <= e < len(p["gate.weight"]):
                continue
            gate, up = (p[f"{n}.weight"][e] @ row + p.get(f"{n}.bias", np.zeros((99, 1)))[e] for n in ("gate", "up"))
            out[t] += w * (p["down.weight"][e] @ (silu(gate) * up) + p.get("down.bias", np.zeros((99, 1)))[e])
    return out


def through(module: nn.Experts) -> Any:
    def f(params: Any, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        with nn.bind(module, params):
            y: Tensor = module(x, ids, weights)
        return y

    return f


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bias", [False, True])
def test_experts_equal_loops_and_ids_of_none_add_nothing(bias: bool, target: str) -> None:
    rng = np.random.default_rng(1)
    p, x = expert_params(5, 12, 20, bias), rng.standard_normal((9, 12)).astype("f4")
    # Expert 3 has no token; some ids name no expert.
    ids = rng.choice([0, 1, 2, 4], (9, 2)).astype("i4")
    ids[2], ids[4, 1], ids[8, 0] = (-1, 5), 2**31 - 1, -(2**31)
    weights = rng.random((9, 2)).astype("f4")
    got = run(through(nn.Experts(5, 12, 20, bias=bias)), target, p, x=x, ids=ids, weights=weights)
    np.testing.assert_allclose(got, by_loops(p, x, ids, weights), atol=2e-5)
    assert not got[2].any()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tokens", [1, 40])
def test_quantised_experts_read_only_those_that_were_chosen(tokens: int, target: str) -> None:
    """The scales of the others are NaN: whoever multiplied with them would give NaN."""
    rng, q = np.random.default_rng(2), dtypes.q4_0
    p, x = expert_params(6, 64, 96), rng.standard_normal((tokens, 64)).astype("f4")
    ids = rng.choice([1, 4, 5], (tokens, 2)).astype("i4")
    weights = rng.random((tokens, 2)).astype("f4")
    packed = {n: quantize_rows(q, a) for n, a in p.items()}
    exact = {n: dequantize_rows(q, packed[n], a.shape[-1]) for n, a in p.items()}
    for blocks in packed.values():
        blocks.reshape(*blocks.shape[:2], -1, q.block_bytes)[[0, 2, 3], ..., :2] = np.float16([np.nan]).view(np.uint8)
    specs = {n: pm.spec(*a.shape, dtype="q4_0") for n, a in p.items()}
    got = run(through(nn.Experts(6, 64, 96)), target, packed, specs, x=x, ids=ids, weights=weights)
    np.testing.assert_allclose(got, by_loops(exact, x, ids, weights), rtol=1e-4, atol=1e-4)


def test_experts_refuse_shapes_that_do_not_fit() -> None:
    p = expert_params(2, 4, 8)
    with pytest.raises(InputError, match=r"experts take x \[tokens, width\]"):
        run(
            through(nn.Experts(2, 4, 8)),
            "host",
            p,
            x=np.zeros((3, 4), "f4"),
            ids=np.zeros((3, 2), "i4"),
            weights=np.zeros((3, 1), "f4"),
        )


def test_a_shared_expert_behind_a_gate() -> None:
    moe = nn.MixtureOfExperts(nn.Router(8, 4, 2), nn.Experts(4, 8, 6), nn.GatedMLP(8, 5), nn.Linear(8, 1, bias=False))
    rng = np.random.default_rng(5)
    p = {n: rng.standard_normal(v.shape).astype("f4") / 2 for n, v in moe.named_parameters().items()}
    x = rng.standard_normal((2, 3, 8)).astype("f4")

    def f(params: Any, x: Tensor) -> Tensor:
        with nn.bind(moe, params):
            y: Tensor = moe(x)
        return y

    rows = x.reshape(6, 8).astype("f8")
    scores = softmax(rows @ p["router.weight"].T)
    ids = token_choices(scores, 2)
    own = {n.removeprefix("experts."): a for n, a in p.items() if n.startswith("experts.")}
    shared = (silu(rows @ p["shared.gate.weight"].T) * (rows @ p["shared.up.weight"].T)) @ p["shared.down.weight"].T
    gate = 1 / (1 + np.exp(-rows @ p["shared_gate.weight"].T))
    wanted = by_loops(own, rows, ids, np.take_along_axis(scores, ids, -1)) + gate * shared
    np.testing.assert_allclose(run(f, "host", p, x=x).reshape(6, 8), wanted, atol=1e-5)


# --- the balance of their load, and gradients ---


def balance(router: nn.Router) -> Any:
    def f(params: Any, x: Tensor, mask: Tensor) -> Tensor:
        with nn.bind(router, params):
            return nn.load_balancing_loss(router(x), mask)

    return f


def numpy_balance(weight: Array, x: Array, mask: Array, k: int) -> float:
    """As Switch Transformers and transformers' `load_balancing_loss_func` have it."""
    x, experts = x[mask], len(weight)
    if not len(x):
        return 0.0
    scores = softmax(x.astype("f8") @ weight.T.astype("f8"))
    chosen = np.zeros_like(scores)
    np.put_along_axis(chosen, token_choices(scores, k), 1.0, -1)
    return float(experts * (chosen.mean(0) * scores.mean(0)).sum())


def test_the_load_balancing_loss_and_its_gradient() -> None:
    rng = np.random.default_rng(7)
    weight, x = rng.standard_normal((4, 6)).astype("f4"), rng.standard_normal((10, 6)).astype("f4")
    mask = np.arange(10) % 3 != 0
    f, router = balance(nn.Router(6, 4, 2)), {"weight": weight}
    assert run(f, "host", router, x=x, mask=mask) == pytest.approx(numpy_balance(weight, x, mask, 2), rel=1e-5)
    assert run(f, "host", router, x=x, mask=np.zeros(10, bool)) == 0.0
    # Experts that are all chosen alike cost k.
    even = run(f, "host", {"weight": np.zeros((4, 6), "f4")}, x=x, mask=mask)
    assert even == pytest.approx(2.0)

    def slope(params: Any, x: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = pm.grad(lambda w: f({"weight": w}, x, mask))(params["weight"])
        return found

    got, step = run(slope, "host", router, x=x, mask=mask), 1e-5
    for at in ((0, 0), (1, 3), (3, 5)):
        moved = [weight.astype("f8") for _ in range(2)]
        moved[0][at] += step
        moved[1][at] -= step
        wanted = (numpy_balance(moved[0], x, mask, 2) - numpy_balance(moved[1], x, mask, 2)) / (2 * step)
        assert got[at] == pytest.approx(wanted, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_grouped_adapters_and_their_gradients(target: str) -> None:
    """The update of a group is B·A of that group; only the adapters are trained."""
    layer = nn.GroupedLoRA(nn.GroupedLinear(3, 5, 4, bias=False), rank=2, alpha=4.0)
    rng = np.random.default_rng(8)
    p = {n: rng.standard_normal(v.shape).astype("f4") for n, v in layer.named_parameters().items()}
    x, ids = rng.standard_normal((7, 5)).astype("f4"), np.int32([2, 0, 2, 9, 0, 0, 2])
    assert [n for n, v in layer.named_parameters().items() if v.trainable] == ["lora_A.weight", "lora_B.weight"]

    def f(params: Any, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        rows = nn.sort_by_expert(ids, 3)
        turned = pm.take(x, rows.order, axis=0)

        def loss(b: Tensor) -> Tensor:
            with nn.bind(layer, {**params, "lora_B.weight": b}):
                return pm.sum(pm.square(layer(turned, rows)))

        with nn.bind(layer, params):
            y: Tensor = layer(turned, rows)
        return pm.take(y, rows.places, axis=0), pm.grad(loss)(params["lora_B.weight"])

    got, slope = run(f, target, p, x=x, ids=ids)
    base, a, b = p["base.weight"], p["lora_A.weight"], p["lora_B.weight"]
    wanted = np.stack([(base[e] + 2.0 * b[e] @ a[e]) @ row if e < 3 else np.zeros(4) for e, row in zip(ids, x, strict=True)])
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    of_b = np.zeros_like(b)
    for e, row, y in zip(ids, x, wanted, strict=True):
        if e < 3:
            of_b[e] += 2 * np.outer(y, 2.0 * a[e] @ row)
    np.testing.assert_allclose(slope, of_b, rtol=1e-3, atol=1e-3)


def test_adapters_of_another_module_attach_to_grouped_layers() -> None:
    layer = nn.GroupedLinear(2, 4, 3, bias=False)
    rng = np.random.default_rng(9)
    p = {n: rng.standard_normal(s).astype("f4") for n, s in (("weight", (2, 3, 4)), ("lora_a", (2, 2, 4)), ("lora_b", (2, 3, 2)))}
    x, sizes = rng.standard_normal((5, 4)).astype("f4"), np.int32([2, 3])

    def f(params: Any, x: Tensor, sizes: Tensor) -> Tensor:
        with nn.bind(layer, params):
            y: Tensor = layer(x, nn.SortedRows(sizes, sizes, sizes, sizes))
        return y

    full = p["weight"] + p["lora_b"] @ p["lora_a"]
    wanted = np.concatenate([x[:2] @ full[0].T, x[2:] @ full[1].T])
    np.testing.assert_allclose(run(f, "host", p, x=x, sizes=sizes), wanted, rtol=1e-4, atol=1e-5)
