"""`pumice serve` and its clients on the command line, and answers as objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pydantic
import pytest

import pumice as pm
from cli_harness import pumice, refused
from pumice.errors import InputError
from pumice.serve.server import ModelServer
from pumice.serve.spec import ModelSpec
from serve.test_openai import PERSON


def test_run_and_chat_with_a_server(server: ModelServer, models: list[ModelSpec], tmp_path: Path) -> None:
    with pm.load(models[0].source, device="host", context=2048) as model:
        wanted = model.generate("hello", temperature=0, max_tokens=6)
        after = model.generate(
            [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": wanted.text},
                {"role": "user", "content": "more"},
            ],
            temperature=0,
            max_tokens=6,
        )
    greedy = ("--server", server.url, "--temperature", 0, "--max-tokens", 6)
    done = pumice("run", "tiny", "hello", *greedy, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["text"] == wanted.text and found["usage"]["completion_tokens"] == 6
    talk = pumice("chat", "tiny", *greedy, stdin=b"hello\nmore\n/quit\n")
    assert talk.returncode == 0 and wanted.text in talk.stdout.removeprefix("> ") and after.text in talk.stdout
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    shaped = pumice("run", "tiny", "hello", "--server", server.url, "--schema", tmp_path / "person.json")
    jsonschema.validate(json.loads(shaped.stdout), PERSON)
    refused(pumice("run", "other", "hello", "--server", server.url), "there is no model 'other'")
    refused(
        pumice("run", "tiny", "hello", "--server", server.url, "--draft", "lookup"), "--draft and --server do not go together"
    )
    refused(pumice("run", "tiny", "hello", "--server", "http://127.0.0.1:9"), "cannot be reached", code=1)


def test_serve_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    refused(pumice("serve"), "there is no model to serve")
    refused(pumice("serve", "x", "--host", "0.0.0.0", "--port", 0), "can be reached from other machines")
    refused(pumice("serve", "x", "--max-body", "many"), "--max-body is 'many'")
    refused(pumice("serve", "x", "--cache", "many"), "--cache is 'many'")
    refused(pumice("serve", "x", "--cache", "1MiB", "--receipts", tmp_path), "--receipts and --cache do not go together")
    made = pumice("serve", "--new-key", "me", "--api-key-file", tmp_path / "keys")
    assert made.returncode == 0 and made.stdout.startswith("pk-") and made.stdout.strip() not in (tmp_path / "keys").read_text()


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=130)


def test_answers_as_objects(models: list[ModelSpec]) -> None:
    with pm.load(models[0].source, device="host", context=512) as model:
        made = model.generate_object("hello", Person, seed=1)
        assert isinstance(made, Person)
        plain: Any = model.generate_object("hello", PERSON, temperature=1.5, seed=2)
        jsonschema.validate(plain, PERSON)
        with pytest.raises(InputError, match="cut off after 3 tokens"):
            model.generate_object("hello", PERSON, max_tokens=3)
        with pytest.raises(InputError, match="the schema is"):
            model.generate_object("hello", 3)
