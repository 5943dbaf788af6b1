"""Tasks: what a checkpoint can do, and which of it `pm.load` takes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pumice.core.fields import Fields
from pumice.errors import InputError, UnknownName
from pumice.formats.weights import WeightFile
from pumice.models.arch import Architecture, EncoderArchitecture
from pumice.models.classifier import CLASS_NAME, ClassifierHead
from pumice.models.config import ModelArchConfig

# Each with the command that does it; no built-in architecture serves the last three.
_COMMANDS = {"generate": "run", "embed": "embed", "classify": "classify", "rerank": "rerank"}
TASKS = (*_COMMANDS, "transcribe", "speak", "see")


def tasks_of(architecture: Architecture, head: ClassifierHead | None) -> tuple[str, ...]:
    """The tasks of a checkpoint, the one that it is made for first.

    Encoders make embeddings whatever their head is for; a head that gives one score for a pair of texts ranks them.

    >>> from pumice.models.registry import get_architecture
    >>> tasks_of(get_architecture("llama"), None), tasks_of(get_architecture("bert"), None)
    (('generate',), ('embed',))
    """
    if architecture.kind == "causal":
        return ("generate",)
    if head is None:
        return ("embed",)
    return ("rerank", "classify", "embed") if len(head.labels) == 1 else ("classify", "embed")


def check_task(wanted: str | None) -> None:
    """Refuses a name that is no task's, before anything is fetched for it."""
    if wanted is not None and wanted not in TASKS:
        near = difflib.get_close_matches(str(wanted), TASKS, 1)
        hint = (f"the nearest is {near[0]!r}; " if near else "") + "tasks: " + " ".join(TASKS)
        raise UnknownName(f"there is no task {wanted!r:.60}", hint=hint, task=wanted)


def read_head(
    architecture: Architecture, cfg: ModelArchConfig, config: Mapping[str, Any], weights: WeightFile
) -> ClassifierHead | None:
    """The head of a checkpoint that is made for sequence classification, None for others.

    config.json says so by `architectures`; where it says nothing, the head's tensors do.
    """
    c = Fields(config, "config.json").filled(architecture.defaults)
    classes = c.texts("architectures")
    is_classifier = any(name.endswith(CLASS_NAME) for name in classes)
    reader = architecture.classifier if isinstance(architecture, EncoderArchitecture) else None
    if reader is None:
        if is_classifier:
            raise c.refuse(f"sequence classification with the architecture {cfg.model_type!r:.60}", "encoders can do it")
        return None
    if classes and not is_classifier:
        return None
    head = reader(c)
    stored = all(any(name in weights.tensors for name in p.hf) for p in head.params(cfg))
    return head if is_classifier or stored else None


def choose_task(wanted: str | None, possible: tuple[str, ...], model: str, architecture: str) -> str:
    """The task that is wanted, or the first of those that are possible; one that is not is refused by name.

    >>> choose_task(None, ("classify", "embed"), "sentiment", "bert")
    'classify'
    >>> choose_task("see", ("generate",), "smollm2", "llama")
    Traceback (most recent call last):
    pumice.errors.InputError: [input] smollm2 (llama) cannot do the task 'see', it can generate
      hint: pm.load(…, task='generate')
    """
    if wanted is None:
        return possible[0]
    if wanted not in possible:
        raise InputError(
            f"{model} ({architecture}) cannot do the task {wanted!r}, it can {' and '.join(possible)}",
            hint=" or ".join(f"pm.load(…, task={task!r})" for task in possible),
            cli_hint=" or ".join(f"pumice {_COMMANDS[task]} {model} …" for task in possible),
            task=wanted,
            tasks=possible,
            model=model,
        )
    return wanted
