"""An image as a function of its coordinates, fitted by a network of sines (Sitzmann et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice import functions as F
from pumice import nn
from pumice.tensor import Tensor
from pumice.tracing import spec
from pumice.train.data import Arrays, Batches
from pumice.train.datasets import read_image
from pumice.train.recipes import Context, TrainRecipe
from pumice.train.recipes.png import write_png
from pumice.train.step import TrainStep


@dataclass(frozen=True)
class ModelSettings:
    """Depth, width, and the factor inside of the sines: the larger, the finer the detail."""

    layers: int = 3
    width: int = 64
    omega: float = 20.0


@dataclass(frozen=True)
class DataSettings:
    """The image: a file from the configuration's folder, or a generated one of this size."""

    image: str | None = None
    size: int = 64
    batch: int = 1024


class Siren(nn.Module):
    """Linear layers with sines between them, initialised so that every layer's outputs have the same spread."""

    def __init__(self, settings: ModelSettings) -> None:
        self.omega = settings.omega
        widths = (2, *[settings.width] * settings.layers, 3)
        self.layers = []
        for i, (a, b) in enumerate(pairwise(widths)):
            bound = 1 / a if i == 0 else math.sqrt(6 / a) / settings.omega
            self.layers.append(nn.Linear(a, b, weight_init=nn.init.uniform(-bound, bound)))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.sin(self.omega * layer(x))
        y: Tensor = self.layers[-1](x)
        return y


def loss(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean square error of colours from 0 to 1."""
    return nn.mse(model(x), y), {}


def generated_image(size: int) -> NDArray[np.float32]:
    """Rings, a grid and a gradient, [size, size, 3] from 0 to 1: smooth parts and edges.

    >>> generated_image(8).shape
    (8, 8, 3)
    """
    y, x = np.meshgrid(np.linspace(-1, 1, size), np.linspace(-1, 1, size), indexing="ij")
    rings = 0.5 + 0.5 * np.sin(12 * np.hypot(x - 0.2, y + 0.1))
    squares = (np.sin(5 * x + y) * np.sin(5 * y - x) > 0).astype(np.float64)
    return np.stack([rings, 0.25 + 0.5 * squares, (x + 1) / 2], axis=-1).astype(np.float32)


def build(model: ModelSettings, data: DataSettings, context: Context) -> TrainRecipe:
    """The task from its settings."""
    if data.image is None:
        image = generated_image(data.size)
    else:
        image = read_image(context.folder / data.image, None, 3).transpose(1, 2, 0).astype(np.float32) / np.float32(255)
    height, width = image.shape[:2]
    rows, columns = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    places = np.stack([columns, rows], axis=-1).reshape(-1, 2).astype(np.float32)
    pixels = Arrays(x=places, y=image.reshape(-1, 3))

    def finish(step: TrainStep, out: Path | None) -> dict[str, Any]:
        error = step.evaluate(Batches(pixels, data.batch, shuffle=False))["loss"]
        if out is not None:
            with step.forward(inputs={"x": spec("B", 2)}, max=data.batch) as forward:
                parts = [forward.run(x=places[i : i + data.batch]) for i in range(0, len(places), data.batch)]
            fitted = np.concatenate(parts).reshape(height, width, 3)
            write_png(out / "fit.png", np.concatenate([image, fitted], axis=1))
        return {"psnr": -10 * math.log10(max(error, 1e-12))}

    return TrainRecipe(
        Siren(model),
        loss,
        {"x": spec("B", 2), "y": spec("B", 3)},
        Batches(pixels, data.batch, seed=context.seed),
        Batches(pixels, data.batch, shuffle=False),
        finish,
    )
