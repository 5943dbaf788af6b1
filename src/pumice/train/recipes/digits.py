"""What the two digit recipes share: the data in three parts, the loss, and the test at the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pumice import functions as F
from pumice import nn
from pumice.tensor import Tensor
from pumice.tracing import spec
from pumice.train.data import Batches, split
from pumice.train.datasets import digits
from pumice.train.recipes import Context, StepFunction, TaskView, TrainRecipe, hold_out
from pumice.train.step import TrainStep


@dataclass(frozen=True)
class DataSettings:
    """scikit-learn's digits: shares of the samples to validate with (0 for none) and to test on, drawn by the seed."""

    batch: int = 64
    validation: float = 0.1
    test: float = 0.2


def loss(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Cross-entropy, and the share of right answers."""
    logits = model(x)
    return nn.cross_entropy(logits, y), {"accuracy": F.mean((F.argmax(logits, axis=-1) == y).astype("f32"))}


def predict(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """How likely each class is."""
    return {"probabilities": F.softmax(model(x), axis=-1)}


def recipe(model: nn.Module, data: DataSettings, context: Context, *, images: bool) -> TrainRecipe:
    """A digit model with its data."""
    rest, kept = split(digits(images=images), data.test, seed=context.seed)
    train, held = hold_out(rest, data.validation, data.batch, context.seed)
    test = Batches(kept, data.batch, shuffle=False)

    def finish(step: TrainStep, out: Path | None) -> dict[str, Any]:
        found = step.evaluate(test)
        return {"test_accuracy": found["accuracy"], "test_loss": found["loss"]}

    x = spec("B", 1, 8, 8) if images else spec("B", 64)
    return TrainRecipe(
        model,
        loss,
        {"x": x, "y": spec("B", dtype="i32")},
        train,
        held,
        finish,
        test=test,
        view=TaskView(
            "digits",
            {"images": {"step": "predict", "input": "x", "label": "y", "height": 8, "width": 8}},
            {"predict": StepFunction(predict, {"x": x})},
        ),
    )
