"""Sequences while they run: the slots of the cache, requests in them, and token steps that were started together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pumice.llm.requests import Request

Array = np.ndarray[Any, Any]


@dataclass
class CacheSlot:
    """One sequence of the cache: the tokens whose keys and values it holds.

    `length` is how long the whole prompt was when it ran: some rotary scalings turn all its keys by that. A token that was
    decoded after it turned by its own length.
    """

    index: int
    tokens: list[int] = field(default_factory=list)
    length: int = 0
    busy: bool = False


@dataclass
class LiveSequence:
    """A request while it runs. `count` tokens were handed out; `ahead` token steps were started beyond them."""

    index: int
    request: Request
    slot: CacheSlot
    last: int = -1
    count: int = 0
    ahead: int = 0
    done: bool = False
    logprobs: tuple[float, tuple[tuple[int, float], ...]] | None = None
    restart: int | None = None  # tokens that the cache may hold before it is recomputed

    @property
    def room(self) -> int:
        """Token steps that may still be started."""
        left = self.request.max_tokens - self.count - self.ahead
        return left if self.restart is None else min(left, self.restart - len(self.slot.tokens))

    @property
    def restarts_now(self) -> bool:
        """Whether the next token is the first beyond the length at which the cache is recomputed."""
        return self.restart is not None and len(self.slot.tokens) == self.restart and not self.ahead

    def allowed(self) -> Array | None:
        """The mask of the tokens that may come next, where the request has a grammar."""
        if self.request.grammar is None:
            return None
        answer = self.slot.tokens[len(self.request.prompt) :]
        return np.asarray(self.request.grammar.mask([*answer, self.last] if self.count else []))

    def take(self, token: int, logprobs: tuple[float, tuple[tuple[int, float], ...]] | None) -> None:
        """The next token; if later token steps are in flight, the first of them has run it."""
        self.last, self.logprobs = token, logprobs
        self.count += 1
        if self.ahead:
            self.ahead -= 1
            if self.ahead:
                self.slot.tokens[len(self.slot.tokens) - self.ahead] = token

    def forget_ahead(self) -> None:
        """Cut off the token steps whose tokens were not taken."""
        del self.slot.tokens[len(self.slot.tokens) - self.ahead :]
        self.ahead = 0


@dataclass(frozen=True)
class Burst:
    """Token steps that were started together: `results` waits for what the last of them brings."""

    live: tuple[LiveSequence, ...]
    token_steps: int
    logprobs: bool
    results: Callable[[], Sequence[Array]]


def logprobs_in(results: Sequence[Array], row: int) -> tuple[float, tuple[tuple[int, float], ...]] | None:
    """The log-probability of a row's token and its alternatives, None where they were not requested."""
    if not results:
        return None
    chosen, values, ids = results
    return float(chosen[row]), tuple((int(i), float(v)) for i, v in zip(ids[row], values[row], strict=True))
