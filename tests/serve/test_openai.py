"""The real client of OpenAI against a running server: every endpoint, streaming and not, sync and async."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

import pumice as pm
from pumice.serve.server import ModelServer
from pumice.serve.spec import ModelSpec

HELLO: Any = [{"role": "user", "content": "hello"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "additionalProperties": False}}}
PERSON: Any = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(server: ModelServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def greedy(models: list[ModelSpec]) -> Any:
    """What the model answers without a server."""
    with pm.load(models[0].source, device="host", context=2048) as model:
        yield lambda prompt, **options: model.generate(prompt, temperature=0, **options)


def test_chat(client: OpenAI, greedy: Any) -> None:
    wanted = greedy(HELLO, max_tokens=12)
    found = client.chat.completions.create(model="tiny", messages=HELLO, temperature=0, max_tokens=12)
    (choice,) = found.choices
    assert choice.message.content == wanted.text and choice.finish_reason == wanted.finish_reason
    assert found.usage is not None and found.usage.prompt_tokens == wanted.usage["prompt_tokens"]
    assert found.usage.completion_tokens == wanted.usage["completion_tokens"] and found.model == "tiny"
    many: Any = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    parts = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": many}], temperature=0, max_completion_tokens=12
    )
    assert parts.choices[0].message.content == wanted.text


def test_chat_streams(client: OpenAI, greedy: Any) -> None:
    wanted = greedy(HELLO, max_tokens=12)
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=0, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == wanted.text
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-2].choices[0].finish_reason == wanted.finish_reason
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == wanted.usage["completion_tokens"]
    assert len({c.id for c in chunks}) == 1 and all(c.usage is None for c in chunks[:-1])


def test_many_at_once(server: ModelServer, greedy: Any) -> None:
    """Answers in one batch are those of each request alone."""
    texts = [f"number {k}" for k in range(12)]
    wanted = [greedy([{"role": "user", "content": t}], max_tokens=10).text for t in texts]

    async def ask(client: AsyncOpenAI, text: str) -> str:
        message: Any = [{"role": "user", "content": text}]
        if text.endswith(("1", "3")):
            stream = await client.chat.completions.create(
                model="tiny", messages=message, temperature=0, max_tokens=10, stream=True
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream])
        found = await client.chat.completions.create(model="tiny", messages=message, temperature=0, max_tokens=10)
        return found.choices[0].message.content or ""

    async def all_() -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client, t) for t in texts))

    assert asyncio.run(all_()) == wanted


def test_choices_seeds_stops_biases(client: OpenAI) -> None:
    def ask(**options: Any) -> Any:
        return client.chat.completions.create(model="tiny", messages=HELLO, **{"max_tokens": 8, "seed": 7, **options})

    three = ask(n=3, temperature=1.0)
    texts = [c.message.content for c in three.choices]
    assert [c.index for c in three.choices] == [0, 1, 2] and len(set(texts)) > 1
    assert [c.message.content for c in ask(n=3, temperature=1.0).choices] == texts
    assert ask(seed=8, temperature=1.0).choices[0].message.content == texts[1]
    forced = ask(temperature=0, logit_bias={"40": 100.0}, max_tokens=4).choices[0].message.content
    assert forced is not None and len(set(forced)) == 1 and len(forced) == 4
    stopped = ask(temperature=0, logit_bias={"40": 100.0}, stop=[forced[:2]]).choices[0]
    assert stopped.message.content == "" and stopped.finish_reason == "stop"
    penalised = ask(temperature=0, logit_bias={"40": 3.0}, frequency_penalty=2.0, presence_penalty=2.0).choices[0]
    assert penalised.message.content != ask(temperature=0, logit_bias={"40": 3.0}).choices[0].message.content


def test_logprobs(client: OpenAI, greedy: Any) -> None:
    wanted = greedy(HELLO, max_tokens=5, logprobs=3)
    found = client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3
    )
    content = found.choices[0].logprobs.content  # type: ignore[union-attr]
    assert content is not None and len(content) == 5
    assert [e.logprob for e in content] == pytest.approx([e["logprob"] for e in wanted.logprobs], abs=1e-4)
    assert all(len(e.top_logprobs) == 3 and e.top_logprobs[0].token == e.token for e in content)
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3, stream=True
    )
    streamed = [e for c in stream if c.choices[0].logprobs for e in c.choices[0].logprobs.content or []]
    assert [e.token for e in streamed] == [e.token for e in content]
    old = client.completions.create(model="tiny", prompt="hello", temperature=0, max_tokens=3, logprobs=2)
    found_old = old.choices[0].logprobs
    assert found_old is not None and found_old.tokens is not None and len(found_old.tokens) == 3
    assert all(len(t) == 2 for t in found_old.top_logprobs or [])


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_answers_follow_a_schema(client: OpenAI, temperature: float) -> None:
    for seed in range(3):
        found = client.chat.completions.create(
            model="tiny",
            messages=HELLO,
            temperature=temperature,
            seed=seed,
            response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
        )
        choice = found.choices[0]
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), PERSON)
    anything = client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=0, max_tokens=600, response_format={"type": "json_object"}
    )
    assert anything.choices[0].message.content.startswith("{")  # type: ignore[union-attr]
    wrong: Any = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object", "unevaluatedProperties": False}},
    }
    with pytest.raises(openai.BadRequestError, match="unevaluatedProperties") as refused:
        client.chat.completions.create(model="tiny", messages=HELLO, response_format=wrong)
    assert refused.value.param == "response_format"
    large = {"type": "object", "properties": {f"p{k}": {"type": "string"} for k in range(4000)}}
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": large}}
    with pytest.raises(openai.BadRequestError, match="more than 65536 characters") as refused:
        client.chat.completions.create(model="tiny", messages=HELLO, response_format=wrong)
    assert refused.value.param == "response_format"
    pattern = client.chat.completions.create(
        model="tiny", messages=HELLO, extra_body={"response_format": {"type": "regex", "pattern": "yes|no"}}
    )
    assert pattern.choices[0].message.content in ("yes", "no")


def check_call(call: Any) -> None:
    assert call.type == "function" and call.id
    if call.function.name == "get_weather":
        jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])
    else:
        assert call.function.name == "clock" and json.loads(call.function.arguments) == {}


def test_tools(client: OpenAI) -> None:
    tools = [WEATHER, CLOCK]
    for seed, choice in enumerate(["required", {"type": "function", "function": {"name": "get_weather"}}]):
        found = client.chat.completions.create(
            model="tiny", messages=HELLO, tools=tools, tool_choice=choice, seed=seed, parallel_tool_calls=False, temperature=1.0
        ).choices[0]
        assert found.finish_reason == "tool_calls" and found.message.tool_calls is not None
        (call,) = found.message.tool_calls
        check_call(call)
        assert choice == "required" or call.function.name == "get_weather"  # type: ignore[union-attr]
    # The answer goes back with the tool's result, as clients do it.
    assert found.message.tool_calls is not None
    told: Any = [*HELLO, found.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    after = client.chat.completions.create(model="tiny", messages=told, tools=tools, tool_choice="none", max_tokens=4)
    assert after.choices[0].message.tool_calls is None and after.usage.completion_tokens <= 4  # type: ignore[union-attr]
    free = client.chat.completions.create(model="tiny", messages=HELLO, tools=tools, max_tokens=16, temperature=0)
    assert free.choices[0].finish_reason in ("length", "stop") and free.choices[0].message.content


def test_tool_calls_stream(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, tools=[CLOCK], tool_choice="required", seed=1, max_tokens=400, stream=True, temperature=1.0
    )
    calls: dict[int, Any] = {}
    finish = None
    for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or []:
            calls[call.index] = call
        assert not chunk.choices[0].delta.content
        finish = chunk.choices[0].finish_reason or finish
    assert sorted(calls) == list(range(len(calls))) and calls and finish in ("tool_calls", "length")
    for call in calls.values():
        check_call(call)


def test_completions(client: OpenAI, greedy: Any) -> None:
    wanted = greedy("hello", raw=True, max_tokens=6)
    found = client.completions.create(model="tiny", prompt=["hello", "other"], temperature=0, max_tokens=6, n=2)
    assert [c.index for c in found.choices] == [0, 1, 2, 3]
    assert found.choices[0].text == found.choices[1].text == wanted.text != found.choices[2].text
    tokens = client.completions.create(model="tiny", prompt=[70, 71], temperature=0, max_tokens=3)
    assert tokens.usage is not None and tokens.usage.prompt_tokens == 2 and tokens.choices[0].finish_reason == "length"
    echoed = client.completions.create(model="tiny", prompt="hello", temperature=0, max_tokens=6, echo=True, stream=True)
    assert "".join(c.choices[0].text for c in echoed) == "hello" + wanted.text


def test_embeddings(client: OpenAI, server: ModelServer, models: list[ModelSpec]) -> None:
    with pm.load(models[1].source, device="host") as model:
        wanted = model.embed(["w5 w6", "w7 w8 w9"])
    base64 = client.embeddings.create(model="bert", input=["w5 w6", "w7 w8 w9"])  # the client asks for base64
    plain = client.embeddings.create(model="bert", input="w5 w6", encoding_format="float")
    assert np.allclose([d.embedding for d in base64.data], wanted, atol=1e-6)
    assert np.allclose(plain.data[0].embedding, wanted[0], atol=1e-6) and base64.usage.prompt_tokens == 9
    short = client.embeddings.create(model="bert", input="w5 w6", dimensions=4)
    assert len(short.data[0].embedding) == 4 and np.linalg.norm(short.data[0].embedding) == pytest.approx(1, abs=1e-5)
    many = client.embeddings.create(model="bert", input=["w5"] * 70)
    assert len(many.data) == 70 and many.data[69].index == 69

    async def also() -> int:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as made:
            return len((await made.embeddings.create(model="bert", input=[[5, 6], [7]])).data)

    assert asyncio.run(also()) == 2
    for wrong in ({"model": "tiny", "input": "a"}, {"model": "bert", "input": "a", "dimensions": 60000}):
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(**wrong)  # type: ignore[arg-type]


def test_models(client: OpenAI) -> None:
    assert {m.id for m in client.models.list()} == {"tiny", "bert", "rank"}
    assert client.models.retrieve("tiny").owned_by == "pumice"
    for name in ("other", "../tiny", "/etc/passwd", "a" * 5000):
        with pytest.raises(openai.NotFoundError) as refused:
            client.chat.completions.create(model=name[:256], messages=HELLO)
        assert refused.value.code == "model_not_found" and refused.value.param == "model"


REFUSED = [
    ({"temperature": 3}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 100}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": {"9999": 1}}, "logit_bias"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"seed": 1.5}, "seed"),
    ({"unknown_field": 1}, "unknown_field"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [WEATHER, WEATHER]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "a"}]}, "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages.0"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content.0.type"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "param"), REFUSED, ids=[f"{k}-{p}" for k, (_, p) in enumerate(REFUSED)])
def test_what_cannot_be_followed_is_named(client: OpenAI, change: dict[str, Any], param: str) -> None:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 4, **change}
    with pytest.raises(openai.BadRequestError) as refused:
        client.post("/chat/completions", body=body, cast_to=object)
    assert refused.value.param == param and refused.value.type == "invalid_request_error"


def test_a_long_prompt_is_refused_with_its_length(client: OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 3000}], stream=stream)
        assert refused.value.code == "context_length_exceeded" and "2048" in refused.value.message
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5000)
    assert refused.value.code == "context_length_exceeded"
