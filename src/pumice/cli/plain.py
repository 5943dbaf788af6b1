"""Plain command lines, bound to their commands by what these declare, without typer's own reading of them.

typer checks every value through pydantic, which takes longer to import than a small model to load. A line of known options
and simple values needs none of that; anything unusual or wrong is left to typer, which reports it.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

_NUMBERS = {int: re.compile(r"[+-]?[0-9]{1,18}"), float: re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")}
# Settings of a parameter that this module does not follow.
_SPECIAL = {"callback", "is_eager", "envvar", "parser", "click_type", "shell_complete", "prompt", "exists", "count"}


@dataclass(frozen=True, slots=True)
class _Parameter:
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


def bind(app: typer.Typer, words: Sequence[str]) -> Callable[[], Any] | None:
    """The call that a command line asks for, None if it is not plain.

    >>> app = typer.Typer()
    >>> def greet(name: Annotated[str, typer.Argument()], times: Annotated[int, typer.Option(min=1)] = 1) -> str:
    ...     return " ".join(["hello", name] * times)
    >>> _ = app.command()(greet)
    >>> bind(app, ["greet", "you", "--times", "2"])()
    'hello you hello you'
    >>> bind(app, ["greet", "you", "--times", "0"]) is bind(app, ["greet"]) is bind(app, ["greet", "you", "--help"]) is None
    True
    """
    commands = {c.name or c.callback.__name__: c.callback for c in app.registered_commands if c.callback is not None}
    if not words or words[0] not in commands:
        return None
    function = commands[words[0]]
    parameters = _parameters(function)
    values = None if parameters is None else _values(parameters, words[1:])
    return None if values is None else functools.partial(function, **values)


def run(action: Callable[[], Any]) -> None:
    """Calls what `bind` gave as typer calls commands: with its exit codes, and its ways with Ctrl-C and closed pipes."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.command(add_help_option=False)  # it would be read, and pydantic imported for it
    def command() -> None:
        action()

    app(args=[])


def _parameters(function: Callable[..., Any]) -> dict[str, _Parameter] | None:
    found: dict[str, _Parameter] = {}
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if get_origin(hints[name]) is not Annotated:
            return None
        hint, info = get_args(hints[name])[:2]
        if not isinstance(info, OptionInfo | ArgumentInfo) or any(getattr(info, n, None) for n in _SPECIAL):
            return None
        choices = [a for a in get_args(hint) if a is not NoneType] if get_origin(hint) in (Union, UnionType) else [hint]
        many = get_origin(choices[0]) is list
        kind = get_args(choices[0])[0] if many else choices[0]
        names: tuple[str, ...] = ()
        if isinstance(info, OptionInfo):
            # The first name stands where a default would outside of annotations.
            first = (info.default,) if isinstance(info.default, str) else ()
            names = (*first, *(info.param_decls or ()))
            # A switch without names of its own has a second one that says no.
            if kind is bool and not names:
                return None
            names = names or (f"--{name.replace('_', '-')}",)
        if len(choices) != 1 or kind not in (str, int, float, bool, Path) or any("/" in n for n in names):
            return None
        found[name] = _Parameter(kind, many, names, info.min, info.max, parameter.default is parameter.empty)
    return found


def _values(parameters: dict[str, _Parameter], words: Sequence[str]) -> dict[str, Any] | None:
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
