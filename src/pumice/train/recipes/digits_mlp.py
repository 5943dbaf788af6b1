"""Handwritten digits by a multilayer perceptron."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pumice import functions as F
from pumice import nn
from pumice.tensor import Tensor
from pumice.train.recipes import Context, TrainRecipe
from pumice.train.recipes.digits import DataSettings, recipe

__all__ = ["DataSettings", "ModelSettings", "Perceptron", "build"]


@dataclass(frozen=True)
class ModelSettings:
    """Widths of the hidden layers, and how much is dropped behind each."""

    hidden: tuple[int, ...] = (128, 64)
    dropout: float = 0.1


class Perceptron(nn.Module):
    """Linear layers with ReLU and dropout between them."""

    def __init__(self, settings: ModelSettings) -> None:
        widths = (64, *settings.hidden, 10)
        self.layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.dropout(F.relu(layer(x)))
        logits: Tensor = self.layers[-1](x)
        return logits


def build(model: ModelSettings, data: DataSettings, context: Context) -> TrainRecipe:
    """The task from its settings."""
    return recipe(Perceptron(model), data, context, images=False)
