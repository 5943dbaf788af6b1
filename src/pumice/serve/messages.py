"""Messages of clients as the worker takes them: texts, calls with parsed arguments, and nothing that no model here can follow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pumice.serve.api_errors import ApiError
from pumice.serve.openai_requests import ChatMessage, ContentPart

_TEXT = ("text", "input_text", "output_text")


def text_of_parts(parts: Sequence[ContentPart], where: str) -> str:
    """The text of a message's parts; a 400 for pictures and sounds.

    >>> text_of_parts([ContentPart(type="text", text="a"), ContentPart(type="text", text="b")], "messages.0")
    'ab'
    """
    found = []
    for k, part in enumerate(parts):
        if part.type == "refusal":
            found.append(part.refusal or "")
        elif part.type not in _TEXT:
            raise ApiError(
                400,
                f"{where}.content.{k} is of the type {part.type}, which this model cannot follow",
                code="unsupported_content",
                param=f"{where}.content.{k}.type",
                hint="send text",
            )
        elif part.text is None:
            raise ApiError(400, f"{where}.content.{k} has no text", code="invalid_value", param=f"{where}.content.{k}.text")
        else:
            found.append(part.text)
    return "".join(found)


def call_arguments(text: str, where: str) -> Any:
    """The arguments of a call that a client sends back; they are an object as JSON.

    >>> call_arguments('{"a": 1}', "messages.0")
    {'a': 1}
    """
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ApiError(400, f"{where} holds no JSON object", code="invalid_value", param=where)
    return found


def as_conversation(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages of OpenAI's chat endpoint for a worker.

    >>> as_conversation([ChatMessage(role="developer", content="Be brief.")])
    [{'role': 'system', 'content': 'Be brief.'}]
    """
    made = []
    for k, message in enumerate(messages):
        content = message.content
        if content is None:
            content = message.refusal or ""
        elif not isinstance(content, str):
            content = text_of_parts(content, f"messages.{k}")
        # What OpenAI calls developer is what models were trained on as system.
        entry: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": content}
        if message.name is not None:
            entry["name"] = message.name
        if message.tool_call_id is not None:
            entry["tool_call_id"] = message.tool_call_id
        if message.tool_calls:
            entry["tool_calls"] = [
                {
                    "id": c.id,
                    "name": c.function.name,
                    "arguments": call_arguments(c.function.arguments, f"messages.{k}.tool_calls.{j}.function.arguments"),
                }
                for j, c in enumerate(message.tool_calls)
            ]
        made.append(entry)
    return made
