"""Typed access to the entries of a config file or of GGUF metadata: a missing or wrong one is an error that names it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pumice.errors import FormatError, InputError, MissingName

_REQUIRED: Any = object()
# Sizes end up in shapes of 32-bit index arithmetic.
_MOST = 2**31 - 1
# Every layer has params and nodes of its own: a bound, so that a hostile number cannot fill the memory.
MOST_LAYERS = 4096


class Fields:
    """The entries of a config.json, or those of GGUF metadata under a prefix; null counts as absent.

    >>> f = Fields({"a.size": 4, "a.rate": None}, "a.gguf's metadata", prefix="a.")
    >>> f.whole("size"), f.number("rate", 0.5), f.has("rate")
    (4, 0.5, False)
    >>> f.text("kind")
    Traceback (most recent call last):
        ...
    pumice.errors.MissingName: [missing-name] a.gguf's metadata lacks 'a.kind'
    """

    def __init__(self, values: Mapping[str, Any], origin: str, prefix: str = "") -> None:
        if not isinstance(values, Mapping):
            raise FormatError(f"{origin} is no mapping but {type(values).__name__}")
        self.values, self.origin, self.prefix = values, origin, prefix

    def with_defaults(self, **defaults: Any) -> Fields:
        """The same entries, with others where they are absent."""
        present = {k: v for k, v in self.values.items() if v is not None}
        return Fields({**{self.prefix + k: v for k, v in defaults.items()}, **present}, self.origin, self.prefix)

    def filled(self, defaults: Mapping[str, Any]) -> Fields:
        """The same entries, with others where the file does not name them; null is an answer too, and stays.

        >>> f = Fields({"cap": None}, "config.json").filled({"cap": 50.0, "size": 4})
        >>> f.has("cap"), f.whole("size")
        (False, 4)
        """
        return Fields({**{self.prefix + k: v for k, v in defaults.items()}, **self.values}, self.origin, self.prefix)

    def has(self, name: str) -> bool:
        return self.values.get(self.prefix + name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """The entry as it is, or the default; without a default an absent entry is an error."""
        value = self.values.get(self.prefix + name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise MissingName(f"{self.origin} lacks {self.prefix + name!r}", name=self.prefix + name)
        return default

    def whole(self, name: str, default: int = _REQUIRED, *, least: int = 1, most: int = _MOST) -> int:
        """An integer from `least` to `most`."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(name, value, f"an integer from {least} to {most}")
        return value

    def number(self, name: str, default: float = _REQUIRED) -> float:
        """A finite number."""
        value = self.get(name, default)
        if not _is_finite(value):
            raise self._wrong(name, value, "a finite number")
        return float(value)

    def positive(self, name: str, default: float = _REQUIRED) -> float:
        """A finite number above 0."""
        value = self.number(name, default)
        if value <= 0:
            raise self._wrong(name, value, "a number above 0")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str = _REQUIRED) -> str:
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def items(self, name: str) -> list[Any]:
        """The entries of a list; empty where it is absent."""
        value = _plain(self.get(name, ()))
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of strings; empty where it is absent."""
        found = self.items(name)
        if not set(map(type, found)) <= {str}:
            raise self._wrong(name, found, "a list of strings")
        return found

    def raw(self, name: str) -> bytes:
        """A list of bytes, signed or not; empty where it is absent."""
        found = self.items(name)
        if not all(type(v) is int and -128 <= v <= 255 for v in found):
            raise self._wrong(name, found, "a list of bytes")
        return bytes(v & 255 for v in found)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite numbers; empty where it is absent."""
        found = self.items(name)
        if not all(map(_is_finite, found)):
            raise self._wrong(name, found, "a list of finite numbers")
        return tuple(float(v) for v in found)

    def section(self, name: str) -> Fields:
        """The mapping under a name; an empty one where it is absent."""
        return Fields(self.get(name, {}), f"{self.prefix + name!r} in {self.origin}")

    def refuse(self, feature: str, hint: str = "") -> InputError:
        """The error for a feature that the config asks for and that is not there."""
        return InputError(
            f"{self.origin}: {feature} is not supported",
            hint=hint or "take another checkpoint of the model, or another model",
            feature=feature,
        )

    def refuse_if(self, name: str, *allowed: Any) -> None:
        """Refuses the config if the entry is present and true, or other than one of `allowed`."""
        value = _plain(self.get(name))
        if value not in allowed if allowed and value is not None else bool(value):
            raise self.refuse(f"{self.prefix + name} = {value!r:.60}")

    def _wrong(self, name: str, value: Any, wanted: str) -> FormatError:
        return FormatError(
            f"{self.origin}: {self.prefix + name!r} is {value!r:.60}, not {wanted}",
            hint="the file is damaged or its converter was wrong; fetch or convert it again",
            name=self.prefix + name,
        )


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _plain(value: Any) -> Any:
    """The value with all of its sequences as lists: JSON has them already, GGUF files give NumPy's and lazy ones."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
