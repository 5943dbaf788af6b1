"""Failures of installed packs are counted across processes, and shown until the pack changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli_harness import environment
from pack_making import new_key, public_text, small_pack
from pumice.errors import PumiceWarning
from pumice.packs.degraded import Degraded
from pumice.packs.degraded_file import FILE, change_kept, kept
from pumice.packs.keys import PublicKey
from pumice.packs.store import PackStore
from pumice.packs.trust import TrustStore

KEY = new_key()
NOTE = "from pumice.packs.degraded import note\n"


@pytest.fixture
def store(tmp_path: Path) -> PackStore:
    """A home with one pack installed."""
    TrustStore(tmp_path / "home" / "packs" / "trust").add(PublicKey.parse(public_text(KEY)))
    store = PackStore(tmp_path / "home", check=lambda pack: ())
    store.install(small_pack(key=KEY).write_zip(tmp_path / "1.zip"))
    return store


def process(store: PackStore, code: str) -> str:
    env = environment(PUMICE_HOME=str(store.home))
    done = subprocess.run([sys.executable, "-c", NOTE + code], capture_output=True, text=True, env=env, timeout=100)
    return done.stderr


def test_processes_add_their_counts_when_they_end(store: PackStore) -> None:
    assert kept(store.folder) == []
    assert process(store, "note('small', 'relu_wasm', 'kernel-trap', 'first')\n" * 2) == ""
    assert process(store, "note('small', 'relu_wasm', 'kernel-trap', 'later')\nnote('elsewhere', 'k', 'x', 'y')") == ""
    assert "ZeroDivisionError" in process(store, "note('small', 'relu_wasm', 'epoch-deadline', 'slow')\n1 / 0")
    assert kept(store.folder) == [
        Degraded("small", "relu_wasm", "kernel-trap", 3, "first"),
        Degraded("small", "relu_wasm", "epoch-deadline", 1, "slow"),
    ]


def test_another_version_starts_anew(store: PackStore, tmp_path: Path) -> None:
    def fail() -> None:
        change_kept(
            store.folder, lambda known: [*known, Degraded("small", "k", "x", 1, "m"), Degraded("other", "k", "x", 1, "m")]
        )

    for change in (
        lambda: store.install(small_pack(key=KEY, version="2.0.0").write_zip(tmp_path / "2.zip")),
        lambda: store.rollback("small"),
        lambda: store.remove("small"),
    ):
        fail()
        change()
        assert {d.pack for d in kept(store.folder)} == {"other"}


@pytest.mark.parametrize("content", ["", "{}", '{"degraded": [3]}', '{"degraded": [{"pack": 3}]}'])
def test_a_damaged_file_is_reported_and_replaced(store: PackStore, content: str) -> None:
    (store.folder / FILE).write_text(content)
    with pytest.warns(PumiceWarning, match="counting starts anew"):
        assert kept(store.folder) == []
    assert "counting starts anew" in process(store, "note('small', 'relu_wasm', 'kernel-trap', 'first')")
    assert len(kept(store.folder)) == 1


def test_the_file_is_bounded(store: PackStore) -> None:
    change_kept(store.folder, lambda known: [Degraded("small", f"k{i}", "x", 1, "m" * 10_000) for i in range(5000)])
    entries = json.loads((store.folder / FILE).read_text())["degraded"]
    assert len(entries) == 1000 and len(entries[0]["message"]) == 500


def test_what_cannot_be_kept_does_not_keep_a_process_from_ending(store: PackStore) -> None:
    (store.folder / "degraded.lock").mkdir()
    assert "failures of packs are not kept" in process(store, "note('small', 'relu_wasm', 'kernel-trap', 'first')")
