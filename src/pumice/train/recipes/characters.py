"""A text continued character by character: a transformer trained on files."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pumice import functions as F
from pumice import nn
from pumice.errors import InputError
from pumice.tensor import Tensor
from pumice.tracing import set_state, spec, state
from pumice.train.datasets import Characters, read_texts, text_tokens
from pumice.train.recipes import Context, StepFunction, TaskView, TrainRecipe, hold_out
from pumice.train.recipes.transformer import Transformer, TransformerSettings
from pumice.train.step import TrainStep

_SAMPLE_LENGTH = 400
WINDOW, LENGTH = "sample.window", "sample.length"
SAMPLE_INPUTS = {"key": spec(2, dtype="u32"), "temperature": spec()}


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
        view=TaskView(
            "characters",
            {
                "text": {
                    "step": "sample",
                    "letters": letters.letters,
                    "context": model.context,
                    "window": WINDOW,
                    "length": LENGTH,
                }
            },
            {"sample": StepFunction(next_character, SAMPLE_INPUTS)},
        ),
    )


def next_character(model: nn.Module, key: Tensor, temperature: Tensor) -> dict[str, Tensor]:
    """Draws the character after those in the state `sample.window`, whose number is in `sample.length`, and appends it.

    Once the window is full it moves on by one. A temperature of 0 takes the most likely one.
    """
    window, length = state(WINDOW, model.positions.weight.shape[:1], "i32"), state(LENGTH, (), "i32")
    context = window.shape[0]
    # Positions after the text may hold anything: the model is causal and does not see them.
    logits = model(F.expand_dims(window, 0))[0]
    row = F.take(logits, F.minimum(length, context) - 1, axis=0)
    drawn = F.random.categorical(F.random.fold_in(key, length), row / F.maximum(temperature, 1e-4))
    token = F.where(temperature > 0, drawn, F.argmax(row, axis=0))
    moved = F.where(length < context, window, F.roll(window, -1, axis=0))
    place = F.minimum(length, context - 1)
    set_state(window, F.where(F.arange(context) == place, token, moved))
    set_state(length, length + 1)
    return {"token": token}


def sample(
    step: TrainStep,
    letters: Characters,
    context: int,
    *,
    length: int,
    seed: int = 0,
    temperature: float = 0.8,
    prompt: str | None = None,
) -> str:
    """Sample a text from the model, one character after the other, each drawn on the device; it begins with the prompt.

    Without one it begins with any character.
    """
    ids = [int(np.random.default_rng(seed).integers(len(letters)))] if prompt is None else letters.encode(prompt).tolist()
    given = {"key": np.array([seed, 0], np.uint32), "temperature": np.float32(temperature)}
    with step.forward(next_character, SAMPLE_INPUTS) as forward:
        window = np.zeros(context, np.int32)
        last = ids[-context:]
        window[: len(last)] = last
        forward.state[WINDOW].write(window)
        forward.state[LENGTH].write(np.int32(len(ids)))
        ids += [int(forward.run(given)["token"]) for _ in range(length)]
    return letters.decode(ids)
