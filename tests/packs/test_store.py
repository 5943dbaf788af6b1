"""The files of installed packs: whole or not at all, damage is noticed and reported, leftovers go with the next change."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pumice.core.private import Untrusted
from pumice.errors import InputError, PumiceWarning
from pumice.packs import store_files
from pumice.packs.errors import HashMismatch, KernelNotFound, PackStateError
from pumice.packs.lifecycle import Damaged, StoredPack, StoreState, state_from_json, state_to_json
from pumice.packs.store_files import COPY, STATE, StoreFiles

GRACE = 300.0


@pytest.fixture(autouse=True)
def nothing_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test sees the reports that a new process would make."""
    monkeypatch.setattr(store_files, "_reported", set())


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def put(files: StoreFiles, name: str, content: bytes) -> StoredPack:
    """Makes `content` the version in use."""
    with files.writing() as writer:
        blob = writer.put_blob(content)
        stored = StoredPack("1.0.0", hashlib.sha256(b"manifest" + content).hexdigest(), blob, "key", False, files.clock())
        writer.commit(writer.state.with_version(name, stored, now=files.clock(), grace=GRACE))
    return stored


def names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def some_state() -> StoreState:
    one, two, three = (StoredPack(f"{i}.0.0", f"{i}" * 64, f"{i + 3}" * 64, "abc", i == 2, 12.5 * i) for i in (1, 2, 3))
    state = StoreState()
    for name, stored in (("a", one), ("b", two), ("a", three), ("a", two), ("b", three)):
        state = state.with_version(name, stored, now=10, grace=GRACE)
    return state.with_use("a", kernel="rope", use="always").with_use("b", use="never", enabled=False)


def test_a_state_is_the_same_after_it_was_written() -> None:
    state = some_state()
    assert state_from_json(state_to_json(state)) == state
    assert state.packs["a"].kernels == {"rope": "always"} and not state.packs["b"].enabled


def test_every_changed_byte_of_a_state_is_noticed() -> None:
    data = state_to_json(some_state())
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        if json_equal(changed, data):  # white space between values
            continue
        with pytest.raises(Damaged):
            state_from_json(changed)
    for end in range(len(data) - 1):
        with pytest.raises(Damaged):
            state_from_json(data[:end])


def json_equal(a: bytes, b: bytes) -> bool:
    try:
        return bool(json.loads(a) == json.loads(b))
    except ValueError:
        return False


def resealed(change: Any) -> bytes:
    """A state that somebody wrote with a digest that fits."""
    whole = json.loads(state_to_json(some_state()))
    change(whole["state"])
    whole["sha256"] = hashlib.sha256(json.dumps(whole["state"], sort_keys=True).encode()).hexdigest()
    return json.dumps(whole).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["packs"]["a"].update(name="b"),
        lambda s: s["packs"]["a"].update(enabled=1),
        lambda s: s["packs"]["a"].update(use="sometimes"),
        lambda s: s["packs"]["a"].update(previous=3),
        lambda s: s["packs"]["a"]["current"].update(blob="../../x"),
        lambda s: s["packs"]["a"]["current"].update(digest="A" * 64),
        lambda s: s["packs"]["a"]["current"].update(installed_at=float("nan")),
        lambda s: s["packs"]["a"]["current"].pop("signer"),
        lambda s: s.update(packs=[]),
        lambda s: s.update(retired={"0" * 64: "soon"}),
        lambda s: s.pop("retired"),
    ],
)
def test_a_state_of_another_form_is_refused(change: Any) -> None:
    with pytest.raises(Damaged):
        state_from_json(resealed(change))


def test_a_state_of_a_newer_version_is_not_taken_for_a_damaged_one() -> None:
    with pytest.raises(PackStateError, match="format 2"):
        state_from_json(resealed(lambda s: s.update(format=2)))


def test_a_damaged_state_is_replaced_by_its_copy_and_that_is_reported(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "packs")
    put(files, "core", b"one")
    stored = put(files, "core", b"two")
    path = tmp_path / "packs" / STATE
    for damaged in (b"", path.read_bytes()[:-40], path.read_bytes().replace(b"core", b"cora"), None):
        store_files._reported.clear()
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        with pytest.warns(PumiceWarning, match=re.escape("its last whole copy is used")) as said:
            assert files.read_state().pack("core").current == stored
        assert str(path) in str(said[0].message)
        files.read_state()  # reported once in a process
    with files.writing() as writer:
        writer.commit(writer.state.with_use("core", enabled=False))
    store_files._reported.clear()
    assert not files.read_state().pack("core").enabled


def test_a_damaged_copy_does_no_harm_and_two_of_them_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "packs")
    stored = put(files, "core", b"one")
    (tmp_path / "packs" / COPY).write_bytes(b"{")
    assert files.read_state().pack("core").current == stored
    (tmp_path / "packs" / STATE).write_bytes(b"{")
    with pytest.raises(PackStateError) as refused:
        files.read_state()
    assert "delete" in refused.value.hint and STATE in refused.value.hint and COPY in refused.value.hint


def test_a_blob_that_was_changed_is_refused(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "packs")
    stored = put(files, "core", b"one")
    assert files.read_blob(stored.blob) == b"one"
    (tmp_path / "packs" / "blobs" / f"{stored.blob}.zip").write_bytes(b"two")
    with pytest.raises(HashMismatch, match="damaged or was changed"):
        files.read_blob(stored.blob)


def test_what_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "packs")
    stored = put(files, "core", b"one")
    (tmp_path / "packs" / "blobs").chmod(0o777)
    with pytest.raises(Untrusted):
        files.read_blob(stored.blob)
    (tmp_path / "packs").chmod(0o770)
    with pytest.raises(Untrusted):
        files.read_state()


def test_folders_and_files_are_the_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        put(StoreFiles(tmp_path / "packs"), "core", b"one")
    finally:
        os.umask(before)
    modes = {p.relative_to(tmp_path).as_posix(): p.stat().st_mode & 0o777 for p in (tmp_path / "packs").rglob("*")}
    assert all(mode == (0o700 if name.endswith("blobs") else 0o600) for name, mode in modes.items()), modes


def test_old_blobs_stay_for_the_grace_period_and_go_with_the_next_change(tmp_path: Path) -> None:
    clock = Clock()
    files = StoreFiles(tmp_path, clock)
    one, two, three = (put(files, "core", content) for content in (b"one", b"two", b"three"))

    def blobs() -> set[str]:
        return {name.removesuffix(".zip") for name in names(tmp_path / "blobs")}

    assert blobs() == {one.blob, two.blob, three.blob}
    assert files.read_state().retired == {one.blob: clock.now + GRACE}
    clock.now += GRACE - 1
    put(files, "other", b"other")
    assert one.blob in blobs()
    clock.now += 1
    with files.writing() as writer:
        writer.commit(writer.state)
    assert one.blob not in blobs() and {two.blob, three.blob} < blobs()
    with files.writing() as writer:
        writer.commit(writer.state.without("core", now=clock.now, grace=GRACE))
    assert {two.blob, three.blob} < blobs()
    clock.now += GRACE
    put(files, "other", b"other")
    assert len(blobs()) == 1


def test_a_clock_that_was_set_back_keeps_nothing_for_ever(tmp_path: Path) -> None:
    clock = Clock()
    clock.now = 4e9
    files = StoreFiles(tmp_path, clock)
    put(files, "core", b"one")
    with files.writing() as writer:
        writer.commit(writer.state.without("core", now=clock.now, grace=GRACE))
    clock.now = 1e9
    put(files, "core", b"two")
    assert len(names(tmp_path / "blobs")) == 1 and not files.read_state().retired


def test_leftovers_go_with_the_next_change_and_files_of_others_stay(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path)
    put(files, "core", b"one")
    others = {"choices.json", ".choices.json.12.ab", "trust/keys.json"}
    for name in (*others, ".state.json.99.abcd", ".state.copy.json.99.abcd", "blobs/.x.zip.9.a", f"blobs/{'0' * 64}.zip"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    stored = put(files, "core", b"two")
    previous = files.read_state().pack("core").previous
    assert previous
    assert names(tmp_path) == others | {STATE, COPY, "lock", f"blobs/{stored.blob}.zip", f"blobs/{previous.blob}.zip"}


def test_the_disk_has_a_blob_before_the_state_names_it_and_the_state_before_anything_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    files = StoreFiles(tmp_path, clock)
    for content in (b"one", b"two", b"three"):
        put(files, "core", content)
    clock.now += GRACE
    done: list[str] = []
    for call in ("fsync", "replace", "unlink"):
        plain = getattr(os, call)

        def noted(*args: Any, call: str = call, plain: Any = plain, **kwargs: Any) -> Any:
            target = args[1] if call == "replace" else args[0]
            if call == "fsync":
                target = "folder" if os.path.isdir(target) else "file"
            done.append(f"{call} {'BLOB' if str(target).endswith('.zip') else target}")
            return plain(*args, **kwargs)

        monkeypatch.setattr(os, call, noted)
    put(files, "core", b"four")
    written = ["fsync file", "replace {}", "fsync folder"]
    assert done == [line.format(name) for name in ("BLOB", STATE, COPY) for line in written] + ["unlink BLOB"]


def test_a_full_disk_leaves_the_state_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = StoreFiles(tmp_path)
    put(files, "core", b"one")
    before = files.read_state()

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="full") as refused:
            put(files, "core", b"two")
    assert "PUMICE_HOME" in refused.value.hint
    assert files.read_state() == before and not [n for n in names(tmp_path) if "/." in n or n.startswith(".")]


def test_a_folder_that_cannot_be_made_is_reported_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(InputError, match="cannot write") as refused, StoreFiles(tmp_path / "home" / "packs").writing():
        pass
    assert "PUMICE_HOME" in refused.value.hint


def test_nothing_is_made_by_reading(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert StoreFiles(tmp_path / "packs").read_state() == StoreState()
    assert not (tmp_path / "packs").exists()


def test_a_pack_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelNotFound, match="no pack named 'core' is installed") as refused:
        StoreState().pack("core")
    assert refused.value.fields["id"] == "pack:core"


def test_rolling_back_undoes_itself_and_needs_an_earlier_version() -> None:
    state = some_state()
    assert state.rolled_back("a").pack("a").current == state.pack("a").previous
    assert state.rolled_back("a").rolled_back("a") == state
    alone = replace(state, packs={"a": replace(state.pack("a"), previous=None)})
    with pytest.raises(PackStateError, match="no version of a before 2"):
        alone.rolled_back("a")


def test_the_number_of_packs_is_bounded() -> None:
    state = StoreState()
    stored = StoredPack("1", "1" * 64, "2" * 64, "", True, 0.0)
    for i in range(256):
        state = state.with_version(f"p{i}", stored, now=0, grace=0)
    with pytest.raises(PackStateError, match="256 packs"):
        state.with_version("more", stored, now=0, grace=0)
    state.with_version("p0", stored, now=0, grace=0)
