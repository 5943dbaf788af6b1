"""Files of npm packages: pinned by their sha256, from a registry that may lie, into the cache."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pumice import config
from pumice.errors import FormatError, InputError
from pumice.sources import npm
from pumice.sources.errors import NoNetwork, NotFound, SourceError, WrongHash
from pumice.sources.spec import NpmSpec, parse, parse_npm

CONTENT = b"\0asm" + bytes(range(200))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SPEC = NpmSpec("tiny-compiler", "1.2.3", "dist/tiny.wasm")


def package(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))
    return out.getvalue()


@dataclass
class Registry:
    """A registry of one package, and how often it was asked."""

    archive: bytes = field(default_factory=lambda: package({"package/package.json": b"{}", "package/dist/tiny.wasm": CONTENT}))
    answer: str | None = None
    url: str = ""
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    found = Registry()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            about = json.dumps({"dist": {"tarball": f"{found.url}/tiny.tgz"}}) if found.answer is None else found.answer
            body = found.archive if self.path.endswith(".tgz") else about.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *of: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", found.url + "/")
    monkeypatch.setenv("PUMICE_HOME", str(tmp_path / "home"))
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_is_fetched_once(registry: Registry) -> None:
    for _ in range(2):
        assert npm.npm_file(SPEC, SHA256).read_bytes() == CONTENT
    assert registry.asked == ["/tiny-compiler/1.2.3", "/tiny.tgz"]
    assert npm.npm_file(SPEC, SHA256, offline=True).is_relative_to(config.home)


def test_another_content_is_refused_and_not_kept(registry: Registry) -> None:
    registry.archive = package({"package/dist/tiny.wasm": b"something else"})
    with pytest.raises(WrongHash, match="expected is"):
        npm.npm_file(SPEC, SHA256)
    with pytest.raises(NoNetwork):
        npm.npm_file(SPEC, SHA256, offline=True)


def test_a_file_that_changed_in_the_cache_is_fetched_again(registry: Registry) -> None:
    npm.npm_file(SPEC, SHA256).write_bytes(b"changed")
    assert npm.npm_file(SPEC, SHA256).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("archive", "error"),
    [
        (package({"package/other": b"1"}), NotFound),
        (b"no archive", FormatError),
        (package({"../dist/tiny.wasm": CONTENT}), NotFound),
    ],
    ids=["no such file", "damaged", "elsewhere"],
)
def test_archives_without_the_file(registry: Registry, archive: bytes, error: type[Exception]) -> None:
    registry.archive = archive
    with pytest.raises(error):
        npm.npm_file(SPEC, SHA256)


@pytest.mark.parametrize("answer", ["", "[]", '{"dist": {"tarball": 3}}', '{"dist": {"tarball": "http://example.org/a.tgz"}}'])
def test_answers_that_name_no_archive_to_trust(registry: Registry, answer: str) -> None:
    registry.answer = answer
    with pytest.raises(SourceError):
        npm.npm_file(SPEC, SHA256)


def test_the_registry_is_the_one_of_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NPM_CONFIG_REGISTRY", "npm_config_registry"):
        monkeypatch.delenv(name, raising=False)
    settings = tmp_path / "npmrc"
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(settings))
    assert npm.registry().startswith("https://")
    settings.write_text("fund=false\nregistry = https://npm.example/own/\n")
    assert npm.registry() == "https://npm.example/own/"
    with pytest.raises(SourceError, match="cannot be used"):
        npm._check_open("https://user:word@npm.example/")


@pytest.mark.parametrize("text", ["npm:tiny", "npm:tiny@1", "npm:@1/a", "npm:tiny@1/../a"])
def test_specs_that_name_no_file(text: str) -> None:
    with pytest.raises(InputError):
        parse_npm(text)


def test_a_file_of_npm_is_no_model() -> None:
    with pytest.raises(InputError, match="no model"):
        parse("npm:tiny@1.0/a.wasm")
