"""Random requests from the OpenAPI description, right and wrong ones: no 500, no hang, and the server is as before."""

from __future__ import annotations

import http.client
import json
import random
import re
import string
from typing import Any

import jsonschema
import pytest

from pumice.serve.app import ROUTES
from pumice.serve.openapi import BODIES, READ, describe
from pumice.serve.server import ModelServer
from serve.raw_http import ask

WORDS = ("hello", "w5 w6", "a1 b2", "", "é\u2028\U0001f600", "{}", "\x00", "x" * 300, "<tool_call>", "[TOOL_CALLS]")
SCHEMAS = describe()["components"]["schemas"]
NUMBERS = (0, 1, 2, 7, -1, 0.5, 1e9, -1e9, 2**31, 2**63, 2**64, 1e308)
MODEL_OF = {"/v1/embeddings": "bert", "/api/embed": "bert", "/api/embeddings": "bert", "/v1/rerank": "rank", "/rerank": "rank"}
LIMITS: dict[str, tuple[str, Any]] = {
    "/v1/chat/completions": ("max_tokens", 8),
    "/v1/responses": ("max_output_tokens", 8),
    "/api/chat": ("options", {"num_predict": 8}),
    "/api/generate": ("options", {"num_predict": 8}),
}
MODELS = ("tiny", "bert", "rank", "none", "../tiny")


class RequestFuzzer:
    """Makes bodies from schemas; `wild` is how often something else takes the place of a value."""

    def __init__(self, seed: int, wild: float) -> None:
        self.rng, self.wild = random.Random(seed), wild

    def value(self, schema: Any, name: str = "", depth: int = 0) -> Any:
        rng = self.rng
        if "$ref" in schema:
            schema = SCHEMAS[schema["$ref"].rsplit("/", 1)[-1]]
        if rng.random() < self.wild:
            return rng.choice([None, True, rng.choice(NUMBERS), rng.choice(WORDS), [], {}, [[]], {"a": {"b": []}}, [1, "a"]])
        if name == "model":
            return rng.choice(MODELS if rng.random() < 0.2 else MODELS[:1])
        if name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict"):
            return rng.randint(1, 12)
        if name in ("schema", "parameters", "input_schema", "format") and rng.random() < 0.7 and depth < 8:
            return self.json_schema()
        if "enum" in schema:
            return rng.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        if "anyOf" in schema:
            return self.value(rng.choice(schema["anyOf"]), name, depth)
        return self._typed(schema, name, depth)

    def _typed(self, schema: Any, name: str, depth: int) -> Any:
        rng, kind = self.rng, schema.get("type")
        if kind == "object":
            known = schema.get("properties", {})
            wanted = set(schema.get("required", []))
            found = {
                k: self.value(v, k, depth + 1) for k, v in known.items() if k in wanted or (depth < 6 and rng.random() < 0.25)
            }
            if known and rng.random() < self.wild:
                found[rng.choice(string.ascii_lowercase)] = 1
            if not known:
                found = {rng.choice(("5", "a", "40")): rng.choice((1, 0.5, "x")) for _ in range(rng.randint(0, 2))}
            return found
        if kind == "array":
            low, high = schema.get("minItems", 0), 3
            return [self.value(schema.get("items", {}), name, depth + 1) for _ in range(rng.randint(low, max(low, high)))]
        if kind in ("integer", "number"):
            low, high = schema.get("minimum", 0), schema.get("maximum", schema.get("minimum", 0) + 100)
            return (
                rng.randint(int(low), int(max(low, min(high, 1 << 40))))
                if kind == "integer"
                else rng.uniform(low, min(high, 1e6))
            )
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "null":
            return None
        if kind == "string":
            text = rng.choice(WORDS)
            return rng.choice(("f", "get_weather")) if "pattern" in schema else text[: schema.get("maxLength", 400)] or "a"
        return rng.choice([None, 1, "a", {}])

    def json_schema(self, depth: int = 0) -> Any:
        rng = self.rng
        kind = rng.choice(
            ["string", "integer", "boolean", "null", "number", "enum", "object", "array"][: None if depth < 3 else 5]
        )
        if kind == "object":
            names = rng.sample("abcd", rng.randint(0, 3))
            made = {
                "type": "object",
                "properties": {n: self.json_schema(depth + 1) for n in names},
                "additionalProperties": False,
            }
            return {**made, "required": [n for n in names if rng.random() < 0.7]}
        if kind == "array":
            return {"type": "array", "items": self.json_schema(depth + 1), "maxItems": rng.randint(0, 3)}
        if kind == "enum":
            return {"enum": rng.sample(["a", "b", 1, None, True], rng.randint(1, 3))}
        more = {"string": {"maxLength": 6}, "integer": {"minimum": -9, "maximum": 9}, "number": {"minimum": 0, "maximum": 1}}
        return {"type": kind, **more.get(kind, {})}


def _post(connection: http.client.HTTPConnection, path: str, body: str) -> http.client.HTTPResponse:
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
    except ConnectionError:  # the server may close a connection that was quiet for long, as on a machine that is busy
        connection.close()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
    return connection.getresponse()


def bombard(server: ModelServer, seeds: range) -> dict[int, int]:
    """Sends a request for each seed over one connection; how often each status came."""
    statuses: dict[int, int] = {}
    paths = list(BODIES)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        for seed in seeds:
            path, kind = paths[seed % len(paths)], seed // len(paths) % 3
            fuzzer = RequestFuzzer(seed, wild=(0.0, 0.02, 0.1)[kind])
            body = fuzzer.value({"$ref": f"#/components/schemas/{BODIES[path].__name__}"}, depth=0)
            if isinstance(body, dict):
                if kind == 0:
                    body["model"] = MODEL_OF.get(path, "tiny")
                if path in LIMITS:  # without one an answer may fill the context
                    body.setdefault(*LIMITS[path])
            response = _post(connection, path, json.dumps(body))
            answer = response.read()
            statuses[response.status] = statuses.get(response.status, 0) + 1
            assert response.status < 500 or response.status == 504, (seed, path, body, answer[:400])
            assert response.status == 200 or b"error" in answer, (seed, path, body, answer[:400])
            assert b'"internal_error"' not in answer, (seed, path, body, answer[:400])
    finally:
        connection.close()
    return statuses


def test_random_requests(server: ModelServer) -> None:
    statuses = bombard(server, range(200))
    assert statuses[200] > 30 and statuses[400] > 30
    assert ask(server, "/ready", method="GET")[0] == 200


@pytest.mark.slow
def test_ten_thousand_random_requests(server: ModelServer) -> None:
    """Five thousand, twice: the worker keeps a plan for each combination of options, so only the second time shows a leak."""
    assert server.api is not None
    host = server.api.pool.hosts["tiny"]
    bombard(server, range(1000, 6000))
    before, restarts = host.memory, host.restarts
    statuses = bombard(server, range(1000, 6000))
    assert statuses[200] > 800 and host.restarts == restarts
    assert host.memory < before * 1.05 + (4 << 20), (before, host.memory)


def test_the_description_names_every_endpoint() -> None:
    described = {(m.upper(), p) for p, methods in describe()["paths"].items() for m in methods}
    there = {(method, path.replace("{model:path}", "{model}")) for method, path, _ in ROUTES}
    assert described == there and set(READ) <= {path for _, path in there}
    for path, methods in describe()["paths"].items():  # as OpenAPI wants it, and tools that read it
        for operation in methods.values():
            assert {p["name"] for p in operation.get("parameters", ())} == set(re.findall(r"{(\w+)}", path))


@pytest.mark.parametrize("count", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_random_schemas_are_followed(server: ModelServer, count: int) -> None:
    """At any temperature an answer validates; one that is cut off is the beginning of one that would, and says so."""
    for seed in range(count):
        schema = {"type": "object", "properties": {"x": RequestFuzzer(seed, 0).json_schema()}, "required": ["x"]}
        schema["additionalProperties"] = False
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "response_format": form, "seed": seed}
        body |= {"temperature": (0.0, 1.0, 1.5)[seed % 3], "max_tokens": 900}
        status, _, found = ask(server, "/v1/chat/completions", body)
        assert status == 200, (schema, found)
        (choice,) = found["choices"]
        assert choice["finish_reason"] == "stop", (seed, schema, choice)
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)
        short = ask(server, "/v1/chat/completions", {**body, "max_tokens": 5})[2]["choices"][0]
        assert short["finish_reason"] == "length" or json.loads(short["message"]["content"]) is not None
