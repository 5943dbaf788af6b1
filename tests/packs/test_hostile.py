"""Hostile packs: each is refused by the error that names what is wrong, quickly, and by nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hostile_packs import CASES, FILES, KEY, PACK
from pack_making import SmallPack
from pumice.packs import archive
from pumice.packs import errors as e
from pumice.packs.archive import parse_zip, read_pack
from pumice.packs.keys import PublicKey
from pumice.packs.trust import TrustStore, VerifiedPack, verify_pack


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> TrustStore:
    """A store that trusts the key of the tests' packs."""
    store = TrustStore(tmp_path_factory.mktemp("home") / "trust")
    store.add(PublicKey(KEY.public_key().public_bytes_raw()))
    return store


def load(path: Path, trust: TrustStore) -> VerifiedPack:
    return verify_pack(read_pack(path), trust)


def test_the_pack_that_the_hostile_ones_are_made_of_is_accepted(trust: TrustStore, tmp_path: Path) -> None:
    for path in (PACK.write_folder(tmp_path / "pack"), PACK.write_zip(tmp_path / "pack.zip")):
        assert load(path, trust).files.keys() == {"LICENSE", "relu.wasm", "relu.wgsl"}


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 200
    assert {error.__name__ for _, error in CASES.values()} == {
        "HashMismatch",
        "InvalidManifest",
        "InvalidSignature",
        "KernelNotFound",
        "MissingFeature",
        "NoTrustedKey",
        "RuntimeTooNew",
        "RuntimeTooOld",
        "UnsafePack",
        "VersionIncompatible",
    }


@pytest.mark.parametrize("label", CASES)
def test_a_hostile_pack_is_refused(label: str, trust: TrustStore, tmp_path: Path) -> None:
    make, error = CASES[label]
    path = make(tmp_path)
    begin = time.process_time()
    with pytest.raises(e.PackError) as caught:
        load(path, trust)
    # A limit on work, not on speed: processor time, which a busy machine does not change, and some hundred times what it takes.
    assert time.process_time() - begin < 1
    assert type(caught.value) is error, caught.value
    text = str(caught.value)
    assert len(text) < 4000 and text.replace("\n", "").isprintable()


def test_a_revoked_key_no_longer_counts(tmp_path: Path) -> None:
    store = TrustStore(tmp_path / "trust")
    key = store.add(PublicKey(KEY.public_key().public_bytes_raw())).key
    store.revoke(key.fingerprint)
    with pytest.raises(e.KeyRevoked):
        load(PACK.write_folder(tmp_path / "pack"), store)


def test_a_file_replaced_between_check_and_use_is_not_used(trust: TrustStore, tmp_path: Path) -> None:
    folder = PACK.write_folder(tmp_path / "pack")
    files = read_pack(folder)
    for name in ("kernels.json", "relu.wasm", "relu.wgsl"):
        (folder / name).write_bytes(b"evil")
    verified = verify_pack(files, trust)
    for name in ("kernels.json", "relu.wasm", "relu.wgsl"):
        (folder / name).unlink()
    assert verified.files["relu.wasm"] == FILES["relu.wasm"] and verified.files["relu.wgsl"] == FILES["relu.wgsl"]


@pytest.mark.parametrize("name", ["LICENSE", "more"])
def test_a_file_or_folder_replaced_by_a_link_while_it_is_read(
    name: str, trust: TrustStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap happens after the file was looked at and before it is opened."""
    folder = PACK.write_folder(tmp_path / "pack")
    (folder / "more").mkdir()
    (folder / "more" / "text").write_bytes(b"")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "text").write_bytes(b"secret")
    looked_at = os.stat

    def swap(path: str, **options: int) -> os.stat_result:
        found = looked_at(path, **options)
        if path == name:
            (folder / name).rename(tmp_path / "moved")
            (folder / name).symlink_to(tmp_path / "secret" / ("text" if name == "LICENSE" else ""))
        return found

    monkeypatch.setattr(archive.os, "stat", swap)
    with pytest.raises(e.UnsafePack, match="link"):
        read_pack(folder)


CHANGES = (0x01, 0x20, 0x80, 0xFF)


def refused(pack: bytes | SmallPack, trust: TrustStore) -> bool:
    """Whether it is refused by an error of packs; any other error is raised."""
    try:
        verify_pack(parse_zip(pack) if isinstance(pack, bytes) else pack.pack_files, trust)
    except e.PackError:
        return True
    return False


def test_every_byte_of_a_zip_matters(trust: TrustStore) -> None:
    good = PACK.zip_bytes()
    assert not refused(good, trust)
    for i in range(len(good)):
        for change in CHANGES:
            damaged = bytearray(good)
            damaged[i] ^= change
            assert refused(bytes(damaged), trust), f"byte {i} xor {change:#x}"


def test_every_length_of_a_zip_but_its_own_is_refused(trust: TrustStore) -> None:
    good = PACK.zip_bytes()
    assert all(refused(good[:length], trust) for length in range(len(good)))
    assert all(refused(good[:i] + good[i + 1 :], trust) for i in range(len(good)))


@pytest.mark.parametrize("name", FILES)
def test_every_byte_of_every_file_matters(name: str, trust: TrustStore) -> None:
    assert not refused(PACK, trust)
    for i in range(len(FILES[name])):
        damaged = bytearray(FILES[name])
        damaged[i] ^= CHANGES[i % len(CHANGES)]
        assert refused(SmallPack({**FILES, name: bytes(damaged)}), trust), f"byte {i}"
