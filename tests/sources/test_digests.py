"""Digests of files: right, cached across processes, and never those of another file under the same path."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from pumice import config
from pumice.errors import InputError
from pumice.sources import digests
from pumice.sources.digests import FileChanged, FileIdentity, file_digest

OLD = 1_700_000_000 * 10**9


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(path: Path, data: bytes, at: int = OLD) -> Path:
    path.write_bytes(data)
    os.utime(path, ns=(at, at))
    return path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """What was read of files; no clock matters, and nothing is known yet."""
    found: list[int] = []
    whole = digests._hash
    monkeypatch.setattr(digests, "_known", {})
    monkeypatch.setattr(digests, "_TICK_NS", -(10**18))  # the change time of a file that a test has just made counts as old
    monkeypatch.setattr(digests, "_hash", lambda file, report: found.append(file.bytes) or whole(file, report))
    with config.override(home=tmp_path / "home"):
        yield found


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another process begins."""
    monkeypatch.setattr(digests, "_known", {})


def test_a_file_is_read_once_until_it_changes(read: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write(tmp_path / "weights", b"a" * 3_000_000)
    steps: list[tuple[int, int]] = []
    assert file_digest(path, lambda done, total: steps.append((done, total))) == sha256(b"a" * 3_000_000)
    assert steps[-1] == (3_000_000, 3_000_000) and len(steps) > 1
    assert file_digest(path) == file_digest(str(path)) == sha256(b"a" * 3_000_000)
    forget(monkeypatch)
    assert file_digest(path) == sha256(b"a" * 3_000_000)
    assert read == [3_000_000]
    write(path, b"b" * 3_000_000)  # as long, and with the time of the first one
    assert file_digest(path) == sha256(b"b" * 3_000_000)
    assert read == [3_000_000] * 2


def test_a_file_that_replaced_the_opened_one_is_refused(read: list[int], tmp_path: Path) -> None:
    path = write(tmp_path / "weights", b"one")
    opened = FileIdentity.of(path)
    os.replace(write(tmp_path / "other", b"two"), path)
    with pytest.raises(FileChanged, match="weights has changed since it was opened"):
        file_digest(opened)
    assert read == [] and file_digest(path) == sha256(b"two")


def test_a_file_that_changes_while_it_is_read_is_refused(read: list[int], tmp_path: Path) -> None:
    path = write(tmp_path / "weights", b"x" * 3_000_000)

    def change(done: int, total: int) -> None:
        with path.open("ab") as f:
            f.write(b"more")

    with pytest.raises(FileChanged):
        file_digest(path, change)


def test_a_damaged_or_foreign_entry_is_not_believed(read: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write(tmp_path / "weights", b"one")
    file_digest(path)
    (entry,) = (tmp_path / "home" / "digests").iterdir()
    entry.write_bytes(entry.read_bytes().replace(sha256(b"one").encode(), sha256(b"two").encode()))
    forget(monkeypatch)
    assert file_digest(path) == sha256(b"one") and read == [3, 3]


def test_a_file_that_was_just_written_is_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Within one tick of the clock it could change and look the same."""
    with config.override(home=tmp_path / "home"):
        path = tmp_path / "weights"
        path.write_bytes(b"one")
        assert file_digest(path) == sha256(b"one")
        assert not (tmp_path / "home" / "digests").exists() and FileIdentity.of(path) not in digests._known


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing cannot be read"):
        file_digest(tmp_path / "nothing")
