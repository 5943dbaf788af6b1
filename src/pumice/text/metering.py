"""How much a chat template may do in one rendering: steps, time, characters, nesting."""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Set, Sized, ValuesView
from types import MethodType
from typing import Any, NoReturn

from pumice.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one rendering may use.

    `source` bounds the template's text, `seconds` the time, `steps` loop passes, calls and the like, `characters` all
    text that is made on the way (room for 32 times the conversation comes on top), `elements` what one nested value may
    hold, `nesting` how deep values nest and `calls` how deep macros call each other.

    >>> Limits().seconds
    2.0
    """

    source: int = 1 << 17
    seconds: float = 2.0
    steps: int = 1_000_000
    characters: int = 1 << 23
    elements: int = 1 << 20
    nesting: int = 64
    calls: int = 32
    range: int = 100_000
    width: int = 4096


class LimitReached(Exception):
    """The template asked for more than a limit allows; not a Jinja error, so that no template construct swallows it."""


class RenderMeter:
    """Counts the work of one rendering, and stops it at the limits.

    >>> meter = RenderMeter(Limits(steps=2))
    >>> meter.step(), meter.step()
    (None, None)
    >>> meter.step()
    Traceback (most recent call last):
    pumice.text.metering.LimitReached: it takes more than 2 steps
    """

    def __init__(self, limits: Limits, conversation: int = 0, inert: tuple[type, ...] = ()) -> None:
        self.limits = limits
        self.deadline = time.monotonic() + limits.seconds
        self.elements = limits.elements + 4 * conversation
        self.steps = 0
        self.room = limits.characters + 32 * conversation
        self.depth = 0
        self._plain = (*_PLAIN, *inert)
        # Weight and height of each container seen, by identity; holding the object keeps its identity taken.
        self._known: dict[int, tuple[Any, int, int]] = {}

    def step(self, count: int = 1) -> None:
        """Counts steps, and looks at the clock."""
        self.steps += count
        if self.steps > self.limits.steps:
            _stop(f"it takes more than {self.limits.steps} steps")
        if time.monotonic() > self.deadline:
            _stop(f"it takes more than {self.limits.seconds:g} s")

    def walk(self, values: Iterable[Any]) -> Iterator[Any]:
        """The values one by one, each a step: what lazy filters are given or give."""
        for value in values:
            self.step()
            yield value

    def touch(self, value: Any) -> None:
        """Counts what an operation that looks at all parts of a value, not into them, goes through; lazy ones count themselves.

        >>> meter = RenderMeter(Limits())
        >>> meter.touch([1, 2, 3]); meter.touch("x" * 128); meter.steps
        5
        """
        if isinstance(value, str):
            self.step(len(value) >> _TEXT_STEP)
        elif isinstance(value, Sized):
            self.step(len(value))

    def charge(self, characters: int) -> None:
        """Counts text that is about to be made, or was made; asking before making it keeps the memory bounded."""
        if characters > self.room:
            _stop("it makes too much text")
        self.room -= characters

    def weigh(self, value: Any) -> int:
        """How much there is to walk through in a value, with shared parts counted each time; refuses what is too much.

        Comparing, hashing and printing take time in proportion, and `[x, x]` thirty times over must not be possible.
        """
        weight, height = self._measure(value)
        if weight > self.elements:
            _stop("it builds a value of too many parts")
        if height > self.limits.nesting:
            _stop(f"it builds a value nested deeper than {self.limits.nesting}")
        return weight

    def _measure(self, value: Any) -> tuple[int, int]:
        if isinstance(value, str):
            return 1 + len(value), 0
        if isinstance(value, int):
            return 1 + value.bit_length() // 3, 0
        if isinstance(value, MethodType):  # prints what it is bound to
            return self._measure(value.__self__)
        if isinstance(value, KeysView | ValuesView | ItemsView | Set):
            return self._measure(list(value))
        if not isinstance(value, list | tuple | dict):
            return 1, 0
        known = self._known.get(id(value))
        if known is not None:
            return known[1], known[2]
        self.step(1 + len(value) // 4)
        parts: list[Any] = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
        weight, height = 1, 0
        for part in parts:
            if not isinstance(part, self._plain):
                _stop(f"it puts a {type(part).__name__} into a list or dict")
            part_weight, part_height = self._measure(part)
            weight, height = weight + part_weight, max(height, part_height)
            if weight > self.elements:
                break  # enough to refuse it
        # Only containers of containers grow out of hand; the others are soon measured again, and keeping them takes memory.
        if height or len(value) > _SMALL:
            self.charge(_KEPT)
            self._known[id(value)] = (value, weight, height + 1)
        return weight, height + 1


_SMALL = 64  # parts of a value that is measured again each time
_KEPT = 64  # characters that remembering a value is worth
_TEXT_STEP = 6  # 64 characters of text that is only looked at are a step

_PLAIN: tuple[type, ...] = (str, int, float, type(None), list, tuple, dict, range)


def _stop(what: str) -> NoReturn:
    raise LimitReached(what)


def conversation_size(value: Any) -> int:
    """The characters of a conversation, roughly: what the limits scale with.

    >>> conversation_size([{"role": "user", "content": "Hi"}])
    17
    """
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(conversation_size(k) + conversation_size(v) for k, v in value.items())
    if isinstance(value, list | tuple):
        return sum(map(conversation_size, value))
    return 8
