"""What real clients may send beyond the usual: rare options, forms that few use, and values that no server can follow."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import numpy as np
import ollama
import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from pumice.serve.server import ModelServer
from serve.raw_http import ask, exchange, request

HELLO: Any = [{"role": "user", "content": "hi"}]
SWITCH: Any = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
FIRST: Any = {"type": "function", "function": {"name": "first", "parameters": SWITCH}}
SECOND: Any = {"type": "function", "function": {"name": "second", "parameters": SWITCH}}


@pytest.fixture(scope="module")
def client(server: ModelServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def ollama_client(server: ModelServer) -> Iterator[ollama.Client]:
    made = ollama.Client(host=server.url)
    yield made
    made._client.close()


def chat(client: OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(**{"model": "tiny", "messages": HELLO, "max_tokens": 4, **options})


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"tools": [FIRST], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice", "not among"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": [FIRST, FIRST]}, "tools", "the same name"),
        ({"tools": [FIRST], "tool_choice": "any"}, "tool_choice", "'none', 'auto' or 'required'"),
        ({"stop": ["a"] * 17}, "stop", "at most 16 items"),
        ({"stop": ""}, "stop", "at least 1 character"),
        ({"n": 10**9}, "n", "128"),
        ({"n": 100}, "n", "at most 16"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "not in the vocabulary"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "token ids"),
        ({"seed": 1.5}, "seed", "integer"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction", "not a parameter"),
        ({"functions": [{"name": "f", "parameters": {}}]}, "functions", "not a parameter"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0", "needs content"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"model": "bert"}, "model", "generates no text"),
    ],
)
def test_what_cannot_be_followed_is_named(client: OpenAI, options: Any, param: str, words: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **options)
    assert caught.value.param == param and words in caught.value.message, caught.value.message


def test_rare_options_of_chats(client: OpenAI) -> None:
    bias = chat(client, logit_bias={"65": 100}, temperature=0, extra_body={"ignore_eos": True})
    assert len(set(bias.choices[0].message.content)) == 1
    assert chat(client, max_tokens=9, max_completion_tokens=2, extra_body={"ignore_eos": True}).usage.completion_tokens == 2
    assert chat(client, seed=-5, temperature=2).choices[0].message == chat(client, seed=-5, temperature=2).choices[0].message
    assert len(chat(client, n=16, seed=1).choices) == 16
    assert chat(client, stop=[], tools=[], parallel_tool_calls=True, tool_choice="auto").choices[0].message.tool_calls is None
    developer = [{"role": "developer", "content": "d"}, {"role": "user", "content": [{"type": "text", "text": "a"}] * 2}]
    assert chat(client, messages=developer, temperature=0).usage.prompt_tokens > 0
    parts = {part.index for chunk in chat(client, stream=True, n=2) for part in chunk.choices}
    assert parts == {0, 1}


def test_some_of_the_tools_are_allowed(client: OpenAI) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "second"}}]}
    choice: Any = {"type": "allowed_tools", "allowed_tools": allowed}
    for seed in range(4):
        found = chat(client, tools=[FIRST, SECOND], tool_choice=choice, max_tokens=300, seed=seed, parallel_tool_calls=False)
        (call,) = found.choices[0].message.tool_calls
        assert call.function.name == "second" and isinstance(json.loads(call.function.arguments)["on"], bool)


def test_rare_embeddings(client: OpenAI, ollama_client: ollama.Client) -> None:
    whole = client.embeddings.create(model="bert", input="w5 w6").data[0].embedding
    short = client.embeddings.create(model="bert", input="w5 w6", dimensions=8).data[0].embedding
    assert np.allclose(short, np.array(whole[:8]) / np.linalg.norm(whole[:8]), atol=1e-6)
    packed = client.embeddings.create(model="bert", input="w5 w6", dimensions=8, encoding_format="base64").data[0].embedding
    assert np.allclose(np.frombuffer(base64.b64decode(packed), "<f4"), short)  # type: ignore[arg-type]
    assert len(client.embeddings.create(model="bert", input=["", "w5"]).data) == 2
    for given, param, words in (
        ([], "input", "at least 1 item"),
        ("w5 " * 5000, "input", "this model takes"),
        ([10**6], "input", "not in the vocabulary"),
    ):
        with pytest.raises(openai.BadRequestError, match=words) as caught:
            client.embeddings.create(model="bert", input=given)  # type: ignore[arg-type]
        assert caught.value.param == param
    with pytest.raises(openai.BadRequestError, match="greater than or equal to 1"):
        client.embeddings.create(model="bert", input="w5", dimensions=0)
    # ollama's protocol has an option for texts that are too long, which is on by itself.
    assert len(ollama_client.embed("bert", "w5 " * 5000).embeddings) == 1
    with pytest.raises(ollama.ResponseError, match="this model takes"):
        ollama_client.embed("bert", "w5 " * 5000, truncate=False)


def test_rare_completions(client: OpenAI) -> None:
    found = client.completions.create(model="tiny", prompt=["a", "b"], n=2, max_tokens=2)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    with pytest.raises(openai.BadRequestError, match="not in the vocabulary") as caught:
        client.completions.create(model="tiny", prompt=[99999])
    assert caught.value.param == "prompt"
    with pytest.raises(openai.BadRequestError, match="best_of must be n") as caught:
        client.completions.create(model="tiny", prompt="a", best_of=3, n=1)
    assert caught.value.param == "best_of"


def test_rare_forms_of_anthropic(server: ModelServer) -> None:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        model = client.models.retrieve("tiny")
        assert model.type == "model" and model.display_name == "tiny"
        schema = {"format": {"type": "json_schema", "schema": SWITCH}}
        found = client.messages.create(model="tiny", max_tokens=100, messages=HELLO, extra_body={"output_config": schema})
        assert isinstance(json.loads(found.content[0].text)["on"], bool)  # type: ignore[union-attr]
        refused: Any = {"format": {"type": "json_schema", "schema": {"type": "object", "not": {}}}}
        with pytest.raises(anthropic.BadRequestError, match="cannot be enforced: not"):
            client.messages.create(model="tiny", max_tokens=9, messages=HELLO, extra_body={"output_config": refused})
        with pytest.raises(anthropic.BadRequestError, match=r"thinking\.budget_tokens"):
            client.messages.create(
                model="tiny", max_tokens=9, messages=HELLO, thinking={"type": "enabled", "budget_tokens": 1024}
            )


def test_what_ollama_s_clients_cannot_have(ollama_client: ollama.Client) -> None:
    for options, words in (
        ({"context": [1, 2]}, "context"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"suffix": "x"}, "suffix"),
        ({"options": {"mirostat": 1}}, "mirostat"),
    ):
        with pytest.raises(ollama.ResponseError, match=words) as caught:
            ollama_client.generate("tiny", "hi", **options)  # type: ignore[arg-type]
        assert caught.value.status_code == 400
    for call in (ollama_client.pull, ollama_client.delete):
        with pytest.raises(ollama.ResponseError) as caught:
            call("tiny")
        assert caught.value.status_code == 404


def test_bodies_that_no_client_sends(server: ModelServer) -> None:
    def said(body: bytes, **headers: str) -> tuple[int, str]:
        status, _, found = exchange(server, request("/v1/chat/completions", body, **headers))
        return status, found["error"]["message"] if status != 200 else ""

    start = b'{"model":"tiny","messages":[{"role":"user","content":"a"}],'
    assert said(start + b'"temperature":1e999}') == (400, "temperature: Input should be a finite number")
    assert said(start + b'"seed":' + b"9" * 5000 + b"}")[0] == 400
    assert said(start + b'"max_tokens":"2"}')[0] == 400
    assert said('{"model":"tiny"}'.encode("utf-16"))[0] == 400
    assert said(b'{"a":' * 5000 + b"1" + b"}" * 5000)[0] == 400
    assert said(b'{"model":"tiny","messages":[{"role":"user","content":"\xff"}]}')[0] == 400
    assert said(start + b'"max_tokens":2}' + b" x")[0] == 400
    # As with every reader of JSON that OpenAI's clients meet, the last of two members with one name counts.
    assert said(b'{"model":"nothing",' + start[1:] + b'"max_tokens":2}')[0] == 200
    assert said(start + b'"max_tokens":2}', Content_Encoding="gzip") == (415, "the body is compressed; send it as it is")
    assert ask(server, "/v1/chat/completions", {}, method="PUT")[0] == 405


def test_texts_that_cannot_fit_are_not_tokenised(server: ModelServer) -> None:
    """A worker that reads a megabyte to find that it does not fit keeps others waiting, and the memory that it took."""
    long = "a " * 450_000
    for path, body, param in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]}, "messages"),
        ("/v1/completions", {"prompt": long}, "prompt"),
        ("/v1/messages", {"messages": [{"role": "user", "content": long}], "max_tokens": 4}, None),
        ("/api/generate", {"prompt": long}, None),
    ):
        status, _, found = ask(server, path, {"model": "tiny", **body})
        said = found["error"] if isinstance(found["error"], str) else found["error"]["message"]
        assert status == 400 and "characters, the context holds 2048 tokens" in said, (path, found)
        if param is not None:
            assert found["error"]["param"] == param and found["error"]["code"] == "context_length_exceeded"
    counted = ask(server, "/tokenize", {"model": "tiny", "content": long, "with_pieces": True})[2]
    assert counted["count"] == len(long) and counted["tokens"][0]["piece"] == "a"
    for name in ("prompt", "content"):
        status, _, found = ask(server, "/tokenize", {"model": "tiny", name: "a" * ((1 << 20) + 1)})
        assert status == 400 and found["error"]["param"] == name and "1048576 can be tokenised" in found["error"]["message"]


def test_sounds_are_refused_in_words(client: OpenAI, server: ModelServer) -> None:
    """No model here hears or speaks: the real client gets an error of OpenAI's form that says so, for a model that is there."""
    sound = ("a.wav", b"RIFF" + bytes(200))
    calls: list[Callable[[str], Any]] = [
        lambda name: client.audio.transcriptions.create(model=name, file=sound),
        lambda name: client.audio.speech.create(model=name, voice="alloy", input="hi"),
    ]
    for call in calls:
        with pytest.raises(openai.BadRequestError, match=r"tiny cannot .*: it writes text") as refused:
            call("tiny")
        assert refused.value.code == "model_not_supported" and refused.value.param == "model"
        with pytest.raises(openai.NotFoundError) as unknown:
            call("whisper-1")
        assert unknown.value.code == "model_not_found"
    for path in ("/v1/audio/transcriptions", "/v1/audio/translations"):
        for body in (b"", b"--x\r\n\r\nnothing", b"\xff" * 99, b'\r\nContent-Disposition: form-data; name="model"\r\n\r\n'):
            status, _, found = exchange(server, request(path, body, Content_Type="multipart/form-data; boundary=x"))
            assert status == 400 and found["error"]["code"] == "missing_required_parameter"
    spoken: Any = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
    with pytest.raises(openai.BadRequestError):
        chat(client, **spoken)
    heard: Any = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}]
    with pytest.raises(openai.BadRequestError, match="input_audio, which this model cannot follow"):
        chat(client, messages=heard)
