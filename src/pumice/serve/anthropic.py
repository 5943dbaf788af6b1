"""Anthropic's /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from pumice.serve.answers import AnswerStream
from pumice.serve.anthropic_requests import CountRequest, MessagesRequest, refuse_thread
from pumice.serve.api import Api
from pumice.serve.api_errors import ApiError
from pumice.serve.bodies import read
from pumice.serve.facts import RequestFacts
from pumice.serve.replies import error_body, event, event_stream
from pumice.serve.tools import ToolCall


def _stop_reason(finish: str | None, stop_string: str | None) -> str:
    if stop_string is not None:
        return "stop_sequence"
    return {"length": "max_tokens", "tool_calls": "tool_use"}.get(finish or "", "end_turn")


def _usage(stream: AnswerStream) -> dict[str, Any]:
    used = stream.usage
    return {
        "input_tokens": used.prompt - used.cached,
        "output_tokens": used.completion,
        "cache_read_input_tokens": used.cached,
        "cache_creation_input_tokens": 0,
    }


def _tool_use(call: ToolCall, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{call.id.removeprefix('call_')}", "name": call.name, "input": given}


async def messages(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """The next message of a conversation, streamed or whole."""
    asked = await read(MessagesRequest, request)
    refuse_thread(asked)
    tools = {t.name for t in asked.tools} if asked.tools and asked.choice() != "none" else None
    stream = await api.generate(
        asked.model, [asked.payload()], facts, options=asked.sampling(), limit=asked.max_tokens, tools=tools
    )
    about = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": facts.model}
    if asked.stream:
        return event_stream(_events(stream, about, facts))
    (answer,) = await stream.collect()
    content: list[dict[str, Any]] = [{"type": "text", "text": answer.text}] if answer.text or not answer.calls else []
    content += [_tool_use(c, json.loads(c.arguments)) for c in answer.calls]
    reason = _stop_reason(answer.finish, answer.stop_string)
    ended = {"stop_reason": reason, "stop_sequence": answer.stop_string, "usage": _usage(stream)}
    return JSONResponse({**about, "content": content, **ended})


async def _events(stream: AnswerStream, about: dict[str, Any], facts: RequestFacts) -> AsyncIterator[bytes]:
    index, writing = 0, False
    reason, stop_string = "end_turn", None

    def send(kind: str, **fields: Any) -> bytes:
        return event({"type": kind, **fields}, kind)

    try:
        nothing: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        yield send("message_start", message={**about, **nothing, "usage": {**_usage(stream), "output_tokens": 0}})
        async for part in stream.parts():
            if part.text:
                if not writing:
                    yield send("content_block_start", index=index, content_block={"type": "text", "text": ""})
                    writing = True
                yield send("content_block_delta", index=index, delta={"type": "text_delta", "text": part.text})
            for call in part.calls:
                if writing:
                    yield send("content_block_stop", index=index)
                    index, writing = index + 1, False
                yield send("content_block_start", index=index, content_block=_tool_use(call, {}))
                yield send("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": call.arguments})
                yield send("content_block_stop", index=index)
                index += 1
            if part.finish is not None:
                reason, stop_string = _stop_reason(part.finish, part.stop_string), part.stop_string
        if writing:
            yield send("content_block_stop", index=index)
        yield send("message_delta", delta={"stop_reason": reason, "stop_sequence": stop_string}, usage=_usage(stream))
        yield send("message_stop")
    except ApiError as e:
        facts.code = e.reason
        yield event(error_body(e, "anthropic"), "error")


async def count_tokens(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """How many tokens a conversation has as a prompt."""
    asked = await read(CountRequest, request)
    call = api.submit("tokenize", asked.model, asked.payload(), facts)
    count = 0
    async for found in api.events(call, facts):
        count = len(found["tokens"])
    return JSONResponse({"input_tokens": count})
