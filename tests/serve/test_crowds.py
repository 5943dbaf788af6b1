"""Crowds at a real server process: ten thousand idle connections, bodies of a gigabyte; it stays small, and others are served."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cli_harness import command, environment
from pumice.serve.spec import ModelSpec
from serve.raw_http import ask_port, connect_port, read_all, request
from serve.test_soak import resident

IDLE, CONNECTIONS = 10_000, 1024
BODY = 1 << 30
CHAT: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def process(models: list[ModelSpec]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    args = [
        "serve",
        f"tiny={models[0].source}",
        "--port",
        0,
        "--device",
        "host",
        "--connections",
        CONNECTIONS,
        "--json",
        "--quiet",
    ]
    with subprocess.Popen(command(*args), stdout=subprocess.PIPE, env=environment()) as made:
        assert made.stdout is not None
        port = json.loads(made.stdout.readline())["port"]
        while ask_port(port, "/ready", method="GET")[0] != 200:
            time.sleep(0.1)
        serves(port)
        yield made, port
        made.terminate()
        assert made.wait(60) == 0


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def serves(port: int) -> None:
    status, _, body = ask_port(port, "/v1/chat/completions", CHAT)
    assert status == 200 and body["usage"]["completion_tokens"] == 4


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many open files as this test holds sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this user may have {hard} open files: a hard limit of {wanted} would run this test (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_ten_thousand_idle_connections(process: tuple[subprocess.Popen[bytes], int], many_files: None) -> None:
    made, port = process
    before = resident(made.pid)
    idle: list[socket.socket] = []
    try:
        for k in range(IDLE):
            connection = connect_port(port)
            if k % 2:  # half of them begin a request that they never end
                connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: ")
            idle.append(connection)
            if k % 2000 == 1999:
                serves(port)
        serves(port)
        assert open_files(made.pid) < CONNECTIONS + 100, "those beyond the limit were ended for new ones"
        assert resident(made.pid) < before + (200 << 20)
        # What is left of them ends by itself, and the server has all its places again.
        until = time.monotonic() + 60
        while open_files(made.pid) > 60:
            assert time.monotonic() < until, "idle connections stay"
            time.sleep(0.5)
    finally:
        for connection in idle:
            connection.close()
    serves(port)


@pytest.mark.slow
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_a_gigabyte(process: tuple[subprocess.Popen[bytes], int], chunked: bool) -> None:
    """A client that sends all of it whatever it is told: the server reads little of it and keeps none."""
    made, port = process
    before = resident(made.pid)
    part = bytes(1 << 20)
    head = request("/v1/chat/completions", b"", Content_Length=str(BODY))
    if chunked:
        head = head.replace(f"Content-Length: {BODY}\r\n".encode(), b"Transfer-Encoding: chunked\r\n")
        part = f"{len(part):x}\r\n".encode() + part + b"\r\n"
    sent = 0
    with connect_port(port) as connection:
        connection.sendall(head)
        with contextlib.suppress(ConnectionError, TimeoutError):
            while sent < BODY:
                connection.sendall(part)
                sent += len(part)
        answer = read_all(connection)
    assert sent < 64 << 20, "the connection was closed early"
    assert not answer or b" 413 " in answer.split(b"\r\n")[0]
    assert resident(made.pid) < before + (64 << 20)
    serves(port)


@pytest.mark.slow
def test_prompts_of_megabytes(process: tuple[subprocess.Popen[bytes], int]) -> None:
    """Many prompts that are too long, several at once: neither process keeps what they took, and others are served meanwhile."""
    made, port = process
    body = {**CHAT, "messages": [{"role": "user", "content": "a" * 8_000_000}]}

    def bombard(count: int) -> int:
        with ThreadPoolExecutor(4) as pool:
            sent = [pool.submit(ask_port, port, "/v1/chat/completions", body) for _ in range(count)]
            serves(port)
            for each in sent:
                status, _, found = each.result()
                assert status == 400 and found["error"]["code"] == "context_length_exceeded"
        return resident(made.pid)

    first = bombard(20)
    assert bombard(60) < first + (200 << 20)
