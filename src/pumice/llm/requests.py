"""Requests to an engine and its answers: sampling parameters, requests, token events, timings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from pumice.core.records import dataclass
from pumice.core.special import threefry2x32, threefry_word
from pumice.errors import InputError
from pumice.llm.records import SequenceRecord
from pumice.text.stream import TextStream

if TYPE_CHECKING:
    from pumice.llm.speculate import Acceptance, Drafter


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn; docs/sampling.md has the rules. `temperature` 0 is greedy.

    `top_k` 0, `top_p` 1, `min_p` 0, `typical_p` 1, `repeat_penalty` 1 and the other penalties 0 switch those rules off.
    `logit_bias` has what is added to the logits of tokens, by id; minus infinity forbids a token.

    >>> SamplingParams(temperature=0).greedy, SamplingParams(logit_bias={"7": -1}).logit_bias
    (True, ((7, -1.0),))
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logprobs: int | None = None
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            value = number(name, getattr(self, name), whole=isinstance(low, int))
            if not low <= value <= high:  # false for NaN too
                raise InputError(f"{name} is {value}", hint=f"it must be in {low}…{high}", name=name, value=value)
        if self.logprobs is not None and not 0 <= number("logprobs", self.logprobs, whole=True) <= 20:
            raise InputError(f"logprobs is {self.logprobs}", hint="0…20 alternatives can be had", name="logprobs")
        if self.logit_bias != ():
            object.__setattr__(self, "logit_bias", _bias_of(self.logit_bias))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """The pairs of `logit_bias`, in the order of their ids."""
        return cast("tuple[tuple[int, float], ...]", self.logit_bias)

    @cached_property
    def parts(self) -> tuple[bool, int, bool, bool, bool, bool]:
        """What `Sampling.of` needs to know: greedy, top_k, and whether there are penalties, logprobs, typical_p and a bias."""
        penalty = self.repeat_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        typical = not self.greedy and self.typical_p < 1
        return self.greedy, 0 if self.greedy else self.top_k, penalty, self.logprobs is not None, typical, bool(self.logit_bias)

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The values of `sampling.COLUMNS`, but for `u`, which is another for every token."""
        cuts = (self.temperature, self.top_k, self.top_p, self.min_p, 0.0, self.typical_p)
        return (*cuts, self.repeat_penalty, self.presence_penalty, self.frequency_penalty, float(bool(self.logit_bias)))

    def uniform(self, index: int) -> float:
        """The number in [0, 1) that draws token `index`: a function of the seed alone, the same on every device."""
        if not index:  # the first token waits for it: those of the others are made later, while the device works
            return _uniform(threefry_word(*_key_words(self.seed), 0, _STREAM))
        return _uniforms(self.seed, index // _UNIFORMS)[index % _UNIFORMS]

    def check_tokens(self, vocab: int) -> None:
        """Refuses token ids that a vocabulary of that size does not have, and a logit_bias that leaves no token.

        >>> SamplingParams(logit_bias={99: 1.0}).check_tokens(50)
        Traceback (most recent call last):
        pumice.errors.InputError: [input] logit_bias names the token 99, which is not in the vocabulary of 50
        """
        pairs = self.biases
        wrong = next((t for t, _ in pairs if t >= vocab), None)
        if wrong is not None:
            raise InputError(f"logit_bias names the token {wrong}, which is not in the vocabulary of {vocab}", name="logit_bias")
        if len(pairs) == vocab and all(value == -math.inf for _, value in pairs):
            raise InputError("logit_bias forbids every token", hint="leave one that can be generated", name="logit_bias")


_LIMITS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_k": (0, 1 << 30),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "repeat_penalty": (0.01, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "seed": (0, (1 << 64) - 1),
}
# Uniform numbers of a seed that are made together: one by one each would cost as much as all of them.
_UNIFORMS = 64
# The second word of the counters from which they are made.
_STREAM = 0x70756D69


@lru_cache(maxsize=4096)
def _uniforms(seed: int, block: int) -> list[float]:
    """The uniform numbers of tokens `block` * _UNIFORMS and on."""
    at = np.arange(block * _UNIFORMS, (block + 1) * _UNIFORMS, dtype=np.uint32)
    words, _ = threefry2x32(*_key_words(seed), at, np.uint32(_STREAM))
    return [_uniform(word) for word in words.tolist()]


def _key_words(seed: int) -> tuple[int, int]:
    return int(seed) & 0xFFFFFFFF, int(seed) >> 32


def _uniform(word: int) -> float:
    return (word >> 8) * 2.0**-24


def _bias_of(given: Any) -> tuple[tuple[int, float], ...]:
    """The pairs of a logit_bias in the order of their ids; JSON has ids as texts."""
    hint = "give {token id: bias}, each bias in -100…100 or minus infinity"
    pairs = given.items() if isinstance(given, Mapping) else given
    found: dict[int, float] = {}
    try:
        for token, value in pairs:
            token = int(token) if isinstance(token, str) and token.isdecimal() else token
            if number("a token of logit_bias", token, whole=True) < 0:
                raise InputError(f"a token of logit_bias is {token}", hint=hint, name="logit_bias")
            if not (-100 <= number("a value of logit_bias", value, whole=False) <= 100 or value == -math.inf):
                raise InputError(f"logit_bias of the token {token} is {value}", hint=hint, name="logit_bias", value=value)
            found[int(token)] = float(value)
    except (TypeError, ValueError):
        raise InputError(f"logit_bias is {given!r:.60}", hint=hint, name="logit_bias") from None
    return tuple(sorted(found.items()))


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


def check_queue(queue: Any) -> None:
    """Refuses what cannot bound a queue.

    >>> check_queue(-1)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] queue is -1
      hint: give how many sequences may wait, or None for any number
    """
    if queue is not None and (isinstance(queue, bool) or not isinstance(queue, int) or queue < 0):
        raise InputError(f"queue is {queue!r:.60}", hint="give how many sequences may wait, or None for any number", name="queue")


def check_cache_dtype(dtype: Any) -> None:
    """Refuses what the cache of keys and values cannot be stored in.

    >>> check_cache_dtype("q8")
    """
    if dtype not in CACHE_DTYPES:
        raise InputError(f"cache_dtype is {dtype!r}", hint=f"use {' or '.join(CACHE_DTYPES)}", value=dtype)


_NUMBERS = tuple(f.name for f in fields(SamplingParams))
_OPTIONS = {*_NUMBERS, "max_tokens", "strict", "stop", "stop_tokens", "system", "raw", "cancelled", "ignore_eos"}
_OPTIONS |= {"forbid", "grammar", "json_schema", "adapter", "draft", "beams", "length_penalty", "cache"}


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


def stop_tokens_of(options: Mapping[str, Any], vocab: int | None = None) -> frozenset[int]:
    """The token ids among the options of a call that end an answer, beside the model's own; of a vocabulary of that size.

    >>> stop_tokens_of({"stop_tokens": [5, 6]})
    frozenset({5, 6})
    """
    given = options.get("stop_tokens")
    if given is None:
        return frozenset()
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InputError(f"stop_tokens is {given!r:.60}", hint="give a list of token ids", name="stop_tokens")
    found = frozenset(number("a token of stop_tokens", t, whole=True) for t in given)
    wrong = next((t for t in sorted(found) if t < 0 or (vocab is not None and t >= vocab)), None)
    if wrong is not None:
        size = "" if vocab is None else f" of {vocab}"
        raise InputError(f"stop_tokens names the token {wrong}, which is not in the vocabulary{size}", name="stop_tokens")
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
    stop_tokens_of(options)
    for name in ("raw", "strict", "ignore_eos"):
        if not isinstance(value := options.get(name) or False, bool | np.bool_):
            raise InputError(f"{name} is {value!r:.60}", hint="it takes True or False", name=name)
    if options.get("cancelled") is not None and not callable(options["cancelled"]):
        raise InputError(f"cancelled is {options['cancelled']!r:.60}", hint="give a function that says it", name="cancelled")
    limit = options.get("max_tokens")
    if limit is not None and number("max_tokens", limit, whole=True) < 1:
        raise InputError(f"max_tokens is {limit}", hint="ask for at least 1 token", name="max_tokens", value=limit)


class MaskProvider(Protocol):
    """Says which tokens may come next in one answer."""

    def mask(self, tokens: Sequence[int]) -> Any:
        """The allowed tokens after those of the answer so far, as u32 or i32 words [ceil(vocab / 32)].

        Bit t % 32 of word t // 32 allows the token t. At least one token must be allowed.
        """


@dataclass
class Request:
    """One sequence to continue. Tokens of `stop_ids` end it; a `grammar` says before each token which may come.

    `adapter` is the name of one that the engine has loaded, `draft` what drafts tokens (docs/sampling.md, Speculation). With
    several `beams` it is the best answer of a beam search; requests after it with a higher `choice` are the next ones.
    """

    prompt: Sequence[int]
    sampling: SamplingParams
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    grammar: MaskProvider | None = None
    adapter: str | None = None
    draft: Drafter | None = None
    beams: int = 1
    length_penalty: float = 1.0
    choice: int = 0


def check_prompt(tokens: Sequence[int], vocab: int) -> None:
    """Refuses tokens that a vocabulary of that size does not have, and no tokens at all.

    >>> check_prompt([3, 99], 50)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] the token 99 is not in the vocabulary of 50
    """
    if not tokens:
        raise InputError("the prompt has no tokens", hint="give it at least one")
    low, high = min(tokens), max(tokens)
    if low < 0 or high >= vocab:
        raise InputError(f"the token {low if low < 0 else high} is not in the vocabulary of {vocab}")


def check_request(r: Request, *, vocab: int, context: int, longest: int) -> None:
    """Refuses a request that a model with such a context cannot answer; `longest` is the largest that it could have.

    >>> check_request(Request([1, 2], SamplingParams(), 2), vocab=50, context=4, longest=64)
    """
    check_prompt(r.prompt, vocab)
    r.sampling.check_tokens(vocab)
    counts: dict[str, Any] = {"prompt_tokens": len(r.prompt), "max_tokens": r.max_tokens, "context": context}
    if number("max_tokens", r.max_tokens, whole=True) < 1:
        raise InputError(f"max_tokens is {r.max_tokens}", hint="ask for at least 1 token", **counts)
    room = context - len(r.prompt)
    if r.max_tokens > room:
        fewer = f"ask for at most {room} tokens, " if room > 0 else ""
        needed = len(r.prompt) + r.max_tokens
        raise InputError(
            f"{len(r.prompt)} prompt tokens and {r.max_tokens} new ones make {needed}, the context holds {context}",
            hint=f"{fewer}shorten the prompt, or use a larger context (this model: up to {longest})",
            **counts,
        )


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

    `records` has one for each request.
    """

    prompt_tokens: int = 0
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0
    records: list[SequenceRecord] = field(default_factory=list)

    @property
    def reused(self) -> list[int]:
        """For each request how many tokens of its prompt were in the cache."""
        return [record.reused for record in self.records]

    @property
    def drafts(self) -> dict[int, Acceptance]:
        """For those requests that speculate, how many drafts were accepted."""
        return {k: record.drafts for k, record in enumerate(self.records) if record.drafts is not None}


def check_order(priority: Any, client: Any, deadline: Any) -> None:
    """Refuses what cannot order the calls of an engine.

    >>> check_order(0, "me", -1.0)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] deadline is -1.0
      hint: give a number of seconds above 0
    """
    number("priority", priority, whole=True)
    if not isinstance(client, str):
        raise InputError(f"client is {client!r:.60}", hint="give the client's name as a text", name="client")
    if deadline is not None and not number("deadline", deadline, whole=False) > 0:
        raise InputError(f"deadline is {deadline}", hint="give a number of seconds above 0", name="deadline")
