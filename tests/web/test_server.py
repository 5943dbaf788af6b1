"""The server of `pumice web`: every header, range, encoding and tag; names that lead elsewhere; ports; its command."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli_harness import command, environment, pumice, refused
from pumice.cli.web import run as serve
from pumice.errors import InputError
from pumice.web import STATIC, page_files
from pumice.web.server import DEFAULT_PORT, HEADERS, WebServer
from tiny_models import checkpoint

WEIGHTS = bytes(range(256)) * 4096
PLAN = json.dumps({"steps": list(range(4000))}).encode()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    made = root / "model"
    (made / "plans" / "base line").mkdir(parents=True)
    (made / "weights").mkdir()
    (made / "manifest.json").write_text(json.dumps({"format": "pumice-bundle", "version": 3, "model": {"name": "tiny"}}))
    (made / "plans" / "base line" / "décode.plan").write_bytes(PLAN)
    (made / "weights" / "0.bin").write_bytes(WEIGHTS)
    (made / "empty.bin").write_bytes(b"")
    (made / "index.html").write_text("<!doctype html><title>mine</title>")
    (made / ".hidden").write_text("secret")
    (root / "outside.txt").write_text("secret")
    (made / "link.txt").symlink_to(root / "outside.txt")
    (made / "up").symlink_to(root)
    (made / "inner.bin").symlink_to(made / "weights" / "0.bin")
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[WebServer]:
    with WebServer(folder, port=0) as running:
        yield running


def ask(server: WebServer, target: str, method: str = "GET", **headers: str) -> Answer:
    """One request, its target sent as it stands."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, target, headers={k.replace("_", "-"): v for k, v in headers.items()})
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def tag(data: bytes, end: str = "") -> str:
    return f'"{hashlib.sha256(data).hexdigest()}{end}"'


def test_every_answer_is_isolated_and_under_the_policy(server: WebServer) -> None:
    for target in ("/", "/weights/0.bin", "/missing", "/%2e%2e/outside.txt"):
        for method in ("GET", "HEAD", "POST"):
            found = ask(server, target, method).headers
            assert {name: found.get(name.lower()) for name in HEADERS} == HEADERS
            assert "server" not in found
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy and "*" not in policy


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/manifest.json", "application/json; charset=utf-8"),
        ("/plans/base%20line/d%C3%A9code.plan", "application/octet-stream"),
        ("/weights/0.bin", "application/octet-stream"),
    ],
)
def test_files_have_their_types_and_tags(server: WebServer, folder: Path, target: str, kind: str) -> None:
    got = ask(server, target)
    assert got.status == 200 and got.headers["content-type"] == kind
    assert got.headers["etag"] == tag(got.body) and got.headers["cache-control"] == "no-cache"
    assert got.headers["accept-ranges"] == "bytes" and int(got.headers["content-length"]) == len(got.body)
    head = ask(server, target, "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert {k: v for k, v in head.headers.items() if k != "date"} == {k: v for k, v in got.headers.items() if k != "date"}
    again = ask(server, target, If_None_Match=f'"other", W/{got.headers["etag"]}')
    assert (again.status, again.body) == (304, b"") and again.headers["etag"] == got.headers["etag"]
    assert "content-length" not in again.headers and "content-type" not in again.headers


@pytest.mark.parametrize(
    ("asked", "begin", "end"),
    [("bytes=0-0", 0, 1), ("bytes=1000-", 1000, None), ("bytes=-77", -77, None), ("BYTES=5-99999999999", 5, None)],
)
def test_a_range_gives_just_its_bytes(server: WebServer, asked: str, begin: int, end: int | None) -> None:
    got = ask(server, "/weights/0.bin", Range=asked, Accept_Encoding="gzip")
    first = range(len(WEIGHTS))[begin]
    assert got.status == 206 and got.body == WEIGHTS[begin:end] and "content-encoding" not in got.headers
    assert got.headers["content-range"] == f"bytes {first}-{first + len(got.body) - 1}/{len(WEIGHTS)}"
    assert got.headers["etag"] == tag(WEIGHTS)
    head = ask(server, "/weights/0.bin", "HEAD", Range=asked)
    assert (head.status, head.headers["content-length"]) == (206, str(len(got.body)))


@pytest.mark.parametrize("asked", ["bytes=1048576-", "bytes=-0", "bytes=99999999999-999999999999"])
def test_a_range_beyond_the_end_is_refused_with_the_size(server: WebServer, asked: str) -> None:
    got = ask(server, "/weights/0.bin", Range=asked)
    assert got.status == 416 and got.headers["content-range"] == f"bytes */{len(WEIGHTS)}"
    assert json.loads(got.body)["code"] == "input"
    assert ask(server, "/empty.bin", Range="bytes=0-").status == 416 and ask(server, "/empty.bin").status == 200


@pytest.mark.parametrize("asked", ["bytes=0-1,4-5", "bytes=9-3", "bytes=a-b", "bytes=-", "rows=0-4", "bytes=" + "9" * 40 + "-"])
def test_what_is_not_one_range_gives_the_whole_file(server: WebServer, asked: str) -> None:
    got = ask(server, "/weights/0.bin", Range=asked)
    assert (got.status, got.body) == (200, WEIGHTS) and "content-range" not in got.headers


def test_a_download_goes_on_only_with_the_same_bytes(server: WebServer) -> None:
    same = ask(server, "/weights/0.bin", Range="bytes=10-19", If_Range=tag(WEIGHTS))
    assert (same.status, same.body) == (206, WEIGHTS[10:20])
    for other in (tag(b"older"), f"W/{tag(WEIGHTS)}", "Mon, 16 Nov 2026 10:00:00 GMT", tag(WEIGHTS, "-gzip")):
        changed = ask(server, "/weights/0.bin", Range="bytes=10-19", If_Range=other)
        assert (changed.status, changed.body) == (200, WEIGHTS)


def test_text_is_compressed_where_asked_and_weights_never(server: WebServer) -> None:
    plan = "/plans/base%20line/d%C3%A9code.plan"
    packed = ask(server, plan, Accept_Encoding="br, gzip;q=0.5")
    assert packed.headers["content-encoding"] == "gzip" and gzip.decompress(packed.body) == PLAN
    assert int(packed.headers["content-length"]) == len(packed.body) < len(PLAN)
    assert packed.headers["etag"] == tag(PLAN, "-gzip") and packed.headers["vary"] == "Accept-Encoding"
    assert ask(server, plan, Accept_Encoding="gzip", If_None_Match=packed.headers["etag"]).status == 304
    assert ask(server, plan, If_None_Match=packed.headers["etag"]).status == 200
    for refusal in ("", "identity", "gzip;q=0", "br"):
        plain = ask(server, plan, Accept_Encoding=refusal)
        assert plain.body == PLAN and plain.headers["vary"] == "Accept-Encoding" and plain.headers["etag"] == tag(PLAN)
    part = ask(server, plan, Accept_Encoding="gzip", Range="bytes=0-9")
    assert (part.status, part.body) == (206, PLAN[:10]) and "content-encoding" not in part.headers
    weights = ask(server, "/weights/0.bin", Accept_Encoding="gzip")
    assert weights.body == WEIGHTS and "content-encoding" not in weights.headers and "vary" not in weights.headers


def test_only_requests_that_name_the_right_hash_are_cached_for_ever(server: WebServer) -> None:
    right = hashlib.sha256(WEIGHTS).hexdigest()
    assert "immutable" in ask(server, f"/weights/0.bin?sha256={right}").headers["cache-control"]
    assert "immutable" in ask(server, f"/weights/0.bin?sha256={right}", Range="bytes=0-9").headers["cache-control"]
    assert ask(server, f"/weights/0.bin?sha256={'0' * 64}").headers["cache-control"] == "no-store"
    assert ask(server, "/weights/0.bin?v=1").headers["cache-control"] == "no-cache"
    assert ask(server, "/missing").headers["cache-control"] == "no-store"


def test_a_changed_file_has_another_tag_at_once(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"one")
    with WebServer(tmp_path, port=0) as running:
        before = ask(running, "/a.bin").headers["etag"]
        named = f"/a.bin?sha256={hashlib.sha256(b'one').hexdigest()}"
        assert "immutable" in ask(running, named).headers["cache-control"]
        file.write_bytes(b"two")
        os.utime(file, ns=(1, 1))
        after = ask(running, "/a.bin", If_None_Match=before)
        assert (after.status, after.body, after.headers["etag"]) == (200, b"two", tag(b"two"))
        assert ask(running, named).headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "target",
    [
        "/../outside.txt",
        "/%2e%2e/outside.txt",
        "/weights/../../outside.txt",
        "/weights/%2E%2E%2F%2e%2e/outside.txt",
        "/..%5coutside.txt",
        "/%252e%252e/outside.txt",
        "//etc/passwd",
        "/weights//0.bin",
        "/./manifest.json",
        "/.hidden",
        "/link.txt",
        "/up/outside.txt",
        "/manifest.json%00.bin",
        "/weights/0.bin/",
        "/weights",
        "/weights/",
        "/C:/Windows/win.ini",
        "/" + "a" * 5000,
        "/%ff%fe",
        "/types/index.d.ts",
        "/__init__.py",
    ],
)
def test_nothing_outside_and_nothing_hidden_is_given(server: WebServer, target: str) -> None:
    got = ask(server, target)
    assert got.status == 404 and b"secret" not in got.body
    said = json.loads(got.body)
    assert said["code"] == "not-found" and said["message"] and said["hint"]
    assert got.headers["content-type"] == "application/json"


def test_a_link_within_the_folder_is_followed(server: WebServer) -> None:
    assert ask(server, "/inner.bin").body == WEIGHTS


def test_other_methods_and_other_names_of_this_machine_are_refused(server: WebServer) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        got = ask(server, "/", method)
        assert got.status == 405 and got.headers["allow"] == "GET, HEAD" and json.loads(got.body)["code"] == "input"
    for host in ("evil.example", "evil.example:80", "", "127.0.0.1.evil.example"):
        got = ask(server, "/manifest.json", Host=host)
        assert got.status == 421 and b"pumice-bundle" not in got.body
    for host in ("localhost:1", "127.0.0.1", "[::1]:8417"):
        assert ask(server, "/manifest.json", Host=host).status == 200


def test_the_page_comes_from_the_package_where_the_folder_has_none(tmp_path: Path, server: WebServer) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with WebServer(tmp_path, port=0) as running, WebServer(tmp_path, port=0, page=False) as bare:
        for name in page_files():
            assert ask(running, f"/{name}").body == (STATIC / name).read_bytes()
            assert ask(bare, f"/{name}").status == 404
    assert ask(server, "/").body.startswith(b"<!doctype html><title>mine</title>")


def test_many_requests_at_once_and_one_that_breaks_off(server: WebServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as broken:
        broken.sendall(b"GET /weights/0.bin HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        broken.recv(10)
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(ask(server, "/weights/0.bin").body)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [WEIGHTS] * 16


def test_a_taken_port_is_said_or_passed_over(tmp_path: Path) -> None:
    with WebServer(tmp_path, port=0) as running:
        with pytest.raises(InputError, match=f"port {running.port} is taken") as e:
            WebServer(tmp_path, port=running.port)
        assert "--port" in e.value.hint
    with WebServer(tmp_path) as one, WebServer(tmp_path) as two:
        assert DEFAULT_PORT <= one.port < two.port < DEFAULT_PORT + 20
        assert one.url == f"http://127.0.0.1:{one.port}/"


def test_closing_ends_a_download_under_way_and_frees_the_port(tmp_path: Path) -> None:
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(256 << 20)
    running = WebServer(tmp_path, port=0)
    with socket.create_connection(("127.0.0.1", running.port)) as slow:
        slow.sendall(b"GET /large.bin HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        slow.recv(10)
        running.close()
    running.close()
    WebServer(tmp_path, port=running.port).close()


def test_the_command_serves_until_ctrl_c(folder: Path) -> None:
    line = command("web", folder, "--port", 0, "--no-open", "--json")
    process = subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["model"] == "tiny" and said["folder"] == str(folder) and said["url"] == f"http://127.0.0.1:{said['port']}/"
        connection = http.client.HTTPConnection("127.0.0.1", said["port"], timeout=30)
        connection.request("GET", "/manifest.json")
        assert json.loads(connection.getresponse().read())["format"] == "pumice-bundle"
        connection.close()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 130 and out == "" and err == "pumice: interrupted\n"
    finally:
        process.kill()
        process.communicate()


def test_the_command_exports_a_model_once(tmp_path: Path) -> None:
    model = checkpoint("llama", tmp_path)
    for first in (True, False):
        line = command("web", model, "--port", 0, "--no-open")
        env = environment(PUMICE_HOME=str(tmp_path / "home"))
        process = subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            said = re.fullmatch(r"llama at (http://127\.0\.0\.1:(\d+)/); Ctrl-C ends it\n", process.stdout.readline())
            assert said is not None
            connection = http.client.HTTPConnection("127.0.0.1", int(said[2]), timeout=30)
            for name in ("manifest.json", "index.html", "worker.js"):
                connection.request("GET", f"/{name}")
                response = connection.getresponse()
                assert response.status == 200 and response.read()
            connection.close()
            process.send_signal(signal.SIGINT)
            assert ("exporting llama for browsers, once" in process.communicate(timeout=30)[1]) == first
        finally:
            process.kill()
            process.communicate()
    (made,) = (tmp_path / "home" / "web").iterdir()
    assert made.name.startswith("llama-") and not (made / "index.html").exists()


def test_the_command_says_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    def fails(folder: Path, said: str, host: str = "127.0.0.1") -> None:
        with pytest.raises(InputError, match=said):
            serve(str(folder), host=host, port=0, open_page=False, as_json=False)

    refused(pumice("web", tmp_path / "none", "--no-open"), "none is neither a folder that was exported nor a model")
    fails(tmp_path, "manifest.json is missing")
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    fails(tmp_path, "cannot be read")
    (tmp_path / "manifest.json").write_text('{"format": "other"}')
    fails(tmp_path, "is not of a model that Pumice exported")
    (tmp_path / "manifest.json").write_text('{"format": "pumice-bundle"}')
    fails(tmp_path, "203.0.113.9", host="203.0.113.9")


def test_the_command_says_which_extra_is_missing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ImportError('not installed')")
    source = Path(__file__).parents[2] / "src"
    refused(pumice("web", folder, "--no-open", PYTHONPATH=f"{tmp_path}{os.pathsep}{source}"), "pip install 'pumice[serve]'", 1)


def test_a_page_is_opened_only_where_there_is_a_screen(folder: Path, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'opened')!r}, 'w').write(sys.argv[1])\n")
    browser.chmod(0o755)
    for display, no_open in ((":0", False), ("", False), (":0", True)):
        (tmp_path / "opened").unlink(missing_ok=True)
        env = environment(BROWSER=f"{browser} %s", DISPLAY=display, WAYLAND_DISPLAY="")
        line = command("web", folder, "--port", 0, *(["--no-open"] if no_open else []))
        process = subprocess.Popen(line, env=env, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
            assert found is not None
            if display and not no_open:
                while not (tmp_path / "opened").exists() or not (tmp_path / "opened").read_text():
                    assert process.poll() is None
                assert (tmp_path / "opened").read_text() == found[0]
            else:
                assert not (tmp_path / "opened").exists()
        finally:
            process.kill()
            process.communicate()
