"""OpenAI's /v1/responses with its client: items, events, tools and schemas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from pumice.serve.server import ModelServer
from serve.test_openai import PERSON, WEATHER

TOOL: Any = {"type": "function", "strict": True, **WEATHER["function"]}


@pytest.fixture(scope="module")
def client(server: ModelServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_text(client: OpenAI) -> None:
    chat = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
        temperature=0,
        max_tokens=9,
    )
    asked: Any = {"model": "tiny", "instructions": "Be brief.", "temperature": 0, "max_output_tokens": 9}
    found = client.responses.create(**asked, input="hello")
    assert found.output_text == chat.choices[0].message.content and found.usage is not None
    assert found.status == "incomplete" and found.incomplete_details.reason == "max_output_tokens"  # type: ignore[union-attr]
    same = client.responses.create(**asked, input=[{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}])
    assert same.output_text == found.output_text
    events = list(client.responses.create(**asked, input="hello", stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type for e in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.incomplete"
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == found.output_text
    final = events[-1].response  # type: ignore[union-attr]
    assert final.output_text == found.output_text and final.usage.output_tokens == 9


def test_schema(client: OpenAI) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    found = client.responses.create(model="tiny", input="hello", text=form, temperature=1.0)
    jsonschema.validate(json.loads(found.output_text), PERSON)


def test_tools(client: OpenAI, server: ModelServer) -> None:
    asked: Any = {"model": "tiny", "input": "hello", "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    found = client.responses.create(**asked)
    (call,) = found.output
    assert call.type == "function_call" and found.status == "completed"
    jsonschema.validate(json.loads(call.arguments), TOOL["parameters"])
    back: Any = [{"role": "user", "content": "hello"}, call.model_dump(exclude_none=True)]
    back += [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    after = client.responses.create(model="tiny", input=back, max_output_tokens=4)
    assert after.usage is not None and after.usage.output_tokens <= 4

    async def streamed() -> list[Any]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as made:
            return [e async for e in await made.responses.create(**asked, stream=True)]

    events = asyncio.run(streamed())
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    jsonschema.validate(json.loads(done.arguments), TOOL["parameters"])
    assert events[-1].response.output[0].arguments == done.arguments


def test_refusals(client: OpenAI) -> None:
    for change, param in (
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.name"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.post("/responses", body={"model": "tiny", "input": "a", **change}, cast_to=object)
        assert refused.value.param in (param, "tools.0.type"), change


def test_logprobs(client: OpenAI) -> None:
    asked: Any = {"model": "tiny", "input": "hello", "temperature": 0, "max_output_tokens": 16, "top_logprobs": 2}
    asked["include"] = ["message.output_text.logprobs"]
    chat = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], temperature=0, max_tokens=16, logprobs=True, top_logprobs=2
    )
    wanted = [e.model_dump() for e in chat.choices[0].logprobs.content]  # type: ignore[union-attr]
    found = client.responses.create(**asked)
    assert [e.model_dump() for e in found.output[0].content[0].logprobs] == wanted  # type: ignore[union-attr]
    events = list(client.responses.create(**asked, stream=True, stream_options={"include_obfuscation": False}))
    streamed = [e for event in events if event.type == "response.output_text.delta" for e in event.logprobs]
    assert [e.token for e in streamed] == [e["token"] for e in wanted] and len(streamed[0].top_logprobs or []) == 2
    assert events[-1].response.output[0].content[0].logprobs == found.output[0].content[0].logprobs  # type: ignore[union-attr]
    for change, param in (({"include": None}, "top_logprobs"), ({"include": ["web_search_call.results"]}, "include.0")):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(**{**asked, **change})
        assert refused.value.param == param
