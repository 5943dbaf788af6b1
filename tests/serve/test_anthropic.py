"""The real client of Anthropic against a running server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema
import pytest
from anthropic import Anthropic, AsyncAnthropic

import pumice as pm
from pumice.serve.server import ModelServer
from pumice.serve.spec import ModelSpec
from serve.raw_http import ask
from serve.test_openai import WEATHER

TOOL: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": WEATHER["function"]["parameters"],
}
HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client(server: ModelServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def test_messages(client: Anthropic, models: list[ModelSpec]) -> None:
    with pm.load(models[0].source, device="host", context=2048) as model:
        wanted = model.generate(HELLO, system="Be brief.", temperature=0, max_tokens=9)
    found = client.messages.create(model="tiny", max_tokens=9, messages=HELLO, system="Be brief.", extra_body={"temperature": 0})
    (block,) = found.content
    assert block.type == "text" and block.text == wanted.text and found.stop_reason == "max_tokens"
    used = found.usage
    assert used.input_tokens + (used.cache_read_input_tokens or 0) == wanted.usage["prompt_tokens"] and used.output_tokens == 9
    blocks: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    with client.messages.stream(
        model="tiny", max_tokens=9, messages=HELLO, system=blocks, extra_body={"temperature": 0}
    ) as stream:
        assert "".join(stream.text_stream) == wanted.text
        final = stream.get_final_message()
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 9
    stopped = client.messages.create(
        model="tiny",
        max_tokens=9,
        messages=HELLO,
        system="Be brief.",
        stop_sequences=[wanted.text[2:4]],
        extra_body={"temperature": 0},
    )
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == wanted.text[2:4]
    counted = client.messages.count_tokens(model="tiny", messages=HELLO, system="Be brief.")
    assert counted.input_tokens == wanted.usage["prompt_tokens"]


def test_an_answer_goes_on_from_what_the_caller_began(client: Anthropic) -> None:
    def ask(count: int, *begun: Any) -> str:
        found = client.messages.create(model="tiny", max_tokens=count, messages=[*HELLO, *begun], extra_body={"temperature": 0})
        assert found.content[0].type == "text"
        return found.content[0].text

    begun = ask(4)
    assert begun + ask(2, {"role": "assistant", "content": begun}) == ask(6)


def test_tools(client: Anthropic, server: ModelServer) -> None:
    asked: Any = {"model": "tiny", "max_tokens": 300, "messages": HELLO, "tools": [TOOL]}
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    found = client.messages.create(**asked, tool_choice=choice)
    (block,) = found.content
    assert block.type == "tool_use" and found.stop_reason == "tool_use"
    jsonschema.validate(block.input, TOOL["input_schema"])
    back: Any = [*HELLO, {"role": "assistant", "content": found.content}]
    back += [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "rain"}]}]
    after = client.messages.create(**{**asked, "messages": back, "max_tokens": 4}, tool_choice={"type": "none"})
    assert after.usage.output_tokens <= 4

    async def streamed() -> Any:
        async with AsyncAnthropic(base_url=server.url, api_key="none") as made:
            named: Any = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
            async with made.messages.stream(**asked, tool_choice=named) as stream:
                return await stream.get_final_message()

    final = asyncio.run(streamed())
    jsonschema.validate(final.content[0].input, TOOL["input_schema"])


def test_errors(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(model="other", max_tokens=4, messages=HELLO)
    body: Any = unknown.value.body
    assert body["type"] == "error" and body["error"]["type"] == "not_found_error"
    image: Any = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]
    for wrong in ({"messages": image}, {"max_tokens": 0}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}):
        with pytest.raises(anthropic.BadRequestError):
            client.post("/v1/messages", body={"model": "tiny", "max_tokens": 4, "messages": HELLO, **wrong}, cast_to=object)
    assert next(m.id for m in client.models.list()) == "tiny"


def test_the_client_s_runner_of_tools(client: Anthropic, server: ModelServer) -> None:
    """It asks for conversations that the server keeps, and does without when it is told so in its own form."""

    @anthropic.beta_tool
    def clock(utc: bool) -> str:
        """The time, of London or of here."""
        return "noon"

    asked: Any = {
        "model": "tiny",
        "max_tokens": 300,
        "messages": HELLO,
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    }
    said = list(client.beta.messages.tool_runner(**asked, tools=[clock], max_iterations=2))
    assert [m.stop_reason for m in said] == ["tool_use", "tool_use"] and said[0].content[0].type == "tool_use"
    status, _, body = ask(
        server, "/v1/messages", {"model": "tiny", "max_tokens": 4, "messages": HELLO, "thread": {"type": "create"}}
    )
    assert status == 400 and body["error"]["details"] == {"error_code": "thread_unsupported_request"}
    cached = client.messages.create(model="tiny", max_tokens=4, messages=HELLO, cache_control={"type": "ephemeral"})
    assert cached.usage.output_tokens <= 4
