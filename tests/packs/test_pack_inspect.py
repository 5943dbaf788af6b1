"""`pumice pack inspect`: all that a pack says and has, and in plain words whether it is verified."""

from __future__ import annotations

import json
from pathlib import Path

from cli_harness import pumice, refused
from pack_making import small_pack
from pumice.packs.keys import PublicKey
from pumice.packs.trust import TrustStore


def test_a_pack_that_nobody_trusts_is_shown_as_not_verified(tmp_path: Path) -> None:
    pack = small_pack().write_zip(tmp_path / "small.zip")
    done = pumice("pack", "inspect", pack, PUMICE_HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    assert "NOT VERIFIED" in done.stdout and "small 1.0.0" in done.stdout
    assert "x: f32[dims...] → result: f32[dims...]" in done.stdout
    assert done.stdout.count("as listed") == 3


def test_a_trusted_pack_is_shown_with_its_key(tmp_path: Path) -> None:
    pack = small_pack()
    assert pack.key is not None
    home = tmp_path / "home"
    key = PublicKey(pack.key.public_key().public_bytes_raw())
    TrustStore(home / "packs" / "trust").add(key)
    done = pumice("pack", "inspect", pack.write_folder(tmp_path / "small"), "--json", PUMICE_HOME=str(home))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["verified"] and report["signer"] == key.fingerprint and report["problem"] is None
    assert report["manifest"] == pack.manifest and report["digest"] == pack.pack_files.digest
    assert [kernel["op"] for kernel in report["kernels"]] == ["relu", "relu"]
    assert report["bytes"] == sum(map(len, pack.files.values()))


def test_files_that_are_not_as_listed_are_named(tmp_path: Path) -> None:
    folder = small_pack(sign=False).write_folder(tmp_path / "small")
    (folder / "relu.wasm").write_bytes(b"\0asm")  # which is never compiled
    (folder / "LICENSE").unlink()
    (folder / "more").write_bytes(b"")
    done = pumice("pack", "inspect", folder, "--json", PUMICE_HOME=str(tmp_path / "home"))
    report = json.loads(done.stdout)
    states = {file["path"]: file["state"] for file in report["files"]}
    assert states == {
        "LICENSE": "missing",
        "kernels.json": "not hashed",
        "more": "not listed",
        "relu.wasm": "differs from its hash",
        "relu.wgsl": "as listed",
    }
    assert not report["signed"] and report["problem"]["code"] == "invalid-signature"


def test_what_is_no_pack_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_bytes(b"This is no zip.")
    refused(pumice("pack", "inspect", tmp_path / "text.zip"), "no end record", code=4)
    refused(pumice("pack", "inspect", tmp_path / "nothing.zip"), "there is no pack at", code=4)
