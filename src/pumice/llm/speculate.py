"""Speculation: drafts of the next tokens, which one token step verifies together; what comes out is what plain sampling gives.

A verifying token step runs a sequence's last token and k drafts, and samples after each of them, by the rules and the number u
that the token at that place has anyway (docs/sampling.md). The first sampled token is right. As long as a sampled token equals
the draft at its place, the next one was sampled after the right tokens, so it is right too; what follows a draft that differs is
dropped. Every token that is taken is thus the one that a token step of its own would have sampled, whatever the drafts are: they
decide only how many tokens a step gives.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import field
from operator import index
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from pumice.core.records import dataclass
from pumice.errors import InputError, PumiceError
from pumice.llm.graphs import check_verifiable
from pumice.llm.requests import Request, SamplingParams, check_sizes
from pumice.models.rope import rotary_regime

if TYPE_CHECKING:
    from pumice.llm.engine import Engine
    from pumice.llm.live import LiveSequence
    from pumice.llm.model import LanguageModel
    from pumice.models.config import ModelArchConfig
    from pumice.text.tokenizer import Tokenizer

# Tokens that are drafted at once at most.
MOST_DRAFTS = 8
# Tokenizers of draft models that were found to have the tokens of a target's; comparing all of them takes a while.
_SAME: WeakKeyDictionary[Tokenizer, WeakSet[Tokenizer]] = WeakKeyDictionary()
# Which engines draft for which is checked and noted by one thread at a time.
_LINKS = threading.Lock()


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
        self.engine, self.files = model.engine, model.files

    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        count = min(count, self.engine.context - len(tokens))
        if count < 1:
            return []
        return [event.token for event in self.engine.stream([Request(list(tokens), SamplingParams(temperature=0), count)])]


def check_vocabularies(draft: LanguageModel, target: LanguageModel) -> None:
    """Refuses a draft model whose tokens are others than the target's."""
    sizes = draft.engine.cfg.vocab, target.engine.cfg.vocab
    if sizes[0] != sizes[1]:
        raise InputError(
            f"the draft model has a vocabulary of {sizes[0]}, the model one of {sizes[1]}",
            hint="use a smaller model of the same family",
            name="draft",
        )
    if draft.tokenizer in _SAME.get(target.tokenizer, ()):
        return
    for token in range(sizes[1]):
        ours, theirs = draft.tokenizer.token_text(token), target.tokenizer.token_text(token)
        if ours != theirs:
            raise InputError(
                f"the token {token} is {ours!r} in the draft model, {theirs!r} in the model",
                hint="use a smaller model of the same family",
                name="draft",
                token=token,
            )
    _SAME.setdefault(target.tokenizer, WeakSet()).add(draft.tokenizer)


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
    most: int = MOST_DRAFTS
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


# --- in an engine ---


def check_speculation(engine: Engine, request: Request) -> None:
    """Refuses drafts that an engine cannot verify for a request."""
    if not callable(getattr(request.draft, "draft", None)):
        raise InputError(f"the drafter is {request.draft!r:.60}", hint="give an object with draft(tokens, count)", name="draft")
    check_verifiable(engine.arch, engine.cfg)
    if isinstance(request.draft, DraftModel):
        with _LINKS:
            # An engine waits for the one that drafts for it: in a circle they would wait for each other.
            if any(other is engine for other in _drafting(request.draft.engine)):
                hint = "load the model that drafts once more, or use another one"
                raise InputError("the draft model waits for drafts of this model itself", hint=hint, name="draft")
            engine.draft_engines.add(request.draft.engine)


def _drafting(engine: Engine) -> Iterator[Engine]:
    """An engine and those that draft for it, and for those."""
    yield engine
    for other in list(engine.draft_engines):
        yield from _drafting(other)


def draft_for(live: LiveSequence, cfg: ModelArchConfig) -> list[int]:
    """Drafts of a sequence's next tokens, as many as one token step can verify."""
    assert live.speculator is not None
    request, tokens = live.request, [*live.request.prompt, *live.tokens]
    room = min(request.max_tokens - len(live.tokens), MOST_DRAFTS + 1)
    # All tokens of a step turn by the same length; plain token steps turn each by its own.
    first = rotary_regime(cfg, max(live.turned_by, len(tokens)))
    while room > 1 and rotary_regime(cfg, max(live.turned_by, len(tokens) + room - 1)) != first:
        room -= 1
    try:
        drafts = [index(t) for t in live.speculator.propose(tokens, room)[: max(room - 1, 0)]]
    except PumiceError:
        raise
    except Exception as e:
        hint = "its draft(tokens, count) must give a list of tokens after any others"
        raise InputError(
            f"the drafter failed after {len(tokens)} tokens: {type(e).__name__}: {e}", hint=hint, name="draft"
        ) from e
    wrong = next((t for t in drafts if not 0 <= t < cfg.vocab), None)
    if wrong is not None:
        raise InputError(f"the token {wrong!r} was drafted, which is not in the vocabulary of {cfg.vocab}", name="draft")
    # Nothing comes after a token that ends the answer.
    end = next((k for k, t in enumerate(drafts) if t in request.stop_ids), len(drafts))
    return drafts[: end + 1]
