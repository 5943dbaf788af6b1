"""A text continued character by character: a transformer trained on files."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pumice import nn
from pumice.errors import InputError
from pumice.tensor import Tensor
from pumice.tracing import spec
from pumice.train.datasets import Characters, read_texts, text_tokens
from pumice.train.recipes import Context, TrainRecipe, hold_out
from pumice.train.recipes.transformer import Transformer, TransformerSettings
from pumice.train.step import TrainStep

_SAMPLE_LENGTH = 400


@dataclass(frozen=True)
class ModelSettings(TransformerSettings):
    """Depth, width, heads, and how many characters the model looks back."""

    layers: int = 4
    width: int = 128
    dropout: float = 0.1
    context: int = 64


@dataclass(frozen=True)
class DataSettings:
    """Text files, as paths or patterns from the configuration's folder; the last share of the text is validated with."""

    files: tuple[str, ...] = ()
    batch: int = 16
    stride: int | None = None
    validation: float = 0.1


def loss(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Cross-entropy of the next characters."""
    return nn.cross_entropy(model(x), y), {}


def build(model: ModelSettings, data: DataSettings, context: Context) -> TrainRecipe:
    """The task from its settings."""
    paths = sorted({path for pattern in data.files for path in glob.glob(str(context.folder / pattern), recursive=True)})
    if not paths:
        raise InputError(f"data.files {list(data.files)} names no file", hint=f"paths start from {context.folder.resolve()}")
    tokens, letters = text_tokens(read_texts(paths), model.context, stride=data.stride)
    train, held = hold_out(tokens, data.validation, data.batch, context.seed)

    def finish(step: TrainStep, out: Path | None) -> dict[str, Any]:
        text = sample(step, letters, model.context, length=_SAMPLE_LENGTH, seed=context.seed)
        if out is not None:
            (out / "sample.txt").write_text(text, encoding="utf-8")
        return {"sample": text, "characters": len(tokens.tokens), "vocabulary": len(letters)}

    shape = spec("B", model.context, dtype="i32")
    return TrainRecipe(
        Transformer(len(letters), model.context, model),
        loss,
        {"x": shape, "y": shape},
        train,
        held,
        finish,
    )


def sample(step: TrainStep, letters: Characters, context: int, *, length: int, seed: int = 0, temperature: float = 0.8) -> str:
    """Sample a text from the model, one character after the other."""
    rng = np.random.default_rng(seed)
    ids = [int(rng.integers(len(letters)))]
    with step.forward(inputs={"x": spec(1, context, dtype="i32")}) as forward:
        for _ in range(length):
            window = ids[-context:]
            # Positions after the text may hold anything: the model is causal and does not see them.
            x = np.zeros((1, context), np.int32)
            x[0, : len(window)] = window
            logits = np.float64(forward.run(x=x)[0, len(window) - 1]) / temperature
            weights = np.exp(logits - logits.max())
            ids.append(int(rng.choice(len(letters), p=weights / weights.sum())))
    return letters.decode(ids)
