"""Training steps: in-place updates, shared params, accumulation, half precision, resuming, and what they refuse."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import pumice as pm
from pumice import nn, optim
from pumice.errors import (
    ClosedError,
    DataError,
    DTypeError,
    IndexRangeError,
    InputError,
    MissingName,
    PumiceError,
    ShapeError,
    SymbolError,
    UnknownName,
)
from train.tiny import MLP_INPUTS, TinyConv, TinyGPT, classify, mlp, mlp_batch, next_token

WEBGPU = pytest.param("webgpu", marks=pytest.mark.gpu)


def compiled(model=None, loss=classify, optimizer=None, inputs=MLP_INPUTS, **settings):
    settings = {"device": "host", "max": 16, **settings}
    return pm.train.compile_step(model or mlp(), loss, optimizer or optim.SGD(0.2), inputs, **settings)


def everything(step):
    saved = step.state_dict()
    return {**saved["params"], **saved["optim"]}, saved["meta"]


def assert_same(a, b):
    assert a[1] == b[1] and set(a[0]) == set(b[0])
    for name, value in a[0].items():
        np.testing.assert_array_equal(value, b[0][name], err_msg=name)


# --- what runs ---


@pytest.mark.parametrize("device", ["host", WEBGPU])
def test_a_step_updates_in_place_and_reads_back_the_loss_alone(device):
    with compiled(optimizer=optim.AdamW(0.05, clip_norm=1.0, ema=0.9), device=device) as step:
        plan = step.executable.plan
        assert plan.copies == ()
        assert [name for name, _ in step.executable.graph.outputs] == ["out"]
        before = step.executable.counters()
        losses = [step(mlp_batch()) for _ in range(8)]
        after = step.executable.counters()
        assert losses[-1] < losses[0]
        assert step.count == 8
        if device == "webgpu":
            assert after["submits"] - before["submits"] == 8
            assert after["readback_bytes"] - before["readback_bytes"] == 8 * 4


@pytest.mark.parametrize("optimizer", [optim.SGD(0.1, momentum=0.9), optim.Lion(1e-3), optim.Adafactor(0.01), optim.Muon(0.01)])
@pytest.mark.parametrize("settings", [{}, {"precision": "f16"}, {"accumulate": 2}])
def test_no_optimizer_copies_params_or_moments(optimizer, settings):
    with compiled(optimizer=optimizer, **settings) as step:
        for exe in (step.executable, step._apply):
            if exe is not None:
                copied = {exe.plan.graph.nodes[s].name for s, _ in exe.plan.copies}
                assert not {n for n in copied if not n.startswith("amp.")}


def test_forward_executables_share_the_params():
    with compiled() as step:
        forward = step.forward(None, {"x": pm.spec("B", 6)})
        x = mlp_batch()["x"]
        for _ in range(3):
            step(mlp_batch())
            p = step.params()
            expected = np.maximum(x @ p["0.weight"].T + p["0.bias"], 0) @ p["2.weight"].T + p["2.bias"]
            np.testing.assert_allclose(forward.run(x=x), expected, rtol=1e-4, atol=1e-5)
        own = {b.name for b in forward.plan.buffers if b.kind == "param"}
        assert own == set(p), "all params, and by sharing none of its own"
        assert forward._turns is step.executable._turns, "a run elsewhere must not meet half an update"
        step.close()
        np.testing.assert_allclose(forward.run(x=x), expected, rtol=1e-4, atol=1e-5)
        forward.close()


@pytest.mark.gpu
def test_parameters_exist_once_on_a_device():
    inputs = {"x": pm.spec(2, 64)}
    with compiled(nn.Linear(64, 64), lambda model, x: model(x).sum(), inputs=inputs, device="webgpu", max=None) as step:
        nbytes = 64 * 65 * 4
        assert step.executable.plan.memory["param"] == nbytes
        with step.forward(None, inputs) as forward:
            assert forward.counters()["buffer_bytes"] < nbytes / 2


def test_a_forward_run_in_another_thread_sees_whole_updates():
    class Two(nn.Module):
        def __init__(self):
            self.a, self.b = nn.Parameter(50_000), nn.Parameter(50_000)

        def forward(self, x):
            return (self.a.sum() + self.b.sum()) * x

    # Both get the same update, so a whole one leaves them equal.
    with compiled(Two(), lambda model, x: model(x).sum(), optim.SGD(1.0), {"x": pm.spec(1)}, max=None) as step:
        forward = step.forward(lambda model, x: (x, pm.abs(model.a - model.b).max()), {"x": pm.spec(1)})
        stop, seen = threading.Event(), []

        def watch():
            while not stop.is_set():
                seen.append(float(forward.run(x=[1.0])[1]))

        watcher = threading.Thread(target=watch)
        watcher.start()
        for _ in range(40):
            step(x=[1.0])
        stop.set()
        watcher.join()
        forward.close()
    assert seen and max(seen) == 0.0


def test_executables_take_turns_where_one_changes_what_another_reads():
    params = {"w": np.ones(3, np.float32)}

    def update(params):
        pm.set_param(params["w"], params["w"] + 1)

    read = pm.compile(lambda params: params["w"] * 2.0, params=params, device="host")
    other = pm.compile(lambda params: params["w"] * 3.0, params={"w": pm.spec(3)}, store=read.store)
    writer = pm.compile(update, params={"w": pm.spec(3)}, store=read.store)
    writer.run()
    np.testing.assert_array_equal(other.run(), [6, 6, 6])
    for exe in (read, other, writer):
        exe.close()


def test_evaluation_and_aux():
    def loss(model, x, y):
        logits = pm.capture("logits", model(x))
        return nn.cross_entropy(logits, y), {"correct": (logits.argmax(-1) == y).astype("f32").mean()}

    with compiled(nn.Sequential(mlp(), nn.Dropout(0.5)), loss, aux=True) as step:
        batch = mlp_batch()
        (value, aux), captured = step.run(batch, captures=True)
        assert isinstance(value, float) and captured["logits"].shape == (8, 3) and aux["correct"].shape == ()
        before = everything(step)
        whole = step.evaluate([batch])
        parts = step.evaluate([{k: v[:2] for k, v in batch.items()}, {k: v[2:] for k, v in batch.items()}])
        assert whole == pytest.approx(parts, rel=1e-5) and set(whole) == {"loss", "correct"}
        assert_same(before, everything(step))
        with pytest.raises(InputError, match="nothing to evaluate"):
            step.evaluate([])


def test_frozen_and_unused_parameters_cost_no_backward():
    def products(model, optimizer):
        with compiled(model, optimizer=optimizer) as step:
            return sum(n.op == "matmul" for n in step.executable.plan.graph)

    frozen = mlp()
    frozen.freeze("0.*")
    whole = products(mlp(), optim.SGD(0.1))
    assert products(frozen, optim.SGD(0.1)) == whole - 2
    assert products(mlp(), optim.SGD(0.1, groups=[optim.ParamGroup("0.*", frozen=True)])) == whole - 2
    frozen.freeze()
    with pytest.raises(InputError, match="nothing to train"):
        compiled(frozen)


@pytest.mark.parametrize("device", ["host", WEBGPU])
def test_accumulated_micro_batches_are_one_batch(device):
    optimizer, batch = optim.AdamW(0.05, clip_norm=0.5), mlp_batch(12)
    with compiled(optimizer=optimizer) as whole, compiled(optimizer=optimizer, accumulate=3, device=device) as parts:
        for _ in range(3):
            whole(batch)
            for k in range(3):
                assert parts.micro == k
                parts({name: a[4 * k : 4 * k + 4] for name, a in batch.items()})
        assert parts.count == whole.count == 3 and parts.micro == 0
        for name, value in whole.params().items():
            np.testing.assert_allclose(parts.params()[name], value, rtol=1e-3, atol=1e-4)


def test_the_rate_changes_while_running():
    with compiled(optimizer=optim.SGD(optim.schedules.linear(0.4, 4))) as step:
        rates = []
        for _ in range(4):
            rates.append(step.lr)
            step(mlp_batch())
        assert rates == pytest.approx([0.4, 0.3, 0.2, 0.1]) and step.lr == 0.0
        before = step.params()
        step(mlp_batch())
        np.testing.assert_array_equal(before["0.weight"], step.params()["0.weight"])
        step.set_lr(0.5)
        step(mlp_batch())
        assert not np.array_equal(before["0.weight"], step.params()["0.weight"])


def test_recomputed_blocks_train_the_same():
    class Thrifty(TinyGPT):
        def forward(self, tokens):
            x = self.wte(tokens) + self.wpe(pm.arange(tokens.shape[1]))
            for block in self.blocks:
                x = pm.checkpoint(block)(x)
            return self.norm(x) @ self.wte.weight.T

    tokens = np.random.default_rng(0).integers(0, 11, (4, 9))
    settings = {"loss": next_token, "optimizer": optim.AdamW(0.01), "inputs": {"tokens": pm.spec("B", 9, dtype="i32")}}
    with compiled(TinyGPT(11, 16, 2, 8, 2), **settings) as plain, compiled(Thrifty(11, 16, 2, 8, 2), **settings) as thrifty:
        assert thrifty.executable.plan.memory["arena"] < plain.executable.plan.memory["arena"]
        for _ in range(4):
            assert thrifty(tokens=tokens) == pytest.approx(plain(tokens=tokens), rel=1e-5)


def test_batch_norm_keeps_running_statistics():
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(3, 2, size=(6, 2, 14, 14)).astype(np.float32), "y": rng.integers(0, 5, 6)}
    inputs = {"x": pm.spec("B", 2, 14, 14), "y": pm.spec("B", dtype="i32")}
    with compiled(TinyConv(), inputs=inputs, optimizer=optim.SGD(0.0)) as step:
        assert step.executable.plan.copies == ()
        for _ in range(3):
            step(batch)
        p = step.params()
        assert p["norm1.num_batches_tracked"] == 3
        # With a rate of 0 each batch gives the same statistics, so the running ones approach them as 1 - 0.9³.
        once = step.forward(lambda model, x: model.conv1(x), {"x": inputs["x"]}).run(x=batch["x"])
        np.testing.assert_allclose(p["norm1.running_mean"], once.mean((0, 2, 3)) * (1 - 0.9**3), rtol=1e-4, atol=1e-5)


class OneNorm(nn.Module):
    def __init__(self):
        self.fc, self.norm, self.head = nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(self.fc(x)))


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"precision": "f16"}, {"precision": "f16", "accumulate": 2}])
def test_batch_norm_over_one_value_is_refused_and_changes_nothing(settings):
    with compiled(OneNorm(), **settings) as step:
        step(mlp_batch(4))
        before = everything(step)
        with pytest.raises(SymbolError, match=r"with B = 1: the next value of 'norm.running_var' is divided by B-1") as error:
            step(mlp_batch(1))
        assert "drop_last=True" in error.value.hint
        assert_same(before, everything(step))
        # Without training the running statistics serve, also for one sample.
        assert np.isfinite(step.evaluate(mlp_batch(1))["loss"])
        step(mlp_batch(2))
        assert all(np.isfinite(value).all() for value in step.params().values())


def test_norms_over_one_value_are_refused_while_traced_where_the_size_is_known():
    one = {"x": pm.spec(1, 6), "y": pm.spec(1, dtype="i32")}
    with pytest.raises(ShapeError, match="BatchNorm1d 'norm' in training takes more than one value per channel"):
        compiled(OneNorm(), inputs=one, max=None)
    with pytest.raises(ShapeError, match="GroupNorm '1' in training takes more than one value per group"):
        compiled(nn.Sequential(nn.Linear(6, 3), nn.GroupNorm(3, 3)))
    with pytest.raises(ShapeError, match="batch_norm in training takes more than one value per channel"):
        pm.trace(lambda x: pm.batch_norm(x, [0.0], [1.0], training=True), x=pm.spec(1, 1))


# --- half precision ---


def follow(single, half, batch):
    with single, half:
        assert "f16" in {n.type.dtype.name for n in half.executable.plan.graph if n.op == "matmul"}
        for _ in range(8):
            assert half(batch) == pytest.approx(single(batch), rel=2e-2)
        assert all(p.dtype == np.float32 for p in half.params().values())
        assert half.skipped == single.skipped == 0


def test_half_precision_follows_single_precision():
    inputs = {"tokens": pm.spec("B", 9, dtype="i32")}
    settings = {"loss": next_token, "optimizer": optim.AdamW(0.01), "inputs": inputs}
    models = [TinyGPT(11, 16, 2, 8, 1) for _ in range(2)]
    batch = {"tokens": np.random.default_rng(0).integers(0, 11, (4, 9))}
    follow(compiled(models[0], **settings), compiled(models[1], precision="f16", **settings), batch)


@pytest.mark.gpu
def test_half_precision_on_webgpu():
    follow(compiled(), compiled(precision="f16", device="webgpu"), mlp_batch())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_that_are_not_finite_are_skipped_and_counted(accumulate):
    def loss(model, x, y, factor):
        return nn.cross_entropy(model(x), y) * factor.sum()

    inputs = {**MLP_INPUTS, "factor": pm.spec(1)}
    optimizer = optim.AdamW(0.01, ema=0.9, clip_norm=1.0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), pm.relu, nn.Linear(8, 3))
    with compiled(model, loss, optimizer, inputs, precision="f16", accumulate=accumulate) as step:

        def call(factor):
            for _ in range(accumulate):
                step(**mlp_batch(), factor=[factor])

        call(1.0)
        before = everything(step)[0]
        call(3e38)
        after = everything(step)[0]
        changed = {n for n in before if not np.array_equal(before[n], after[n])}
        running = {n for n in before if "running" in n or "tracked" in n}
        assert {n for n in changed if not n.startswith("grad.")} - running == {"amp.scale", "amp.skipped", "amp.good"}
        assert all(np.isfinite(a).all() for n, a in after.items() if not n.startswith("grad."))
        assert after["amp.scale"] == before["amp.scale"] / 2 and step.skipped == 1 and step.count == 2
        call(1.0)
        assert step.skipped == 1 and not np.array_equal(after["0.weight"], step.params()["0.weight"])


def test_the_scale_of_the_loss_grows_after_good_steps(monkeypatch):
    monkeypatch.setattr("pumice.train.graphs._GROW_AFTER", 3)
    with compiled(precision="f16") as step:
        scales = []
        for _ in range(7):
            step(mlp_batch())
            scales.append(float(step.executable.state["amp.scale"].read()) / 2**15)
    assert scales == [1, 1, 2, 2, 2, 4, 4]


# --- saving ---


@pytest.mark.parametrize("settings", [{}, {"precision": "f16"}, {"accumulate": 2}])
def test_a_step_goes_on_exactly_where_another_stopped(settings):
    model = lambda: nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), pm.relu, nn.Linear(16, 3))  # noqa: E731
    optimizer = optim.AdamW(optim.schedules.cosine(0.05, 12), ema=0.9)
    with compiled(model(), optimizer=optimizer, seed=7, **settings) as first:
        for k in range(5):
            first(mlp_batch(seed=k))
        saved = first.state_dict()
        expected = [first(mlp_batch(seed=k)) for k in range(5, 9)]
        end = everything(first)
        with compiled(model(), optimizer=optimizer, seed=1, **settings) as second:
            second.load_state_dict(saved)
            assert [second(mlp_batch(seed=k)) for k in range(5, 9)] == expected
            assert_same(end, everything(second))
        first.reset()
        assert first.count == first.micro == 0
        start = compiled(model(), optimizer=optimizer, seed=7, **settings)
        assert_same(everything(start), everything(first))
        start.close()


def test_states_of_another_model_are_refused_and_change_nothing():
    with compiled(optimizer=optim.AdamW(0.1)) as step, compiled(optimizer=optim.AdamW(0.1)) as other:
        step(mlp_batch())
        before, saved = everything(step), other.state_dict()
        first = next(iter(saved["params"]))
        bad = [
            ({**saved, "params": {**saved["params"], "extra.weight": np.zeros(2)}}, UnknownName, "extra.weight"),
            ({**saved, "params": {k: v for k, v in saved["params"].items() if k != first}}, MissingName, first),
            ({**saved, "params": {**saved["params"], first: np.zeros((2, 2), np.float32)}}, ShapeError, first),
            ({**saved, "params": {**saved["params"], first: np.zeros((16, 6), np.int32)}}, DTypeError, first),
            ({**saved, "optim": {}}, MissingName, "optimizer state"),
            ({**saved, "optim": {**saved["optim"], "optim.m.x": np.zeros(1)}}, UnknownName, "optim.m.x"),
            ({**saved, "meta": {**saved["meta"], "count": -1}}, InputError, "count"),
            ({**saved, "meta": {**saved["meta"], "micro": 3}}, InputError, "micro-batch 3"),
            ({**saved, "meta": {**saved["meta"], "schedule": {"kind": "x"}}}, UnknownName, "schedule 'x'"),
            ({"params": saved["params"]}, MissingName, "optim"),
        ]
        for state, error, text in bad:
            with pytest.raises(error, match=text):
                step.load_state_dict(state)
            assert_same(before, everything(step))


# --- bad input ---


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda b: b | {"y": b["y"] + 2}, IndexRangeError, "'y' holds the label [34] at .*there are 3 classes"),
        (lambda b: b | {"y": b["y"] * 0 - 1}, IndexRangeError, "label -1"),
        (lambda b: b | {"x": np.where(np.arange(6) == 2, np.nan, b["x"])}, DataError, "'x' holds nan at \\[0, 2\\]"),
        (lambda b: b | {"x": b["x"] * np.float32(np.inf)}, DataError, "'x' holds"),
        (lambda b: b | {"x": b["x"][:, :5]}, ShapeError, "x"),
        (lambda b: b | {"x": b["x"][:5]}, (ShapeError, SymbolError), "B"),
        (lambda b: mlp_batch(17), SymbolError, "B"),
        (lambda b: {name: value[:0] for name, value in b.items()}, DataError, "'x' is empty"),
        (lambda b: b | {"z": b["x"]}, UnknownName, "no input 'z'"),
        (lambda b: {"x": b["x"]}, MissingName, "lacks 'y'"),
        (lambda b: b | {"y": b["y"].astype(np.float32)}, DTypeError, "y"),
        (lambda b: b | {"x": [["a"]]}, InputError, "x"),
        (lambda b: b | {"x": b["x"].astype(str)}, DTypeError, "x"),
        (lambda b: b | {"y": b["y"].astype(str)}, DTypeError, "y"),
    ],
)
def test_bad_batches_are_refused_and_change_nothing(change, error, text):
    with compiled(optimizer=optim.AdamW(0.1)) as step:
        step(mlp_batch())
        before = everything(step)
        with pytest.raises(error, match=text):
            step(change(mlp_batch()))
        with pytest.raises(PumiceError):
            step.evaluate([change(mlp_batch())])
        assert_same(before, everything(step))


def test_labels_are_checked_where_they_are_computed_from_inputs():
    inputs = {"tokens": pm.spec("B", 9, dtype="i32")}

    def ignoring(model, tokens):
        return nn.cross_entropy(model(pm.clip(tokens[:, :-1], 0, 10)), tokens[:, 1:], ignore_index=-5)

    with compiled(TinyGPT(11, 8, 2, 8, 1), ignoring, inputs=inputs) as step:
        tokens = np.ones((2, 9), np.int32)
        tokens[1, 3] = -5
        step(tokens=tokens)
        tokens[0, 0] = 99  # no label
        step(tokens=tokens)
        tokens[1, 4] = 11
        with pytest.raises(IndexRangeError, match=r"label 11 at \[1, 3\], there are 11 classes"):
            step(tokens=tokens)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"inputs": {}}, InputError),
        ({"inputs": {"params": pm.spec(2)}}, InputError),
        ({"inputs": {"x": pm.spec("B", 6), "q": pm.spec("B")}}, InputError),
        ({"inputs": {"x": (16, 6), "y": (16,)}}, InputError),
        ({"inputs": [pm.spec("B", 6)]}, InputError),
        ({"model": nn.Linear}, InputError),
        ({"optimizer": optim.SGD}, InputError),
        ({"optimizer": "sgd"}, InputError),
        ({"device": "cuda"}, InputError),
        ({"precision": "f8"}, InputError),
        ({"accumulate": 0}, InputError),
        ({"seed": -1}, InputError),
        ({"params": {"9.weight": np.zeros(2)}}, UnknownName),
        ({"params": {"0.weight": np.zeros((2, 2), np.float32)}}, ShapeError),
        ({"max": {"Q": 2}}, SymbolError),
        ({"optimizer": optim.SGD(0.1, groups=[optim.ParamGroup("1.*", frozen=True)])}, UnknownName),
        ({"optimizer": optim.SGD(0.1, decay="*.wieght")}, UnknownName),
        ({"aux": True}, InputError),
        ({"loss": lambda model, x, y: model(x)}, ShapeError),
        ({"loss": lambda model, x, y: 3.0}, InputError),
        ({"loss": lambda x, y: x.sum()}, InputError),
        ({"loss": lambda model, x, y: x.sum()}, InputError),
    ],
)
def test_settings_that_make_no_step(settings, error):
    with pytest.raises(error):
        compiled(**settings)


def test_what_is_called_in_the_wrong_way_says_how():
    batch = mlp_batch()
    with compiled() as step:
        with pytest.raises(InputError, match=r"by name.*\n.*step\(x=…, y=…\)"):
            step(batch["x"], batch["y"])
        with pytest.raises(InputError, match="has no value"):
            step.model(batch["x"])
        with step.forward(inputs={"x": pm.spec("B", 6)}) as forward, pytest.raises(InputError, match="by name"):
            forward.run(batch["x"])
        assert step.evaluate(batch) == step.evaluate([batch])
        assert step.count == 0


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ("model.safetensors", r"params must be a dict of arrays by name, not str 'model.safetensors'\n.*load_params"),
        (mlp(), "not Sequential"),
        (np.zeros(3), "not ndarray"),
        ({"0.weight": "x"}, "param '0.weight'"),
        ({"0.weight": np.zeros(3)}, "param '0.weight' must have shape"),
        ({"0.weigth": np.zeros(3)}, "no parameter '0.weigth'"),
    ],
)
def test_params_of_a_wrong_type_are_named_at_the_call(params, text):
    with pytest.raises(InputError, match=f"(?s){text}"):
        compiled(params=params)


def test_a_loss_function_with_numbers_to_watch_asks_for_aux():
    with pytest.raises(InputError, match=r"returned tuple, not a scalar tensor\n  hint: compile_step\(..., aux=True\)"):
        compiled(loss=lambda model, x, y: (classify(model, x, y), {"size": x.sum()}))
    with pytest.raises(InputError, match=r"with aux=True the loss function returns \(loss, .*, not Tensor"):
        compiled(aux=True)


def test_profiling_a_step_changes_nothing():
    for settings in ({}, {"accumulate": 2}):
        with compiled(optimizer=optim.AdamW(0.1), **settings) as step:
            step(mlp_batch())
            before = everything(step)
            found = step.profile(mlp_batch(), repeats=2)
            assert found.env == {"B": 8} and found.step_seconds > 0 and "matmul" in {s.op for s in found.by_op()}
            assert_same(before, everything(step))
            with pytest.raises(MissingName, match="lacks 'y'"):
                step.profile(x=mlp_batch()["x"])
            for nameless in ((5,), (mlp_batch()["x"],), (mlp_batch()["x"], mlp_batch()["y"])):
                with pytest.raises(InputError, match="takes its batch by name"):
                    step.profile(*nameless)


def test_params_are_saved_by_name(tmp_path):
    with compiled() as step:
        pm.train.save_params(tmp_path / "model.safetensors", step.params())
        found = pm.train.load_params(tmp_path / "model.safetensors")
        assert found.keys() == step.params().keys() and [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
        with compiled(seed=5, params=found) as other:
            batch = mlp_batch()
            assert other.evaluate(batch) == step.evaluate(batch)


def test_a_closed_step_says_so():
    step = compiled()
    step.close()
    with pytest.raises(ClosedError):
        step(mlp_batch())


# --- learning ---


def test_digits_are_learned():
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = datasets.load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1437], order[1437:]
    model = nn.Sequential(nn.Linear(64, 192), pm.gelu, nn.Linear(192, 10))
    inputs = {"x": pm.spec("B", 64), "y": pm.spec("B", dtype="i32")}
    steps, size = 600, 64
    optimizer = optim.AdamW(optim.schedules.cosine(1e-2, steps))
    with compiled(model, optimizer=optimizer, inputs=inputs, max=size) as step:
        rng = np.random.default_rng(1)
        for _ in range(steps):
            chosen = rng.choice(train, size, replace=False)
            step(x=x[chosen], y=y[chosen])
        forward = step.forward(None, {"x": pm.spec("N", 64, max=len(test))})
        accuracy = (forward.run(x=x[test]).argmax(-1) == y[test]).mean()
        forward.close()
    assert accuracy >= 0.97


@pytest.mark.gpu
def test_curves_on_webgpu_and_host_agree():
    rng = np.random.default_rng(0)
    batches = [{"tokens": rng.integers(0, 11, (4, 9))} for _ in range(10)]
    inputs = {"tokens": pm.spec(4, 9, dtype="i32")}
    curves = []
    for device in ("host", "webgpu"):
        settings = {"optimizer": optim.AdamW(3e-3, clip_norm=1.0), "inputs": inputs, "device": device, "max": None}
        with compiled(TinyGPT(11, 16, 2, 8, 2), next_token, **settings) as step:
            curves.append([step(batches[k % 10]) for k in range(100)])
    np.testing.assert_allclose(curves[1], curves[0], rtol=0.01)
    assert np.mean(curves[0][-10:]) < 0.8 * np.mean(curves[0][:10])
