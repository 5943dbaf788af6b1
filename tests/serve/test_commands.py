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
from pumice.serve.facts import JsonLog
from pumice.serve.keys import new_key
from pumice.serve.server import ModelServer
from pumice.serve.settings import ServerSettings
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


def test_serving_what_is_no_model_is_refused_at_once(tmp_path: Path) -> None:
    refused(pumice("serve", "nosuch", "--port", 0), "there is no model 'nosuch'; known are smollm2, minilm")
    refused(pumice("serve", f"mine={tmp_path / 'gone.gguf'}", "--port", 0), "gone.gguf does not exist; check the path")
    refused(pumice("serve", tmp_path, "--port", 0, "--lazy"), "holds no weights")
    refused(pumice("serve", "/dev/null", "--port", 0), "/dev/null is neither a file nor a folder")


def test_what_stands_between_a_command_and_its_server(server: ModelServer, models: list[ModelSpec], tmp_path: Path) -> None:
    one = ("run", "tiny", "hello", "--max-tokens", 2)
    assert pumice(*one, "--server", f"{server.url}/v1/").returncode == 0, "the address that other clients want"
    for wrong in ("http://localhost:99999", "localhost:x", "ftp://localhost", "http://[::1", "http://"):
        refused(pumice(*one, "--server", wrong), "--server is")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "lines").write_text("pk-1\nX-Other: 2\n")
    for name in ("empty", "lines"):
        refused(pumice(*one, "--server", server.url, "--server-key-file", tmp_path / name), "holds no key")
    key = new_key(tmp_path / "keys", "me")
    (tmp_path / "mine").write_text(key + "\n")
    settings = ServerSettings(port=0, drain_seconds=1, key_file=str(tmp_path / "keys"))
    with ModelServer(models[:1], settings, log=JsonLog(quiet=True)) as locked:
        refused(pumice(*one, "--server", locked.url), "--server-key-file FILE names the file")
        assert pumice(*one, "--server", locked.url, "--server-key-file", tmp_path / "mine").returncode == 0


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
