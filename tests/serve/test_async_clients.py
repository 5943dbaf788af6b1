"""Every endpoint of the real clients, streaming and not, by their asynchronous halves: they get what the others get."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import ollama
import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from pumice.serve.server import ModelServer

HELLO: Any = [{"role": "user", "content": "hello"}]
CHAT: Any = {"model": "tiny", "messages": HELLO, "temperature": 0, "max_tokens": 7}
TEXT: Any = {"model": "tiny", "prompt": "hello", "temperature": 0, "max_tokens": 7}
ITEM: Any = {"model": "tiny", "input": "hello", "temperature": 0, "max_output_tokens": 7}
TURN: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 7, "extra_body": {"temperature": 0}}
OPTIONS: Any = {"temperature": 0, "num_predict": 7}


@pytest.fixture(scope="module")
def answer(server: ModelServer) -> Iterator[str]:
    """What the model says to hello."""
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        said = client.chat.completions.create(**CHAT).choices[0].message.content
        assert said
        yield said


def test_openai(server: ModelServer, answer: str) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        text = client.completions.create(**TEXT).choices[0].text
        vector = client.embeddings.create(model="bert", input="w5").data[0].embedding
        parts = client.completions.create(**TEXT, stream=True, stream_options={"include_usage": True})
        assert "".join(c.choices[0].text for c in parts if c.choices) == text

    async def work() -> None:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            whole, stream = await asyncio.gather(
                client.chat.completions.create(**CHAT), client.chat.completions.create(**CHAT, stream=True)
            )
            assert whole.choices[0].message.content == answer
            assert "".join([c.choices[0].delta.content or "" async for c in stream]) == answer
            assert (await client.completions.create(**TEXT)).choices[0].text == text
            pieces = await client.completions.create(**TEXT, stream=True)
            assert "".join([c.choices[0].text async for c in pieces]) == text
            assert (await client.responses.create(**ITEM)).output_text == answer
            events = [e async for e in await client.responses.create(**ITEM, stream=True)]
            assert events[-1].response.output_text == answer  # type: ignore[union-attr]
            assert (await client.embeddings.create(model="bert", input="w5")).data[0].embedding == vector
            assert {m.id async for m in client.models.list()} == {"tiny", "bert", "rank"}
            assert (await client.models.retrieve("bert")).id == "bert"

    asyncio.run(work())


def test_anthropic(server: ModelServer, answer: str) -> None:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        counted = client.messages.count_tokens(model="tiny", messages=HELLO)
        kinds = [e.type for e in client.messages.create(**TURN, stream=True)]
        assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]

    async def work() -> None:
        async with AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            assert (await client.messages.create(**TURN)).content[0].text == answer  # type: ignore[union-attr]
            assert [e.type async for e in await client.messages.create(**TURN, stream=True)] == kinds
            async with client.messages.stream(**TURN) as stream:
                assert "".join([text async for text in stream.text_stream]) == answer
            assert await client.messages.count_tokens(model="tiny", messages=HELLO) == counted
            assert [m.id async for m in client.models.list()] == ["tiny", "bert", "rank"]
            assert (await client.models.retrieve("tiny")).id == "tiny"

    asyncio.run(work())


def test_ollama(server: ModelServer, answer: str) -> None:
    async def work() -> None:
        client = ollama.AsyncClient(host=server.url)
        chat: Any = {"model": "tiny", "messages": HELLO, "options": OPTIONS}
        assert (await client.chat(**chat)).message.content == answer
        assert "".join([p.message.content or "" async for p in await client.chat(**chat, stream=True)]) == answer
        asked: Any = {"model": "tiny", "prompt": "hello", "options": OPTIONS}
        assert (await client.generate(**asked)).response == answer
        assert "".join([p.response or "" async for p in await client.generate(**asked, stream=True)]) == answer
        vectors = (await client.embed("bert", ["w5", "w6"])).embeddings
        assert np.allclose((await client.embeddings("bert", "w6")).embedding, vectors[1], atol=1e-6)
        assert {m.model for m in (await client.list()).models} == {"tiny", "bert", "rank"}
        assert "tiny" in {m.model for m in (await client.ps()).models}
        assert (await client.show("bert")).capabilities == ["embedding"]
        await client._client.aclose()

    asyncio.run(work())
