"""Command lines of known options and simple values, read by what a command says of its parameters; typer reads all others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pumice.core.records import dataclass

_NUMBERS = {int: re.compile(r"[+-]?[0-9]{1,18}"), float: re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")}
# The types that values may have, by name.
KINDS: dict[str, type] = {kind.__name__: kind for kind in (str, int, float, bool, Path)}


@dataclass(frozen=True, slots=True)
class CommandParameter:
    """What a command says of one of its parameters; `names` are empty for an argument."""

    kind: type
    many: bool
    names: tuple[str, ...]
    low: float | None
    high: float | None
    required: bool

    def convert(self, text: str) -> Any:
        """The value that `text` stands for; None if typer must look at it."""
        pattern = _NUMBERS.get(self.kind)
        if pattern is None:
            return self.kind(text)
        if not pattern.fullmatch(text):
            return None
        value = self.kind(text)
        within = (self.low is None or self.low <= value) and (self.high is None or value <= self.high)
        return value if within else None


def read_values(parameters: dict[str, CommandParameter], words: Sequence[str]) -> dict[str, Any] | None:
    """The values that the words of a line give to parameters; None if typer must look at them."""
    named = {option: name for name, p in parameters.items() for option in p.names}
    values: dict[str, Any] = {}
    loose: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            loose.append(word)
            continue
        name = named.get(word)
        if name is None:
            return None
        parameter = parameters[name]
        if parameter.kind is bool:
            values[name] = True
            continue
        text = next(rest, None)
        # A value that looks like an option may have been forgotten.
        if text is None or (text.startswith("-") and parameter.kind not in _NUMBERS):
            return None
        value = parameter.convert(text)
        if value is None:
            return None
        values[name] = [*values.get(name, ()), value] if parameter.many else value
    arguments = {name: p for name, p in parameters.items() if not p.names}
    for name, parameter in arguments.items():
        if parameter.kind is not str:
            return None
        if parameter.many:
            values |= {name: loose} if loose else {}
            loose = []
        elif loose:
            values[name] = loose.pop(0)
    missing = any(p.required and name not in values for name, p in parameters.items())
    return None if missing or loose else values
