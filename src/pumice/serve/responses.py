"""OpenAI's /v1/responses: items of output, whole or as a stream of events; nothing is stored."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from pumice.serve.answers import AnswerStream, TokenUsage
from pumice.serve.api import Api
from pumice.serve.api_errors import ApiError
from pumice.serve.bodies import read
from pumice.serve.facts import RequestFacts
from pumice.serve.openai_chat import logprobs_json
from pumice.serve.replies import event, event_stream
from pumice.serve.responses_requests import ResponsesRequest
from pumice.serve.tools import ToolCall

Logprobs = Sequence[dict[str, Any]]


def _message(id: str, text: str, status: str, logprobs: Logprobs = ()) -> dict[str, Any]:
    content = [_text_part(text, logprobs)] if status != "in_progress" else []
    return {"id": id, "type": "message", "status": status, "role": "assistant", "content": content}


def _text_part(text: str, logprobs: Logprobs = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _logprobs(found: Logprobs) -> list[dict[str, Any]]:
    """Log-probabilities of tokens as this endpoint has them."""
    return list(logprobs_json(found)["content"])


def _call(call: ToolCall, status: str = "completed") -> dict[str, Any]:
    about = {"id": f"fc_{call.id.removeprefix('call_')}", "type": "function_call", "status": status, "call_id": call.id}
    return {**about, "name": call.name, "arguments": call.arguments if status == "completed" else ""}


class _ResponseState:
    """The response object as it grows."""

    def __init__(self, asked: ResponsesRequest, model: str | None) -> None:
        self._asked, self._model = asked, model
        self.id, self._created = f"resp_{secrets.token_hex(16)}", time.time()
        self.output: list[dict[str, Any]] = []

    def json(self, status: str, *, usage: TokenUsage | None = None, error: ApiError | None = None) -> dict[str, Any]:
        asked, text = self._asked, self._asked.text
        form = text.format.model_dump(by_alias=True, exclude_none=True) if text and text.format else {"type": "text"}
        return {
            "id": self.id,
            "object": "response",
            "created_at": int(self._created),
            "status": status,
            "error": None if error is None else {"code": "server_error", "message": error.text},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "model": self._model,
            "output": self.output,
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": asked.temperature,
            "text": {"format": form},
            "tool_choice": asked.choice_json(),
            "tools": [{"strict": True, **t.model_dump(exclude_none=True)} for t in asked.tools or []],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            "user": asked.user,
            "metadata": asked.metadata or {},
        }


def _usage(usage: TokenUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }


async def responses(api: Api, request: HttpRequest, facts: RequestFacts) -> Response:
    """An answer as items: messages and calls of functions."""
    asked = await read(ResponsesRequest, request)
    given = {"temperature": asked.temperature, "top_p": asked.top_p}
    options: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    if asked.logprobs:
        options["logprobs"] = asked.top_logprobs or 0
    tools = {t.name for t in asked.tools} if asked.tools and asked.choice() != "none" else None
    stream = await api.generate(
        asked.model, [asked.payload()], facts, options=options, limit=asked.max_output_tokens, tools=tools
    )
    state = _ResponseState(asked, facts.model)
    if asked.stream:
        return event_stream(_events(stream, state, facts))
    (answer,) = await stream.collect()
    status = "incomplete" if answer.finish == "length" else "completed"
    if answer.text or not answer.calls:
        state.output.append(_message(f"msg_{secrets.token_hex(12)}", answer.text, status, _logprobs(answer.logprobs)))
    state.output += [_call(c) for c in answer.calls]
    return JSONResponse(state.json(status, usage=stream.usage))


async def _events(stream: AnswerStream, state: _ResponseState, facts: RequestFacts) -> AsyncIterator[bytes]:
    numbers = count()

    def send(kind: str, **fields: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(numbers), **fields}, kind)

    message: tuple[str, int] | None = None  # the id and the place of the message that is being written
    text = ""
    logprobs: list[dict[str, Any]] = []

    def open_message() -> list[bytes]:
        nonlocal message, text, logprobs
        message, text, logprobs = (f"msg_{secrets.token_hex(12)}", len(state.output)), "", []
        id, at = message
        state.output.append(_message(id, "", "in_progress"))
        added = send("response.output_item.added", output_index=at, item=state.output[at])
        return [added, send("response.content_part.added", item_id=id, output_index=at, content_index=0, part=_text_part(""))]

    def close_message(status: str) -> list[bytes]:
        nonlocal message
        assert message is not None
        (id, at), message = message, None
        where: dict[str, Any] = {"item_id": id, "output_index": at, "content_index": 0}
        state.output[at] = _message(id, text, status, logprobs)
        return [
            send("response.output_text.done", **where, text=text, logprobs=logprobs),
            send("response.content_part.done", **where, part=_text_part(text, logprobs)),
            send("response.output_item.done", output_index=at, item=state.output[at]),
        ]

    def write_call(call: ToolCall) -> list[bytes]:
        at, item = len(state.output), _call(call)
        state.output.append(item)
        where: dict[str, Any] = {"item_id": item["id"], "output_index": at}
        return [
            send("response.output_item.added", output_index=at, item=_call(call, "in_progress")),
            send("response.function_call_arguments.delta", **where, delta=call.arguments),
            send("response.function_call_arguments.done", **where, name=call.name, arguments=call.arguments),
            send("response.output_item.done", output_index=at, item=item),
        ]

    try:
        yield send("response.created", response=state.json("in_progress"))
        yield send("response.in_progress", response=state.json("in_progress"))
        status = "completed"
        async for part in stream.parts():
            if part.text or (part.logprobs and not part.calls):
                for each in open_message() if message is None else []:
                    yield each
                assert message is not None
                text, new = text + part.text, _logprobs(part.logprobs)
                logprobs += new
                where: dict[str, Any] = {"item_id": message[0], "output_index": message[1], "content_index": 0}
                yield send("response.output_text.delta", **where, delta=part.text, logprobs=new)
            if part.finish == "length":
                status = "incomplete"
            if part.calls and message is not None:
                for each in close_message("completed"):
                    yield each
            for call in part.calls:
                for each in write_call(call):
                    yield each
        if message is not None or not state.output:
            for each in [*(open_message() if message is None else []), *close_message(status)]:
                yield each
        yield send(f"response.{status}", response=state.json(status, usage=stream.usage))
    except ApiError as e:
        facts.code = e.reason
        yield send("response.failed", response=state.json("failed", error=e))
