"""Recipes: a model, its loss and its data, built from settings, for `pumice train`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pumice.errors import UnknownName
from pumice.nn.module import Module
from pumice.train.data import Batches, Dataset, split
from pumice.train.step import TrainStep

# Each module has the dataclasses `ModelSettings` and `DataSettings`, whose fields are the keys of a configuration's tables, and
# `build(model, data, context)`. They are imported when asked for.
RECIPES = {
    "digits-mlp": "pumice.train.recipes.digits_mlp",
    "digits-conv": "pumice.train.recipes.digits_conv",
    "characters": "pumice.train.recipes.characters",
    "addition": "pumice.train.recipes.addition",
    "siren": "pumice.train.recipes.siren",
    "finetune": "pumice.llm.finetune.recipe",  # above training in the import order: known by name only
}


@dataclass(frozen=True)
class Context:
    """A recipe's context: the seed, and the folder that relative paths start from."""

    seed: int = 0
    folder: Path = Path()


@dataclass(frozen=True)
class StepFunction:
    """A function of the model that reads the parameters as they are: fn(model, **inputs), not in training.

    `max` has the maxima of symbols that the train step does not have.
    """

    fn: Callable[..., Any]
    inputs: Mapping[str, Any]
    max: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskView:
    """What a page shows of a task while it learns: its name, what the manifest says of it, and functions that it needs."""

    task: str
    details: Mapping[str, Any]
    functions: Mapping[str, StepFunction]


def _nothing(step: TrainStep, out: Path | None) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class TrainRecipe:
    """A task ready for training. `finish` computes the final metrics, and may write files to the run's folder;
    `notes` are said before the first step. Without `validation` nothing was kept aside. `test` is what `finish` measures with,
    and `view` what a page shows of the task.

    `loss(model, **batch)` gives the loss and a dict of metrics.
    """

    model: Module
    loss: Callable[..., Any]
    inputs: Mapping[str, Any]
    data: Batches
    validation: Batches | None
    finish: Callable[[TrainStep, Path | None], dict[str, Any]] = _nothing
    notes: tuple[str, ...] = ()
    test: Batches | None = None
    view: TaskView | None = None

    @property
    def largest_batch(self) -> int:
        """The largest batch of a train step."""
        return max(part.batch_size for part in (self.data, self.validation) if part is not None)


def hold_out(dataset: Dataset, share: float, batch: int, seed: int) -> tuple[Batches, Batches | None]:
    """Shuffled batches to train on and, unless the share is 0, others to validate with.

    >>> from pumice.train.data import Arrays
    >>> train, held = hold_out(Arrays(x=[1, 2, 3, 4]), 0.0, 2, seed=0)
    >>> len(train), held
    (2, None)
    """
    if not share:
        return Batches(dataset, batch, seed=seed), None
    train, held = split(dataset, share, seed=seed)
    return Batches(train, batch, seed=seed), Batches(held, batch, shuffle=False)


@dataclass(frozen=True)
class Kind:
    """A recipe before its settings are known."""

    name: str
    model: type[Any]
    data: type[Any]
    build: Callable[[Any, Any, Context], TrainRecipe]


def find(name: str) -> Kind:
    """The recipe of a name.

    >>> find("addition").model.__name__
    'ModelSettings'
    >>> find("adition")
    Traceback (most recent call last):
    pumice.errors.UnknownName: [unknown-name] there is no recipe 'adition'
      hint: did you mean 'addition'? There are addition characters digits-conv digits-mlp finetune siren
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, 1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise UnknownName(f"there is no recipe {name!r}", hint=f"{meant}There are {' '.join(sorted(RECIPES))}", name=name)
    module = importlib.import_module(RECIPES[name])
    return Kind(name, module.ModelSettings, module.DataSettings, module.build)
