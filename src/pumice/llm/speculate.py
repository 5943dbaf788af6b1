"""Speculation: drafts of the next tokens, which one token step verifies together; what comes out is what plain sampling gives.

A verifying token step runs a sequence's last token and k drafts, and samples after each of them, by the rules and the number u
that the token at that place has anyway (docs/sampling.md). The first sampled token is right. As long as a sampled token equals
the draft at its place, the next one was sampled after the right tokens, so it is right too; what follows a draft that differs is
dropped. Every token that is taken is thus the one that a token step of its own would have sampled, whatever the drafts are: they
decide only how many tokens a step gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pumice.errors import InputError
from pumice.llm.requests import Request, SamplingParams, check_sizes

if TYPE_CHECKING:
    from pumice.llm.model import LanguageModel


class Drafter(Protocol):
    """Guesses how sequences go on."""

    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that may follow `tokens`."""


class PromptLookup:
    """Drafts what followed when the last few tokens came before in the same sequence; good for answers that quote.

    >>> PromptLookup().draft([7, 1, 2, 3, 4, 9, 1, 2], 3)
    [3, 4, 9]
    >>> PromptLookup().draft([1, 2, 3], 3)
    []
    """

    def __init__(self, longest: int = 3, shortest: int = 1) -> None:
        """Looks for the last `longest` tokens first, then for fewer, down to `shortest`."""
        check_sizes(longest=longest, shortest=shortest)
        if shortest > longest:
            raise InputError(f"shortest is {shortest}", hint=f"it must be at most longest, {longest}", name="shortest")
        self.longest, self.shortest = longest, shortest

    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        held = np.asarray(tokens, np.int32)
        text = held.tobytes()
        for size in range(min(self.longest, len(held) - 1), self.shortest - 1, -1):
            # The latest place before the end; bytes may agree off the borders of tokens.
            at = text.rfind(text[-4 * size :], 0, -4)
            while at % 4 and at > 0:
                at = text.rfind(text[-4 * size :], 0, at + 4 * size - 1)
            if at >= 0 and at % 4 == 0:
                return [int(t) for t in held[at // 4 + size :][:count]]
        return []


class DraftModel:
    """Drafts the most likely tokens of a second, smaller model with the same vocabulary."""

    def __init__(self, model: LanguageModel, target: LanguageModel) -> None:
        """`model` drafts for `target`; both stay open as long as they are used."""
        check_vocabularies(model, target)
        self._engine = model.engine

    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        count = min(count, self._engine.context - len(tokens))
        if count < 1:
            return []
        return [event.token for event in self._engine.stream([Request(list(tokens), SamplingParams(temperature=0), count)])]


def check_vocabularies(draft: LanguageModel, target: LanguageModel) -> None:
    """Refuses a draft model whose tokens are others than the target's."""
    sizes = draft.engine.cfg.vocab, target.engine.cfg.vocab
    if sizes[0] != sizes[1]:
        raise InputError(
            f"the draft model has a vocabulary of {sizes[0]}, the model one of {sizes[1]}",
            hint="use a smaller model of the same family",
            name="draft",
        )
    for token in range(sizes[1]):
        ours, theirs = draft.tokenizer.token_text(token), target.tokenizer.token_text(token)
        if ours != theirs:
            raise InputError(
                f"the token {token} is {ours!r} in the draft model, {theirs!r} in the model",
                hint="use a smaller model of the same family",
                name="draft",
                token=token,
            )


def confirmed(sampled: Sequence[int], drafts: Sequence[int]) -> list[int]:
    """The tokens that a verifying step gives: the sampled ones up to the first that is not the draft at its place, and that one.

    >>> confirmed([5, 6, 8, 3], [5, 6, 7]), confirmed([5, 6, 7, 3], [5, 6, 7]), confirmed([4], [])
    ([5, 6, 8], [5, 6, 7, 3], [4])
    """
    right = next((k for k, draft in enumerate(drafts) if sampled[k] != draft), len(drafts))
    return list(sampled[: right + 1])


@dataclass
class Acceptance:
    """How speculation went: verifying `steps`, tokens that were `drafted`, and those of them that were `accepted`.

    >>> seen = Acceptance()
    >>> seen.note(drafted=4, accepted=3)
    >>> seen.rate, seen.tokens_per_step
    (0.75, 4.0)
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    def note(self, *, drafted: int, accepted: int) -> None:
        """Counts one verifying step."""
        self.steps += 1
        self.drafted += drafted
        self.accepted += accepted

    @property
    def rate(self) -> float:
        """Which share of the drafts was accepted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step gave: those accepted, and the one after them."""
        return 1.0 + self.accepted / self.steps if self.steps else 0.0


@dataclass
class Speculator:
    """The drafts of one sequence: fewer of them while they are refused, up to `most` while they are accepted.

    >>> s = Speculator(PromptLookup(), most=4)
    >>> drafts = s.propose([1, 2, 3, 1, 2], room=9)
    >>> drafts, s.take([3, 1, 5], drafts)
    ([3, 1, 2], [3, 1, 5])
    >>> s.seen
    Acceptance(steps=1, drafted=3, accepted=2)
    """

    drafter: Drafter
    most: int = 8
    seen: Acceptance = field(default_factory=Acceptance)
    _width: int = 0

    def __post_init__(self) -> None:
        check_sizes(most=self.most)
        self._width = self.most

    def propose(self, tokens: Sequence[int], room: int) -> list[int]:
        """Drafts after `tokens`; with the token sampled after them they make at most `room` new tokens."""
        count = min(self._width, room - 1)
        return self.drafter.draft(tokens, count) if count > 0 else []

    def take(self, sampled: Sequence[int], drafts: Sequence[int]) -> list[int]:
        """The tokens that a verifying step of these drafts gives."""
        found = confirmed(sampled, drafts)
        accepted = len(found) - 1
        self.seen.note(drafted=len(drafts), accepted=accepted)
        self._width = min(self.most, self._width + 1) if accepted == len(drafts) else max(1, accepted + 1)
        return found


def drafter_of(given: Any, target: LanguageModel) -> Drafter:
    """The drafter that an option names: "lookup", a model that drafts, or a drafter.

    >>> drafter_of("lookup", None).longest
    3
    """
    if given == "lookup":
        return PromptLookup()
    if hasattr(given, "engine") and hasattr(given, "tokenizer"):
        return DraftModel(given, target)
    if callable(getattr(given, "draft", None)):
        found: Drafter = given
        return found
    raise InputError(
        f"the drafter is {given!r:.60}", hint='give "lookup", a model, or an object with draft(tokens, count)', name="draft"
    )
