"""The Trainer: runs a train step over data, validates, logs, saves, and resumes exactly where an earlier run stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pumice.errors import CheckpointMismatch, DiskFull, Diverged, FormatError, InputError
from pumice.optim.schedules import Schedule
from pumice.train import progress as shows
from pumice.train.callbacks import Callback, EarlyStopping, as_callback
from pumice.train.checkpoint import Checkpoint, Checkpoints, check_same, load_checkpoint
from pumice.train.data import Batch, Data, Position
from pumice.train.interrupts import Interrupts
from pumice.train.log import Log, Record, jsonable, read_log
from pumice.train.report import write_report
from pumice.train.step import TrainStep

Resume = bool | Literal["auto"] | str | Path
Validate = Iterable[Batch] | Callable[[TrainStep], Mapping[str, float]]

# A loss that is no number may be one bad batch under loss scaling, which skips it; this many in a row end the run.
_HOPELESS = 20


@dataclass(frozen=True)
class Result:
    """How a run ended. `stopped` is "done", or why it ended early; `loss` is that of the last batch."""

    steps: int
    epochs: float
    loss: float
    validation: Mapping[str, float]
    seconds: float
    stopped: str
    skipped: int = 0
    checkpoint: Path | None = None
    best: Path | None = None
    resumed_from: Path | None = None
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The result as plain data."""
        found: dict[str, Any] = jsonable({k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()})
        return found


@dataclass
class _Progress:
    """The run's own state: all of it goes into a checkpoint."""

    position: Position = field(default_factory=Position)
    loss: float = math.nan
    window_sum: float = 0.0
    window_count: int = 0
    validation: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "loss": None if math.isnan(self.loss) else self.loss}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> _Progress:
        values = {**data, "position": Position(**data["position"])}
        # JSON has no NaN and no infinity; None stands for them.
        values["loss"] = _number(data["loss"])
        values["validation"] = {name: _number(value) for name, value in data["validation"].items()}
        return cls(**values)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _check_validate(validate: Any) -> None:
    """Refuses data that cannot be iterated repeatedly, before anything is trained."""
    if validate is None or callable(validate):
        return
    if isinstance(validate, Iterator) or not isinstance(validate, Iterable):
        once = "is used up after one validation" if isinstance(validate, Iterator) else "gives no batches"
        raise InputError(
            f"validate is a {type(validate).__name__}, which {once}",
            hint="pass pm.train.Batches(dataset, batch_size, shuffle=False), a list of batches, or a function of the step",
            name="validate",
        )


class Trainer:
    """Runs a train step over data for a number of epochs or batches.

    Ctrl-C and SIGTERM end the run after the current batch, with a checkpoint. A loss or a monitored number that is not finite
    ends it with `Diverged`.

    - `step`: what `compile_step` made
    - `data`: `Batches`, or anything that gives batches by position
    - `epochs`: how often to go through the data; or
    - `steps`: how many batches to train on
    - `validate`: batches, or a function of the step that gives numbers by name; None leaves validation out
    - `every`: after how many batches to validate and save; by default once an epoch
    - `monitor`: what is best: a name among the validation's numbers, with a - before it if more is better; without validation
      the mean training loss
    - `checkpoints`: the folder to save to; None saves nothing
    - `keep`: how many of the latest checkpoints stay, beside the best
    - `resume`: "auto" goes on from the newest whole checkpoint if there is one, True requires one, False starts over and
      refuses a folder that has some, a path names one
    - `log`: the file that gets a line of JSON a step
    - `log_every`: steps a line
    - `report`: the HTML file with the curves; needs `log`
    - `title`: of the report
    - `settings`: shown in the report
    - `early_stopping`: how many validations without improvement end the run, or an `EarlyStopping`
    - `callbacks`: functions of (trainer, record) called after each batch, or `Callback` objects
    - `progress`: whether to show progress on stderr, or an object that does

    >>> import numpy as np, pumice as pm
    >>> from pumice import nn, optim, train
    >>> def loss(model, x, y):
    ...     return nn.mse(model(x), y)
    >>> x = np.float32([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> data = train.Batches(train.Arrays(x=x, y=x.sum(1, keepdims=True)), 2)
    >>> specs = {"x": pm.spec("B", 2), "y": pm.spec("B", 1)}
    >>> with train.compile_step(nn.Linear(2, 1), loss, optim.SGD(0.3), specs, device="host", max=2) as step:
    ...     result = train.Trainer(step, data, epochs=100, progress=False).run()
    >>> result.steps, result.stopped, result.loss < 1e-3
    (200, 'done', True)
    """

    def __init__(
        self,
        step: TrainStep,
        data: Data,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        validate: Validate | None = None,
        every: int | None = None,
        monitor: str = "loss",
        checkpoints: str | Path | None = None,
        keep: int = 3,
        resume: Resume = "auto",
        log: str | Path | None = None,
        log_every: int = 1,
        report: str | Path | None = None,
        title: str = "training",
        settings: Mapping[str, Any] | None = None,
        early_stopping: EarlyStopping | int | None = None,
        callbacks: Sequence[Callback | Callable[[Trainer, Record], Any]] = (),
        progress: bool | shows.RunDisplay = True,
    ) -> None:
        if (epochs is None) == (steps is None):
            raise InputError("a run lasts a number of epochs or of steps", hint="give one of epochs= and steps=")
        for name, value in {"epochs": epochs, "steps": steps, "every": every, "log_every": log_every}.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InputError(f"{name} must be an int of at least 1, not {value!r}", name=name)
        if not isinstance(step, TrainStep):
            raise InputError(f"the step is what compile_step made, not {type(step).__name__}", name="step")
        _check_validate(validate)
        if not hasattr(data, "batch"):
            raise InputError(
                f"a {type(data).__name__} gives no batches by position",
                hint="wrap arrays: pm.train.Batches(pm.train.Arrays(x=…, y=…), batch_size)",
            )
        self.step, self.data, self.validate = step, data, validate
        self.steps = steps if steps is not None else (epochs or 0) * len(data)
        self.every = len(data) if every is None else every
        if validate is None and monitor != "loss":
            raise InputError(
                f"without validation there is no {monitor.removeprefix('-')!r} to monitor",
                hint="give validate= too, or leave monitor out: the training loss is monitored then",
                cli_hint="without validation it is --set run.monitor=loss",
                monitor=monitor,
            )
        self.monitor, self.keep, self.resume = monitor, keep, resume
        self.folder = None if checkpoints is None else Path(checkpoints)
        self.log_path, self.log_every = log, log_every
        self.report, self.title, self.settings = report, title, settings or {}
        if report is not None and log is None:
            raise InputError("a report is drawn from the log", hint="give log= too")
        stopping = early_stopping
        if stopping is not None and not isinstance(stopping, EarlyStopping):
            stopping = EarlyStopping(stopping)
        if callable(callbacks) or isinstance(callbacks, Callback):
            raise InputError("callbacks are given as a list", hint="callbacks=[…]", name="callbacks")
        self.callbacks = [as_callback(c) for c in callbacks] + ([stopping] if stopping is not None else [])
        self._show: shows.RunDisplay = shows.choose(progress) if isinstance(progress, bool) else progress
        self._now = _Progress()
        self._initial = step.schedule
        self._stop = ""
        self._notes: list[str] = []
        self._resumed: Path | None = None
        self._saved: tuple[int, Path] | None = None
        self._validated = -1
        self._bad = 0
        self._started = 0.0

    # -- what callbacks may ask -------------------------------------------------------------------------------------
    @property
    def done(self) -> int:
        """Batches that were trained on."""
        return self.step.count * self.step.accumulate + self.step.micro

    @property
    def position(self) -> Position:
        """The run's position in its data."""
        return self._now.position

    @property
    def metric(self) -> float | None:
        """The number that is monitored, turned so that lower is better; None where it is unknown."""
        name = self.monitor.removeprefix("-")
        values = self._now.validation if self.validate is not None else {"loss": self._mean_loss()}
        if name not in values:
            return None
        value = values[name]
        return -value if self.monitor.startswith("-") else value

    def stop(self, reason: str) -> None:
        """End the run after this batch, with a checkpoint."""
        self._stop = self._stop or reason

    def note(self, text: str) -> None:
        """Say something, in the terminal and in the result."""
        self._notes.append(text)
        self._show.note(text)

    # -- running ----------------------------------------------------------------------------------------------------
    def run(self) -> Result:
        """Train to the end, or until something stops it."""
        try:
            return self._run()
        except DiskFull as error:
            raise self._explained(error) from error

    def _run(self) -> Result:
        # The signals' handler comes first and goes last, so that no Ctrl-C leaves the folder's lock held.
        with Interrupts(self.stop) as interrupts, ExitStack() as stack:
            kept = None if self.folder is None else stack.enter_context(Checkpoints(self.folder, keep=self.keep))
            stack.enter_context(self._show)
            with interrupts.at_once():
                self._begin(kept)
                self._check_ahead()
            log = stack.enter_context(Log(self.log_path, resumed_at=self.done))
            with interrupts.at_once():
                return self._train(kept, log)

    def _check_ahead(self) -> None:
        """Refuses what would end the run only at the end of an epoch: a last batch too short, validation that does not fit."""
        if self.steps - self.done >= len(self.data):
            self.step.check_sizes(self.data.batch(self.position.epoch, len(self.data) - 1))
        if self.validate is not None and not callable(self.validate):
            self._check_monitored(self.step.numbers)
        first = getattr(self.validate, "batch", None)
        if first is not None:
            self.step.check(first(0, 0))

    def _check_monitored(self, names: Iterable[str]) -> None:
        if self.monitor.removeprefix("-") not in names:
            raise InputError(
                f"the validation gives no {self.monitor.removeprefix('-')!r}, which is monitored",
                hint="it gives " + " ".join(names),
                monitor=self.monitor,
            )

    def _train(self, kept: Checkpoints | None, log: Log) -> Result:
        if self.done < self.steps:
            self._show.begin(self.done, self.steps)
        else:
            self.note(f"nothing is left to do: the step was trained on {self.done} batches, the run ends after {self.steps}")
        for callback in self.callbacks:
            callback.on_start(self)
        self._started = time.monotonic() - self._now.seconds
        while self.done < self.steps and not self._stop:
            self._one(log)
            if self.done % self.every == 0:
                self._milestone(kept, log)
        if self.done >= self.steps:
            self._milestone(kept, log)
        self._save(kept)
        if self.done >= self.steps and self.step.micro:
            left = f"the last {self.step.micro} of {self.done} batches changed no parameter"
            self.note(f"{left}: an update takes the gradients of {self.step.accumulate}")
        result = self._result(kept)
        self._write_report(result)
        for callback in self.callbacks:
            callback.on_end(self, result)
        return result

    def _one(self, log: Log) -> None:
        """Train on the next batch."""
        now = self._now
        batch = self.data.batch(now.position.epoch, now.position.index)
        lr, epoch = self.step.lr, now.position.epoch
        found = self.step(batch)
        loss, aux = found if isinstance(found, tuple) else (found, {})
        now.position = now.position.after(len(self.data))
        now.loss, now.seconds = loss, time.monotonic() - self._started
        self._check_loss(loss, lr)
        if math.isfinite(loss):
            now.window_sum, now.window_count = now.window_sum + loss, now.window_count + 1
        samples = next((len(value) for value in batch.values() if np.ndim(value)), 1)
        record: dict[str, Any] = {"step": self.done, "epoch": epoch, "loss": loss, "lr": lr, "samples": samples}
        record |= {name: float(value) for name, value in aux.items() if np.ndim(value) == 0}
        record["seconds"] = round(now.seconds, 3)
        if self.done % self.log_every == 0 or self.done == self.steps:
            log.write(record)
        self._show.step(record)
        for callback in self.callbacks:
            callback.on_step(self, record)

    def _check_loss(self, loss: float, lr: float) -> None:
        self._bad = 0 if math.isfinite(loss) else self._bad + 1
        if self._bad >= (_HOPELESS if self.step.precision == "f16" else 1):
            raise self._diverged(f"the loss is {loss} at step {self.done}, with a learning rate of {lr:.3g}")

    def _check_validation(self, found: Mapping[str, float]) -> None:
        """Refuses a loss or a monitored number that is none; others, such as a perplexity, may overflow."""
        for name in {"loss", self.monitor.removeprefix("-")} & found.keys():
            if not math.isfinite(found[name]):
                what = f"the validation's {name} is {found[name]} at step {self.done}"
                raise self._diverged(f"{what}, with a learning rate of {self.step.lr:.3g}")

    def _check_params(self, params: Mapping[str, Any]) -> None:
        """Refuses what must not become a checkpoint: parameters that a train step has turned into NaN or infinity."""
        for name in sorted(self.step.changing & params.keys()):
            bad = ~np.isfinite(params[name])
            if bad.any():
                raise self._diverged(f"the parameter {name!r} holds {params[name][bad][0]} after step {self.done}")

    def _diverged(self, what: str) -> Diverged:
        saved = f"; the last good checkpoint is {self._saved[1]}" if self._saved else ""
        return Diverged(
            what + saved,
            hint="lower the learning rate, clip gradients (clip_norm=1.0), or warm up longer",
            cli_hint="lower the learning rate (--set optimizer.lr=…), clip gradients (--set optimizer.clip_norm=1.0), or warm up "
            "longer (--set schedule.warmup=…)",
            step=self.done,
            lr=self.step.lr,
        )

    def _explained(self, error: DiskFull) -> DiskFull:
        """Adds to a disk-full error whether there is a checkpoint to resume from."""
        if self._saved is None:
            hint, cli_hint = ("free some space and start again: no checkpoint was saved yet",) * 2
        else:
            good = f"{self._saved[1].name} is good"
            hint, cli_hint = f"free some space and resume: {good}", f"free some space and go on with --resume: {good}"
        return DiskFull(error.message, hint=hint, cli_hint=cli_hint, **error.fields)

    def _milestone(self, kept: Checkpoints | None, log: Log) -> None:
        """Validate and save, unless that was done at this train step already."""
        if self.done == self._validated or not self.done:
            return
        self._validated = self.done
        now = self._now
        now.validation = {}
        if self.validate is not None:
            found = self.validate(self.step) if callable(self.validate) else self.step.evaluate(self.validate)
            now.validation = {name: float(value) for name, value in found.items()}
            self._check_monitored(now.validation)
            log.write({"step": self.done, "epoch": now.position.epoch, "validation": now.validation})
            self._check_validation(now.validation)
            shown = ", ".join(f"{name} {value:.4f}" for name, value in now.validation.items())
            self._show.note(f"step {self.done}: training loss {self._mean_loss():.4f}, validation {shown}")
        for callback in self.callbacks:
            callback.on_evaluate(self, now.validation)
        metric = self.metric
        now.window_sum, now.window_count = 0.0, 0
        self._save(kept, metric)
        self._write_report(None)

    def _mean_loss(self) -> float:
        now = self._now
        return now.window_sum / now.window_count if now.window_count else now.loss

    # -- checkpoints ------------------------------------------------------------------------------------------------
    def _save(self, kept: Checkpoints | None, metric: float | None = None) -> None:
        if kept is None or not self.done or (self._saved is not None and self._saved[0] == self.done):
            return
        run = {
            "progress": self._now.to_json(),
            "data": self._describe_data(),
            "first_schedule": self._initial.to_dict(),
            "callbacks": [{"kind": type(callback).__qualname__, "state": callback.state()} for callback in self.callbacks],
            "validated": self._validated,
        }
        state = self.step.state_dict()
        self._check_params(state["params"])
        self._saved = self.done, kept.save(self.done, state, jsonable(run), metric)
        for callback in self.callbacks:
            callback.on_checkpoint(self, self._saved[1])

    def _begin(self, kept: Checkpoints | None) -> None:
        """Go on from a checkpoint, if one is wanted and there."""
        found = self._find(kept)
        if found is None:
            return
        check_same(self.step.state_dict(), found)
        self._check_data(found)
        try:
            now = _Progress.from_json(found.run["progress"])
            first = Schedule.from_dict(found.run["first_schedule"])
            states, validated = list(found.run["callbacks"]), int(found.run["validated"])
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{found.path} is no checkpoint of a Trainer: {error!r}", path=str(found.path)) from error
        self.step.load_state_dict(found.state_dict)
        if first != self._initial:
            # Changes made while running are restored if the settings are the same; new settings take precedence.
            self.step.set_lr(self._initial)
            self.note(
                f"the learning rate's schedule was changed: the new one is used from here on. It counts from the run's first "
                f"update, {self.step.count} are done, and the rate is now {self.step.lr:.3g}"
            )
        self._now, self._validated = now, validated
        self._resumed, self._saved = found.path, (self.done, found.path)
        for callback in self.callbacks:
            # By kind, in their order: callbacks may have been added or left out since.
            match = next((saved for saved in states if saved["kind"] == type(callback).__qualname__), None)
            if match is not None:
                states.remove(match)
                callback.restore(match["state"])
        self.note(f"going on from {found.path.name}, epoch {now.position.epoch + 1}")

    def _find(self, kept: Checkpoints | None) -> Checkpoint | None:
        if isinstance(self.resume, Path) or (isinstance(self.resume, str) and self.resume != "auto"):
            found = load_checkpoint(self.resume)
            newer = [e.step for e in kept.entries() if e.step > found.step] if kept is not None else []
            if newer:
                raise InputError(
                    f"{self.folder} has a checkpoint of step {newer[-1]}, after {found.path.name}",
                    hint="to go on from an earlier one, give another folder for the new checkpoints; nothing was changed",
                    path=str(self.folder),
                )
            return found
        if self.resume is False:
            if kept is not None and kept.has_any():
                raise InputError(
                    f"{self.folder} has checkpoints of an earlier run",
                    hint="resume it (resume='auto'), or choose another folder; nothing was changed",
                    cli_hint="resume it (--resume), or choose another folder (--out); nothing was changed",
                    path=str(self.folder),
                )
            return None
        latest = None if kept is None else kept.latest()
        for name, why in kept.skipped if kept is not None else ():
            self.note(f"passed over {name}, which is damaged: {why}")
        if latest is None and self.resume is True:
            raise InputError(f"there is no checkpoint in {self.folder}", hint="resume='auto' starts over then")
        return latest

    def _describe_data(self) -> dict[str, Any]:
        found: dict[str, Any] = jsonable({**self.data.describe(), "batches": len(self.data)})
        return found

    def _check_data(self, found: Checkpoint) -> None:
        ours, theirs = self._describe_data(), found.run.get("data", {})
        for key in (*ours, *theirs):
            if ours.get(key) != theirs.get(key):
                raise CheckpointMismatch(
                    f"{found.path.name} was trained on other data: {key} was {theirs.get(key)!r}, now it is {ours.get(key)!r}",
                    hint="to train its params further on this data, start a new run with them: params=pm.train.load_params(…)",
                    cli_hint=f"to train its params further on this data, start a new run with them: --out DIR --set "
                    f"run.params={found.path.resolve()}",
                    path=str(found.path),
                    difference=key,
                )

    # -- the end ----------------------------------------------------------------------------------------------------
    def _result(self, kept: Checkpoints | None) -> Result:
        best = kept.best() if kept is not None else None
        now = self._now
        return Result(
            steps=self.done,
            epochs=self.done / len(self.data),
            loss=now.loss,
            validation=dict(now.validation),
            seconds=now.seconds,
            stopped=self._stop or "done",
            skipped=self.step.skipped,
            checkpoint=None if self._saved is None else self._saved[1],
            best=None if best is None else best.path,
            resumed_from=self._resumed,
            notes=tuple(self._notes),
        )

    def _write_report(self, result: Result | None) -> None:
        if self.report is None or self.log_path is None:
            return
        now = self._now
        facts: dict[str, Any] = {"steps": f"{self.done} of {self.steps}", "epochs": round(self.done / len(self.data), 2)}
        facts |= {"last loss": now.loss, **{f"validation {name}": value for name, value in now.validation.items()}}
        facts |= {"time": shows.duration(now.seconds), "device": self.step.executable.device.name}
        facts["state"] = "running" if result is None else result.stopped
        write_report(self.report, read_log(self.log_path), title=self.title, facts=facts, config=self.settings)
