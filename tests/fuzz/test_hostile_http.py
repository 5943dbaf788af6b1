"""A hostile server: wrong lengths, lies about ranges, redirects, garbage, stalls, drips; each gives a typed error in time."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumice.sources import http
from pumice.sources.index import _html_links, _json_links
from pumice.sources.progress import FetchMeter

from fuzz.hostile import fuzz

BODY = bytes(range(256)) * 8
LIMIT = 1 << 20
# (bytes to send, seconds to wait before): what the server answers a connection with.
Script = list[tuple[bytes, float]]


class Server:
    """Answers every connection with the next of some scripts, whatever is asked for; the last one stays."""

    def __init__(self) -> None:
        self.scripts: list[Script] = []
        self.asked = 0
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/file"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            script = self.scripts[min(self.asked, len(self.scripts) - 1)]
            self.asked += 1
            threading.Thread(target=self._answer, args=(connection, script), daemon=True).start()

    def _answer(self, connection: socket.socket, script: Script) -> None:
        try:
            with connection:
                connection.settimeout(2)
                connection.recv(4096)
                for data, wait in script:
                    time.sleep(wait)
                    connection.sendall(data)
        except OSError:
            pass  # the other side has had enough

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    # The bounds of real life take minutes.
    for name, value in (("_PAGE_SECONDS", 0.5), ("_PACE_SECONDS", 0.2), ("_TRIES", 2), ("_MAX_SLOW", 3), ("_WAIT_SECONDS", 0.0)):
        monkeypatch.setattr(http, name, value)
    for name in ("_MAX_PAGE", "_MAX_FILE", "_MAX_UNSIZED"):
        monkeypatch.setattr(http, name, LIMIT)
    found = Server()
    yield found
    found.close()


_STATUS = (
    "200 OK",
    "206 Partial Content",
    "416 No",
    "404 No",
    "401 No",
    "500 No",
    "204 Nothing",
    "302 Found",
    "999 ?",
    "abc",
    "",
)
_FIELDS = (
    ("", "", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip", *(f"Content-Length: {'9' * n}" for n in (5, 30, 5000))),
    ("", "", "Content-Encoding: gzip", "Content-Range: bytes 0-5/6", "Content-Range: bytes 7-", "Content-Range: \x1b[2J"),
    (
        "",
        "Location: /file",
        "Location: ftp://127.0.0.1/x",
        "Location: file:///etc/passwd",
        "Location: http://[::1",
        "Location: \0",
    ),
    ("", "", "X: " + "y" * 70_000, "\r\n".join(f"X{k}: y" for k in range(150)), "no colon", "Connection: keep-alive"),
    ("Content-Type: text/html", "Content-Type: application/json", "Content-Type: \xff"),
)


def _head(rng: random.Random, size: int) -> bytes:
    length = rng.choice(
        (f"Content-Length: {size}", f"Content-Length: {size + rng.choice((-5, 5, 10**6))}", "Content-Length: -1", "")
    )
    status = rng.choice(_STATUS) if rng.random() < 0.6 else "200 OK"
    fields = [f for f in (length, *(rng.choice(choices) for choices in _FIELDS)) if f]
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, "", ""]).encode("latin-1")


def _script(rng: random.Random) -> Script:
    kind = rng.randrange(20)
    if kind == 0:
        return [(b"HTTP/1.1 200 OK\r\n", 0), (b"X", 3.0)]  # a head that does not come
    if kind == 1:
        return [(b"HTTP/1.1 200 OK\r\n\r\n", 0), *[(b"x", 0.05)] * 40]  # a drip
    if kind == 2:
        return [(rng.randbytes(rng.choice((0, 1, 500))), 0)]
    if kind == 3:
        return [(b"HTTP/1.1 200 OK\r\n\r\n", 0), *[(bytes(1 << 16), 0)] * 20]  # more than the limit, and no length
    if kind == 5:
        return [(b"HTTP/1.1 302 Found\r\nLocation: /file\r\n\r\n", 0), *[(bytes(1 << 16), 0)] * 20]
    if kind == 4:
        return [(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nx", 0)]  # one byte a request
    body = rng.choice(
        (BODY, b"", b'{"files": []}', b"5\r\nhello\r\n0\r\n\r\n", b"FFFFFFFFFFFFFFFFFFFF\r\nx", b"zz\r\n", b"\x1f\x8b" + BODY)
    )
    return [(_head(rng, len(body)), 0), (body[: rng.choice((len(body), len(body) // 2))], 0)]


def hostile_answers(rng: random.Random) -> list[Script]:
    return [_script(rng) for _ in range(rng.randint(1, 4))]


def test_a_hostile_server(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> None:
    client, part = http.Http(timeout=0.15), tmp_path / "a.part"

    def attempt(scripts: list[Script]) -> None:
        server.scripts, server.asked = scripts, 0
        if len(scripts) % 2:
            final, kind, text = client.page(server.url, "*/*")
            assert len(text) <= LIMIT
            (_json_links if kind.endswith("json") else _html_links)(text, final)
        else:
            part.unlink(missing_ok=True)
            try:
                client.download(server.url, part, FetchMeter(None))
            finally:
                assert not part.exists() or part.stat().st_size <= LIMIT
                assert server.asked < 60

    fuzz(request, hostile_answers, attempt, cases=80)
