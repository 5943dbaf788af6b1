"""Handwritten digits by a small convolutional network."""

from __future__ import annotations

from dataclasses import dataclass

from pumice import functions as F
from pumice import nn
from pumice.tensor import Tensor
from pumice.train.recipes import Context, TrainRecipe
from pumice.train.recipes.digits import DataSettings, recipe

__all__ = ["ConvNet", "DataSettings", "ModelSettings", "build"]


@dataclass(frozen=True)
class ModelSettings:
    """Channels of the two convolutions, and how much is dropped before the last layer."""

    channels: tuple[int, int] = (16, 32)
    dropout: float = 0.1


class ConvNet(nn.Module):
    """Two convolutions of 3×3 with batch norm and ReLU, each pooled to half the size; then one linear layer."""

    def __init__(self, settings: ModelSettings) -> None:
        first, second = settings.channels
        self.conv1, self.norm1 = nn.Conv2d(1, first, 3, padding=1), nn.BatchNorm2d(first)
        self.conv2, self.norm2 = nn.Conv2d(first, second, 3, padding=1), nn.BatchNorm2d(second)
        self.dropout = nn.Dropout(settings.dropout)
        self.head = nn.Linear(second * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        logits: Tensor = self.head(self.dropout(F.reshape(x, (x.shape[0], -1))))
        return logits


def build(model: ModelSettings, data: DataSettings, context: Context) -> TrainRecipe:
    """The task from its settings."""
    return recipe(ConvNet(model), data, context, images=True)
