"""grad and value_and_grad in traced functions: what flows where, what is computed, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.ad import gradient_graph
from pumice.core.caps import Caps
from pumice.errors import DTypeError, GraphError, InputError, ShapeError
from pumice.ir.graph import Graph
from pumice.ir.registry import OpSpec, get_op
from pumice.passes import optimize
from pumice.plan.build import build_plan
from pumice.reference.interpreter import evaluate_graph

from harness import Case, check

RNG = np.random.default_rng(3)


def array(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def mlp(params: Any, x: Any) -> Any:
    h = pm.gelu(x @ params["w1"] + params["b1"])
    return ((h @ params["w2"]) ** 2).mean()


def mlp_params() -> dict[str, Any]:
    return {"w1": array(5, 7), "b1": array(7), "w2": array(7, 2)}


# --- what flows where ---


def test_nested_arguments_give_nested_gradients() -> None:
    def loss(params: Any, x: Any) -> Any:
        (a, b), c = params["pair"], params["list"][0]
        return (a * x + b * c).sum()

    params = {"pair": (array(3), array(3)), "list": [array(3)], "none": None, "steps": np.int32(4)}
    g = pm.trace(pm.value_and_grad(loss), params=params, x=pm.spec(3))
    assert [name for name, _ in g.outputs] == ["0", "1.pair.0", "1.pair.1", "1.list.0"]


def test_unused_arguments_get_zeros() -> None:
    used, unused = pm.interpret(pm.grad(lambda x, y: (x * 2.0).sum(), argnums=(0, 1)), array(3), array(2, 2))
    assert used.tolist() == [2.0, 2.0, 2.0]
    assert unused.shape == (2, 2) and not unused.any()


def test_a_loss_that_depends_on_nothing_gives_zeros() -> None:
    assert not pm.interpret(pm.grad(lambda x: pm.stop_gradient(x).sum()), array(3)).any()
    assert not pm.interpret(pm.grad(lambda x: pm.floor(x).sum()), array(3)).any()


def test_only_the_argument_counts_not_other_uses_of_the_same_tensor() -> None:
    assert pm.interpret(lambda x: pm.grad(lambda a: a * x)(x), np.float32(3.0)) == 3.0


def test_an_intermediate_value_can_be_the_argument() -> None:
    assert pm.interpret(lambda x: pm.grad(lambda h: h * h)(x * 2.0), np.float32(3.0)) == 12.0


def test_has_aux_and_keywords() -> None:
    def loss(x: Any, *, scale: Any) -> Any:
        y = x * scale
        return y.sum(), {"y": y}

    def both(x: Any, scale: Any) -> Any:
        return pm.value_and_grad(loss, has_aux=True)(x=x, scale=scale)

    (value, aux), dx = pm.interpret(both, np.float32([1, 2]), np.float32(3))
    assert value == 9.0 and aux["y"].tolist() == [3.0, 6.0] and dx.tolist() == [3.0, 3.0]


def test_gradients_of_halves_are_halves() -> None:
    g = pm.trace(pm.grad(lambda x: (x * x).sum()), x=pm.spec(4, dtype="f16"))
    assert str(g.nodes[g.outputs[0][1]].type) == "f16[4]"


def test_symbolic_batch() -> None:
    g = pm.trace(pm.value_and_grad(mlp), params=mlp_params(), x=pm.spec("B", 5, max=16))
    params = {n.name: array(*n.type.static_shape) for n in g.sources("param")}
    for batch in (1, 7, 16):
        x = array(batch, 5)
        static = pm.trace(pm.value_and_grad(mlp), params=mlp_params(), x=x)
        got, want = (evaluate_graph(t, {"x": x}, params).outputs for t in (g, static))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)  # 1 / count is a constant where the count is known


@pytest.mark.parametrize("target", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_symbolic_slices_and_means_on_targets(target: str) -> None:
    def loss(x: Any) -> Any:
        pieces = [x[1:], x[::2], x[::-3], x[:, 1:3]]
        joined = pm.concatenate([p.mean(axis=1) for p in pieces])
        return (joined * joined).mean() + pm.take(x, [0, -1], axis=0).sum() + pm.var(x)

    g = pm.trace(pm.grad(loss), x=pm.spec("T", 5, max=12))
    for length in (1, 4, 11):
        assert not check(Case(g, {"x": array(length, 5)}, {}), target)


# --- gradients of gradients ---

SECOND_ORDER = [
    s
    for family in ("unary", "binary", "ternary", "shape", "reduce", "matmul", "norm", "scan", "index", "loss", "marker")
    for s in pm.ops.all()
    if s.family == family and s.gradient is not None and s.name != "cast"  # between f32 and f32 it is nothing
]


@pytest.mark.parametrize("spec", SECOND_ORDER, ids=lambda s: s.name)
def test_second_derivative_agrees_with_difference_quotients(spec: OpSpec) -> None:
    from ad.gradient_cases import second_order_disagreement

    assert not second_order_disagreement(spec)


def test_hessian_vector_product() -> None:
    a = array(4, 4)
    hvp = pm.interpret(
        lambda x, v: pm.grad(lambda x: (pm.grad(lambda x: (x @ a @ x) / 2.0)(x) * v).sum())(x), array(4), np.float32([1, 0, 0, 0])
    )
    np.testing.assert_allclose(hvp, (a + a.T)[0] / 2, rtol=1e-5)


# --- PyTorch's conventions at kinks ---


@pytest.mark.parametrize(
    ("fn", "x", "expected"),
    [
        (lambda x: pm.relu(x), [0.0], [0.0]),
        (lambda x: pm.abs(x), [0.0], [0.0]),
        (lambda x: pm.clip(x, -1.0, 1.0), [-1.0, 1.0, 2.0], [1.0, 1.0, 0.0]),
        (lambda x: pm.maximum(x, 0.0), [0.0], [0.5]),
        (lambda x: pm.max(x), [3.0, 3.0, 1.0], [0.5, 0.5, 0.0]),
        (lambda x: pm.prod(x), [0.0, 2.0, 3.0], [6.0, 0.0, 0.0]),
        (lambda x: pm.prod(x), [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]),
        (lambda x: x**0.0, [0.0], [0.0]),
        (lambda x: pm.where(x > 0.0, pm.log(x), 0.0), [1.0, 2.0], [1.0, 0.5]),
        (lambda x: pm.sort(x) * np.float32([1, 2, 3]), [3.0, 1.0, 2.0], [3.0, 1.0, 2.0]),
        (lambda x: pm.top_k(x, 2)[0] * np.float32([1, 2]), [3.0, 1.0, 2.0], [1.0, 0.0, 2.0]),
        (lambda x: x[[0, 0, 2]], [1.0, 2.0, 3.0], [2.0, 0.0, 1.0]),
    ],
)
def test_conventions(fn: Any, x: list[float], expected: list[float]) -> None:
    assert pm.interpret(pm.grad(lambda t: fn(t).sum()), np.float32(x)).tolist() == expected


def test_dropout_has_the_gradient_of_its_mask() -> None:
    def loss(x: Any) -> Any:
        return pm.dropout(x, pm.random.key(3), 0.5)

    x = np.ones(20, np.float32)
    kept = pm.interpret(loss, x)
    np.testing.assert_array_equal(pm.interpret(pm.grad(lambda x: loss(x).sum()), x), kept)
    assert 0 < np.count_nonzero(kept) < 20


# --- frozen parameters ---


def test_frozen_parameters_cost_no_backward() -> None:
    def loss(trained: Any, frozen: Any, x: Any) -> Any:
        h = pm.relu(x @ frozen["w0"])
        return (pm.relu(h @ frozen["w1"]) @ trained["w"]).mean()

    shapes = {"w0": pm.spec(8, 8), "w1": pm.spec(8, 8)}
    params = {"t": {"w": pm.spec(8, 2)}, "f": shapes}
    frozen = pm.trace(lambda params, x: pm.grad(loss)(params["t"], params["f"], x), params=params, x=pm.spec(4, 8))
    products = [n for n in optimize(frozen) if n.op == "matmul"]
    assert len(products) == 3, "two forward products that the gradient needs and one backward"

    def stopped(params: Any, x: Any) -> Any:
        return loss(params["t"], {k: pm.stop_gradient(w) for k, w in params["f"].items()}, x)

    g = pm.trace(pm.grad(stopped), params=params, x=pm.spec(4, 8))
    assert len([n for n in optimize(g) if n.op == "matmul"]) == 3


def test_quantised_weights_have_no_gradient_but_let_it_through() -> None:
    def loss(params: Any, x: Any) -> Any:
        return pm.qmatmul(x * params["s"], params["w"]).sum()

    g = pm.trace(pm.grad(loss), params={"s": pm.spec(64), "w": pm.spec(8, 64, dtype="q8_0")}, x=pm.spec(3, 64))
    assert [name for name, _ in g.outputs] == ["s"]


# --- checkpoint ---


def deep(x: Any, wrap: Any, layers: int = 6) -> Any:
    for _ in range(layers):
        x = wrap(lambda h: pm.tanh(pm.layer_norm(pm.sin(h) * pm.exp(h * 0.1)) @ np.eye(64, dtype=np.float32)) + h)(x)
    return (x * x).mean()


def plans(fn: Any, **specs: Any) -> tuple[Graph, int]:
    g = pm.trace(pm.grad(fn), **specs)
    return g, build_plan(g, Caps.preset("browser-baseline")).memory["arena"]


def test_checkpoint_gives_the_same_gradient_in_less_memory() -> None:
    x = array(256, 64)
    plain, plain_bytes = plans(lambda x: deep(x, lambda f: f), x=x)
    saved, saved_bytes = plans(lambda x: deep(x, pm.checkpoint), x=x)
    kept, kept_bytes = plans(lambda x: deep(x, lambda f: pm.checkpoint(f, save="compute")), x=x)
    want = evaluate_graph(plain, {"x": x}).outputs[0]
    for g in (saved, kept, optimize(saved), optimize(kept)):
        np.testing.assert_allclose(evaluate_graph(g, {"x": x}).outputs[0], want, rtol=1e-9, atol=1e-12)
    assert saved_bytes < 0.7 * plain_bytes
    assert saved_bytes <= kept_bytes <= plain_bytes
    again, less, none = (sum(n.op == "matmul" for n in optimize(g)) for g in (saved, kept, plain))
    assert again > less == none, "compute-bound ops are computed again only where nothing is saved"


def test_checkpoint_with_several_results_closures_and_nesting() -> None:
    w = array(4, 4)

    def inner(a: Any, scale: Any) -> Any:
        return {"sin": pm.sin(a @ w) * scale, "same": a}

    def loss(x: Any, wrap: Any) -> Any:
        s = pm.exp(x.mean())

        def outer(h: Any) -> Any:
            found = wrap(inner)(h * 2.0, s)
            return found["sin"] + pm.cos(found["same"]) * s

        return (wrap(outer)(x) ** 2).sum()

    x = array(3, 4)
    want = pm.interpret(pm.grad(lambda x: loss(x, lambda f: f)), x)
    np.testing.assert_allclose(pm.interpret(pm.grad(lambda x: loss(x, pm.checkpoint)), x), want, rtol=1e-5)


def test_checkpoint_draws_the_same_random_numbers_again() -> None:
    def noisy(x: Any, key: Any) -> Any:
        return pm.dropout(x * x, key, 0.5)

    def loss(x: Any, wrap: Any) -> Any:
        return wrap(noisy)(x, pm.random.key(7)).sum()

    x = array(40)
    want = pm.interpret(pm.grad(lambda x: loss(x, lambda f: f)), x)
    np.testing.assert_array_equal(pm.interpret(pm.grad(lambda x: loss(x, pm.checkpoint)), x), want)


def test_second_derivative_through_checkpoint() -> None:
    block = pm.checkpoint(lambda x: pm.sin(x * x))
    x = np.float32(0.7)
    got = pm.interpret(pm.grad(pm.grad(lambda x: block(x))), x)
    np.testing.assert_allclose(got, 2 * np.cos(x * x) - 4 * x * x * np.sin(x * x), rtol=1e-5)


@pytest.mark.parametrize("target", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_checkpoint_on_targets(target: str) -> None:
    x = array(8, 64)
    g = pm.trace(pm.grad(lambda x: deep(x, pm.checkpoint, layers=2)), x=x)
    assert not check(Case(g, {"x": x}, {}), target, arena=True, guard=0)


# --- custom gradients ---


def test_custom_gradient_replaces_that_of_the_body() -> None:
    @pm.custom_gradient
    def odd(x: Any, pair: Any) -> Any:
        y = pm.floor(x) * pair["a"]
        return (y, pm.sin(x)), lambda dy: (dy[0] * 10.0 + dy[1], {"a": dy[0] * x, "b": None})

    def loss(x: Any, a: Any) -> Any:
        y, s = odd(x, {"a": a, "b": a})
        return (y * 2.0).sum() + s.sum()

    x, a = np.float32([0.5, 1.5]), np.float32([3, 4])
    dx, da = pm.interpret(pm.grad(loss, argnums=(0, 1)), x, a)
    assert dx.tolist() == [21.0, 21.0] and da.tolist() == [1.0, 3.0]


def test_custom_gradient_inside_a_checkpoint() -> None:
    @pm.custom_gradient
    def clipped(x: Any) -> Any:
        return x, lambda dy: pm.clip(dy, -1.0, 1.0)

    dx = pm.interpret(pm.grad(lambda x: (pm.checkpoint(lambda h: clipped(h * 2.0))(x) * 5.0).sum()), array(3))
    assert dx.tolist() == [2.0, 2.0, 2.0]


def test_custom_gradient_of_the_wrong_shape_is_refused() -> None:
    wrong = pm.custom_gradient(lambda x: (x, lambda dy: dy.sum()))
    with pytest.raises(ShapeError, match="gave"):
        pm.trace(pm.grad(lambda x: wrong(x).sum()), x=pm.spec(3))


# --- errors ---


def test_a_loss_that_is_no_float_scalar_is_refused_by_its_shape() -> None:
    with pytest.raises(ShapeError, match=r"\(B, 3\)"):
        pm.trace(pm.grad(lambda x: x * 2.0), x=pm.spec("B", 3))
    with pytest.raises(DTypeError, match=r"i32\[\]"):
        pm.trace(pm.grad(lambda x: pm.argmax(x, axis=0)), x=pm.spec(3))
    with pytest.raises(InputError, match="tuple"):
        pm.trace(pm.grad(lambda x: (x.sum(), x)), x=pm.spec(3))


def test_arguments_without_floats_are_refused() -> None:
    with pytest.raises(DTypeError, match="no floats"):
        pm.trace(pm.grad(lambda x: (x * 2.0).sum()), x=pm.spec(3, dtype="i32"))
    with pytest.raises(InputError, match="argnums"):
        pm.trace(pm.grad(lambda x: x.sum(), argnums=1), x=pm.spec(3))


def test_checkpoint_needs_a_tensor() -> None:
    with pytest.raises(InputError, match="at least one tensor"):
        pm.trace(lambda x: x + pm.checkpoint(lambda n: n)(3), x=pm.spec(3))


# --- graphs ---


def test_gradient_graph_adds_outputs() -> None:
    g = pm.trace(mlp, params=mlp_params(), x=pm.spec("B", 5, max=4))
    params, x = {n.name: array(*n.type.static_shape) for n in g.sources("param")}, array(3, 5)
    extended = gradient_graph(g)
    assert [name for name, _ in extended.outputs] == ["out", "grad.w1", "grad.b1", "grad.w2"]
    direct = pm.trace(pm.value_and_grad(mlp), params=mlp_params(), x=pm.spec("B", 5, max=4))
    got, want = (evaluate_graph(t, {"x": x}, params).outputs for t in (extended, direct))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_gradient_graph_knows_checkpoints_but_no_python() -> None:
    g = pm.trace(lambda x: pm.checkpoint(lambda h: pm.sin(pm.exp(h)))(x).sum(), x=pm.spec(3))
    x = array(3)
    got = evaluate_graph(gradient_graph(g, ["x"]), {"x": x}).outputs[1]
    np.testing.assert_allclose(got, np.cos(np.exp(x)) * np.exp(x), rtol=1e-5)
    own = pm.custom_gradient(lambda x: (x, lambda dy: dy))
    with pytest.raises(GraphError, match="traced"):
        gradient_graph(pm.trace(lambda x: own(x).sum(), x=pm.spec(3)), ["x"])


def test_marks_cost_nothing() -> None:
    g = pm.trace(lambda x: pm.stop_gradient(pm.checkpoint(lambda h: h + 1.0)(x)), x=pm.spec(3))
    assert [n.op for n in optimize(g)] == ["input", "constant", "add"]
    assert all(get_op(op).cost == "free" for op in ("mark", "barrier", "stop_gradient"))


# --- attention in blocks ---


@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_blocks_of_queries(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.ir.gradients import attention
    from pumice.passes.compose import compose

    q, k, mask = array(2, 4, 10, 8), array(2, 2, 12, 8), RNG.random((1, 1, 10, 12)) < 0.8

    def traced() -> Graph:
        def loss(q: Any, k: Any, v: Any) -> Any:
            return (pm.attention(q, k, v, mask=mask, causal=causal) ** 2).sum()

        # Targets without a kernel for the op do it in blocks.
        return compose(pm.trace(pm.grad(loss, argnums=(0, 1, 2)), q=q, k=k, v=k), lambda node: False)

    whole = traced()
    monkeypatch.setattr(attention, "_SCORES", 300)
    blocks = traced()
    assert sum(n.op == "softmax" for n in blocks) == 4 > sum(n.op == "softmax" for n in whole)
    inputs = {"q": q, "k": k, "v": k}
    for a, b in zip(evaluate_graph(whole, inputs).outputs, evaluate_graph(blocks, inputs).outputs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
    largest = max(int(n.type.numel) for n in blocks if n.op == "softmax")
    assert largest == 2 * 4 * 3 * 12


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "attention"])
def test_ops_for_gradients_can_be_differentiated_again(name: str) -> None:
    x, w = array(2, 1, 4, 6), array(6)

    def value(x: Any) -> Any:
        y = pm.attention(x, x * 2.0, x, causal=True) if name == "attention" else getattr(pm, name)(x, w)
        return (y**3).sum()

    def squared(x: Any) -> Any:
        return (pm.grad(value)(x) ** 2).sum()

    graph = pm.trace(squared, x=x)
    assert any(n.op.endswith("_gradient") for n in graph)
    got = pm.interpret(pm.grad(squared), x)
    step, want = 1e-5, np.zeros(x.shape)
    for i in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.astype(np.float64)
            moved[i] += sign * step
            ends.append(float(evaluate_graph(graph, {"x": moved}).outputs[0]))
        want[i] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3 * np.abs(want).max())


# --- losses ---


def test_cross_entropy_equals_the_composed_loss_and_builds_nothing_one_hot() -> None:
    x, targets = array(6, 11), np.array([3, 0, -100, 10, 5, 5], np.int32)

    def composed(x: Any) -> Any:
        picked = pm.take_along_axis(pm.log_softmax(x), np.maximum(targets, 0)[:, None])[:, 0]
        return -pm.where(targets >= 0, picked, 0.0).sum()

    want = pm.interpret(pm.grad(composed), x)
    np.testing.assert_allclose(pm.interpret(pm.grad(lambda x: pm.cross_entropy(x, targets).sum()), x), want, rtol=1e-5, atol=1e-7)
    g = pm.trace(pm.value_and_grad(lambda x, t: pm.cross_entropy(x, t).mean()), x=pm.spec(64, 5000), t=pm.spec(64, dtype="i32"))
    plan = build_plan(g, Caps.preset("browser-baseline"))
    assert plan.memory["arena"] < 1.1 * 64 * 5000 * 4, "more than the gradient itself"
