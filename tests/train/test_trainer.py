"""The Trainer: validation, logs, reports, callbacks, signals, and resuming with the right things only."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import nn, optim
from pumice.errors import CheckpointMismatch, DataError, DiskFull, Diverged, InputError, PumiceError, SymbolError
from pumice.train import Arrays, Batches, Callback, Checkpoints, EarlyStopping, Trainer, TrainStep, compile_step, load_params
from pumice.train.log import read_log
from pumice.train.progress import Lines, Silent

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3)).astype("f4")
Y = (X @ np.float32([[1.0], [-2.0], [0.5]]) + 0.1 * RNG.normal(size=(30, 1))).astype("f4")
DATA = Batches(Arrays(x=X, y=Y), 8, seed=4)
HELD = Batches(Arrays(x=X[:10], y=Y[:10]), 8, shuffle=False)


def loss(model: nn.Module, x: pm.Tensor, y: pm.Tensor) -> pm.Tensor:
    return nn.mse(model(x), y)


def make(optimizer: optim.Optimizer | None = None, model: nn.Module | None = None, **settings: Any) -> TrainStep:
    specs = {"x": pm.spec("B", 3), "y": pm.spec("B", 1)}
    chosen = optimizer or optim.Adam(optim.schedules.cosine(0.1, 40))
    return compile_step(model or nn.Linear(3, 1), loss, chosen, specs, device="host", max=8, **settings)


@pytest.fixture
def step():
    with make() as made:
        yield made


def fingerprint(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def test_a_run_from_begin_to_end(step, tmp_path):
    result = Trainer(
        step, DATA, epochs=5, validate=HELD, every=6, checkpoints=tmp_path / "c", keep=2,
        log=tmp_path / "log.jsonl", report=tmp_path / "report.html", title="<test>", settings={"lr": 0.1}, progress=False,
    ).run()  # fmt: skip
    assert (result.steps, result.epochs, result.stopped) == (20, 5.0, "done")
    records = list(read_log(tmp_path / "log.jsonl"))
    steps = [r for r in records if "loss" in r]
    assert [r["step"] for r in steps] == list(range(1, 21)) and steps[-1]["loss"] == result.loss
    assert [r["epoch"] for r in steps] == [i // 4 for i in range(20)]
    assert [r["samples"] for r in steps[:4]] == [8, 8, 8, 6]
    assert steps[0]["lr"] == 0.1 > steps[10]["lr"]
    held = [r for r in records if "validation" in r]
    assert [r["step"] for r in held] == [6, 12, 18, 20] and held[-1]["validation"] == result.validation
    assert result.validation["loss"] < held[0]["validation"]["loss"]
    with Checkpoints(tmp_path / "c") as kept:
        assert {18, 20} <= {e.step for e in kept.entries()} and kept.latest().step == 20
        assert result.best == kept.best().path and result.checkpoint.name == "step-00000020"
    assert all(np.array_equal(a, b) for a, b in zip(load_params(result.checkpoint).values(), step.params().values()))
    page = (tmp_path / "report.html").read_text()
    assert "&lt;test&gt;" in page and "prefers-color-scheme: dark" in page and page.count("<svg") >= 2
    assert not re.search(r"(src|href)=|@import|url\(|<script", page)
    assert json.loads(json.dumps(result.as_json()))["checkpoint"].endswith("step-00000020")


def test_parts_of_a_run_equal_the_whole(tmp_path):
    """Also with accumulation, in the middle of a step, and with the averages that early stopping and the monitor look at."""

    def whole(stop_at: tuple[int, ...]) -> tuple[Any, ...]:
        folder = tmp_path / "-".join(map(str, stop_at))
        with make(accumulate=2) as step:
            for end in (*stop_at, 30):
                stopper = lambda trainer, record, end=end: trainer.stop("pause") if record["step"] == end else None  # noqa: E731
                trainer = Trainer(step, DATA, steps=30, every=6, checkpoints=folder, keep=9, callbacks=[stopper], progress=False)
                result = trainer.run()
                assert result.steps == end
            kept = Checkpoints(folder)
            return result.loss, [p.tobytes() for p in step.params().values()], {e.step: e.metric for e in kept.entries()}.get(30)

    first = whole(())
    # The last checkpoint's metric is the mean of the losses since step 24, whatever happened in between.
    assert first == whole((7,)) == whole((6, 11, 25, 29))


def test_a_new_process_resumes_from_the_folder(tmp_path):
    with make() as step:
        wanted = Trainer(step, DATA, steps=20, progress=False).run()
    with make() as step:
        Trainer(step, DATA, steps=9, every=50, checkpoints=tmp_path, progress=False).run()
    with make() as step:
        trainer = Trainer(step, DATA, steps=20, checkpoints=tmp_path, resume=True, progress=False)
        found = trainer.run()
        assert found.resumed_from.name == "step-00000009" and found.loss == wanted.loss and trainer.position.epoch == 5
        again = Trainer(step, DATA, steps=20, checkpoints=tmp_path, progress=False).run()
        assert again.loss == wanted.loss and again.steps == 20, "a finished run has nothing left to do"


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_signals_save_and_stop(tmp_path, number, reason):
    before = signal.getsignal(number)
    with make() as step:
        wanted = Trainer(step, DATA, steps=20, progress=False).run().loss
        step.reset()

        def press(trainer, record):
            if record["step"] == 7:
                os.kill(os.getpid(), number)

        result = Trainer(step, DATA, steps=20, checkpoints=tmp_path, callbacks=[press], validate=HELD, progress=False).run()
        assert result.stopped == reason and result.steps == 7 and result.checkpoint.name == "step-00000007"
        assert signal.getsignal(number) is before
        step.reset()
        assert Trainer(step, DATA, steps=20, checkpoints=tmp_path, progress=False).run().loss == wanted


def test_a_second_ctrl_c_stops_at_once(step):
    def press(trainer, record):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Trainer(step, DATA, steps=20, callbacks=[press], progress=False).run()


def test_early_stopping(step, tmp_path):
    class Worse:
        """Validation that gets better three times only."""

        calls = 0

        def __call__(self, step: TrainStep) -> dict[str, float]:
            self.calls += 1
            return {"score": min(self.calls, 3)}

    def trainer(patience: int) -> Trainer:
        return Trainer(
            step, DATA, steps=60, every=2, validate=worse, monitor="-score", checkpoints=tmp_path,
            early_stopping=patience, progress=False,
        )  # fmt: skip

    worse = Worse()
    result = trainer(4).run()
    assert result.stopped == "no improvement" and result.steps == 14 and worse.calls == 7
    assert result.best.name == "step-00000006"
    again = trainer(4).run()
    assert again.steps == 14 and worse.calls == 7, "a run that had stopped stays stopped"
    assert trainer(6).run().steps == 18, "more patience goes on"
    with pytest.raises(InputError, match="at least 1, not 0"):
        EarlyStopping(0)


def test_callbacks(step, tmp_path):
    class Watch(Callback):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def on_start(self, trainer):
            self.seen.append("start")

        def on_step(self, trainer, record):
            self.seen.append(f"step {record['step']}")

        def on_evaluate(self, trainer, metrics):
            self.seen.append(f"evaluate {sorted(metrics)} {trainer.metric is not None}")

        def on_checkpoint(self, trainer, path):
            self.seen.append(path.name)

        def on_end(self, trainer, result):
            self.seen.append(result.stopped)

        def state(self):
            return {"seen": self.seen}

        def restore(self, state):
            self.seen += state["seen"]

    watch = Watch()
    Trainer(step, DATA, steps=2, validate=HELD, checkpoints=tmp_path, callbacks=[watch], progress=False).run()
    told = ["start", "step 1", "step 2", "evaluate ['loss'] True", "step-00000002", "done"]
    assert watch.seen == told
    other = Watch()
    Trainer(step, DATA, steps=3, checkpoints=tmp_path, callbacks=[other], progress=False).run()
    assert other.seen == [*told[:4], "start", "step 3", "evaluate [] True", "step-00000003", "done"]


def test_a_rate_set_while_running_survives_and_new_settings_win(tmp_path):
    with make() as step:
        set_rate = lambda trainer, record: trainer.step.set_lr(0.5)  # noqa: E731
        Trainer(step, DATA, steps=4, checkpoints=tmp_path, callbacks=[set_rate], progress=False).run()
    with make() as step:
        result = Trainer(step, DATA, steps=5, checkpoints=tmp_path, progress=False).run()
        assert step.lr == 0.5 and not any("schedule" in note for note in result.notes)
    with make(optim.Adam(0.01)) as step:
        result = Trainer(step, DATA, steps=6, checkpoints=tmp_path, progress=False).run()
        assert step.lr == 0.01 and any("schedule was changed" in note for note in result.notes)
    with make(optim.Adam(optim.schedules.linear(1.0, 10))) as step:
        result = Trainer(step, DATA, steps=7, checkpoints=tmp_path, progress=False).run()
        (note,) = (note for note in result.notes if "schedule" in note)
        assert "counts from the run's first update, 6 are done, and the rate is now 0.4" in note


def test_what_cannot_be_resumed_changes_nothing(tmp_path):
    with make() as step:
        Trainer(step, DATA, steps=4, every=2, checkpoints=tmp_path, progress=False).run()
        before = fingerprint(tmp_path)
        other_data = Batches(Arrays(x=X, y=Y), 4, seed=4)
        with pytest.raises(CheckpointMismatch, match="other data: batch_size was 8, now it is 4"):
            Trainer(step, other_data, steps=9, checkpoints=tmp_path, progress=False).run()
        with pytest.raises(InputError, match="has checkpoints of an earlier run"):
            Trainer(step, DATA, steps=9, checkpoints=tmp_path, resume=False, progress=False).run()
        with pytest.raises(InputError, match="has a checkpoint of step 4, after step-00000002"):
            Trainer(step, DATA, steps=9, checkpoints=tmp_path, resume=tmp_path / "step-00000002", progress=False).run()
        with pytest.raises(InputError, match="there is no checkpoint in"):
            Trainer(step, DATA, steps=9, checkpoints=tmp_path / "none", resume=True, progress=False).run()
    wide = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    with (
        make(model=wide) as step,
        pytest.raises(CheckpointMismatch, match=r"step-00000004 is of another model: it has no param '0.weight'"),
    ):
        Trainer(step, DATA, steps=9, checkpoints=tmp_path, progress=False).run()
    with make(optim.SGD(0.1)) as step, pytest.raises(CheckpointMismatch, match=r"another optimizer: it has the state 'optim\.m"):
        Trainer(step, DATA, steps=9, checkpoints=tmp_path, progress=False).run()
    (tmp_path / "none" / ".lock").unlink()
    assert fingerprint(tmp_path) == before
    with make() as step:
        older = Trainer(step, DATA, steps=3, checkpoints=tmp_path / "b", resume=tmp_path / "step-00000002", progress=False).run()
        assert older.steps == 3 and older.resumed_from == tmp_path / "step-00000002"


def test_a_damaged_checkpoint_is_passed_over_and_named(step, tmp_path):
    wanted = Trainer(step, DATA, steps=12, every=4, checkpoints=tmp_path, progress=False).run()
    os.truncate(tmp_path / "step-00000012" / "params.safetensors", 20)
    step.reset()
    found = Trainer(step, DATA, steps=12, every=4, checkpoints=tmp_path, progress=False).run()
    assert found.resumed_from.name == "step-00000008" and found.loss == wanted.loss
    assert any("passed over step-00000012, which is damaged" in note for note in found.notes)


def test_a_killed_runs_log_is_cut_back(step, tmp_path):
    log = tmp_path / "log.jsonl"
    Trainer(step, DATA, steps=4, checkpoints=tmp_path / "c", log=log, progress=False).run()
    with log.open("a") as file:
        file.write('{"step": 5, "loss": 9.0}\n{"step": 6, "lo')
    Trainer(step, DATA, steps=6, checkpoints=tmp_path / "c", log=log, progress=False).run()
    records = [r for r in read_log(log) if "loss" in r]
    assert [r["step"] for r in records] == [1, 2, 3, 4, 5, 6] and records[4]["loss"] != 9.0
    Trainer(step, DATA, steps=7, log=log, progress=False).run()
    step.reset()
    Trainer(step, DATA, steps=2, log=log, progress=False).run()
    assert [r["step"] for r in read_log(log)] == [1, 2] and Path(f"{log}.old").exists()


def test_a_loss_that_is_no_number_ends_the_run(tmp_path):
    with (
        make(optim.SGD(1e18)) as step,
        pytest.raises(Diverged, match=r"the loss is (inf|nan) at step \d+.*step-00000001") as error,
    ):
        Trainer(step, DATA, steps=20, every=1, checkpoints=tmp_path, progress=False).run()
    assert "learning rate" in error.value.hint
    with Checkpoints(tmp_path) as kept:
        assert all(np.isfinite(a).all() for a in kept.latest().params.values())


def test_a_validation_that_is_no_number_ends_the_run_and_is_never_the_best(step, tmp_path):
    values = iter([2.0, 1.0, float("nan")])

    def validate(step):
        return {"loss": next(values), "perplexity": math.inf}

    text = r"the validation's loss is nan at step 6, .*; the last good checkpoint is .*step-00000004"
    with pytest.raises(Diverged, match=text) as error:
        Trainer(step, DATA, steps=20, every=2, validate=validate, checkpoints=tmp_path, early_stopping=2, progress=False).run()
    assert "learning rate" in error.value.hint and "--set optimizer.lr" in error.value.cli_hint
    with Checkpoints(tmp_path) as kept:
        assert kept.best().step == 4 and [entry.step for entry in kept.entries()] == [2, 4]
    # A resumed run starts from the last good one, with its numbers; infinite ones are no numbers after a restart either.
    step.reset()
    trainer = Trainer(step, DATA, steps=4, every=2, validate=validate, checkpoints=tmp_path, progress=False)
    result = trainer.run()
    assert result.steps == 4 and result.validation["loss"] == 1.0 and math.isnan(result.validation["perplexity"])
    for bad in (math.inf, -math.inf):
        with pytest.raises(Diverged, match=f"the validation's gain is {bad}"):
            Trainer(step, DATA, steps=9, every=1, validate=lambda step: {"gain": bad}, monitor="-gain", progress=False).run()  # noqa: B023


def test_what_is_no_number_never_becomes_a_checkpoint(tmp_path):
    # The loss of a step is that before its update, which overflows.
    with make(optim.SGD(3e38)) as step, pytest.raises(Diverged, match=r"the parameter '(weight|bias)' holds .*inf after step 1"):
        Trainer(step, DATA, steps=1, checkpoints=tmp_path, progress=False).run()
    with Checkpoints(tmp_path) as kept:
        assert not kept.has_any()


def test_a_manifest_with_a_metric_that_is_no_number_is_not_the_best(step, tmp_path):
    Trainer(step, DATA, steps=2, every=1, checkpoints=tmp_path, progress=False).run()
    manifest = tmp_path / "step-00000001" / "manifest.json"
    manifest.write_text(re.sub(r'"metric": [^,]+', '"metric": NaN', manifest.read_text()))
    with Checkpoints(tmp_path) as kept:
        assert kept.best().step == 2


def test_a_last_batch_of_one_sample_is_refused_before_the_first_step(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    data = Batches(Arrays(x=X[:17], y=Y[:17]), 8)
    with make(model=model) as step:
        with pytest.raises(SymbolError, match=r"'1\.running_var' is divided by B-1, which is 0"):
            Trainer(step, data, epochs=2, progress=False).run()
        assert step.count == 0
        result = Trainer(step, Batches(Arrays(x=X[:17], y=Y[:17]), 8, drop_last=True), epochs=2, progress=False).run()
        assert result.steps == 4 and all(np.isfinite(value).all() for value in step.params().values())


def test_a_full_disk_says_whether_there_is_something_to_go_on_from(step, tmp_path, monkeypatch):
    free = [1 << 30, 10]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free[0] if step.count < 2 else free[1]))
    with pytest.raises(DiskFull, match=r"the disk is full.*step-00000002") as error:
        Trainer(step, DATA, steps=4, every=1, checkpoints=tmp_path, progress=False).run()
    assert "resume: step-00000001 is good" in error.value.hint and "--resume" in error.value.cli_hint
    step.reset()
    free[0] = 10
    with pytest.raises(DiskFull) as error:
        Trainer(step, DATA, steps=4, every=1, checkpoints=tmp_path / "new", progress=False).run()
    assert "no checkpoint was saved yet" in error.value.hint and "resume" not in str(error.value)


class Sabotage:
    """Good batches, and from the third on what another function makes of them."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def __len__(self) -> int:
        return len(DATA)

    def batch(self, epoch: int, index: int) -> Any:
        batch = DATA.batch(epoch, index)
        return self.change(batch) if index >= 2 else batch

    def describe(self) -> dict[str, Any]:
        return {"kind": "sabotage"}


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda b: {**b, "x": np.full_like(b["x"], np.nan)}, DataError, "'x' holds nan"),
        (lambda b: {**b, "x": b["x"][:, :2]}, PumiceError, "x"),
        (lambda b: {"x": b["x"]}, InputError, "'y'"),
    ],
)
def test_bad_batches_in_mid_run(step, tmp_path, change, kind, text):
    with pytest.raises(kind, match=text):
        Trainer(step, Sabotage(change), steps=8, every=2, checkpoints=tmp_path, progress=False).run()
    assert step.count == 2
    with Checkpoints(tmp_path) as kept:
        assert kept.latest().step == 2


def test_settings_that_make_no_sense(step):
    for settings in ({}, {"epochs": 1, "steps": 1}):
        with pytest.raises(InputError, match="epochs or of steps"):
            Trainer(step, DATA, **settings)
    for settings in ({"steps": 0}, {"epochs": -1}, {"epochs": 2.5}, {"epochs": 1, "every": 0}, {"steps": 3, "log_every": "1"}):
        name, value = list(settings.items())[-1]
        with pytest.raises(InputError, match=f"{name} must be an int of at least 1, not {value!r}"):
            Trainer(step, DATA, **settings)
    with pytest.raises(InputError, match="without validation there is no 'accuracy' to monitor"):
        Trainer(step, DATA, steps=1, monitor="-accuracy")
    with pytest.raises(InputError, match="gives no batches by position"):
        Trainer(step, [{"x": X, "y": Y}], steps=1)
    with pytest.raises(InputError, match="from the log"):
        Trainer(step, DATA, steps=1, report="report.html")
    with pytest.raises(InputError, match="gives no 'accuracy', which is monitored"):
        Trainer(step, DATA, steps=1, validate=HELD, monitor="-accuracy", progress=False).run()


def test_what_would_fail_after_an_epoch_is_refused_before_the_first_step(step):
    with pytest.raises(InputError, match="validate is a Arrays, which gives no batches"):
        Trainer(step, DATA, steps=9, validate=HELD.dataset)
    with pytest.raises(InputError, match="validate is a generator, which is used up after one validation"):
        Trainer(step, DATA, steps=9, validate=(batch for batch in HELD))
    with pytest.raises(InputError, match="a number of validations of at least 1, not True"):
        Trainer(step, DATA, steps=9, early_stopping=True)
    with pytest.raises(InputError, match="callbacks are given as a list"):
        Trainer(step, DATA, steps=9, callbacks=print)
    with pytest.raises(InputError, match="the step is what compile_step made, not Linear"):
        Trainer(nn.Linear(3, 1), DATA, steps=9)
    with pytest.raises(InputError, match="the validation gives no 'accuracy', which is monitored"):
        Trainer(step, DATA, epochs=1, validate=HELD, monitor="-accuracy", progress=False).run()
    with pytest.raises(SymbolError, match=r"B is 10 .* over its maximum 8"):
        Trainer(step, DATA, epochs=1, validate=Batches(HELD.dataset, 10), progress=False).run()
    assert step.count == 0


def test_micro_batches_that_are_left_over_are_reported():
    with make(accumulate=3) as step:
        whole = Trainer(step, DATA, steps=6, progress=False).run()
        assert whole.notes == () and step.count == 2
        result = Trainer(step, DATA, steps=8, progress=False).run()
        assert result.notes == ("the last 2 of 8 batches changed no parameter: an update takes the gradients of 3",)


def test_progress(step, capsys, monkeypatch):
    monkeypatch.setattr("pumice.train.progress._SECONDS_BETWEEN_LINES", 0.0)
    Trainer(step, DATA, steps=4, validate=HELD, progress=Lines()).run()
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"pumice: step 1/4, epoch 1, loss [\d.]+, lr 0\.1, [\d,]+ samples/s, \d+:\d\d left", lines[0])
    assert re.fullmatch(r"pumice: step 4: training loss [\d.]+, validation loss [\d.]+", lines[-1])

    class Told(Silent):
        steps: list[int] = []  # noqa: RUF012

        def step(self, record):
            self.steps.append(record["step"])

    Trainer(step, DATA, steps=6, progress=Told()).run()
    assert Told.steps == [5, 6] and capsys.readouterr().err == ""


def test_the_live_bar_shows_loss_and_rate(capsys):
    from pumice.train.progress import LiveBar

    with LiveBar() as bar:
        bar.begin(0, 2)
        bar.step({"step": 1, "epoch": 0, "loss": 0.5, "lr": 0.01, "samples": 8})
        bar.note("halfway")
    shown = capsys.readouterr().err
    assert "pumice: halfway" in shown


def test_the_page_about_training_runs(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2] / "docs" / "training.md"
    monkeypatch.chdir(tmp_path)
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)):
        exec(compile(example.replace('device="auto"', 'device="host"'), f"{page.name} {number}", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"done 0\.[01] \[1 0\]", first)
    assert second == "180 ['fc1.bias', 'fc1.weight', 'fc2.bias', 'fc2.weight'] step-00000180"
