"""Addition of two-digit numbers by a transformer: some pairs are never shown, and must come out right all the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pumice import functions as F
from pumice import nn
from pumice.tensor import Tensor
from pumice.tracing import spec
from pumice.train.data import Arrays, Batches, split
from pumice.train.datasets import Characters
from pumice.train.recipes import Context, TrainRecipe
from pumice.train.recipes.transformer import Transformer, TransformerSettings
from pumice.train.step import TrainStep

LETTERS = Characters("+0123456789=")
# 12+34= and three digits of the answer, of which the last is only predicted.
LENGTH = 8
_IGNORED = -100


@dataclass(frozen=True)
class ModelSettings(TransformerSettings):
    """Depth, width and heads."""


@dataclass(frozen=True)
class DataSettings:
    """All 10,000 pairs; a share of them is unseen in training."""

    batch: int = 128
    unseen: float = 0.2


def sums() -> Arrays:
    """Every pair as text and what follows each of its characters; only the answer counts.

    The answer is written from its last digit on: so the model carries as people do.

    >>> first = {name: value[0] for name, value in sums().fields.items()}
    >>> LETTERS.decode(first["x"]), first["y"].tolist()
    ('00+00=00', [-100, -100, -100, -100, -100, 1, 1, 1])
    """
    a, b = (v.ravel() for v in np.meshgrid(np.arange(100), np.arange(100), indexing="ij"))
    texts = [f"{p:02d}+{q:02d}={f'{p + q:03d}'[::-1]}" for p, q in zip(a.tolist(), b.tolist())]
    ids = LETTERS.encode("".join(texts)).reshape(len(texts), LENGTH + 1)
    y = ids[:, 1:].copy()
    y[:, : LENGTH - 3] = _IGNORED
    return Arrays(x=ids[:, :-1], y=y)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Cross-entropy of the answer's digits, and the share of answers that are right in all of them.

    An answer whose digits are all right after the right ones before them is what greedy decoding gives.
    """
    logits = model(x)
    right = F.logical_or(F.argmax(logits, axis=-1) == y, y == _IGNORED)
    return nn.cross_entropy(logits, y, ignore_index=_IGNORED), {"exact": F.mean(F.all(right, axis=-1).astype("f32"))}


def build(model: ModelSettings, data: DataSettings, context: Context) -> TrainRecipe:
    """The task from its settings."""
    train, held = split(sums(), data.unseen, seed=context.seed)

    def finish(step: TrainStep, out: Path | None) -> dict[str, Any]:
        found = step.evaluate(Batches(held, data.batch, shuffle=False))
        return {"unseen_exact": found["exact"], "unseen_loss": found["loss"], "unseen_pairs": len(held)}

    shape = spec("B", LENGTH, dtype="i32")
    return TrainRecipe(
        Transformer(len(LETTERS), LENGTH, model),
        loss,
        {"x": shape, "y": shape},
        Batches(train, data.batch, seed=context.seed, drop_last=True),
        Batches(held, data.batch, shuffle=False),
        finish,
    )
