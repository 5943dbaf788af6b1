"""Optimizers and schedules: PyTorch's numbers, or those of the papers written out in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

import pumice as pm
from pumice import nn, optim
from pumice.errors import InputError, UnknownName
from pumice.optim import schedules
from train.tiny import MLP_INPUTS, classify, golden, mlp, mlp_batch

STEPS = 5


class Regression(nn.Module):
    """tanh(x wᵀ + b), as in the goldens."""

    def __init__(self):
        self.w, self.b = nn.Parameter((3, 4)), nn.Parameter(3)

    def forward(self, x):
        return pm.tanh(x @ self.w.T + self.b)


def run_steps(optimizer, device="host", steps=STEPS, **settings):
    """The parameters after each of five steps of the goldens' problem, and the plan's copies."""
    g = golden("optimizers")
    with pm.train.compile_step(
        Regression(),
        lambda model, x, y: nn.mse(model(x), y),
        optimizer,
        {"x": pm.spec(16, 4), "y": pm.spec(16, 3)},
        params={"w": g["w"], "b": g["b"]},
        device=device,
        **settings,
    ) as step:
        found = []
        for _ in range(steps):
            step(x=g["x"], y=g["y"])
            found.append(step.params())
        copies = {step.executable.graph.nodes[s].name for s, _ in step.executable.plan.copies}
    return found, copies


_TORCH = {
    "sgd": optim.SGD(0.1),
    "sgd decay": optim.SGD(0.1, weight_decay=0.1, decay="all"),
    "sgd momentum": optim.SGD(0.1, momentum=0.9),
    "sgd nesterov": optim.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.05, decay="all"),
    "adam": optim.Adam(0.05),
    "adam decay": optim.Adam(0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1, decay="all"),
    "adamw": optim.AdamW(0.05, weight_decay=0.1, decay="all"),
    "adamw clip": optim.AdamW(0.05, weight_decay=0.1, decay="all", clip_norm=0.05),
    "adafactor": optim.Adafactor(0.05, weight_decay=0.1, decay="all"),
}


@pytest.mark.parametrize("name", list(_TORCH))
def test_optimizers_are_pytorch_s(name):
    g = golden("optimizers")
    found, copies = run_steps(_TORCH[name])
    assert copies == set(), "params and moments are updated in place"
    for k, params in enumerate(found):
        for key in ("w", "b"):
            np.testing.assert_allclose(params[key], g[f"{name}/{key}"][k], rtol=2e-5, atol=2e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["adamw clip", "adafactor"])
def test_optimizers_on_webgpu(name):
    g = golden("optimizers")
    found, copies = run_steps(_TORCH[name], "webgpu")
    assert copies == set()
    np.testing.assert_allclose(found[-1]["w"], g[f"{name}/w"][-1], rtol=1e-4, atol=1e-5)


# --- those of the papers ---


def gradients(w, b, x, y):
    out = np.tanh(x @ w.T + b)
    inner = 2 * (out - y) * (1 - out**2) / out.size
    return {"w": inner.T @ x, "b": inner.sum(0)}


def transcribed(update):
    """Five steps in float64; update(name, p, g, t, state) gives the next p."""
    g = golden("optimizers")
    x, y = g["x"].astype(np.float64), g["y"].astype(np.float64)
    params = {key: g[key].astype(np.float64) for key in ("w", "b")}
    state = {key: {} for key in params}
    found = []
    for t in range(1, STEPS + 1):
        slopes = gradients(params["w"], params["b"], x, y)
        params = {key: update(key, p, slopes[key], t, state[key]) for key, p in params.items()}
        found.append(params)
    return found


def lion(name, p, g, t, state, lr=0.01, b1=0.9, b2=0.99, wd=0.1):
    m = state.get("m", np.zeros_like(p))
    direction = np.sign(b1 * m + (1 - b1) * g)
    state["m"] = b2 * m + (1 - b2) * g
    return p - lr * (direction + wd * p)


def adafactor(name, p, g, t, state, lr=0.05, wd=0.1):
    beta = 1 - t**-0.8
    squares = g**2 + 1e-30
    if p.ndim == 2:
        state["r"] = beta * state.get("r", 0) + (1 - beta) * squares.mean(1)
        state["c"] = beta * state.get("c", 0) + (1 - beta) * squares.mean(0)
        v = np.outer(state["r"], state["c"]) / state["r"].mean()
    else:
        v = state["v"] = beta * state.get("v", 0) + (1 - beta) * squares
    u = g / np.sqrt(v)
    u /= max(1, np.sqrt((u**2).mean()))
    return p - lr * wd * p - lr * max(1e-3, np.sqrt((p**2).mean())) * u


def muon(name, p, g, t, state, lr=0.05, mu=0.95, wd=0.1):
    if p.ndim != 2:
        state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
        state["v"] = 0.999 * state.get("v", 0) + 0.001 * g**2
        step = (state["m"] / (1 - 0.9**t)) / (np.sqrt(state["v"] / (1 - 0.999**t)) + 1e-8)
        return p - lr * wd * p - lr * step
    state["m"] = mu * state.get("m", 0) + (1 - mu) * g
    x = (1 - mu) * g + mu * state["m"]
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return p - lr * wd * p - lr * 0.2 * math.sqrt(max(p.shape)) * x


_PAPERS = {
    "lion": (optim.Lion(0.01, weight_decay=0.1, decay="all"), lion),
    "adafactor": (optim.Adafactor(0.05, weight_decay=0.1, decay="all"), adafactor),
    "muon": (optim.Muon(0.05, weight_decay=0.1, decay="all"), muon),
}


@pytest.mark.parametrize("name", list(_PAPERS))
def test_optimizers_are_those_of_the_papers(name):
    optimizer, update = _PAPERS[name]
    found, copies = run_steps(optimizer)
    assert copies == set()
    for params, expected in zip(found, transcribed(update), strict=True):
        for key in expected:
            np.testing.assert_allclose(params[key], expected[key], rtol=5e-5, atol=5e-6)


def test_muon_moves_matrices_as_pytorch_s_does():
    # PyTorch iterates in bfloat16, so only about two digits agree; it does not move the bias at all.
    g = golden("optimizers")
    frozen = optim.ParamGroup("b", frozen=True)
    found, _ = run_steps(optim.Muon(0.05, weight_decay=0.1, groups=[frozen]))
    moved = g["muon/w"][-1] - g["w"]
    assert np.abs(found[-1]["w"] - g["w"] - moved).max() < 0.05 * np.abs(moved).max()
    np.testing.assert_array_equal(found[-1]["b"], g["b"])


# --- what all share ---


def test_groups_scale_rates_and_decay():
    base, _ = run_steps(optim.SGD(0.1), steps=1)
    start = golden("optimizers")
    half, _ = run_steps(
        optim.SGD(0.1, groups=[optim.ParamGroup("w", lr_scale=0.5), optim.ParamGroup("*", weight_decay=1.0)]), steps=1
    )
    np.testing.assert_allclose(half[0]["w"] - start["w"], 0.5 * (base[0]["w"] - start["w"]), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(half[0]["b"], base[0]["b"] - 0.1 * start["b"], rtol=1e-5, atol=1e-6)


def test_decay_filters():
    weight, bias = nn.Parameter((2, 2)), nn.Parameter(2, decay=False)
    chosen = {
        None: (0.1, 0.0),
        "all": (0.1, 0.1),
        "*.bias": (0.0, 0.1),
    }
    for decay, expected in chosen.items():
        optimizer = optim.AdamW(weight_decay=0.1, decay=decay)
        assert (optimizer.decay_of("a.weight", weight), optimizer.decay_of("a.bias", bias)) == expected
    by_rank = optim.AdamW(weight_decay=0.1, decay=lambda name, p: len(p.shape) > 1)
    assert by_rank.decay_of("a", weight) == 0.1 and by_rank.decay_of("a", bias) == 0.0


def test_clipping_per_parameter_and_per_element():
    start = golden("optimizers")
    slopes = gradients(start["w"], start["b"], start["x"], start["y"])
    each, _ = run_steps(optim.SGD(1.0, clip_each=0.02), steps=1)
    for key, slope in slopes.items():
        moved = start[key] - each[0][key]
        np.testing.assert_allclose(moved, slope * min(1, 0.02 / np.linalg.norm(slope)), rtol=1e-3, atol=1e-6)
    element, _ = run_steps(optim.SGD(1.0, clip_value=0.01), steps=1)
    np.testing.assert_allclose(start["w"] - element[0]["w"], slopes["w"].clip(-0.01, 0.01), rtol=1e-3, atol=1e-6)


def test_averages_of_parameters():
    model = mlp()
    with pm.train.compile_step(model, classify, optim.SGD(0.5, ema=0.8), MLP_INPUTS, device="host", max=8) as step:
        expected = step.params()
        for _ in range(4):
            step(mlp_batch())
            expected = {k: 0.8 * expected[k] + 0.2 * v for k, v in step.params().items()}
        for key, value in step.ema_params().items():
            np.testing.assert_allclose(value, expected[key], rtol=1e-5, atol=1e-6)
        assert step.executable.plan.copies == ()
        step.set_params(model.init(9))
        np.testing.assert_array_equal(step.ema_params()["0.weight"], model.init(9)["0.weight"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: optim.SGD(-1.0),
        lambda: optim.SGD(0.1, momentum=1.0),
        lambda: optim.SGD(0.1, nesterov=True),
        lambda: optim.Adam(0.1, betas=(0.9, 1.0)),
        lambda: optim.AdamW(0.1, clip_norm=0.0),
        lambda: optim.AdamW(0.1, weight_decay=-1.0),
        lambda: optim.AdamW(0.1, ema=1.0),
        lambda: optim.Muon(0.1, adjust="none"),
        lambda: schedules.cosine(0.1, 0),
        lambda: schedules.one_cycle(0.1, 10, rise=1.0),
        lambda: schedules.warmup(2, float("nan")),
    ],
)
def test_what_settings_refuse(make):
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: optim.AdamW("0.1"), "adamw: lr must be a number of at least 0 or a schedule, not '0.1'"),
        (lambda: optim.AdamW(nn.Linear(2, 2)), "lr must be .* compile_step"),
        (lambda: optim.AdamW(weight_decay="0.1"), "adamw: weight_decay must be a number, not '0.1'"),
        (lambda: optim.AdamW(betas=0.9), "adamw: betas must be 2 numbers, not 0.9"),
        (lambda: optim.AdamW(betas=("a", 0.9)), "adamw: betas must be a number, not 'a'"),
        (lambda: optim.AdamW(eps=None), "adamw: eps must be a number, not None"),
        (lambda: optim.AdamW(decay=3), "adamw: decay must be a pattern"),
        (lambda: optim.SGD(momentum=True), "sgd: momentum must be a number, not True"),
        (lambda: optim.SGD(momentum=0.9, nesterov="yes"), "sgd: nesterov must be True or False, not 'yes'"),
        (lambda: optim.Muon(iterations=2.5), "muon: iterations must be an int, not 2.5"),
        (lambda: optim.AdamW(groups=optim.ParamGroup("*")), "adamw: groups must be a list of optim.ParamGroup, not ParamGroup"),
        (lambda: optim.AdamW(groups=[{"params": []}]), "groups must be a list of optim.ParamGroup, not of {'params'"),
        (lambda: optim.ParamGroup(3), "a group's match must be a pattern"),
        (lambda: optim.ParamGroup("*", lr_scale="2"), "group: lr_scale must be a number, not '2'"),
        (lambda: optim.ParamGroup("*", weight_decay=-1.0), "group: weight_decay must be at least 0, not -1"),
        (lambda: optim.ParamGroup("*", frozen=1), "group: frozen must be True or False, not 1"),
        (lambda: schedules.multi_step(0.1, at=3), "multi_step: at must be a list of steps, not 3"),
        (lambda: schedules.one_cycle(0.1, 10, rise="a"), "one_cycle: rise must be a number"),
    ],
)
def test_settings_of_a_wrong_type_are_named_at_the_call(make, text):
    with pytest.raises(InputError, match=f"(?s){text}"):
        make()


def test_numbers_of_numpy_are_plain_data_in_settings():
    made = optim.AdamW(np.float32(0.5), weight_decay=np.float64(0.25), betas=[np.float32(0.5), 0.75])
    assert made.to_dict() == optim.AdamW(0.5, weight_decay=0.25, betas=(0.5, 0.75)).to_dict()
    assert all(type(value) is float for value in (made.lr, made.weight_decay, *made.betas))


# --- schedules ---


def test_schedules_are_pytorch_s():
    g = golden("schedules")
    ours = {
        "cosine": schedules.cosine(1.0, 20, end=0.1),
        "linear": schedules.linear(1.0, 20, end=0.25),
        "step": schedules.step(1.0, every=6, gamma=0.5),
        "multi_step": schedules.multi_step(1.0, at=(3, 11)),
        "one_cycle": schedules.one_cycle(1.0, 21),
    }
    for name, schedule in ours.items():
        np.testing.assert_allclose([schedule(s) for s in range(20)], g[name], rtol=1e-6, atol=1e-9, err_msg=name)


def test_schedules_end_where_they_should_and_are_data():
    for schedule, last in (
        (schedules.constant(0.3), 0.3),
        (schedules.linear(1.0, 10, end=0.2), 0.2),
        (schedules.cosine(1.0, 10, end=0.2), 0.2),
        (schedules.warmup(5, schedules.cosine(1.0, 10)), 0.0),
        (schedules.warmup(5, 0.7), 0.7),
        (schedules.one_cycle(1.0, 10), 1 / 25 / 1e4),
        (schedules.multi_step(1.0, at=(2,), gamma=0.5), 0.5),
    ):
        assert schedule(10_000) == pytest.approx(last)
        assert optim.Schedule.from_dict(schedule.to_dict()) == schedule
    assert [schedules.warmup(2, 1.0)(s) for s in range(3)] == [0.5, 1.0, 1.0]
    with pytest.raises(UnknownName, match="no schedule 'triangle'"):
        optim.Schedule.from_dict({"kind": "triangle"})
    with pytest.raises(UnknownName, match="no setting 'stepz'"):
        optim.Schedule.from_dict({"kind": "cosine", "lr": 1.0, "stepz": 3})
    with pytest.raises(InputError, match="lacks a setting"):
        optim.Schedule.from_dict({"kind": "cosine", "lr": 1.0})
