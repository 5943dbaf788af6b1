"""Answers on disk: another process finds them, other weights never do, and nothing that happens to a file is more than a miss."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pumice as pm
from cli_harness import environment
from pumice import config
from pumice.core import kept
from pumice.errors import PumiceWarning
from pumice.llm.response_cache import ResponseCache, ResponseKey
from pumice.llm.response_keys import ResponseKeys
from serve.serving import language_model

TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_model(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(kept, "_reported", set())
    with config.override(home=tmp_path / "home"):
        yield tmp_path / "home"


def entries(home: Path) -> list[Path]:
    return sorted(p for p in (home / "responses").iterdir() if not p.name.startswith("."))


def ask_anew(folder: Path, prompt: str = "hello", **options: Any) -> Any:
    """As another process would: a model that was just loaded, and a cache that has nothing in memory."""
    with pm.load(folder, device="host", context=64, slots=2, cache=ResponseCache(disk=True)) as found:
        return found.generate(prompt, **TURN, **options)


def test_another_process_finds_the_answer(folder: Path, home: Path) -> None:
    code = (
        "import json, sys, pumice as pm\n"
        "with pm.load(sys.argv[1], device='host', context=64, slots=2, cache=pm.ResponseCache(disk=True)) as m:\n"
        "    a = m.generate('hello', temperature=0, max_tokens=8, ignore_eos=True)\n"
        "    print(json.dumps([a.cached, m.response_cache.statistics.disk_hits, a.text, a.tokens]))\n"
    )
    found = []
    for _ in range(2):
        call = [sys.executable, "-c", code, str(folder)]
        done = subprocess.run(call, env=environment(PUMICE_HOME=str(home)), capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    want = ask_anew(folder, cache=False)
    assert found == [[False, 0, want.text, want.tokens], [True, 1, want.text, want.tokens]]
    (path,) = entries(home)
    assert b"hello" not in path.read_bytes() and oct(path.stat().st_mode & 0o777) == "0o600"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def as_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a bit of the hash": lambda p: flip(p, 3),
    "a bit of the answer": lambda p: flip(p, -9),
    "cut off": lambda p: os.truncate(p, p.stat().st_size - 1),
    "empty": lambda p: os.truncate(p, 0),
    "longer": lambda p: p.write_bytes(p.read_bytes() + b" "),
    "huge": lambda p: os.truncate(p, 1 << 40),
    "something else": lambda p: p.write_bytes(b"{}"),
    "a folder": as_folder,
    "a pipe": as_fifo,
    "a link": as_link,
    "gone": lambda p: p.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_entry_is_a_miss(folder: Path, home: Path, damage: Callable[[Path], None], recwarn: Any) -> None:
    want = ask_anew(folder)
    (path,) = entries(home)
    damage(path)
    found = ask_anew(folder)
    assert not found.cached and (found.text, found.tokens) == (want.text, want.tokens)
    if path.is_dir():
        assert [str(w.message) for w in recwarn.list if "cannot be written" in str(w.message)]
        recwarn.clear()
    else:
        assert ask_anew(folder).cached  # it was written anew
    assert not recwarn.list


def test_a_rightly_hashed_entry_of_another_form_is_a_miss(folder: Path, home: Path) -> None:
    want = ask_anew(folder)
    (path,) = entries(home)
    for content in (
        b"",
        b"[]",
        b"{}",
        b'{"tokens":[],"finish":null}',
        b'{"tokens":[1],"finish":"soon"}',
        b"\xff",
        b"[" * 100_000,
    ):
        assert kept.keep(path, content) and kept.read_kept(path) == content
        found = ask_anew(folder)
        assert not found.cached and found.tokens == want.tokens


def test_an_entry_of_another_answer_is_a_miss(folder: Path, home: Path) -> None:
    ask_anew(folder, "one")
    (one,) = entries(home)
    want = ask_anew(folder, "two").tokens
    (two,) = [p for p in entries(home) if p != one]
    shutil.copy(one, two)
    found = ask_anew(folder, "two")
    assert not found.cached and found.tokens == want


def test_other_weights_under_the_same_name_are_another_model(folder: Path, home: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    own = tmp_path / "model"
    shutil.copytree(folder, own)
    first = ask_anew(own)
    assert not first.cached and ask_anew(own).cached
    weights, path = load_file(own / "model.safetensors"), own / "model.safetensors"
    weights["lm_head.weight"] = weights["lm_head.weight"][::-1].copy()
    before = path.stat()
    save_file(weights, path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as large and as old as before
    assert path.stat().st_size == before.st_size
    second = ask_anew(own)
    assert not second.cached and second.tokens != first.tokens
    shutil.copy(folder / "model.safetensors", path)
    assert ask_anew(own).cached  # by what the files hold, wherever they are
    assert ask_anew(folder).cached
    config_file = own / "config.json"
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | {"rms_norm_eps": 1e-6}))
    assert not ask_anew(own).cached


def test_weights_whose_file_has_changed_since_are_kept_in_memory_alone(folder: Path, home: Path, tmp_path: Path) -> None:
    own = tmp_path / "model"
    shutil.copytree(folder, own)
    with pm.load(own, device="host", context=64, cache=ResponseCache(disk=True)) as found:
        (own / "config.json").write_text((own / "config.json").read_text() + "\n")
        assert not found.generate("hello", **TURN).cached and found.generate("hello", **TURN).cached
    assert not (home / "responses").exists()


def test_a_lora_adapter_that_the_model_is_loaded_with_counts(folder: Path, home: Path) -> None:
    files = SimpleNamespace(entry={"files": [{"name": "a", "sha256": "0"}]})

    def digest(**lora: Any) -> str:
        entry = {**files.entry, **({"lora": lora} if lora else {})}
        found, durable = ResponseKeys(SimpleNamespace(entry=entry))._weights  # type: ignore[arg-type]
        assert durable
        return found

    one = [{"name": "w", "sha256": "1"}]
    other = [{"name": "w", "sha256": "2"}]
    found = {digest(), digest(scale=1.0, files=one), digest(scale=0.5, files=one), digest(scale=1.0, files=other)}
    assert len(found) == 4 and digest() in found


def test_the_folder_has_a_limit(home: Path) -> None:
    cache = ResponseCache(1, disk=8000)
    total = 0
    for k in range(400):
        cache.put(ResponseKey(f"{k}", True), b"x" * (50 + k % 90))
        total = max(total, sum(p.stat().st_size for p in (home / "responses").iterdir()))
    assert 4000 < total <= 8000
    assert cache.get(ResponseKey("399", True)) is not None and cache.get(ResponseKey("0", True)) is None
    cache.put(ResponseKey("large", True), b"x" * 1000)  # an eighth, and more
    assert cache.get(ResponseKey("large", True)) is None
    cache.clear()
    assert not list((home / "responses").iterdir())


def test_what_is_read_stays_longer(home: Path) -> None:
    cache = ResponseCache(1, disk=8000)
    cache.put(ResponseKey("first", True), b"x" * 100)
    path = home / "responses" / "first"
    for k in range(200):
        os.utime(path, (1, 1))
        assert cache.get(ResponseKey("first", True)) is not None
        cache.put(ResponseKey(f"{k}", True), b"x" * 100)
    assert path.exists() and not (home / "responses" / "0").exists()


@pytest.mark.parametrize("moment", ["before the rename", "in the middle of the bytes"])
def test_a_process_that_is_killed_while_it_writes_leaves_no_answer(folder: Path, home: Path, moment: str) -> None:
    code = (
        "import os, sys, signal, pumice as pm\n"
        "from pumice.core import private\n"
        "def die(*a, **k):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "class Half:\n"
        "    def __init__(self, fd): self.fd = fd\n"
        "    def __enter__(self): return self\n"
        "    def __exit__(self, *a): pass\n"
        "    def write(self, content):\n"
        "        os.write(self.fd, content[: len(content) // 2])\n"
        "        die()\n"
        "with pm.load(sys.argv[1], device='host', context=64, slots=2, cache=pm.ResponseCache(disk=True)) as m:\n"
        "    m.generate('warm', temperature=0, max_tokens=8, cache=False)\n"
        "    m._keys._weights\n"
        "    if sys.argv[2] == 'before the rename': os.replace = die\n"
        "    else: private.open = lambda fd, mode, **k: Half(fd)\n"
        "    m.generate('hello', temperature=0, max_tokens=8, ignore_eos=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), moment],
        env=environment(PUMICE_HOME=str(home)),
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = list((home / "responses").iterdir())
    assert len(left) == 1 and left[0].name.startswith(".") and not entries(home)
    assert not ask_anew(folder).cached and ask_anew(folder).cached
    assert left[0].exists()
    ResponseCache(disk=True).clear()
    assert not left[0].exists()


def test_a_folder_that_cannot_be_written_costs_the_answers_nothing(folder: Path, tmp_path: Path, home: Path) -> None:
    (home / "responses").parent.mkdir(parents=True, exist_ok=True)
    (home / "responses").write_text("a file in its place")
    with pytest.warns(PumiceWarning, match="cannot be written"):
        assert ask_anew(folder).tokens
    assert not ask_anew(folder).cached


def test_two_caches_share_a_folder_while_both_write(home: Path) -> None:
    caches = [ResponseCache(1, disk=20_000) for _ in range(4)]

    def work(k: int) -> None:
        cache = caches[k % 4]
        for j in range(60):
            key = ResponseKey(f"{(k + j) % 40}", True)
            found = cache.get(key)
            assert found is None or found == key.digest.encode() * 50
            cache.put(key, key.digest.encode() * 50)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sum(p.stat().st_size for p in (home / "responses").iterdir()) <= 20_000 * 1.5
