"""LanguageModel: what `pm.load` gives for a causal model: generate, stream, logits."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np

from pumice.backends.base import Device
from pumice.backends.select import open_device
from pumice.errors import ClosedError, InputError
from pumice.llm.engine import Array, Engine
from pumice.llm.requests import Request, SamplingParams, Timings, TokenEvent, number
from pumice.text.stream import TextStream
from pumice.text.template import ChatTemplate
from pumice.text.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]


@dataclass
class Generation:
    """An answer. `finish_reason` is "stop" (the model or a stop string ended it), "length" or "cancelled"."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    logprobs: list[dict[str, Any]] | None = None

    def __str__(self) -> str:
        return self.text


class LanguageModel:
    """A causal language model on a device. A context manager; `close()` frees it.

    `generate` and `stream` take a text, which becomes a chat message where the model has a chat template (`raw=True`
    leaves it as it is), or a list of {"role", "content"} messages.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        info: Mapping[str, Any],
        load_s: float,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer, self.template = tokenizer, template
        self.info = dict(info)
        self.load_s = load_s
        self._defaults = dict(defaults or {})
        self._engine: Engine | None = engine

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise ClosedError("the model is closed", hint="load it again")
        return self._engine

    # -- prompts ----------------------------------------------------------------------------------------------------
    def encode_prompt(self, prompt: str | Messages | Sequence[int], *, system: str | None = None, raw: bool = False) -> list[int]:
        """The token ids of a prompt: a text, messages, or ids as they are."""
        if isinstance(prompt, str):
            if raw or self.template is None:
                if system is not None and not raw:
                    raise InputError("this model has no chat template, so there is no place for a system text")
                return self.tokenizer.encode(prompt)
            prompt = [{"role": "user", "content": prompt}]
        if isinstance(prompt, bytes) or not isinstance(prompt, Sequence | np.ndarray):
            raise InputError(f"the prompt is {type(prompt).__name__}", hint="give a text, messages, or token ids")
        items = list(prompt)
        if items and all(isinstance(t, int | np.integer) and not isinstance(t, bool) for t in items):
            return [int(t) for t in items]  # type: ignore[call-overload]
        return self._encode_messages(items, system)

    def _encode_messages(self, messages: Sequence[Any], system: str | None) -> list[int]:
        if self.template is None:
            raise InputError("this model has no chat template", hint="pass a plain text with raw=True")
        for k, m in enumerate(messages):
            if not isinstance(m, Mapping) or not isinstance(m.get("role"), str) or "content" not in m:
                raise InputError(f"message {k} is no {{'role': …, 'content': …}}", hint="roles are system, user, assistant")
        if not messages:
            raise InputError("there are no messages", hint='pass [{"role": "user", "content": "…"}]')
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        # The template writes the special tokens itself; adding them again would double the first one.
        return self.tokenizer.encode(self.template.render(messages, add_generation_prompt=True), add_special=False)

    # -- answers ----------------------------------------------------------------------------------------------------
    def generate(
        self, prompt: str | Messages | Sequence[int], *, n: int = 1, on_text: Callable[[str], None] | None = None, **options: Any
    ) -> Any:
        """One answer (a `Generation`), or a list of `n`.

        Options: max_tokens, temperature, top_k, top_p, min_p, repeat_penalty, seed, stop, logprobs, system, raw, cancelled.
        """
        if number("n", n, whole=True) < 1:
            raise InputError(f"n is {n}", hint="ask for at least 1 answer")
        if n == 1:
            run = self._start([prompt], 1, options)
            for _, piece in run.pieces():
                if on_text is not None and piece:
                    on_text(piece)
            return run.answers[0]
        run = self._start([prompt], n, options)
        for _ in run.pieces():
            pass
        return run.answers

    def stream(self, prompt: str | Messages | Sequence[int], **options: Any) -> Iterator[str]:
        """The answer piece by piece, whole characters only; closing the iterator stops the model."""
        for _, piece in self._start([prompt], 1, options).pieces():
            if piece:
                yield piece

    def _start(self, prompts: Sequence[Any], n: int, options: Mapping[str, Any]) -> _Run:
        given = {**self._defaults, **{k: v for k, v in options.items() if v is not None}}
        unknown = [k for k in options if k not in _OPTIONS]
        if unknown:
            raise InputError(f"there is no option {unknown[0]!r}", hint="options: " + " ".join(sorted(_OPTIONS)))
        ids = [self.encode_prompt(p, system=given.get("system"), raw=bool(given.get("raw"))) for p in prompts]
        seed = int(number("seed", given["seed"], whole=True)) if "seed" in given else secrets.randbits(32)
        SamplingParams(seed=seed)  # refused here rather than wrapped below
        numbers = {k: given[k] for k in _NUMBERS if k in given}
        room = self.engine.context - max(len(i) for i in ids)
        limit = given["max_tokens"] if "max_tokens" in given else max(1, min(512, room))
        stop_ids = frozenset() if given.get("ignore_eos") else self.tokenizer.eos_ids
        requests = [
            Request(tokens, SamplingParams(**numbers, seed=(seed + k) % 2**64), limit, stop_ids)
            for tokens in ids
            for k in range(n)
        ]
        stop = given.get("stop") or ()
        if not isinstance(stop, Iterable):
            raise InputError(f"stop is {stop!r}", hint="give a text, or several in a list")
        return _Run(self, requests, (stop,) if isinstance(stop, str) else tuple(stop), given.get("cancelled"))

    def logits(self, tokens: Sequence[int]) -> Array:
        """Logits of every position of a token sequence, float32 [T, vocab]."""
        return self.engine.logits([number("a token", t, whole=True) for t in tokens])

    # -- life -------------------------------------------------------------------------------------------------------
    def describe_device(self) -> dict[str, Any]:
        """The device's name and kind."""
        device = self.engine.device
        return {"name": device.name, "target": device.caps.target, "software": device.caps.software}

    def reopen(self, device: str | Device | None = None) -> None:
        """Start over on a new device after this one was lost; weights are read again from their files, which must still be there.

        Answers that were under way are gone; the next ones are as if the model had just been loaded.
        """
        self.engine.reopen(open_device(device) if isinstance(device, str) else device)

    def close(self) -> None:
        """Free the device memory; a second call does nothing."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


_NUMBERS = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "logprobs")
_OPTIONS = {*_NUMBERS, "max_tokens", "seed", "stop", "system", "raw", "cancelled", "ignore_eos"}


class _Run:
    """One call: its requests, and their answers as they grow."""

    def __init__(
        self, model: LanguageModel, requests: Sequence[Request], stop: tuple[str, ...], cancelled: Callable[[], bool] | None
    ) -> None:
        self.model, self.requests = model, requests
        self.cancelled = cancelled or (lambda: False)
        self.answers = [Generation(seed=r.sampling.seed) for r in requests]
        self._streams = [TextStream(model.tokenizer.token_bytes, stop) for _ in requests]
        self._timings = Timings()
        self._started = time.perf_counter()
        self._first: float | None = None

    def pieces(self) -> Iterator[tuple[int, str]]:
        """(request, text) as text becomes certain; at the end the answers are complete."""
        open_requests = set(range(len(self.requests)))
        # Requests beyond the slots wait for their turn.
        slots = len(self.model.engine._slots)
        try:
            for first in range(0, len(self.requests), slots):
                group = range(first, min(first + slots, len(self.requests)))
                stopped: set[int] = set()
                pending = [self.requests[i] for i in group]
                events = self.model.engine.stream(pending, cancelled=self.cancelled, timings=self._timings)
                try:
                    for event in events:
                        i = first + event.request
                        if i in stopped:
                            continue
                        piece, done = self._take(i, event)
                        yield i, piece
                        if done:
                            open_requests.discard(i)
                            stopped.add(i)
                            if stopped >= set(group):
                                break
                finally:
                    # By name: an error's traceback would keep the stream, and with it the engine, in use.
                    events.close()
            for i in open_requests:
                # What might have become a stop string did not.
                piece = self._streams[i].finish()
                self.answers[i].text += piece
                yield i, piece
        finally:
            for i in open_requests:
                self.answers[i].finish_reason = self.answers[i].finish_reason or "cancelled"
            self._finish()

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

    def _finish(self) -> None:
        t = self._timings
        total = time.perf_counter() - self._started
        rates = {
            "load_s": self.model.load_s,
            "first_token_s": self._first or 0.0,
            "total_s": total,
            "prefill_s": t.prefill_s,
            "decode_s": t.decode_s,
            "prefill_tok_s": t.prompt_tokens / t.prefill_s if t.prefill_s else 0.0,
            "decode_tok_s": t.decode_tokens / t.decode_s if t.decode_s else 0.0,
        }
        for r, a in zip(self.requests, self.answers, strict=True):
            a.timings = rates
            a.usage = {
                "prompt_tokens": len(r.prompt),
                "completion_tokens": len(a.tokens),
                "cached_tokens": t.reused_tokens,
            }
