"""The settings of one served model: its public name, where it comes from, and how its engine is set up."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pumice.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")


@dataclass(frozen=True)
class ModelSpec:
    """One model to serve. `source` is what `pm.load` takes, `options` are its keywords, `slots` the sequences at once."""

    name: str
    source: str
    options: Mapping[str, Any] = field(default_factory=dict)
    slots: int = 16

    @staticmethod
    def parse(text: str, *, slots: int = 16, **options: Any) -> ModelSpec:
        """A model as the command line has it: NAME=MODEL, or MODEL, whose last part is the name then.

        >>> ModelSpec.parse("tiny=models/tiny.gguf").name, ModelSpec.parse("models/tiny-q4.gguf").name
        ('tiny', 'tiny-q4')
        >>> ModelSpec.parse("hf:owner/repo@main/file.gguf").name, ModelSpec.parse("smollm2").name
        ('file', 'smollm2')
        """
        name, given, source = text.partition("=")
        if not given or not _NAME.fullmatch(name):
            # pypi:package==1.0/path has equals signs of its own.
            source = text
            last = text.rstrip("/").rsplit("/", 1)[-1]
            name = re.sub(r"[^A-Za-z0-9._:@-]+", "-", last.removesuffix(".gguf")).strip("-._") or "model"
        if not source:
            raise InputError(f"{text!r} names no model", hint="write NAME=MODEL, or MODEL alone")
        return ModelSpec(name[:128], source, options, slots)


def check_names(specs: Sequence[ModelSpec]) -> None:
    """Refuses no models, and two with the same name.

    >>> check_names([ModelSpec("a", "x"), ModelSpec("a", "y")])
    Traceback (most recent call last):
    pumice.errors.InputError: [input] two models have the name 'a'
      hint: give one another name: other=y
    """
    if not specs:
        raise InputError("there is no model to serve", hint="pumice serve MODEL…")
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise InputError(f"two models have the name {spec.name!r}", hint=f"give one another name: other={spec.source}")
        seen.add(spec.name)
