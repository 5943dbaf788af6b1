"""Faults and strangers: killed workers, huge bodies, slow readers, idle connections, header bombs; the rest are still served."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from pumice.serve.facts import JsonLog
from pumice.serve.server import ModelServer
from pumice.serve.settings import HostSettings, ServerSettings
from pumice.serve.spec import ModelSpec
from serve.conftest import wait_until_ready
from serve.raw_http import ask, connect, exchange, read_all, request

HELLO: Any = [{"role": "user", "content": "hello"}]
CHAT: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def fragile(models: list[ModelSpec]) -> Iterator[ModelServer]:
    """A server of two models with small limits."""
    settings = ServerSettings(
        port=0, drain_seconds=1, body_bytes=1 << 16, header_bytes=8192, connections=40, head_seconds=1.0, body_seconds=1.0,
        send_seconds=2.0,
        models=HostSettings(back_off=0.05),
    )  # fmt: skip
    log = io.StringIO()
    with ModelServer(models[:2], settings, log=JsonLog(log)) as running:
        # Accepted connections inherit it: a stream that is not read soon has no place to go.
        running._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        running.written = log  # type: ignore[attr-defined]
        wait_until_ready(running)
        yield running


def entries(server: ModelServer) -> list[dict[str, Any]]:
    """What the server wrote into its log."""
    return [json.loads(line) for line in server.written.getvalue().splitlines()]  # type: ignore[attr-defined]


def serves(server: ModelServer) -> None:
    status, _, body = ask(server, "/v1/chat/completions", CHAT)
    assert status == 200 and body["usage"]["completion_tokens"] == 4


def test_a_killed_worker_costs_its_own_streams_only(fragile: ModelServer) -> None:
    assert fragile.api is not None
    host = fragile.api.pool.hosts["tiny"]
    with OpenAI(base_url=f"{fragile.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        next(iter(stream))
        assert host.worker is not None
        os.kill(host.worker.pid, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="worker of tiny ended"):
            for _ in stream:
                pass
        assert len(client.embeddings.create(model="bert", input="w5").data) == 1
        # The next request waits until the model is there again.
        again = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4)
        assert again.choices[0].message.content is not None and host.restarts == 1
    told = [e for e in entries(fragile) if e["event"] == "model" and e["model"] == "tiny"]
    assert [e["state"] for e in told] == ["loading", "ready", "restarting", "ready"] and "code -9" in told[2]["error"]
    assert ask(fragile, "/ready", method="GET")[0] == 200


def test_huge_bodies(fragile: ModelServer) -> None:
    status, headers, body = exchange(fragile, request("/v1/chat/completions", b"", Content_Length=str(1 << 30)))
    assert status == 413 and body["error"]["code"] == "request_too_large" and headers["connection"] == "close"
    # Without a length in the header it is noticed while it comes.
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    head = request("/v1/chat/completions", b"", Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b"")
    with connect(fragile) as connection:
        sent = 0
        connection.sendall(head)
        try:
            while sent < 1 << 26:
                connection.sendall(chunk)
                sent += len(chunk)
        except ConnectionError:
            pass
        read_all(connection)
    assert sent < 1 << 25
    serves(fragile)


def test_many_large_bodies_at_once(models: list[ModelSpec]) -> None:
    """Bodies that are each small enough are refused when all together are not; small ones pass, and the room is given back."""
    settings = ServerSettings(port=0, drain_seconds=1, body_bytes=1 << 20, all_bodies_bytes=3 << 20)
    head = request("/v1/completions", b"", Content_Length=str(1 << 20)) + b" " * 1_000_000
    with ModelServer(models[:1], settings, log=JsonLog(quiet=True)) as server:
        wait_until_ready(server)
        for _ in range(2):
            unfinished = [connect(server) for _ in range(8)]
            refused = 0
            try:
                for connection in unfinished:
                    connection.sendall(head)
                for connection in unfinished:
                    connection.settimeout(0.5)
                    with contextlib.suppress(TimeoutError):
                        said = read_all(connection)
                        assert b" 429 " in said.split(b"\r\n")[0] and b"retry-after: 1" in said and b"bodies_full" in said
                        refused += 1
                assert refused == 5
                serves(server)
            finally:
                for connection in unfinished:
                    connection.close()
            body = b'{"model": "tiny", "max_tokens": 2, "prompt": "a"' + b" " * 900_000 + b"}"
            until = time.monotonic() + 10
            while exchange(server, request("/v1/completions", body))[0] != 200:
                assert time.monotonic() < until, "those that are gone hold no room"
                time.sleep(0.05)


def test_bodies_that_do_not_come(fragile: ModelServer) -> None:
    """A body that stops in the middle is not waited for; a client that leaves before its end is no fault of the server."""
    head = request("/v1/chat/completions", b"", Content_Length="5000") + b'{"model": '
    status, headers, body = exchange(fragile, head)
    assert status == 408 and body["error"]["code"] == "request_timeout" and headers["connection"] == "close"
    with connect(fragile) as connection:
        connection.sendall(head)
        time.sleep(0.1)
    time.sleep(0.1)
    assert not [e for e in entries(fragile) if e["event"] == "fault"]
    serves(fragile)


def test_bodies_that_are_no_request(fragile: ModelServer) -> None:
    nested = b"[" * 30000 + b"]" * 30000
    for body in (b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe", nested, b'{"model": "tiny", "messages": ' + nested + b"}",
                 b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
                 b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 2}'):  # fmt: skip
        status, _, found = exchange(fragile, request("/v1/chat/completions", body))
        assert status == 400 and found["error"]["type"] == "invalid_request_error", body[:60]
    deep: Any = {"type": "object"}
    for _ in range(80):
        deep = {"type": "object", "properties": {"a": deep}}
    form = {"type": "json_schema", "json_schema": {"name": "deep", "schema": deep}}
    assert ask(fragile, "/v1/chat/completions", {**CHAT, "response_format": form})[0] in (200, 400)
    serves(fragile)


def test_header_bombs(fragile: ModelServer) -> None:
    with connect(fragile) as connection:
        try:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            for k in range(10_000):
                connection.sendall(f"X-{k}: {'a' * 100}\r\n".encode())
        except ConnectionError:
            pass
        assert not read_all(connection).startswith(b"HTTP/1.1 200")
    for data in (
        b"\x00" * 5000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /%00%ff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ):
        assert exchange(fragile, data)[0] in (0, 400, 404, 421)
    serves(fragile)


def test_idle_connections_make_room(fragile: ModelServer) -> None:
    """More connections than there may be, none of which sends anything, then one that does."""
    idle: list[socket.socket] = []
    try:
        for _ in range(120):
            idle.append(connect(fragile))
        serves(fragile)
        ended = [c for c in idle if select.select([c], [], [], 0)[0]]
        assert len(ended) >= 120 - 40, "those beyond the limit were ended at once"
        # Those that are left go by themselves.
        time.sleep(1.3)
        for connection in idle:
            connection.settimeout(2)
            assert read_all(connection) == b""
    finally:
        for connection in idle:
            connection.close()


def test_slow_readers_are_bounded(fragile: ModelServer) -> None:
    """Clients that read nothing of long streams neither hold up others nor stay for ever."""
    assert fragile.api is not None
    metrics = fragile.api.metrics
    body = json.dumps({**CHAT, "max_tokens": 500, "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
    slow, before = [], len(entries(fragile))
    for _ in range(2):
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect(("127.0.0.1", fragile.port))
        made.sendall(request("/v1/chat/completions", body))
        slow.append(made)
    try:
        started = time.monotonic()
        serves(fragile)
        while metrics.open_requests:
            time.sleep(0.05)
            assert time.monotonic() - started < 60
        cut = [e for e in entries(fragile)[before:] if e.get("gone")]
        assert len(cut) == 2 and all(e["ms"] >= 2000 for e in cut)
    finally:
        for made in slow:
            made.close()
    serves(fragile)
    assert not [e for e in entries(fragile) if e["event"] == "fault"]


def test_names_of_models_are_never_paths(fragile: ModelServer) -> None:
    for name in ("../tiny", "/etc/passwd", "..\\tiny", "file:///etc/passwd", "hf:owner/repo", "tiny\x00", "tiny/../bert"):
        status, _, body = ask(fragile, "/v1/chat/completions", {**CHAT, "model": name})
        assert status == 404 and body["error"]["code"] == "model_not_found"
    assert ask(fragile, "/v1/models/..%2f..%2fetc%2fpasswd", method="GET")[0] == 404
