"""Settings of optimizers checked where they are given: each field against its annotation, by name."""

from __future__ import annotations

import dataclasses
import math
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from pumice.errors import InputError


def check_fields(owner: str, settings: Any) -> None:
    """Refuses fields of a dataclass that are not of their annotated kind: bool, int, float, tuples of them, Literal, or None.

    Fields of other kinds are left to their class. NumPy's numbers become Python's, so that settings are plain data.
    """
    for name, hint in _hints(type(settings)).items():
        object.__setattr__(settings, name, _checked(f"{owner}: {name}", hint, getattr(settings, name), name))


def _hints(cls: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.name != "_"}


def _checked(what: str, hint: Any, value: Any, name: str) -> Any:
    if get_origin(hint) in (Union, UnionType):
        choices = [c for c in get_args(hint) if c is not NoneType]
        if len(choices) != 1 or (value is None and NoneType in get_args(hint)):
            return value
        (hint,) = choices
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise InputError(f"{what} is one of {' '.join(map(str, get_args(hint)))}, not {value!r}", name=name)
        return value
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        if not isinstance(value, tuple | list) or len(value) != len(kinds):
            raise InputError(f"{what} must be {len(kinds)} numbers, not {value!r:.60}", hint="as (0.9, 0.999)", name=name)
        return tuple(_checked(what, kind, item, name) for kind, item in zip(kinds, value, strict=True))
    return _plain(what, hint, value, name)


def _plain(what: str, kind: Any, value: Any, name: str) -> Any:
    if kind is float:
        return number(what, value, name)
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise InputError(f"{what} must be an int, not {value!r}", name=name)
        return int(value)
    if kind is bool and not isinstance(value, bool):
        raise InputError(f"{what} must be True or False, not {value!r}", name=name)
    return value


def number(what: str, value: Any, name: str) -> float:
    """A finite number as Python's, or an error that says what it was for.

    >>> number("sgd: momentum", "0.9", "momentum")
    Traceback (most recent call last):
    pumice.errors.InputError: [input] sgd: momentum must be a number, not '0.9'
    """
    if not is_number(value) or not math.isfinite(value):
        raise InputError(f"{what} must be a number, not {value!r:.60}", name=name)
    return value if type(value) in (int, float) else float(value)


def is_number(value: Any) -> bool:
    """Whether something is a number of Python's or NumPy's; a bool is none."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
