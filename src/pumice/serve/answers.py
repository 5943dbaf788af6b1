"""Answers on their way from a worker to a client: pieces with their tool calls, merged over prompts, or collected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pumice.serve.frames import Frame
from pumice.serve.hosts import Call
from pumice.serve.tools import FORMATS, ToolCall, ToolCallParser


@dataclass
class AnswerPart:
    """What is new of one answer. The last part has `finish`: "stop", "length" or "tool_calls"."""

    index: int
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    stop_string: str | None = None
    completion_tokens: int = 0


@dataclass
class TokenUsage:
    """Tokens of all prompts and answers of a request."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0


@dataclass
class WholeAnswer:
    """One answer from its first to its last part."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str = "stop"
    stop_string: str | None = None


class AnswerStream:
    """The parts of all answers to a request, in the order in which they come; several calls are one prompt each.

    `started` waits for the first event of each call, which says that the request is a good one. `tools` are the names of
    functions that may be called. `facts` gets the tokens, for logs and metrics.
    """

    def __init__(self, calls: Sequence[Call], *, n: int = 1, tools: set[str] | None = None, facts: Any = None) -> None:
        self._calls, self._n, self._tools, self._facts = calls, n, tools, facts
        self.usage = TokenUsage()
        self.prompt_tokens: list[int] = [0] * len(calls)
        self._parsers: dict[int, ToolCallParser] = {}
        self._sources = [call.__aiter__() for call in calls]

    async def started(self) -> None:
        """Waits until every prompt was taken by the model; raises what refuses it."""
        try:
            for k, source in enumerate(self._sources):
                event = await anext(source)
                self.prompt_tokens[k] = event["prompt_tokens"]
                self.usage.prompt += event["prompt_tokens"]
                if self._tools is not None:
                    for choice in range(self._n):
                        self._parsers[k * self._n + choice] = ToolCallParser(FORMATS[event["tool_format"]], self._tools)
        except BaseException:
            self.cancel()
            raise
        if self._facts is not None:
            self._facts.prompt_tokens = self.usage.prompt

    def cancel(self) -> None:
        """The client wants no more."""
        for call in self._calls:
            call.cancel()

    async def parts(self) -> AsyncIterator[AnswerPart]:
        """All parts; leaving the iteration early cancels the calls."""
        try:
            async for k, event in self._events():
                if event["ev"] == "piece":  # a call that was given to a second worker starts twice
                    yield self._part(k, event)
        finally:
            self.cancel()

    async def _events(self) -> AsyncIterator[tuple[int, Frame]]:
        if len(self._sources) == 1:
            async for event in self._sources[0]:
                yield 0, event
            return
        merged: asyncio.Queue[tuple[int, Frame | BaseException | None]] = asyncio.Queue()

        async def forward(k: int) -> None:
            try:
                async for event in self._sources[k]:
                    merged.put_nowait((k, event))
                merged.put_nowait((k, None))
            except BaseException as e:
                merged.put_nowait((k, e))

        tasks = [asyncio.get_running_loop().create_task(forward(k)) for k in range(len(self._sources))]
        found: Frame | BaseException | None = None
        try:
            open_ = len(tasks)
            while open_:
                k, found = await merged.get()
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    open_ -= 1
                else:
                    yield k, found
        finally:
            found = None  # an error knows this frame: they would keep each other
            for task in tasks:
                task.cancel()

    def _part(self, k: int, event: Frame) -> AnswerPart:
        index = k * self._n + event["choice"]
        part = AnswerPart(index, event["text"], logprobs=event.get("logprobs", []))
        parser = self._parsers.get(index)
        if parser is not None:
            part.text, part.calls = parser.push(event["text"])
        if (reason := event.get("reason")) is not None:
            if parser is not None:
                rest, calls = parser.finish()
                part.text += rest
                part.calls += calls
            part.finish = "tool_calls" if parser is not None and parser.found and reason == "stop" else reason
            part.stop_string = event["stop"]
            part.completion_tokens = event["usage"]["completion_tokens"]
            self.usage.completion += part.completion_tokens
            self.usage.cached += event["usage"]["cached_tokens"]
        if self._facts is not None:
            self._facts.note(index, event["tokens"])
        return part

    async def collect(self) -> list[WholeAnswer]:
        """All answers, once they are complete."""
        found = [WholeAnswer() for _ in range(len(self._calls) * self._n)]
        async for part in self.parts():
            answer = found[part.index]
            answer.text += part.text
            answer.calls += part.calls
            answer.logprobs += part.logprobs
            if part.finish is not None:
                answer.finish, answer.stop_string = part.finish, part.stop_string
        return found
