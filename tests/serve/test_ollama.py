"""The real client of ollama against a running server, and the endpoints that no client here has: rerank, tokenize."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import ollama
import pytest

import pumice as pm
from pumice.serve.facts import JsonLog
from pumice.serve.keys import new_key
from pumice.serve.server import ModelServer
from pumice.serve.settings import ServerSettings
from pumice.serve.spec import ModelSpec
from serve.conftest import wait_until_ready
from serve.serving import RERANKER
from serve.test_openai import PERSON, WEATHER

HELLO: Any = [{"role": "user", "content": "hello"}]
GREEDY: Any = {"temperature": 0, "num_predict": 9}


@pytest.fixture(scope="module")
def client(server: ModelServer) -> Iterator[ollama.Client]:
    made = ollama.Client(host=server.url)
    yield made
    made._client.close()


def post(server: ModelServer, path: str, body: Any) -> Any:
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_chat_and_generate(client: ollama.Client, server: ModelServer, models: list[ModelSpec]) -> None:
    with pm.load(models[0].source, device="host", context=2048) as model:
        wanted = model.generate(HELLO, temperature=0, max_tokens=9)
        raw = model.generate("hello", raw=True, temperature=0, max_tokens=9)
    found = client.chat(model="tiny", messages=HELLO, options=GREEDY)
    assert found.message.content == wanted.text and found.done and found.eval_count == 9
    assert found.done_reason == "length" and found.prompt_eval_count == wanted.usage["prompt_tokens"]
    pieces = list(client.chat(model="tiny:latest", messages=HELLO, options=GREEDY, stream=True))
    assert "".join(p.message.content or "" for p in pieces) == wanted.text and pieces[-1].done and pieces[-1].eval_count == 9
    assert client.generate(model="tiny", prompt="hello", options=GREEDY).response == wanted.text
    assert client.generate(model="tiny", prompt="hello", raw=True, options=GREEDY).response == raw.text
    streamed = client.generate(model="tiny", prompt="hello", options=GREEDY, stream=True)
    assert "".join(p.response for p in streamed) == wanted.text
    assert client.generate(model="tiny").done_reason == "load"

    async def also() -> str:
        made = ollama.AsyncClient(host=server.url)
        stream = await made.chat(model="tiny", messages=HELLO, options=GREEDY, stream=True)
        whole = await made.chat(model="tiny", messages=HELLO, options=GREEDY)
        text = "".join([p.message.content or "" async for p in stream])
        assert whole.message.content == text
        await made._client.aclose()
        return text

    assert asyncio.run(also()) == wanted.text


def test_formats_and_tools(client: ollama.Client) -> None:
    found = client.chat(model="tiny", messages=HELLO, format=PERSON, options={"temperature": 1.2, "seed": 3})
    jsonschema.validate(json.loads(found.message.content or ""), PERSON)
    # ollama has no tool_choice: what a bias makes likely is the marker of a call, and the rest follows from the grammar.
    free = client.chat(model="tiny", messages=HELLO, tools=[WEATHER], options={"num_predict": 20})
    assert free.message.content is not None
    called: Any = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "x", "days": 1}}}],
    }
    after: Any = [*HELLO, called, {"role": "tool", "tool_name": "get_weather", "content": "rain"}]
    assert client.chat(model="tiny", messages=after, tools=[WEATHER], options={"num_predict": 4}).done


def test_embed(client: ollama.Client, models: list[ModelSpec]) -> None:
    with pm.load(models[1].source, device="host") as model:
        wanted = model.embed(["w5 w6", "w7"])
    found = client.embed(model="bert", input=["w5 w6", "w7"])
    assert np.allclose(found.embeddings, wanted, atol=1e-6)
    assert np.allclose(client.embeddings(model="bert", prompt="w7").embedding, wanted[1], atol=1e-6)


def test_what_there_is(client: ollama.Client, server: ModelServer) -> None:
    assert {m.model for m in client.list().models} == {"tiny", "bert", "rank"}
    assert "tiny" in {m.model for m in client.ps().models}
    shown = client.show("tiny")
    assert shown.capabilities == ["completion", "tools"]
    with urllib.request.urlopen(f"{server.url}/api/version") as response:
        assert json.load(response)["pumice"] == pm.__version__  # type: ignore[attr-defined]


def test_errors(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="there is no model 'other'") as unknown:
        client.chat(model="other", messages=HELLO)
    assert unknown.value.status_code == 404
    for options in ({"temperature": -1}, {"num_ctx": 100_000}, {"mirostat": 2}):
        with pytest.raises(ollama.ResponseError) as refused:
            client.chat(model="tiny", messages=HELLO, options=options)
        assert refused.value.status_code == 400 and next(iter(options)) in refused.value.error
    with pytest.raises(ollama.ResponseError, match="images"):
        client.chat(model="tiny", messages=[{"role": "user", "content": "a", "images": [b"x"]}])


def test_rerank(server: ModelServer) -> None:
    texts = ["d4 a9", "b1 c2 d3", "a12"]
    with pm.load(RERANKER, device="host") as model:
        wanted = model.rank("a12 b7", texts)
    for path in ("/v1/rerank", "/rerank"):
        found = post(server, path, {"model": "rank", "query": "a12 b7", "documents": texts, "return_documents": True})
        assert [r["index"] for r in found["results"]] == [w.index for w in wanted]
        assert [r["relevance_score"] for r in found["results"]] == pytest.approx([w.score for w in wanted], abs=1e-5)
        assert found["results"][0]["document"]["text"] == wanted[0].text and found["usage"]["total_tokens"] > 0
    assert (
        len(post(server, "/v1/rerank", {"model": "rank", "query": "a1", "documents": [{"text": "b2"}], "top_n": 1})["results"])
        == 1
    )


def test_tokens(server: ModelServer) -> None:
    there = post(server, "/tokenize", {"model": "tiny", "prompt": "hello"})
    assert there["count"] == len(there["tokens"]) and there["max_model_len"] == 2048
    pieces = post(server, "/tokenize", {"content": "hello", "with_pieces": True})["tokens"]
    assert "".join(p["piece"] for p in pieces) == "hello" and [p["id"] for p in pieces] == there["tokens"][1:]
    assert post(server, "/detokenize", {"tokens": [p["id"] for p in pieces]})["content"] == "hello"
    assert post(server, "/tokenize", {"messages": HELLO})["count"] > there["count"]
    for path, body in (("/tokenize", {}), ("/detokenize", {"tokens": [99999]})):
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(server, path, body)
        assert refused.value.code == 400
        refused.value.close()


def test_logprobs(client: ollama.Client) -> None:
    asked: Any = {"model": "tiny", "options": GREEDY, "logprobs": True, "top_logprobs": 2}
    found = client.chat(**asked, messages=HELLO).logprobs
    assert found is not None and len(found) == 9 and all(len(e.top_logprobs or ()) == 2 and e.logprob <= 0 for e in found)
    assert all(e.top_logprobs and e.top_logprobs[0].token == e.token for e in found), "the likeliest is taken"
    streamed = [e for part in client.generate(**asked, prompt="hello", stream=True) for e in part.logprobs or ()]
    assert streamed == list(found)
    assert client.generate(**{**asked, "top_logprobs": None}, prompt="hello").logprobs[0].top_logprobs is None  # type: ignore[index]
    assert client.chat(model="tiny", messages=HELLO, options=GREEDY).logprobs is None


def test_models_are_unloaded_when_asked(models: list[ModelSpec]) -> None:
    with ModelServer(models[:1], ServerSettings(port=0, drain_seconds=1), log=JsonLog(quiet=True)) as own:
        wait_until_ready(own)
        made = ollama.Client(host=own.url)
        assert [m.context_length for m in made.ps().models] == [2048]
        assert made.generate(model="tiny", keep_alive=0).done_reason == "unload" and not made.ps().models
        assert made.chat(model="tiny", messages=HELLO, options=GREEDY, keep_alive="5m").eval_count == 9
        assert made.ps().models and made.chat(model="tiny", keep_alive="0s").done_reason == "unload" and not made.ps().models
        assert made.generate(model="tiny").done_reason == "load" and made.ps().models
        for stream in (False, True):
            answered = made.chat(model="tiny", messages=HELLO, options=GREEDY, keep_alive=0, stream=stream)
            assert not stream or len(list(answered)) > 1
            until = time.monotonic() + 20
            while made.ps().models:
                assert time.monotonic() < until, "it goes after the answer"
                time.sleep(0.05)
        made._client.close()


def test_nobody_unloads_the_model_of_others(models: list[ModelSpec], tmp_path: Path) -> None:
    key = new_key(tmp_path / "keys", "one")
    settings = ServerSettings(port=0, drain_seconds=1, key_file=str(tmp_path / "keys"))
    with ModelServer(models[:1], settings, log=JsonLog(quiet=True)) as own:
        wait_until_ready(own)
        made = ollama.Client(host=own.url, headers={"Authorization": f"Bearer {key}"})
        with pytest.raises(ollama.ResponseError, match="decides itself") as refused:
            made.generate(model="tiny", keep_alive=0)
        assert refused.value.status_code == 403 and made.ps().models
        made._client.close()
