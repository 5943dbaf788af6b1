"""Callbacks: called by a run at train steps, validations and checkpoints; early stopping is one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.errors import InputError
from pumice.train.log import Record

if TYPE_CHECKING:
    from pumice.train.trainer import Result, Trainer


class Callback:
    """Called by a Trainer; override what you need. `trainer.stop(reason)` ends the run, `trainer.step.set_lr` changes the rate.

    A callback with a memory gives it as JSON in `state` and takes it back in `restore`, so that resumed runs are exact.
    """

    def on_start(self, trainer: Trainer) -> None:
        """Before the first batch; a resumed run is where it was."""

    def on_step(self, trainer: Trainer, record: Record) -> None:
        """After each batch, with step, epoch, loss, lr and samples."""

    def on_evaluate(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """After each validation, before the checkpoint; without validation there are no metrics, but the call comes."""

    def on_checkpoint(self, trainer: Trainer, path: Path) -> None:
        """After each checkpoint."""

    def on_end(self, trainer: Trainer, result: Result) -> None:
        """After the last batch."""

    def state(self) -> dict[str, Any]:
        """What must survive a restart."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""


class _OnStep(Callback):
    def __init__(self, fn: Callable[[Trainer, Record], Any]) -> None:
        self.fn = fn

    def on_step(self, trainer: Trainer, record: Record) -> None:
        self.fn(trainer, record)


def as_callback(value: Callback | Callable[[Trainer, Record], Any]) -> Callback:
    """A callback itself; a function as one that is called after each batch."""
    return value if isinstance(value, Callback) else _OnStep(value)


class EarlyStopping(Callback):
    """Ends a run whose monitored number has not become better, by more than `min_delta`, for `patience` validations.

    >>> EarlyStopping(3).patience
    3
    """

    def __init__(self, patience: int, *, min_delta: float = 0.0) -> None:
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise InputError(f"early stopping takes a number of validations of at least 1, not {patience!r}", name="patience")
        if isinstance(min_delta, bool) or not isinstance(min_delta, int | float) or not 0 <= min_delta < math.inf:
            raise InputError(f"min_delta must be a number of at least 0, not {min_delta!r}", name="min_delta")
        self.patience, self.min_delta = patience, min_delta
        self.best: float | None = None
        self.stale = 0

    def on_start(self, trainer: Trainer) -> None:
        self._check(trainer)

    def on_evaluate(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        metric = trainer.metric
        if metric is not None and math.isfinite(metric) and (self.best is None or metric < self.best - self.min_delta):
            self.best, self.stale = metric, 0
        else:
            self.stale += 1
        self._check(trainer)

    def _check(self, trainer: Trainer) -> None:
        if self.stale >= self.patience:
            trainer.stop("no improvement")

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "stale": self.stale}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.best, self.stale = state.get("best"), int(state.get("stale", 0))
