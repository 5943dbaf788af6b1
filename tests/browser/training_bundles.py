"""Train steps that are small enough for a software adapter, as bundles beside the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import pumice as pm
from pumice import nn, optim, train
from pumice.core.caps import Caps
from pumice.train.config import make_optimizer, make_schedule, parse_config
from pumice.train.recipes import Context, StepFunction, TrainRecipe

SOFTWARE = [Caps.preset("browser-software")]
TEXT = "".join(f"{n} green bottles hanging on the wall, and if one green bottle should fall; " for n in range(40, 0, -1))
CHARACTERS: dict[str, Any] = {
    "recipe": "characters",
    "model": {"layers": 1, "width": 32, "heads": 2, "context": 16, "dropout": 0.1},
    "data": {"files": ["bottles.txt"], "batch": 4, "stride": 8},
    "optimizer": {"kind": "adamw", "lr": 0.005, "clip_norm": 1.0},
    "schedule": {"kind": "cosine", "warmup": 5},
    "run": {"steps": 60, "name": "bottles"},
}
DIGITS: dict[str, Any] = {
    "recipe": "digits-mlp",
    "model": {"hidden": [32], "dropout": 0.1},
    "data": {"batch": 64},
    "optimizer": {"kind": "adamw", "lr": 0.01},
    "run": {"steps": 200, "name": "digits", "seed": 3},
}


def recipe_of(table: dict[str, Any], folder: Path) -> TrainRecipe:
    """The recipe of a configuration, whose text is in the folder."""
    (folder / "bottles.txt").write_text(TEXT)
    config = parse_config(table, folder=folder)
    return config.recipe.build(config.model, config.data, Context(config.run.seed, folder))


def native_step(table: dict[str, Any], recipe: TrainRecipe) -> train.TrainStep:
    """The train step of a configuration on the host."""
    config = parse_config(table)
    schedule = make_schedule(config.schedule, config.optimizer.lr, config.run.steps or 1)
    return train.compile_step(
        recipe.model,
        recipe.loss,
        make_optimizer(config.optimizer, schedule),
        recipe.inputs,
        device="host",
        seed=config.run.seed,
        max={"B": recipe.largest_batch},
        aux=True,
    )


def export_recipe(step: train.TrainStep, recipe: TrainRecipe, folder: Path, name: str) -> None:
    train.export_step(
        step,
        folder,
        data=recipe.data,
        validation=recipe.validation,
        test=recipe.test,
        view=recipe.view,
        name=name,
        variants=SOFTWARE,
    )


# -- a line through points: it compiles in no time ------------------------------------------------------------------------
def line_loss(model: nn.Module, x: Any, y: Any) -> Any:
    return nn.mse(model(x), y)


def line_data() -> train.Batches:
    x = np.linspace(-1, 1, 24, dtype="f4").reshape(12, 2)
    return train.Batches(train.Arrays(x=x, y=x.sum(1, keepdims=True) * 2 + 1), 4, seed=1)


def line_step(**settings: Any) -> train.TrainStep:
    specs = {"x": pm.spec("B", 2), "y": pm.spec("B", 1)}
    optimizer = settings.pop("optimizer", optim.SGD(0.1, momentum=0.5))
    return train.compile_step(nn.Linear(2, 1), line_loss, optimizer, specs, device="host", max=4, **settings)


def export_line(folder: Path, **settings: Any) -> None:
    predict = StepFunction(lambda model, x: {"y": model(x)}, {"x": pm.spec("B", 2)})
    with line_step(**settings) as step:
        train.export_step(step, folder, data=line_data(), functions={"predict": predict}, name="line", variants=SOFTWARE)


def native_losses(step: train.TrainStep, data: train.Batches, count: int) -> list[float]:
    """The losses of so many batches, epoch after epoch."""
    found = [step(data.batch(i // len(data), i % len(data))) for i in range(count)]
    return [loss[0] if isinstance(loss, tuple) else loss for loss in found]
