"""Requests to an engine and its answers: sampling parameters, requests, token events, timings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pumice.core.special import threefry2x32
from pumice.errors import InputError
from pumice.llm.sampling import CANDIDATES
from pumice.text.stream import TextStream


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch those rules off.

    >>> SamplingParams(temperature=0).greedy
    True
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    seed: int = 0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "temperature": (0.0, 100.0),
            "top_k": (0, 1 << 30),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "repeat_penalty": (0.01, 100.0),
            "seed": (0, (1 << 64) - 1),
        }
        for name, (low, high) in limits.items():
            value = number(name, getattr(self, name), whole=isinstance(low, int))
            if not low <= value <= high:  # false for NaN too
                raise InputError(f"{name} is {value}", hint=f"it must be in {low}…{high}", name=name, value=value)
        if self.logprobs is not None and not 0 <= number("logprobs", self.logprobs, whole=True) <= 20:
            raise InputError(f"logprobs is {self.logprobs}", hint="0…20 alternatives can be had", name="logprobs")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def needs_whole(self, vocab: int) -> bool:
        """Whether a draw may fall on any token of the vocabulary, not only on the few most likely.

        >>> [SamplingParams(top_k=k).needs_whole(50_000) for k in (0, 1, 256, 257)]
        [True, False, False, True]
        """
        return not self.greedy and vocab > CANDIDATES and not 1 <= self.top_k <= CANDIDATES

    def uniform(self, index: int) -> float:
        """The number in [0, 1) that draws token `index`: a function of the seed alone, the same on every device."""
        key = np.uint32(self.seed & 0xFFFFFFFF), np.uint32(self.seed >> 32)
        word, _ = threefry2x32(*key, np.uint32(index), np.uint32(0x70756D69))
        return int(word >> np.uint32(8)) * 2.0**-24


def number(name: str, value: Any, *, whole: bool) -> Any:
    """The value of the option `name`, if it is a number, and an integer where it must be `whole`.

    >>> number("seed", 3, whole=True)
    3
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer if whole else int | float | np.number):
        raise InputError(f"{name} is {value!r}", hint=f"it takes {'an integer' if whole else 'a number'}", name=name, value=value)
    return value


CACHE_DTYPES = ("f32", "f16", "q8")


def check_sizes(**sizes: Any) -> None:
    """Refuses numbers of things that are no whole numbers from 1 on.

    >>> check_sizes(slots=1, context=0)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] context is 0
      hint: it must be at least 1
    """
    for name, value in sizes.items():
        if number(name, value, whole=True) < 1:
            raise InputError(f"{name} is {value}", hint="it must be at least 1", name=name, value=value)


def check_cache_dtype(dtype: Any) -> None:
    """Refuses what the cache of keys and values cannot be stored in.

    >>> check_cache_dtype("q8")
    """
    if dtype not in CACHE_DTYPES:
        raise InputError(f"cache_dtype is {dtype!r}", hint=f"use {' or '.join(CACHE_DTYPES)}", value=dtype)


_NUMBERS = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "logprobs")
_OPTIONS = {*_NUMBERS, "max_tokens", "strict", "stop", "system", "raw", "cancelled", "ignore_eos"}


def sampling_of(options: Mapping[str, Any]) -> SamplingParams:
    """The sampling numbers among the options of a call; those that are absent or None have their defaults.

    >>> sampling_of({"temperature": 0.5, "max_tokens": 9, "seed": None}).temperature
    0.5
    """
    return SamplingParams(**{k: options[k] for k in _NUMBERS if options.get(k) is not None})


def stops_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The stop strings among the options of a call.

    >>> stops_of({"stop": "END"}), stops_of({})
    (('END',), ())
    """
    stop = options.get("stop") or ()
    if not isinstance(stop, Iterable):
        raise InputError(f"stop is {stop!r}", hint="give a text, or several in a list", name="stop")
    found = (stop,) if isinstance(stop, str) else tuple(stop)
    TextStream(lambda _: b"", found)  # refuses what is no stop string
    return found


def check_options(options: Mapping[str, Any]) -> None:
    """Refuses options of `generate` that no model could follow; None is an option that was not given.

    >>> check_options({"top_p": 1.5})
    Traceback (most recent call last):
    pumice.errors.InputError: [input] top_p is 1.5
      hint: it must be in 0.0…1.0
    """
    unknown = [k for k in options if k not in _OPTIONS]
    if unknown:
        raise InputError(f"there is no option {unknown[0]!r}", hint="options: " + " ".join(sorted(_OPTIONS)), name=unknown[0])
    sampling_of(options)
    stops_of(options)
    limit = options.get("max_tokens")
    if limit is not None and number("max_tokens", limit, whole=True) < 1:
        raise InputError(f"max_tokens is {limit}", hint="ask for at least 1 token", name="max_tokens", value=limit)


@dataclass
class Request:
    """One sequence to continue."""

    prompt: Sequence[int]
    sampling: SamplingParams
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class TokenEvent:
    """A token that request number `request` got, or its end (`finish` is "stop" or "length", with the token that ended it)."""

    request: int
    token: int
    finish: str | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class Timings:
    """What a call cost: tokens that ran through the model as prompt and as answer, seconds for each.

    `reused` has, for each request that was started, how many tokens of its prompt were in the cache.
    """

    prompt_tokens: int = 0
    reused: list[int] = field(default_factory=list)
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0
