"""Plain command lines, bound to their commands by what these declare, without typer's own reading of them.

typer checks every value through pydantic, which takes longer to import than a small model to load. A line of known options
and simple values needs none of that; anything unusual or wrong is left to typer, which reports it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from pumice.cli.lines import CommandParameter, read_values

# Settings of a parameter that this module does not follow.
_SPECIAL = {"callback", "is_eager", "envvar", "parser", "click_type", "shell_complete", "prompt", "exists", "count"}


def bind(app: typer.Typer, words: Sequence[str]) -> functools.partial[Any] | None:
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
    values = None if parameters is None else read_values(parameters, words[1:])
    return None if values is None else functools.partial(function, **values)


def parameters_of(function: Callable[..., Any]) -> tuple[dict[str, CommandParameter], dict[str, Any]]:
    """The parameters of a command that `bind` has bound, and the values of those that are not given."""
    given = {n: p.default for n, p in inspect.signature(function).parameters.items() if p.default is not p.empty}
    return _parameters(function) or {}, given


def run(action: Callable[[], Any]) -> None:
    """Calls what `bind` gave as typer calls commands: with its exit codes, and its ways with Ctrl-C and closed pipes."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.command(add_help_option=False)  # it would be read, and pydantic imported for it
    def command() -> None:
        action()

    app(args=[])


def _parameters(function: Callable[..., Any]) -> dict[str, CommandParameter] | None:
    found: dict[str, CommandParameter] = {}
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
        found[name] = CommandParameter(kind, many, names, info.min, info.max, parameter.default is parameter.empty)
    return found
