"""Damaged and hostile packs, keys, statements and stores of trust: accepted or a PumiceError, and never trusted by accident."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pack_making import small_pack
from pumice.packs.allowlist import Allowlist
from pumice.packs.archive import parse_zip
from pumice.packs.keys import PublicKey, SigningKey
from pumice.packs.statements import read_statements, sign_revocation, sign_rotation
from pumice.packs.trust import TrustStore, verify_pack
from pumice.packs.versions import Version

from fuzz.hostile import damaged, damaged_json, fuzz, nested

PACK = small_pack()
assert PACK.key is not None
KEY = SigningKey(PACK.key)
OTHER = SigningKey.from_seed(bytes(range(32)))
_VERSION_PIECES = ("1", "0", ".", "-", "+", "a", "rc", "alpha", "dev", "post", "!", "v", "_", "01", "é", "\0", "9" * 30, " ")


def as_json(rng: random.Random, value: Any) -> bytes:
    """A damaged value as a file: sometimes deep, sometimes with damaged bytes too."""
    changed = damaged_json(rng, value) if rng.random() < 0.95 else nested(rng.choice((10, 900)))
    data = json.dumps(changed).encode("utf-8", "replace")
    return damaged(rng, data) if rng.random() < 0.3 else data


@pytest.fixture
def trusting(tmp_path: Path) -> TrustStore:
    store = TrustStore(tmp_path / "trust")
    store.add(KEY.public, "the author")
    return store


def test_hostile_manifests_of_a_trusted_key(request: pytest.FixtureRequest, trusting: TrustStore) -> None:
    """A signature says who made a pack, not that it is well made."""

    def attempt(manifest: bytes) -> None:
        pack = PACK.with_manifest(manifest)
        verified = verify_pack(pack.pack_files, trusting)
        assert verified.signer == KEY.public.fingerprint and verified.manifest.listed_files.keys() == verified.files.keys()

    fuzz(request, lambda rng: as_json(rng, PACK.manifest), attempt)


def test_damaged_packs_are_never_verified(request: pytest.FixtureRequest, trusting: TrustStore) -> None:
    whole = PACK.zip_bytes()

    def attempt(data: bytes) -> None:
        verify_pack(parse_zip(data), trusting)
        assert data == whole, "a changed pack was verified"

    fuzz(request, lambda rng: damaged(rng, whole), attempt)


def test_hostile_keys(request: pytest.FixtureRequest) -> None:
    key = OTHER.public
    forms = [key.raw, key.text.encode(), key.raw.hex().encode(), key.openssh.encode() + b" me"]
    forms += [
        b"ssh-ed25519 " * 3,
        b"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\n-----END PUBLIC KEY-----\n",
        OTHER.to_pem(None),
    ]

    def attempt(data: bytes) -> None:
        found = PublicKey.parse(data)
        assert PublicKey.parse(found.text) == PublicKey.parse(found.openssh) == found and len(found.fingerprint) == 50

    fuzz(request, lambda rng: damaged(rng, rng.choice(forms)), attempt)


def test_hostile_statements(request: pytest.FixtureRequest) -> None:
    made = [sign_revocation(KEY).text, sign_rotation(KEY, OTHER.public).text, sign_revocation(OTHER).text]

    def attempt(data: bytes) -> None:
        for statement in read_statements(data):
            assert statement.text in made, "a changed statement was read"

    fuzz(request, lambda rng: damaged(rng, b"".join(rng.choices(made, k=rng.randint(1, 3))), changes=2), attempt)


def test_hostile_stores_of_trust(request: pytest.FixtureRequest, trusting: TrustStore) -> None:
    trusting.adopt(sign_rotation(KEY, OTHER.public))
    trusting.revoke("SHA256:" + "a" * 43)
    trusting.honour(sign_revocation(SigningKey.from_seed(bytes(32))))
    file = trusting.path / "keys.json"
    whole = json.loads(file.read_bytes())
    known = {entry["fingerprint"] for entry in whole["keys"]}

    def attempt(data: bytes) -> None:
        file.write_bytes(data)
        assert {entry.key.fingerprint for entry in trusting.state().keys} <= known, "a key is trusted that never was"

    fuzz(request, lambda rng: as_json(rng, whole), attempt)


def test_hostile_allowlists(request: pytest.FixtureRequest) -> None:
    hashes = [f"sha256:{i:064x}" for i in range(3)]
    value = {"version": 1, "enforce": True, "kernels": {"rope": hashes, "norm": []}, "hashes": hashes}

    def attempt(data: bytes) -> None:
        found = Allowlist.from_json(data)
        assert Allowlist.from_json(found.to_json().encode()) == found

    fuzz(request, lambda rng: as_json(rng, value), attempt)


def test_hostile_versions(request: pytest.FixtureRequest) -> None:
    final = Version.parse("1.0.0")

    def attempt(text: str) -> None:
        version = Version.parse(text)
        assert (version < final) + (version == final) + (final < version) == 1

    fuzz(request, lambda rng: "".join(rng.choices(_VERSION_PIECES, k=rng.randint(0, 9))), attempt, cases=3000)
