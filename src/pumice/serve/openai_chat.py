"""OpenAI's /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from pumice.serve.answers import AnswerPart, AnswerStream, TokenUsage, WholeAnswer
from pumice.serve.api import FINGERPRINT, Api
from pumice.serve.api_errors import ApiError
from pumice.serve.bodies import read
from pumice.serve.facts import RequestFacts
from pumice.serve.messages import as_conversation
from pumice.serve.openai_requests import ChatRequest
from pumice.serve.replies import error_body, event, event_stream
from pumice.serve.tools import ToolCall

# OpenAI has no minus infinity: JSON does not either.
LEAST_LOGPROB = -9999.0


def usage_json(usage: TokenUsage) -> dict[str, Any]:
    """Usage as OpenAI's API has it.

    >>> usage_json(TokenUsage(3, 2, 1))["total_tokens"]
    5
    """
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def logprobs_json(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Log-probabilities of tokens as the chat endpoint has them."""

    def entry(e: dict[str, Any]) -> dict[str, Any]:
        return {"token": e["token"], "logprob": max(e["logprob"], LEAST_LOGPROB), "bytes": e["bytes"]}

    return {"content": [{**entry(e), "top_logprobs": [entry(t) for t in e["top"]]} for e in found], "refusal": None}


def calls_json(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Tool calls of a message."""
    return [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls]


def payload_of(asked: ChatRequest) -> dict[str, Any]:
    """The request as the worker takes it, but for how tokens are drawn."""
    found: dict[str, Any] = {"messages": as_conversation(asked.messages)}
    if asked.tools:
        found |= {"tools": [t.as_template() for t in asked.tools], "tool_choice": asked.choice()}
        found["parallel"] = asked.parallel_tool_calls is not False
    if asked.response_format is not None:
        found |= asked.response_format.constraint()
    if asked.chat_template_kwargs:
        found["template_options"] = asked.chat_template_kwargs
    return found


async def chat_completions(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """Answers to a conversation, streamed or whole."""
    asked = await read(ChatRequest, request)
    options = asked.sampling()
    if asked.logprobs:
        options["logprobs"] = asked.top_logprobs or 0
    tools = {t.function.name for t in asked.tools} if asked.tools and asked.choice() != "none" else None
    stream = await api.generate(
        asked.model, [payload_of(asked)], facts, n=asked.n or 1, options=options, limit=asked.limit, tools=tools
    )
    about = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": facts.model,
        "system_fingerprint": FINGERPRINT,
    }
    if asked.stream:
        with_usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
        return event_stream(_chunks(stream, asked, {**about, "object": "chat.completion.chunk"}, with_usage, facts))
    answers = await stream.collect()
    choices = [_choice(k, answer, asked) for k, answer in enumerate(answers)]
    return JSONResponse({**about, "object": "chat.completion", "choices": choices, "usage": usage_json(stream.usage)})


def _choice(index: int, answer: WholeAnswer, asked: ChatRequest) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.calls:
        message |= {"content": answer.text or None, "tool_calls": calls_json(answer.calls)}
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs_json(answer.logprobs) if asked.logprobs else None,
        "finish_reason": answer.finish,
    }


async def _chunks(
    stream: AnswerStream, asked: ChatRequest, about: dict[str, Any], with_usage: bool, facts: RequestFacts
) -> AsyncIterator[bytes]:
    # Where usage is asked for, all chunks have the field, and the last one its value.
    rest = {"usage": None} if with_usage else {}
    called: dict[int, int] = {}

    def chunk(index: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return event({**about, "choices": [choice], **rest})

    try:
        for index in range(asked.n or 1):
            yield chunk(index, {"role": "assistant", "content": "", "refusal": None})
        async for part in stream.parts():
            if part.text or part.logprobs:
                yield chunk(part.index, {"content": part.text}, logprobs_json(part.logprobs) if asked.logprobs else None)
            if part.calls:
                yield chunk(part.index, {"tool_calls": _numbered(part, called)})
            if part.finish is not None:
                yield chunk(part.index, {}, finish=part.finish)
        if with_usage:
            yield event({**about, "choices": [], "usage": usage_json(stream.usage)})
        yield event("[DONE]")
    except ApiError as e:
        facts.code = e.reason
        yield event(error_body(e, "openai"))


def _numbered(part: AnswerPart, called: dict[int, int]) -> list[dict[str, Any]]:
    first = called.get(part.index, 0)
    called[part.index] = first + len(part.calls)
    return [{"index": first + k, **call} for k, call in enumerate(calls_json(part.calls))]
