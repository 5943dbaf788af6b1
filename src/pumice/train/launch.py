"""A training run from its configuration: build, train, measure, and write everything to one folder."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.sources.disk import disk_errors
from pumice.sources.files import write_json
from pumice.train.callbacks import Callback
from pumice.train.checkpoint import Checkpoints, load_params
from pumice.train.config import Config, make_optimizer, make_schedule
from pumice.train.log import jsonable
from pumice.train.progress import RunDisplay
from pumice.train.receipts import step_params, training_receipt
from pumice.train.recipes import Context, TrainRecipe
from pumice.train.step import TrainStep, compile_step
from pumice.train.trainer import Result, Resume, Trainer

if TYPE_CHECKING:
    from pumice.receipts.receipt import Receipt
    from pumice.run.cooperative import Cooperative

_NO_VALIDATION = "validation is off: the best checkpoint is the one with the lowest training loss"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: how it ended, the recipe's metrics (none if it was interrupted), and the paths of its files."""

    result: Result
    measured: dict[str, Any]
    folder: Path
    device: str
    parameters: int
    receipt: Receipt | None = None

    def as_json(self) -> dict[str, Any]:
        """The outcome as plain data."""
        where = {"out": str(self.folder), "log": str(self.folder / "log.jsonl"), "report": str(self.folder / "report.html")}
        facts = {"parameters": self.parameters, "device": self.device, "measured": jsonable(self.measured)}
        return {**self.result.as_json(), **facts, **where}


class _WriteConfig(Callback):
    """Writes the settings to the run's folder, once the run has locked it, and prints the recipe's notes."""

    def __init__(self, config: Config, out: Path, notes: Sequence[str]) -> None:
        self.config, self.out, self.notes = config, out, notes

    def on_start(self, trainer: Trainer) -> None:
        with disk_errors(self.out):
            write_json(self.out / "config.json", self.config.as_json())
        for note in self.notes:
            trainer.note(note)


def _recipe(config: Config) -> TrainRecipe:
    return config.recipe.build(config.model, config.data, Context(config.run.seed, config.folder))


def _batches(config: Config, recipe: TrainRecipe) -> int:
    """The batches of a whole run."""
    run = config.run
    return run.steps if run.steps is not None else (run.epochs or 0) * len(recipe.data)


def _compiled(config: Config, recipe: TrainRecipe, device: str) -> TrainStep:
    run = config.run
    schedule = make_schedule(config.schedule, config.optimizer.lr, max(_batches(config, recipe) // run.accumulate, 1))
    return compile_step(
        recipe.model,
        recipe.loss,
        make_optimizer(config.optimizer, schedule),
        recipe.inputs,
        device=device,
        seed=run.seed,
        precision=run.precision,
        accumulate=run.accumulate,
        max={"B": recipe.largest_batch},
        params=None if run.params is None else load_params(config.folder / run.params),
        aux=True,
    )


@contextlib.contextmanager
def configured_step(config: Config) -> Iterator[tuple[TrainStep, dict[str, Any]]]:
    """The train step that a configuration describes, on the host, and what `export_step` takes with it: data and view."""
    recipe = _recipe(config)
    parts = {"data": recipe.data, "validation": recipe.validation, "test": recipe.test}
    with _compiled(config, recipe, "host") as step:
        yield step, {**parts, "view": recipe.view, "name": config.run.name}


def launch(
    config: Config,
    *,
    resume: Resume = "auto",
    progress: bool | RunDisplay = True,
    receipt: bool = False,
    cooperative: Cooperative | None = None,
) -> Outcome:
    """Build what the configuration describes, train it, and measure it.

    The run's folder holds checkpoints/, log.jsonl, report.html, config.json, and what the recipe leaves there. With `receipt` the
    outcome has a receipt of the whole run. `cooperative` is a `pm.Cooperative` for all its steps.
    """
    run = config.run
    out = Path(run.out) if run.out is not None else Path("runs") / run.name
    recipe = _recipe(config)
    batches = _batches(config, recipe)
    validation = recipe.validation if run.validate else None
    with _compiled(config, recipe, run.device) as step:
        step.store.cooperate(cooperative)
        trainer = Trainer(
            step,
            recipe.data,
            steps=batches,
            validate=validation,
            every=run.every,
            monitor="loss" if validation is None else run.monitor,
            checkpoints=out / "checkpoints",
            keep=run.keep,
            resume=resume,
            log=out / "log.jsonl",
            log_every=run.log_every,
            report=out / "report.html",
            title=run.name,
            settings=config.as_json(),
            early_stopping=run.patience,
            callbacks=[_WriteConfig(config, out, (*recipe.notes, *([] if validation is not None else [_NO_VALIDATION])))],
            progress=progress,
        )
        started = step_params(step) if receipt else {}
        result = trainer.run()
        interrupted = result.stopped in ("interrupted", "terminated")
        measured = {} if interrupted else recipe.finish(step, out)
        parameters = sum(math.prod(p.shape) for p in recipe.model.named_parameters().values())
        proof = None
        if receipt:
            settings = config.as_json()
            proof = training_receipt(
                step,
                result,
                started=started,
                config={**settings, "run": {k: v for k, v in settings["run"].items() if k != "out"}},
                data=recipe.data.describe(),
                checkpoints=Checkpoints(out / "checkpoints", keep=run.keep).entries(),
                measured=measured,
                name=run.name,
            )
        return Outcome(result, measured, out, step.executable.device.name, parameters, proof)
