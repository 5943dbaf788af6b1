"""Convolution, pooling, resizing and their norms against PyTorch's values and gradients; their rules; what kernels they get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import Caps
from pumice.core.dims import sym
from pumice.ir.graph import Graph
from pumice.ir.ops.window import floor_div
from pumice.ir.registry import get_op
from pumice.kernels.routines.conv import Direct, Dot, Tiled, decide
from pumice.plan.build import build_plan

from harness import Case, check, device, run_plan

GOLDEN = dict(np.load(Path(__file__).parent / "golden" / "conv.npz"))
CASES: list[tuple[str, list[str], dict[str, Any]]] = json.loads(str(GOLDEN["cases"]))
Array = np.ndarray[Any, Any]
# The registry's tests run the same kernels under a browser's limits.
on_every_target = pytest.mark.parametrize("target", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])


def golden(case: int, name: str) -> Array:
    return GOLDEN[f"{case}.{name}"]


def specs(arrays: dict[str, Array], batch: str | int) -> dict[str, Any]:
    """The arrays as traced inputs; x and dy share a batch of unknown size where `batch` is a symbol."""
    return {
        n: pm.spec(*((batch if isinstance(batch, str) else a.shape[0]), *a.shape[1:])) if n in ("x", "dy") else pm.spec(*a.shape)
        for n, a in arrays.items()
    }


def outputs_of(graph: Graph, arrays: dict[str, Array], target: str, **maxima: int) -> dict[str, Array]:
    dev = device(target)
    results, _ = run_plan(dev, build_plan(graph, dev.caps, max=maxima), Case(graph, arrays, {}))
    return dict(zip([name for name, _ in graph.outputs], results, strict=True))


@on_every_target
@pytest.mark.parametrize("case", range(len(CASES)), ids=[f"{k} {name}" for k, (name, _, _) in enumerate(CASES)])
def test_values_and_gradients_equal_pytorch(case: int, target: str) -> None:
    name, operands, options = CASES[case]
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    arrays = {n: golden(case, n) for n in (*operands, "dy")}
    wrt = [n for n in operands if f"{case}.d{n}" in GOLDEN]

    def call(**tensors: Any) -> Any:
        tensors.pop("dy")
        return getattr(pm, name)(**tensors, **options)

    def both(**tensors: Any) -> Any:
        y = call(**tensors)
        others = {n: t for n, t in tensors.items() if n not in wrt}

        def loss(inner: dict[str, Any]) -> Any:
            z = call(**inner, **others)
            return ((z[0] if isinstance(z, tuple) else z) * others["dy"]).sum()

        gradients = pm.grad(loss)({n: tensors[n] for n in wrt})
        results = dict(zip(("y", "new_running_mean", "new_running_var"), y, strict=True)) if isinstance(y, tuple) else {"y": y}
        return {**results, **{f"d{n}": g for n, g in gradients.items()}}

    graph = pm.trace(both, **specs(arrays, "N"))
    found = outputs_of(graph, arrays, target, N=8)
    for key, value in found.items():
        if f"{case}.{key}" in GOLDEN:
            np.testing.assert_allclose(value, golden(case, key), rtol=2e-4, atol=2e-5, err_msg=key)
    assert {"y", *(f"d{n}" for n in wrt)} <= set(found)


def net_loss(params: Any, x: Any, labels: Any) -> Any:
    p = params
    h = pm.conv2d(x, p["w1"], p["b1"], padding=1)
    h = pm.relu(pm.batch_norm(h, np.zeros(4), np.ones(4), p["scale1"], p["shift1"], training=True)[0])
    h = pm.gelu(pm.conv2d(pm.max_pool2d(h, 2), p["w2"], padding="same", groups=4))
    h = pm.group_norm(pm.conv2d(h, p["w3"], p["b3"]), 2, p["scale3"], p["shift3"])
    h = pm.mean_pool2d(pm.upsample(h, scale_factor=2, mode="bilinear"), 2)
    logits = pm.log_softmax(pm.mean(h, (2, 3)) @ p["head"] + p["bias"])
    return -pm.mean(pm.take_along_axis(logits, pm.expand_dims(labels, 1), 1))


@on_every_target
def test_gradients_of_a_conv_net_equal_pytorch(target: str) -> None:
    params = {n.removeprefix("net.param."): a for n, a in GOLDEN.items() if n.startswith("net.param.")}
    shapes = {n: pm.spec(*a.shape) for n, a in params.items()}
    graph = pm.trace(pm.value_and_grad(net_loss), params=shapes, x=pm.spec("N", 1, 8, 8), labels=pm.spec("N", dtype="i32"))
    dev = device(target)
    case = Case(graph, {n: GOLDEN[f"net.{n}"] for n in ("x", "labels")}, params)
    (loss, *gradients), _ = run_plan(dev, build_plan(graph, dev.caps, max={"N": 8}), case)
    np.testing.assert_allclose(loss, GOLDEN["net.loss"], rtol=1e-5)
    names = [name.split(".")[-1] for name, _ in graph.outputs[1:]]
    assert sorted(names) == sorted(params)
    for name, g in zip(names, gradients, strict=True):
        want = GOLDEN[f"net.grad.{name}"]
        np.testing.assert_allclose(g, want, rtol=1e-4, atol=1e-4 * np.abs(want).max() + 1e-7, err_msg=name)


# --- rules ---


def result_type(fn: Any, **inputs: Any) -> str:
    return str(pm.trace(fn, **inputs).nodes[-1].type)


def test_sizes_may_be_symbolic() -> None:
    x, w = pm.spec("N", 3, "H", "W"), pm.spec(8, 3, 3, 3)
    assert result_type(lambda x, w: pm.conv2d(x, w, padding=1), x=x, w=w) == "f32[N,8,H,W]"
    assert result_type(lambda x: pm.max_pool2d(x, 2), x=x) == "f32[N,3,floordiv(H,2),floordiv(W,2)]"
    assert result_type(lambda x: pm.upsample(x, scale_factor=2), x=x) == "f32[N,3,2*H,2*W]"
    grow = result_type(lambda x, w: pm.conv_transpose2d(x, w, stride=2, output_padding=1), x=pm.spec("N", 8, "H", "W"), w=w)
    assert grow == "f32[N,3,2*H+2,2*W+2]"


@on_every_target
def test_symbolic_sizes_run(target: str) -> None:
    def net(x: Any, w: Any) -> Any:
        y = pm.relu(pm.conv2d(x, w, stride=2, padding=1))
        return pm.upsample(pm.mean_pool2d(pm.max_pool2d(y, 2, stride=1), 2), scale_factor=2, mode="bilinear")

    graph = pm.trace(
        pm.grad(lambda x, w: (net(x, w) ** 2).sum(), argnums=(0, 1)), x=pm.spec("N", 3, "H", "W"), w=pm.spec(4, 3, 3, 3)
    )
    r = np.random.default_rng(0)
    for n, h, v in ((2, 11, 8), (1, 16, 13), (0, 9, 9)):
        arrays = {"x": r.standard_normal((n, 3, h, v)).astype("f4"), "w": r.standard_normal((4, 3, 3, 3)).astype("f4")}
        assert not check(Case(graph, arrays, {}), target, max={"N": 2, "H": 16, "W": 16})


def test_a_symbolic_size_below_the_kernel_gives_nothing() -> None:
    graph = pm.trace(lambda x: pm.conv1d(x, np.ones((2, 1, 5), "f4")), x=pm.spec(3, 1, "L"))
    assert not check(Case(graph, {"x": np.ones((3, 1, 4), "f4")}, {}), "host", max={"L": 8})


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: pm.conv2d(x, np.ones((4, 2, 3, 3), "f4")), "w takes 2 channels per group, x has 3"),
        (lambda x: pm.conv2d(x, np.ones((4, 1, 3, 3), "f4"), groups=2), "multiple of groups"),
        (lambda x: pm.conv2d(x, np.ones((4, 3, 9, 9), "f4")), "does not fit an axis of 8"),
        (lambda x: pm.conv2d(x, np.ones((4, 3, 3, 3), "f4"), np.ones(5, "f4")), "bias and the outputs"),
        (lambda x: pm.conv2d(x, np.ones((4, 3, 3, 3), "f4"), padding="same", stride=2), "needs stride 1"),
        (lambda x: pm.conv2d(x, np.ones((4, 3, 3, 3), "f4"), padding="some"), "no padding 'some'"),
        (lambda x: pm.conv2d(x, np.ones((4, 3, 3, 3), "f4"), stride=(1, 2, 3)), "2 spatial axes"),
        (lambda x: pm.conv2d(x, np.ones((4, 3, 3, 3), "f4"), stride=0), "positive integers"),
        (lambda x: pm.conv2d(x, np.ones((4, 3, 3, 3), "f4"), padding=-1), "from 0 on"),
        (lambda x: pm.conv1d(x, np.ones((4, 3, 3), "f4")), "1 spatial axes"),
        (lambda x: pm.conv_transpose2d(x, np.ones((3, 4, 3, 3), "f4"), output_padding=1), "output_padding"),
        (lambda x: pm.max_pool2d(x, 2, padding=2), "not less than the window"),
        (lambda x: pm.upsample(x, mode="linear"), "either size or scale_factor"),
        (lambda x: pm.upsample(x, size=4, mode="cubic"), "no resize mode 'cubic'"),
        (lambda x: pm.upsample(x, size=4, align_corners=True), "for the linear mode"),
        (lambda x: pm.upsample(x, size=0), "positive"),
        (lambda x: pm.adaptive_mean_pool(x, 0), "do not make 0 parts"),
        (lambda x: pm.group_norm(x, 2), "do not make 2 groups"),
        (lambda x: pm.batch_norm(x, np.zeros(4), np.ones(4)), "one value per channel"),
    ],
)
def test_refusals_say_what_is_wrong(call: Any, says: str) -> None:
    with pytest.raises(pm.PumiceError, match=says):
        pm.trace(call, x=pm.spec("N", 3, 8, 8))


def test_max_pool_gradient_goes_to_the_first_of_equals_and_follows_nan() -> None:
    x = np.array([[[2.0, 2.0, 1.0, np.nan, np.nan, 0.0]]], "f4")
    spec = get_op("max_pool_grad")
    attrs = {"kernel": (3,), "strides": (3,), "padding": ((0, 0),), "ceil_mode": False}
    y, g = np.array([[[2.0, np.nan]]], "f4"), np.array([[[1.0, 5.0]]], "f4")
    out = pm.trace(lambda x: x, x=pm.spec(1, 1, 6)).nodes[0].type
    assert spec.reference([x, y, g], attrs, out).tolist() == [[[1.0, 0.0, 0.0, 5.0, 0.0, 0.0]]]


def test_whole_multiples_leave_a_floor_division() -> None:
    t = sym("T")
    assert floor_div(4 * t + 7, 2) == 2 * t + 3
    assert str(floor_div(3 * t + 5, 2)) == "floordiv(3*T+1,2)+2"


def test_batch_norm_without_training_keeps_the_running_statistics() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("f4")
    y, mean, var = pm.interpret(lambda x: pm.batch_norm(x, [0.0, 1.0, 2.0], [1.0, 4.0, 9.0], eps=0.0), x)
    np.testing.assert_allclose(y, (x - np.float32([0, 1, 2])[:, None]) / np.float32([1, 2, 3])[:, None], rtol=1e-6)
    assert mean.tolist() == [0.0, 1.0, 2.0] and var.tolist() == [1.0, 4.0, 9.0]


# --- kernels ---


@pytest.mark.parametrize("preset", ["browser-baseline", "lavapipe", "h200"])
def test_variants_follow_from_shapes(preset: str) -> None:
    caps = Caps.preset(preset)
    assert isinstance(decide(caps, 64, 32 * 28 * 28, 576, 1), Tiled)
    assert decide(caps, 1, 32 * 28 * 28, 9, 64) == Direct(64 if caps.software else 256)
    assert isinstance(decide(caps, 1, 9, 32 * 28 * 28, 8), Dot)
    split = decide(caps, 16, 27, 32 * 28 * 28, 1)
    assert isinstance(split, Tiled) and split.parts > 1


def test_bias_and_activation_fuse_with_a_convolution() -> None:
    graph = pm.trace(
        lambda x, r: pm.gelu(pm.conv2d(x, np.ones((8, 3, 3, 3), "f4"), np.ones(8, "f4"), padding=1)) + r,
        x=pm.spec("N", 3, 16, 16),
        r=pm.spec("N", 8, 16, 16),
    )
    plan = build_plan(graph, Caps.preset("browser-baseline"), max={"N": 4})
    assert [s.label for s in plan.steps] == ["conv+gelu+add"]


def test_elementwise_operands_of_pooling_are_computed_on_the_fly() -> None:
    graph = pm.trace(lambda x: pm.max_pool2d(pm.relu(x), 2) * 2.0, x=pm.spec("N", 3, 16, 16))
    plan = build_plan(graph, Caps.preset("browser-baseline"), max={"N": 4})
    assert len(plan.steps) == 1


def test_nothing_is_unfolded_in_memory() -> None:
    graph = pm.trace(
        pm.grad(lambda x, w: (pm.conv2d(x, w, padding=1) ** 2).sum(), argnums=(0, 1)),
        x=pm.spec(8, 32, 64, 64),
        w=pm.spec(32, 32, 3, 3),
    )
    plan = build_plan(graph, Caps.preset("h200"))
    image = 8 * 32 * 64 * 64 * 4
    assert plan.memory["arena"] < 3 * image
