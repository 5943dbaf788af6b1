"""Answers as they are generated: the text of each request from the engine's tokens, in pieces labelled by answer."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

from pumice import hooks
from pumice.core.precisions import Precision
from pumice.core.records import dataclass
from pumice.errors import InputError
from pumice.hooks import ErrorEvent, GenerateEvent, Operation, QueueWaitEvent
from pumice.llm.live import EventQueue
from pumice.llm.receipts import AnswerFacts, CallFacts
from pumice.llm.records import SequenceRecord
from pumice.llm.requests import Request, Timings, TokenEvent, number
from pumice.text.stream import TextStream

if TYPE_CHECKING:
    from pumice.llm.engine import Engine
    from pumice.llm.model import LanguageModel
    from pumice.llm.response_cache import KeptAnswers
    from pumice.llm.speculate import Drafter
    from pumice.receipts.receipt import Receipt

_SHOWN = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty")


@dataclass
class Generation:
    """An answer. `finish_reason` is "stop" (the model or a stop string ended it), "length" or "cancelled".

    `sampling` holds the numbers that were used, `precision` is that of the model: "exact" or "fast". `cached`: it is from a
    response cache, and nothing ran for it.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    logprobs: list[dict[str, Any]] | None = None
    sampling: dict[str, float] = field(default_factory=dict)
    precision: Precision = "exact"
    # The stop string that ended it, None if something else did.
    stop_string: str | None = None
    cached: bool = False

    def __str__(self) -> str:
        return self.text

    # Not a field: what a receipt is made of is no part of the answer.
    _facts = cast("AnswerFacts | None", None)

    @cached_property
    def receipt(self) -> Receipt:
        """What proves the answer: `answer.receipt.save(file)` signs and writes it. It is made now, from facts of the call.

        >>> Generation("Hi").receipt
        Traceback (most recent call last):
        pumice.errors.InputError: [input] the answer has no receipt
          hint: answers of a model have one, once they are complete
        >>> Generation("Hi", finish_reason="stop", cached=True).receipt
        Traceback (most recent call last):
        pumice.errors.InputError: [input] the answer is from the response cache: nothing ran that a receipt could prove
          hint: ask again with cache=False
        """
        if self.cached:
            message = "the answer is from the response cache: nothing ran that a receipt could prove"
            raise InputError(message, hint="ask again with cache=False", name="cache")
        if self._facts is None or not self.finish_reason:
            raise InputError("the answer has no receipt", hint="answers of a model have one, once they are complete")
        return self._facts.receipt(self)

    def __getstate__(self) -> dict[str, Any]:
        """What is copied or sent to another process: a receipt belongs to the process that has seen the run."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_facts", "receipt")}


class Piece(str):
    """A piece of an answer's text. The last one of an answer, which may be empty, also has the whole `answer`.

    `prompt` is the number of the prompt in its batch, `choice` that of the answer among the `n` to the same prompt.

    >>> piece = Piece("Hi", answer=Generation("Hi", finish_reason="stop"))
    >>> piece + "!", piece.finish_reason, Piece("H").finish_reason
    ('Hi!', 'stop', None)
    """

    prompt: int
    choice: int
    answer: Generation | None

    def __new__(cls, text: str, *, prompt: int = 0, choice: int = 0, answer: Generation | None = None) -> Piece:
        piece = super().__new__(cls, text)
        piece.prompt, piece.choice, piece.answer = prompt, choice, answer
        return piece

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended; None while it goes on."""
        return self.answer.finish_reason if self.answer else None

    @property
    def usage(self) -> dict[str, int] | None:
        """Tokens of prompt and answer, with the last piece."""
        return self.answer.usage if self.answer else None

    @property
    def logprobs(self) -> list[dict[str, Any]] | None:
        """Log-probabilities of all tokens of the answer, with the last piece, if they were requested."""
        return self.answer.logprobs if self.answer else None


class Run:
    """One call: its requests, `n` for each prompt, and their answers as they grow from the events of an engine.

    `asked` are the requests that an engine answers: all but those whose answers a cache has. Hooks are called by `follow_up`,
    which the reader of the answers calls without any lock.
    """

    def __init__(
        self,
        model: LanguageModel,
        engine: Engine,
        requests: Sequence[Request],
        *,
        n: int,
        stop: tuple[str, ...],
        cancelled: Callable[[], bool] | None,
        operation: Operation = "generate",
    ) -> None:
        self.model, self.engine, self.requests, self.n = model, engine, requests, n
        self.cancelled, self._operation = cancelled, operation
        precision = engine.weights.precision
        self.answers = [Generation(seed=r.sampling.seed, sampling=_shown(r), precision=precision) for r in requests]
        self.timings = Timings()
        self._open = set(range(len(requests)))
        self._streams = [TextStream(model.tokenizer.token_bytes, stop) for _ in requests]
        self._started = time.perf_counter()
        self._first: float | None = None
        # The number of the answer that each sequence of the engine is for, and what the cache has of the others.
        self._numbers = list(range(len(requests)))
        self._found: dict[int, list[TokenEvent]] = {}
        self._keeping: KeptAnswers | None = None
        self._due: deque[Callable[[], None]] = deque()
        # Whether the engine has taken the call; answers whose wait for a slot was looked at; whether the call failed.
        self.taken = False
        self._waited: set[int] = set()
        self._failed = False

    @property
    def asked(self) -> list[Request]:
        """The requests that run."""
        return [self.requests[i] for i in self._numbers]

    def use_cache(self, keeping: KeptAnswers) -> None:
        """Takes the answers that a cache has, and lets it keep the others."""
        self._keeping, self._found = keeping, keeping.find(self.requests)
        self._numbers = [i for i in self._numbers if i not in self._found]
        for i in self._found:
            # It has no receipt, as nothing runs.
            self.answers[i].cached, self.answers[i]._facts = True, None

    def keep_facts(self, given: Mapping[str, Any], draft: Drafter | None, prompts: Sequence[Any]) -> None:
        """Lets the answers have receipts: of a call with these options, and with `prompts` as they were given."""
        files = self.model.files
        if files is None:
            return
        call = CallFacts.of(files, self.engine, given, draft, len(self.requests))
        for k, (answer, request) in enumerate(zip(self.answers, self.requests, strict=True)):
            answer._facts = AnswerFacts.of(call, prompts[k // self.n], request)

    def pieces(self) -> Iterator[Piece]:
        """Text as soon as it is final, and the last piece of each answer when the answer is complete."""
        queue = EventQueue(self.asked, self.timings, patient=True)
        try:
            self.engine.open(queue)
            self.taken = True
            for piece in self._all_pieces(queue):
                if self._due:
                    self.follow_up()
                if piece is not None:
                    yield piece
        except Exception as e:
            self.fail(e)
            raise
        finally:
            # By name: an error's traceback would keep the queue open.
            queue.closed = True
            self.engine.end(queue)
            self.complete()
            self.follow_up()

    def _all_pieces(self, queue: EventQueue) -> Iterator[Piece | None]:
        yield from self.found()
        for event in self.engine.events(queue, self.cancelled):
            yield self.take(event, queue)
        yield from self.rest()

    def found(self) -> Iterator[Piece]:
        """The pieces of answers that the cache had: the same as when the model made them."""
        for i, events in self._found.items():
            for event in events if i in self._open else ():
                piece, _ = self._take(i, event)
                if piece is not None:
                    yield piece

    def take(self, event: TokenEvent, queue: EventQueue) -> Piece | None:
        """What an event adds to the text of its answer, if anything."""
        i = self._numbers[event.request]
        if i not in self._open:
            return None
        self._note_wait(i)
        if self._keeping is not None:
            self._keeping.note(i, event)
        piece, done = self._take(i, event)
        if done:
            if event.finish is None:  # a stop string
                self.engine.end(queue, event.request)
            if self._keeping is not None:
                self._due.append(partial(self._keeping.keep, i, self._record(i)))
        return piece

    def rest(self) -> Iterator[Piece]:
        """The last pieces of answers that end before the model or a limit ended them."""
        for i in sorted(self._open):
            # Text held back as a possible stop string turned out not to be one.
            rest = self._streams[i].finish()
            self.answers[i].text += rest
            self.answers[i].finish_reason = "cancelled"
            self._open.discard(i)
            yield self._last(i, rest)

    # -- hooks ------------------------------------------------------------------------------------------------------
    def fail(self, error: BaseException) -> None:
        """The call ends with an error, which is reported once, however often it is raised."""
        if not self._failed and isinstance(error, Exception) and hooks.wanted(ErrorEvent):
            self._due.append(partial(hooks.emit, ErrorEvent(self._operation, self.model.name, error)))
        self._failed = True

    def follow_up(self) -> None:
        """Does what is due: calls hooks, and lets the cache keep answers. The caller holds no lock."""
        while self._due:
            try:
                work = self._due.popleft()
            except IndexError:  # another thread was quicker
                return
            work()

    def _note_wait(self, i: int) -> None:
        """An answer has its first token, or its end: whether it waited for a slot before."""
        if i in self._waited or not self.taken:
            return
        self._waited.add(i)
        record = self._record(i)
        # The answers of one beam search wait together.
        if record is not None and not self.requests[i].choice and hooks.wanted(QueueWaitEvent):
            waiting = self.engine.statistics.waiting
            event = QueueWaitEvent(self.model.name, 1e3 * record.queue_s, waiting, started=bool(record.started))
            self._due.append(partial(hooks.emit, event))

    def _note_end(self, i: int) -> None:
        """An answer is complete."""
        if not self._failed and hooks.wanted(GenerateEvent):
            answer = self.answers[i]
            event = GenerateEvent(self.model.name, answer, answer.cached, 1e3 * answer.timings["queue_s"])
            self._due.append(partial(hooks.emit, event))

    # -- answers ----------------------------------------------------------------------------------------------------
    def result(self, *, batch: bool) -> Any:
        """The answers as a call gives them: one, a list of `n`, or for a `batch` of prompts a list of those."""
        n, all_ = self.n, self.answers
        found: list[Any] = all_ if n == 1 else [all_[i : i + n] for i in range(0, len(all_), n)]
        return found if batch else found[0]

    def best(self, n: int, *, batch: bool, logprobs: bool) -> Any:
        """As `result`, of the answers to each prompt the `n` whose tokens are the most likely on average, the best first."""
        found: list[Any] = []
        for k in range(0, len(self.answers), self.n):
            ranked = sorted(self.answers[k : k + self.n], key=_mean_logprob, reverse=True)[:n]
            for answer in () if logprobs else ranked:
                answer.logprobs = None
            found.append(ranked[0] if n == 1 else ranked)
        return found if batch else found[0]

    def complete(self) -> None:
        """The call is over: usage and timings of all answers."""
        left, self._open = self._open, set()
        for i in left:
            self.answers[i].finish_reason = self.answers[i].finish_reason or "cancelled"
        for i in range(len(self.requests)):
            self._complete(i)
        for i in sorted(left):
            self._note_wait(i)
            self._note_end(i)

    def _last(self, i: int, text: str) -> Piece:
        self._complete(i)
        self._note_wait(i)
        self._note_end(i)
        return Piece(text, prompt=i // self.n, choice=i % self.n, answer=self.answers[i])

    def _take(self, i: int, event: TokenEvent) -> tuple[Piece | None, bool]:
        """The piece that an event makes of an answer, and whether it is the last."""
        text, done = self._add(i, event)
        if done:
            self._open.discard(i)
            return self._last(i, text), True
        return Piece(text, prompt=i // self.n, choice=i % self.n) if text else None, False

    def _add(self, i: int, event: TokenEvent) -> tuple[str, bool]:
        if self._first is None:
            self._first = time.perf_counter() - self._started
        answer, text = self.answers[i], self._streams[i]
        ended = event.finish == "stop"
        piece = ""
        if not ended:
            answer.tokens.append(event.token)
            piece = text.push(event.token)
            if event.logprob is not None and self.requests[i].sampling.logprobs is not None:
                self._note_logprobs(answer, event)
        if text.stopped:
            answer.finish_reason, answer.stop_string = "stop", text.stop_string
        elif event.finish is not None:
            piece += text.finish()
            answer.finish_reason = event.finish
        answer.text += piece
        return piece, bool(answer.finish_reason)

    def _note_logprobs(self, answer: Generation, event: TokenEvent) -> None:
        decode = self.model.tokenizer.decode
        if answer.logprobs is None:
            answer.logprobs = []
        answer.logprobs.append(
            {
                "token": decode([event.token], skip_special=False),
                "id": event.token,
                "logprob": event.logprob,
                "top": [{"token": decode([t], skip_special=False), "id": t, "logprob": p} for t, p in event.top],
            }
        )

    def _complete(self, i: int) -> None:
        """Usage and timings of an answer, as of now."""
        t, answer, record = self.timings, self.answers[i], self._record(i)
        answer.timings = {
            "load_s": self.model.load_s,
            "first_token_s": self._first or 0.0,
            "queue_s": self._queue_s(i),
            "total_s": time.perf_counter() - self._started,
            "prefill_s": t.prefill_s,
            "decode_s": t.decode_s,
            "prefill_tok_s": t.prompt_tokens / t.prefill_s if t.prefill_s else 0.0,
            "decode_tok_s": t.decode_tokens / t.decode_s if t.decode_s else 0.0,
        }
        if record is not None and (drafts := record.drafts) is not None:
            answer.timings |= {"drafted": drafts.drafted, "accepted": drafts.accepted, "acceptance_rate": drafts.rate}
        if record is not None and answer._facts is not None:
            answer._facts.complete(record)
        answer.usage = {
            "prompt_tokens": len(self.requests[i].prompt),
            "completion_tokens": len(answer.tokens),
            "cached_tokens": 0 if record is None else record.reused,
        }

    def _record(self, i: int) -> SequenceRecord | None:
        """How the sequence of an answer ran; None for one that the cache had."""
        records = self.timings.records
        # Numbers grow, so those of what the cache had are missing in between.
        return records[bisect_left(self._numbers, i)] if records and i not in self._found else None

    def _queue_s(self, i: int) -> float:
        record = self._record(i - self.requests[i].choice)  # the answers of one beam search wait together
        return 0.0 if record is None else record.queue_s


def _mean_logprob(answer: Generation) -> float:
    """How likely the tokens of an answer are on average; one without tokens comes last."""
    found = [entry["logprob"] for entry in answer.logprobs or ()]
    return sum(found) / len(found) if found else -math.inf


def check_best_of(best_of: Any, n: int, options: Mapping[str, Any], on_text: Any) -> None:
    """Refuses to draw several answers of which the best are given, where that cannot be.

    >>> check_best_of(2, 3, {}, None)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] best_of is 2, n is 3
      hint: draw at least as many answers as are wanted
    """
    if number("best_of", best_of, whole=True) < n:
        raise InputError(f"best_of is {best_of}, n is {n}", hint="draw at least as many answers as are wanted", name="best_of")
    if options.get("beams") not in (None, 1):
        raise InputError("beams and best_of do not go together", hint="n gives the best answers of a search", name="best_of")
    if on_text is not None:
        raise InputError("which answer is best shows at the end", hint="leave on_text or best_of out", name="best_of")


def _shown(r: Request) -> dict[str, float]:
    return {**{k: getattr(r.sampling, k) for k in _SHOWN}, "max_tokens": r.max_tokens}
