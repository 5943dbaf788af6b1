"""Modules, layers and losses: names, values and gradients as in PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import pumice as pm
from pumice import nn
from pumice.errors import GraphError, InputError, MissingName, ShapeError, UnknownName
from pumice.reference.interpreter import evaluate_graph
from train.tiny import TinyConv, TinyGPT, classify, golden, next_token, state_dict


def evaluate(model, params, *arrays, **binding):
    """What a bound module gives, by the reference."""
    names = [f"x{i}" for i in range(len(arrays))]

    def run(params, **given):
        with nn.bind(model, params, **binding):
            return model(*(given[n] for n in names))

    graph = pm.trace(run, params=params, **dict(zip(names, arrays)))
    return evaluate_graph(graph, dict(zip(names, arrays)), params).outputs[0]


# --- modules ---


def test_names_are_attribute_paths_also_in_containers():
    class Net(nn.Module):
        def __init__(self):
            self.scales = [nn.Parameter(2), nn.Parameter(3)]
            self.heads = {"a": nn.Linear(2, 1, bias=False), "b": (nn.Linear(3, 1, bias=False),)}
            self.shift = nn.Parameter((), init=nn.init.constant(5.0))

    net = Net()
    assert list(net.named_parameters()) == ["scales.0", "scales.1", "shift", "heads.a.weight", "heads.b.0.weight"]
    net.late = []
    net.late.append(nn.Parameter(4))
    assert "late.0" in net.named_parameters()
    assert isinstance(net.scales[0], nn.Parameter), "outside of a binding it is the Parameter itself"
    net.shift = None
    assert "shift" not in net.named_parameters() and net.shift is None


def test_a_parameter_held_twice_is_one():
    class Tied(nn.Module):
        def __init__(self):
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(self.embed(ids))

    tied = Tied()
    assert list(tied.named_parameters()) == ["embed.weight"]
    params = tied.init()
    ids = np.array([1, 4])
    np.testing.assert_allclose(evaluate(tied, params, ids), params["embed.weight"][ids] @ params["embed.weight"].T, rtol=1e-6)


def test_initial_values_depend_on_seed_and_name_alone():
    small, large = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    np.testing.assert_array_equal(small.init(3)["0.weight"], large.init(3)["0.weight"])
    assert not np.array_equal(small.init(3)["0.weight"], small.init(4)["0.weight"])
    assert list(large.init(0, only=["1.bias"])) == ["1.bias"]
    assert nn.Parameter(init=np.ones((2, 2))).shape == (2, 2)
    with pytest.raises(ShapeError, match="initial value of 'w'"):
        holder = nn.Module()
        holder.w = nn.Parameter((3,), init=np.ones(2))
        holder.init()


@pytest.mark.parametrize("name", ["normal", "uniform", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"])
def test_initialisers_have_their_spread(name):
    draw = getattr(nn.init, name)()((400, 300), np.random.default_rng(0))
    spread = {"normal": 1, "uniform": 3**-0.5, "xavier_uniform": (2 / 700) ** 0.5, "xavier_normal": (2 / 700) ** 0.5}
    assert draw.std() == pytest.approx(spread.get(name, (2 / 300) ** 0.5), rel=0.02)
    assert abs(draw.mean()) < 0.02


def test_freezing():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.freeze("0.*")
    assert [n for n, p in model.named_parameters().items() if p.trainable] == ["1.weight", "1.bias"]
    model.unfreeze()
    assert not model.named_parameters()["1.running_mean"].trainable, "buffers stay out of training"
    with pytest.raises(UnknownName, match="no parameter matches"):
        model.freeze("2.*")


def test_binding_takes_all_parameters_and_no_others():
    layer = nn.Linear(2, 3)
    for params, error, text in (
        ({"weight": pm.spec(3, 2)}, MissingName, "'bias' was not given"),
        ({**layer.specs(), "extra": pm.spec(1)}, UnknownName, "no parameter 'extra'"),
    ):
        with pytest.raises(error, match=text):
            pm.trace(lambda params, x: nn.apply(layer, params, x), params=params, x=pm.spec("B", 2))
    with pytest.raises(GraphError, match="no forward"):
        nn.Module()(1)


# --- layers ---


def test_dropout_follows_key_path_and_call():
    class Twice(nn.Module):
        def __init__(self):
            self.a, self.b = nn.Dropout(0.5), nn.Dropout(0.5)

        def forward(self, x):
            return pm.stack([self.a(x), self.a(x), self.b(x)])

    def run(x, key, training):
        with nn.bind(model, {}, training=training, key=key):
            return model(x)

    model, x = Twice(), np.ones(200, np.float32)
    specs = {"x": pm.spec(200), "key": pm.spec(2, dtype="u32")}
    with pm.compile(lambda x, key: run(x, key, True), **specs, device="host") as exe:
        first, other = exe.run(x=x, key=[1, 7]), exe.run(x=x, key=[1, 8])
        np.testing.assert_array_equal(first, exe.run(x=x, key=[1, 7]))
    assert len({row.tobytes() for row in [*first, *other]}) == 6, "each call of each layer in each step drops others"
    assert 0.3 < (first == 0).mean() < 0.7
    np.testing.assert_array_equal(pm.interpret(lambda x: run(x, None, False), x), np.ones((3, 200)))
    with pytest.raises(GraphError, match="needs a random key"):
        pm.trace(lambda x: run(x, None, True), x=pm.spec(200))


def test_lora_starts_as_its_base_and_merges():
    layer = nn.LoRA(nn.Linear(6, 4), rank=2, alpha=4.0)
    params = layer.init(1)
    x = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    base = x @ params["base.weight"].T + params["base.bias"]
    np.testing.assert_allclose(evaluate(layer, params, x), base, rtol=1e-5, atol=1e-6)
    params["lora_B.weight"] += 1
    merged = x @ layer.merged(params).T + params["base.bias"]
    np.testing.assert_allclose(evaluate(layer, params, x), merged, rtol=1e-5, atol=1e-5)


def test_attention_with_shared_key_heads_and_rope():
    layer = nn.MultiHeadAttention(16, 4, 2, causal=True, rope=True, bias=False)
    params = layer.init(0)
    assert params["k.weight"].shape == (8, 16)
    x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)
    y = evaluate(layer, params, x)
    np.testing.assert_allclose(evaluate(layer, params, x[:, :3]), y[:, :3], rtol=1e-4, atol=1e-6)
    moved = np.concatenate([x[:, :4], 2 * x[:, 4:]], 1)
    np.testing.assert_allclose(evaluate(layer, params, moved)[:, :4], y[:, :4], rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="does not split"):
        nn.MultiHeadAttention(16, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Dropout(1.0),
        lambda: nn.Conv2d(3, 4, 3, groups=2),
        lambda: nn.Conv2d(3, 4, (3, 3, 3)),
        lambda: nn.GroupNorm(3, 4),
        lambda: nn.LoRA(nn.Linear(2, 2), rank=0),
        lambda: nn.MLP(2, 2, act="softmin"),
        lambda: nn.Parameter((2, -1)),
        lambda: nn.Parameter(2, dtype="i32"),
        lambda: nn.Sequential(nn.Linear(2, 2), 3),
        lambda: nn.TransformerBlock(4, 2, norm="batch"),
        lambda: nn.init.truncated_normal(cut=0),
    ],
)
def test_what_cannot_be_built(make):
    with pytest.raises(InputError):
        make()


# --- losses ---

_LOSSES = {
    "cross_entropy": lambda g, x, r: nn.cross_entropy(x, g["targets"], reduction=r),
    "cross_entropy ignore 2": lambda g, x, r: nn.cross_entropy(x, g["targets"].clip(0), ignore_index=2, reduction=r),
    "cross_entropy smooth": lambda g, x, r: nn.cross_entropy(x, g["targets"], label_smoothing=0.2, reduction=r),
    "cross_entropy weight": lambda g, x, r: nn.cross_entropy(x, g["targets"], weight=g["weight"], reduction=r),
    "cross_entropy both": lambda g, x, r: nn.cross_entropy(x, g["targets"], weight=g["weight"], label_smoothing=0.2, reduction=r),
    "nll": lambda g, x, r: nn.nll(pm.log_softmax(x), g["targets"], weight=g["weight"], reduction=r),
    "mse": lambda g, x, r: nn.mse(x, g["b"], reduction=r),
    "l1": lambda g, x, r: nn.l1(x, g["b"], reduction=r),
    "huber": lambda g, x, r: nn.huber(x, g["b"], delta=0.7, reduction=r),
    "bce": lambda g, x, r: nn.bce_with_logits(x, g["half"], pos_weight=g["weight"][:3], reduction=r),
    "kl": lambda g, x, r: nn.kl(pm.log_softmax(x), g["p"], reduction=r),
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", list(_LOSSES))
def test_losses_are_pytorch_s(name, reduction):
    g = golden("losses")
    x = g["logits"] if name.startswith(("cross", "nll")) else g["a"]

    def loss(x):
        value = _LOSSES[name](g, x, reduction)
        weights = np.arange(1.0, g[f"{name}/{reduction}"].size + 1, dtype=np.float32).reshape(g[f"{name}/{reduction}"].shape)
        return (value * weights).sum(), value

    (_, value), gradient = pm.interpret(pm.value_and_grad(loss, has_aux=True), x)
    np.testing.assert_allclose(value, g[f"{name}/{reduction}"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, g[f"{name}/{reduction}/grad"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weight", [[1.0, -3.0, 0.5], [-1.0, -1.0, -1.0], [0.0, 2.0, -1.0]])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_class_weights_may_be_negative_as_in_pytorch(weight, smoothing):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    y = np.array([0, 1, 1, 2])
    w = np.float32(weight)
    logs = x - np.log(np.exp(x).sum(-1, keepdims=True))
    spread = -(logs * w).sum(-1) / 3
    losses = (1 - smoothing) * -logs[np.arange(4), y] * w[y] + smoothing * spread
    expected = losses.sum() / w[y].sum()
    found = pm.interpret(lambda x, y: nn.cross_entropy(x, y, weight=w, label_smoothing=smoothing), x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    if not smoothing:
        np.testing.assert_allclose(pm.interpret(lambda x, y: nn.nll(x, y, weight=w), logs, y), expected, rtol=1e-5)


def test_class_weights_whose_sum_is_0_have_no_mean():
    x, y = np.float32([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1])
    assert not np.isfinite(pm.interpret(lambda x, y: nn.cross_entropy(x, y, weight=np.float32([1, -1])), x, y))
    # Classes of weight 0 count as if they were ignored.
    assert pm.interpret(lambda x, y: nn.cross_entropy(x, y, weight=np.float32([0, 0])), x, y) == 0


def test_parameters_start_from_something_that_learns():
    class Table(nn.Module):
        def __init__(self):
            self.weight, self.bias, self.rows = nn.Parameter((64, 16)), nn.Parameter(64), nn.Parameter((8, 4), lookup=True)
            self.seen = nn.Buffer((2, 2))

    found = Table().init(3)
    assert 0.2 < np.abs(found["weight"]).max() <= 1 / 4 and found["weight"].std() > 0.1
    assert found["rows"].std() > 0.5 and not found["bias"].any() and not found["seen"].any()
    with pytest.raises(ShapeError, match=r"not 2\.5"):
        nn.Parameter(2.5)


def test_a_batch_without_targets_costs_nothing():
    def loss(x, y):
        return nn.cross_entropy(x, y, ignore_index=1, label_smoothing=0.1)

    value, gradient = pm.interpret(pm.value_and_grad(loss), np.ones((2, 3), np.float32), np.ones(2, np.uint32))
    assert value == 0 and not gradient.any()


def test_what_losses_refuse():
    x, y = np.zeros((4, 3), np.float32), np.zeros(4, np.int32)
    for call, error in (
        (lambda a, b: nn.mse(a, b), ShapeError),
        (lambda a, b: nn.cross_entropy(b, b), ShapeError),
        (lambda a, b: nn.cross_entropy(a, b, label_smoothing=1.0), InputError),
        (lambda a, b: nn.cross_entropy(a, b, weight=[1.0, 2.0]), ShapeError),
        (lambda a, b: nn.cross_entropy(a, b, reduction="median"), InputError),
        (lambda a, b: nn.huber(a, a, delta=0.0), InputError),
    ):
        with pytest.raises(error):
            pm.interpret(call, x, y)


# --- whole models ---


@pytest.mark.parametrize("device", ["host", pytest.param("webgpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("name", "make", "loss"), [("gpt", TinyGPT, next_token), ("conv", TinyConv, classify)])
def test_gradients_of_whole_models_are_pytorch_s(name, make, loss, device):
    model, g = make(), golden(name)
    params = state_dict(name)
    assert set(params) == set(model.named_parameters()), "names are PyTorch's"
    batch = {key.removeprefix("batch/"): value for key, value in g.items() if key.startswith("batch/")}
    trained = [n for n, p in model.named_parameters().items() if p.trainable]

    def run(params, **batch):
        def of(chosen):
            with nn.bind(model, {**params, **chosen}, training=True) as binding:
                return loss(model, **batch), binding.updates

        return pm.value_and_grad(of, has_aux=True)({n: params[n] for n in trained})

    specs = {key: pm.spec("B", *a.shape[1:], dtype=a.dtype) for key, a in batch.items()}
    with pm.compile(run, params=params, **specs, device=device, max={"B": 8}) as exe:
        (value, updates), gradients = exe.run(batch)
    assert float(value) == pytest.approx(float(g["loss"]), rel=1e-5)
    # A bias in front of a batch norm has the gradient 0: what is left of it is rounding, on the scale of the others.
    largest = max(np.abs(g[f"grad/{key}"]).max() for key in trained)
    for key in trained:
        expected = g[f"grad/{key}"]
        assert np.abs(gradients[key] - expected).max() <= 1e-4 * np.abs(expected).max() + 1e-6 * largest, key
    for key in [k.removeprefix("buffer/") for k in g if k.startswith("buffer/")]:
        np.testing.assert_allclose(updates[key], g[f"buffer/{key}"], rtol=1e-4, atol=1e-6)
