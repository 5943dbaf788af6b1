"""Answers as they are generated: the text of each request from the engine's tokens, in pieces labelled by answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pumice.llm.requests import Request, Timings, TokenEvent
from pumice.text.stream import TextStream

if TYPE_CHECKING:
    from pumice.llm.model import LanguageModel

_SHOWN = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty")


@dataclass
class Generation:
    """An answer. `finish_reason` is "stop" (the model or a stop string ended it), "length" or "cancelled".

    `sampling` holds the numbers that were used.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    logprobs: list[dict[str, Any]] | None = None
    sampling: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


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
    """One call: its requests, `n` for each prompt, and their answers as they grow."""

    def __init__(
        self,
        model: LanguageModel,
        requests: Sequence[Request],
        *,
        n: int,
        stop: tuple[str, ...],
        cancelled: Callable[[], bool] | None,
    ) -> None:
        self.model, self.requests, self.n = model, requests, n
        self.cancelled = cancelled or (lambda: False)
        self.answers = [Generation(seed=r.sampling.seed, sampling=_shown(r)) for r in requests]
        self._streams = [TextStream(model.tokenizer.token_bytes, stop) for _ in requests]
        self._timings = Timings()
        self._started = time.perf_counter()
        self._first: float | None = None

    def pieces(self) -> Iterator[Piece]:
        """Text as soon as it is final, and the last piece of each answer when the answer is complete."""
        open_requests = set(range(len(self.requests)))
        # Requests beyond the slots wait for their turn.
        slots = len(self.model.engine._slots)
        try:
            for first in range(0, len(self.requests), slots):
                group = range(first, min(first + slots, len(self.requests)))
                pending = [self.requests[i] for i in group]
                # A group that was cancelled may not have started all of its requests.
                self._timings.reused += [0] * (first - len(self._timings.reused))
                events = self.model.engine.stream(pending, cancelled=self.cancelled, timings=self._timings)
                try:
                    for event in events:
                        i = first + event.request
                        if i not in open_requests:
                            continue
                        text, done = self._take(i, event)
                        if done:
                            open_requests.discard(i)
                            yield self._last(i, text)
                            if not open_requests.intersection(group):
                                break
                        elif text:
                            yield Piece(text, prompt=i // self.n, choice=i % self.n)
                finally:
                    # By name: an error's traceback would keep the stream, and with it the engine, in use.
                    events.close()
            for i in sorted(open_requests):
                # Text held back as a possible stop string turned out not to be one.
                rest = self._streams[i].finish()
                self.answers[i].text += rest
                self.answers[i].finish_reason = "cancelled"
                yield self._last(i, rest)
        finally:
            for i in open_requests:
                self.answers[i].finish_reason = self.answers[i].finish_reason or "cancelled"
            for i in range(len(self.requests)):
                self._complete(i)

    def _last(self, i: int, text: str) -> Piece:
        self._complete(i)
        return Piece(text, prompt=i // self.n, choice=i % self.n, answer=self.answers[i])

    def _take(self, i: int, event: TokenEvent) -> tuple[str, bool]:
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
            answer.finish_reason = "stop"
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
        t, answer = self._timings, self.answers[i]
        answer.timings = {
            "load_s": self.model.load_s,
            "first_token_s": self._first or 0.0,
            "total_s": time.perf_counter() - self._started,
            "prefill_s": t.prefill_s,
            "decode_s": t.decode_s,
            "prefill_tok_s": t.prompt_tokens / t.prefill_s if t.prefill_s else 0.0,
            "decode_tok_s": t.decode_tokens / t.decode_s if t.decode_s else 0.0,
        }
        answer.usage = {
            "prompt_tokens": len(self.requests[i].prompt),
            "completion_tokens": len(answer.tokens),
            "cached_tokens": t.reused[i] if i < len(t.reused) else 0,
        }


def _shown(r: Request) -> dict[str, float]:
    numbers = asdict(r.sampling)
    return {**{k: numbers[k] for k in _SHOWN}, "max_tokens": r.max_tokens}
