"""The Hugging Face Hub, played by a small server that speaks its protocol to the real library."""

from __future__ import annotations

import hashlib
import http.server
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pumice.errors import InputError
from pumice.sources import Cache, NoAccess, NoNetwork, NotFound, Progress, WrongHash, hub, resolve

pytest.importorskip("huggingface_hub", reason="the extra `llm` is not installed")

FIRST, SECOND = "a" * 40, "b" * 40
WEIGHTS = bytes(range(251)) * 400
FILES = {
    "config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": WEIGHTS, "1_Pooling/config.json": b"{}",
    "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"onnx", "onnx/config.json": b"{}", "README.md": b"read me",
}  # fmt: skip


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Hub:
    """One repository, owner/tiny, and what is wrong with it."""

    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    head: str = FIRST
    error: tuple[int, str] | None = None
    corrupt: str = ""
    # Bytes after which the first transfer of a file breaks off.
    drop: dict[str, int] = field(default_factory=dict)
    log: list[tuple[str, str, str]] = field(default_factory=list)

    def gets(self) -> list[str]:
        return sorted(path.split("/", 5)[5] for method, path, _ in self.log if method == "GET" and "/resolve/" in path)


def _handler(state: Hub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            state.log.append((self.command, path, self.headers.get("Range", "")))
            if state.error:
                self.answer(state.error[0], b"{}", {"X-Error-Code": state.error[1]})
            elif not path.startswith(("/api/models/owner/tiny", "/owner/tiny/")):
                self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            elif "/nowhere" in path:
                self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            elif "/tree/" in path:
                self.answer(200, json.dumps(self.rows("path", "oid", "oid")).encode(), {"Content-Type": "application/json"})
            elif path.startswith("/api/"):
                info = {"id": "owner/tiny", "sha": state.head, "siblings": self.rows("rfilename", "blobId", "sha256")}
                self.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
            else:
                self.file(path.split("/", 5)[5])

        def rows(self, name: str, blob: str, lfs: str) -> list[dict[str, Any]]:
            rows = []
            for n, data in state.files.items():
                row: dict[str, Any] = {name: n, "size": len(data), blob: git_id(data), "type": "file"}
                if n.endswith((".safetensors", ".gguf")):
                    row["lfs"] = {lfs: hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
                rows.append(row)
            return rows

        def file(self, name: str) -> None:
            data = state.files[name]
            etag = hashlib.sha256(data).hexdigest() if name.endswith(".safetensors") else git_id(data)
            body = data[:-1] + b"?" if name == state.corrupt else data
            asked = self.headers.get("Range", "")
            start = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
            headers = {"X-Repo-Commit": state.head, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
            if asked:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            cut = state.drop.pop(name, 0) if self.command == "GET" else 0
            self.answer(206 if asked else 200, body[start:], headers, cut)

        def answer(self, status: int, body: bytes, headers: dict[str, str], cut: int = 0) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[:cut] if cut else body)
                self.close_connection = bool(cut)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def remote(home: Path, serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    from huggingface_hub import constants

    state = Hub()
    url = serve(_handler(state))
    # What HF_ENDPOINT would set, had it been there before the library was imported.
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", "")
    return state


def test_a_folder_and_its_commit(remote: Hub, home: Path) -> None:
    seen: list[Progress] = []
    found = resolve("hf:owner/tiny", progress=seen.append)
    wanted = ["1_Pooling/config.json", "config.json", "model.safetensors", "tokenizer.json"]
    assert [f.path for f in found.files] == wanted == remote.gets()
    assert found.path.is_dir() and (found.path / "model.safetensors").read_bytes() == WEIGHTS
    assert found.revision == FIRST and not list((home / "tmp").iterdir())
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert seen[-1] == Progress(found.nbytes, found.nbytes, "done")
    # The second time nothing is asked; neither is it for the commit itself.
    before = len(remote.log)
    assert resolve("hf:owner/tiny") == found and resolve(f"hf:owner/tiny@{FIRST}").path == found.path
    assert len(remote.log) == before


def test_a_broken_transfer_goes_on(remote: Hub) -> None:
    remote.drop["model.safetensors"] = 60_000
    assert (resolve("hf:owner/tiny").path / "model.safetensors").read_bytes() == WEIGHTS
    assert remote.gets().count("model.safetensors") == 2


def test_a_pull_resumes_an_earlier_one(remote: Hub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
        m.setattr(hub, "hash_files", interrupt)
        resolve("hf:owner/tiny")
    assert len(list((home / "tmp").iterdir())) == 1 and not list(Cache(home).entries())
    before = remote.gets()
    assert resolve("hf:owner/tiny").revision == FIRST
    assert remote.gets() == before, "what was there is not fetched again"


def interrupt(*args: object) -> None:
    raise KeyboardInterrupt


def test_a_branch_moves_only_when_asked(remote: Hub, home: Path) -> None:
    old = resolve("hf:owner/tiny@main")
    remote.head, remote.files["config.json"] = SECOND, b'{"new": 1}'
    assert resolve("hf:owner/tiny@main") == old
    new = resolve("hf:owner/tiny@main", refresh=True)
    assert new.revision == SECOND and (new.path / "config.json").read_bytes() == b'{"new": 1}'
    assert (old.path / "config.json").read_bytes() == b"{}", "who has the old one open keeps it"
    assert len(list(Cache(home).entries())) == 2
    assert resolve("hf:owner/tiny@main", offline=True) == new


def test_one_file(remote: Hub) -> None:
    remote.files |= {"q/a.Q8_0.gguf": b"GGUF8", "q/a.Q4_0.gguf": b"GGUF4"}
    remote.files |= {f"b-0000{i}-of-00002.gguf": b"x" for i in (1, 2)}
    found = resolve("hf:owner/tiny/q/a.Q8_0.gguf")
    assert found.path.read_bytes() == b"GGUF8" and len(found.files) == 1
    split = resolve("hf:owner/tiny/b-00001-of-00002.gguf")
    assert [f.path for f in split.files] == ["b-00001-of-00002.gguf", "b-00002-of-00002.gguf"]
    with pytest.raises(NotFound, match=r"hf:owner/tiny/q/a\.Q4_0\.gguf, hf:owner/tiny/q/a\.Q8_0\.gguf"):
        resolve("hf:owner/tiny/q")
    with pytest.raises(NotFound, match="no file or folder"):
        resolve("hf:owner/tiny/nope")
    with pytest.raises(InputError, match="no GGUF or safetensors"):
        resolve("hf:owner/tiny/README.md")
    remote.files = {"README.md": b"x", "pytorch_model.bin": b"x"}
    with pytest.raises(NotFound, match="holds no safetensors or GGUF"):
        resolve("hf:owner/tiny", refresh=True)


def test_shards_only(remote: Hub) -> None:
    shards = {f"model-0000{i}-of-00002.safetensors": b"x" for i in (1, 2)}
    names = ["model.safetensors.index.json", *shards, "consolidated.safetensors", "original/params.json", "config.json"]
    assert hub.choose(hub.HubSpec("o", "r"), names)[1] == ["config.json", *shards, "model.safetensors.index.json"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_other_bytes_than_listed(remote: Hub, home: Path, name: str) -> None:
    remote.corrupt = name
    with pytest.raises(WrongHash, match=name):
        resolve("hf:owner/tiny")
    assert not list(Cache(home).entries()) and not list((home / "tmp").iterdir())
    remote.corrupt = ""
    assert resolve("hf:owner/tiny").revision == FIRST


@pytest.mark.parametrize(
    ("spec", "error", "kind", "text"),
    [
        ("hf:owner/tiny", (403, "GatedRepo"), NoAccess, "accept its terms at https://huggingface.co/owner/tiny"),
        ("hf:owner/tiny", (401, "RepoNotFound"), NotFound, "if it is private, log in"),
        ("hf:owner/other", None, NotFound, "no repository owner/other"),
        ("hf:owner/tiny@nowhere", None, NotFound, "no revision 'nowhere'"),
        ("hf:owner/tiny", (403, ""), NoAccess, "refuses access"),
    ],
)
def test_what_the_hub_does_not_give(
    remote: Hub, spec: str, error: tuple[int, str] | None, kind: type[Exception], text: str
) -> None:
    remote.error = error
    with pytest.raises(kind, match=text):
        resolve(spec)


def test_no_network(remote: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(NoNetwork, match="cannot reach the Hugging Face Hub"):
        resolve("hf:owner/tiny")
    with pytest.raises(NoNetwork, match="no whole copy"):
        resolve("hf:owner/tiny", offline=True)


def test_without_the_library(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"pip install 'pumice\[llm\]'"):
        resolve("hf:owner/tiny")
