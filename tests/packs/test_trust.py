"""Verifying packs: the order of checks, each error by name, and the store of trusted and revoked keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pack_making import SmallPack, small_pack
from pumice.core.private import Untrusted
from pumice.errors import PumiceError, PumiceWarning
from pumice.packs import errors as e
from pumice.packs.archive import PackFiles
from pumice.packs.keys import PublicKey, SigningKey
from pumice.packs.manifest import Manifest
from pumice.packs.statements import sign_revocation, sign_rotation
from pumice.packs.trust import CHECKS, TrustStore, adopt_next_key, verify_pack
from pumice.packs.trust_store import MAX_KEYS, TrustState

# When small packs are made.
CREATED = datetime(2026, 11, 16, tzinfo=UTC)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> TrustStore:
    return TrustStore(tmp_path / "packs" / "trust")


def public(pack: SmallPack) -> PublicKey:
    assert pack.key is not None
    return PublicKey(pack.key.public_key().public_bytes_raw())


def signing(pack: SmallPack) -> SigningKey:
    assert pack.key is not None
    return SigningKey(pack.key)


# -- packs --------------------------------------------------------------------------------------------------------------
def test_a_whole_pack(store: TrustStore) -> None:
    pack = small_pack()
    entry = store.add(public(pack), "tests")
    passed: list[str] = []
    verified = verify_pack(pack.pack_files, store, report=lambda check, found: passed.append(check))
    assert passed == [*CHECKS]
    assert verified.signer == entry.key.fingerprint and not verified.insecure
    assert verified.digest == pack.pack_files.digest and verified.manifest.name == "small"
    assert verified.files == {
        "relu.wasm": pack.files["relu.wasm"],
        "relu.wgsl": pack.files["relu.wgsl"],
        "LICENSE": b"Public domain.\n",
    }


def test_the_bytes_that_were_hashed_are_those_that_are_used(store: TrustStore) -> None:
    pack = small_pack()
    store.add(public(pack))
    files = dict(pack.pack_files.files)
    verified = verify_pack(PackFiles(pack.files["kernels.json"], pack.files["kernels.json.sig"], files), store)
    files["relu.wasm"] = b"other"
    assert verified.files["relu.wasm"] == pack.files["relu.wasm"]
    with pytest.raises(TypeError):
        verified.files["relu.wasm"] = b"other"  # type: ignore[index]


def test_no_trusted_key(store: TrustStore) -> None:
    pack = small_pack()
    with pytest.raises(e.NoTrustedKey, match="no key is trusted yet"):
        verify_pack(pack.pack_files, store)
    store.add(public(small_pack()), "somebody else")
    with pytest.raises(e.NoTrustedKey, match="none of the 1 trusted keys"):
        verify_pack(pack.pack_files, store)
    store.add(public(pack), "the author")
    assert verify_pack(pack.pack_files, store).signer == public(pack).fingerprint
    store.remove("the author")
    with pytest.raises(e.NoTrustedKey):
        verify_pack(pack.pack_files, store)


def test_any_trusted_key_may_sign(store: TrustStore) -> None:
    one, two = small_pack(), small_pack(name="other")
    store.add(public(one)), store.add(public(two))
    assert verify_pack(one.pack_files, store).signer == public(one).fingerprint
    assert verify_pack(two.pack_files, store).signer == public(two).fingerprint


@pytest.mark.parametrize("signature", [None, b"", bytes(63), bytes(65), b"\xff" * 64])
def test_signatures_of_another_form(store: TrustStore, signature: bytes | None) -> None:
    pack = small_pack()
    store.add(public(pack))
    with pytest.raises(e.InvalidSignature):
        verify_pack(PackFiles(pack.files["kernels.json"], signature, pack.pack_files.files), store)


def test_the_signature_is_of_the_bytes_and_not_of_what_they_mean(store: TrustStore) -> None:
    pack = small_pack()
    store.add(public(pack))
    again = json.dumps(pack.manifest, indent=1).encode()
    with pytest.raises(e.NoTrustedKey):
        verify_pack(PackFiles(again, pack.files["kernels.json.sig"], pack.pack_files.files), store)
    assert verify_pack(pack.with_manifest(again).pack_files, store).manifest == Manifest.from_json(pack.files["kernels.json"])


def test_nothing_of_an_unverified_pack_is_parsed(store: TrustStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = small_pack()
    monkeypatch.setattr(Manifest, "from_json", lambda data: pytest.fail("parsed"))

    class Closed(Mapping[str, bytes]):
        def __getitem__(self, name: str) -> bytes:
            pytest.fail("read")

        __iter__ = __len__ = __getitem__  # type: ignore[assignment]

    for signature in (pack.files["kernels.json.sig"], bytes(64), None):
        with pytest.raises((e.NoTrustedKey, e.InvalidSignature)):
            verify_pack(PackFiles(pack.files["kernels.json"], signature, Closed()), store)


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[], SmallPack]:
    return lambda: small_pack(edit=change)


def with_files(change: Callable[[dict[str, bytes]], object]) -> Callable[[], SmallPack]:
    def make() -> SmallPack:
        pack = small_pack()
        change(pack.files)
        return pack

    return make


def upper_hex(manifest: dict[str, Any]) -> None:
    manifest["kernels"][0]["hash"] = "sha256:" + manifest["kernels"][0]["hash"].removeprefix("sha256:").upper()


def upper_prefix(manifest: dict[str, Any]) -> None:
    manifest["kernels"][0]["hash"] = manifest["kernels"][0]["hash"].upper()


WASMTIME = {"min_version": "30", "features": ["threads"], "aot_available": False}
REFUSED: list[tuple[Callable[[], SmallPack], type[PumiceError], int]] = [
    (edited(lambda m: m.pop("name")), e.InvalidManifest, 1),
    (edited(upper_prefix), e.InvalidManifest, 1),
    (edited(lambda m: m.update(min_runtime_version="0.1.1")), e.RuntimeTooOld, 2),
    (edited(lambda m: m.update(min_runtime_version="0.0.1", max_runtime_version="0.0.9")), e.RuntimeTooNew, 2),
    (edited(lambda m: m.update(min_runtime_version="1.0.0", max_runtime_version="0.0.9")), e.VersionIncompatible, 2),
    (edited(lambda m: m.update(max_runtime_version="1.0.0-")), e.VersionIncompatible, 2),
    (edited(lambda m: m["kernels"][0].update(platforms={"wasmtime": WASMTIME})), e.MissingFeature, 3),
    (edited(lambda m: m["kernels"][0].update(hash="sha256:" + "0" * 64)), e.HashMismatch, 4),
    (with_files(lambda files: files.update({"relu.wasm": b"\0asm"})), e.HashMismatch, 4),
    (with_files(lambda files: files.update({"LICENSE": b""})), e.HashMismatch, 4),
    (with_files(lambda files: files.pop("relu.wgsl")), e.KernelNotFound, 4),
    (with_files(lambda files: files.pop("LICENSE")), e.KernelNotFound, 4),
    (with_files(lambda files: files.update({"more.wasm": b""})), e.UnsafePack, 4),
    (edited(lambda m: m["pumice"].update(files={})), e.UnsafePack, 4),
]


@pytest.mark.parametrize(("make", "error", "passed"), REFUSED)
@pytest.mark.parametrize("insecure", [False, True])
def test_each_check_has_its_error(
    store: TrustStore, make: Callable[[], SmallPack], error: type[PumiceError], passed: int, insecure: bool
) -> None:
    """In that order, and the same ones where nobody asks who signed it."""
    pack = make()
    if not insecure:
        store.add(public(pack))
    seen: list[str] = []
    with warnings.catch_warnings(), pytest.raises(error) as caught:
        warnings.simplefilter("ignore", PumiceWarning)
        verify_pack(
            pack.pack_files, store, insecure=insecure, runtime_version="0.1.0", report=lambda check, _: seen.append(check)
        )
    assert type(caught.value) is error and caught.value.exit_code == 4
    assert seen == [*CHECKS[int(insecure) : passed]]


def test_fields_of_a_wrong_hash(store: TrustStore) -> None:
    pack = small_pack()
    store.add(public(pack))
    expected = pack.manifest["kernels"][0]["hash"]
    pack.files["relu.wasm"] += b"\0"
    with pytest.raises(e.HashMismatch) as caught:
        verify_pack(pack.pack_files, store)
    assert caught.value.fields["expected"] == expected != caught.value.fields["actual"]
    assert caught.value.fields["path"] == "relu.wasm"


def test_hashes_may_be_in_upper_case(store: TrustStore) -> None:
    pack = small_pack(edit=upper_hex)
    store.add(public(pack))
    verify_pack(pack.pack_files, store)


def test_an_insecure_pack_says_so(store: TrustStore) -> None:
    for pack in (small_pack(), small_pack(sign=False)):
        with pytest.warns(PumiceWarning, match="INSECURE"):
            verified = verify_pack(pack.pack_files, store, insecure=True)
        assert verified.insecure and verified.signer == ""


def test_the_allowlist(store: TrustStore) -> None:
    pack = small_pack()
    store.add(public(pack))
    wasm, wgsl = (kernel["hash"] for kernel in pack.manifest["kernels"])
    store.change_allowlist(lambda allowed: allowed.add(wasm))
    verify_pack(pack.pack_files, store)  # not enforced yet
    from dataclasses import replace

    store.change_allowlist(lambda allowed: replace(allowed, enforce=True))
    with pytest.raises(e.NotInAllowlist) as caught:
        verify_pack(pack.pack_files, store)
    assert caught.value.fields["kernel_id"] == "relu_wgsl"
    with pytest.raises(e.NotInAllowlist), pytest.warns(PumiceWarning):
        verify_pack(pack.pack_files, store, insecure=True)
    store.change_allowlist(lambda allowed: allowed.add(wgsl, "relu_wgsl"))
    verify_pack(pack.pack_files, store)
    store.change_allowlist(lambda allowed: allowed.add(wgsl, "relu_wasm"))
    with pytest.raises(e.NotInAllowlist):
        verify_pack(pack.pack_files, store)


# -- revocation ---------------------------------------------------------------------------------------------------------
def test_a_revoked_key(store: TrustStore) -> None:
    pack = small_pack()
    store.add(public(pack), "tests")
    store.revoke("tests")
    with pytest.raises(e.KeyRevoked, match="revoked by you"):
        verify_pack(pack.pack_files, store)
    with pytest.raises(e.KeyRevoked):
        store.add(public(pack))
    store.unrevoke(public(pack).fingerprint)
    verify_pack(pack.pack_files, store)
    with pytest.raises(e.InvalidKey, match="is not revoked"):
        store.unrevoke("tests")


def test_a_key_may_be_revoked_by_its_fingerprint_before_it_is_known(store: TrustStore) -> None:
    pack = small_pack()
    store.revoke(public(pack).fingerprint)
    with pytest.raises(e.NoTrustedKey):  # whose signature it is cannot be told
        verify_pack(pack.pack_files, store)
    with pytest.raises(e.KeyRevoked):
        store.add(public(pack))
    store.revoke(public(pack).text)
    with pytest.raises(e.KeyRevoked):
        verify_pack(pack.pack_files, store)
    for nonsense in ("", "nobody", "SHA256:abc"):
        with pytest.raises(e.InvalidKey):
            store.revoke(nonsense)


def test_what_a_key_says_of_itself_is_honoured_for_ever(store: TrustStore) -> None:
    pack = small_pack()
    store.honour(sign_revocation(signing(pack)))
    with pytest.raises(e.KeyRevoked, match="revoked by its owner"):  # though it never was trusted
        verify_pack(pack.pack_files, store)
    store.revoke(public(pack).text)
    for refused in (lambda: store.unrevoke(public(pack).fingerprint), lambda: store.add(public(pack))):
        with pytest.raises(e.KeyRevoked, match="by its owner"):
            refused()
    assert len(store.state().revoked) == 1


def test_one_revoked_key_leaves_the_other(store: TrustStore) -> None:
    one, two = small_pack(), small_pack()
    store.add(public(one)), store.add(public(two))
    store.honour(sign_revocation(signing(one)))
    verify_pack(two.pack_files, store)
    with pytest.raises(e.KeyRevoked):
        verify_pack(one.pack_files, store)


# -- rotation -----------------------------------------------------------------------------------------------------------
def made_on(date: datetime, key: Any, **changes: Any) -> SmallPack:
    return small_pack(key=key, edit=lambda m: m.update(created_at=date.isoformat(), **changes))


def test_a_key_names_its_successor(store: TrustStore) -> None:
    old, new = small_pack(), small_pack()
    statement = sign_rotation(signing(old), public(new), CREATED + timedelta(days=1))
    with pytest.raises(e.NoTrustedKey, match="is not trusted"):
        store.adopt(statement)
    store.add(public(old), "tests")
    with pytest.raises(e.NoTrustedKey):
        verify_pack(new.pack_files, store)
    adopted = store.adopt(statement)
    assert adopted.key == public(new) and adopted.label == "tests" and adopted.adopted_from == public(old).fingerprint
    assert store.adopt(statement) == adopted  # once more changes nothing
    verify_pack(new.pack_files, store)
    # What the old key signed until then still counts; what is dated later does not.
    verify_pack(old.pack_files, store)
    verify_pack(made_on(CREATED + timedelta(days=1), old.key).pack_files, store)
    with pytest.raises(e.NoTrustedKey, match="was replaced on 2026-11-17"):
        verify_pack(made_on(CREATED + timedelta(days=1, seconds=1), old.key).pack_files, store)
    assert store.state().find("tests").key == public(new)


@pytest.mark.parametrize(
    "date", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-11-16", "2026-11-16T01:00:00+01:00"]
)
def test_dates_at_the_ends_of_time(store: TrustStore, date: str) -> None:
    old = small_pack(edit=lambda m: m.update(created_at=date))
    store.add(public(old))
    store.adopt(sign_rotation(signing(old), SigningKey.generate().public, CREATED))
    if date.startswith("9999"):
        with pytest.raises(e.NoTrustedKey, match="was replaced"):
            verify_pack(old.pack_files, store)
    else:
        verify_pack(old.pack_files, store)


def test_a_chain_of_successors(store: TrustStore) -> None:
    packs = [small_pack() for _ in range(3)]
    store.add(public(packs[0]))
    for i in range(2):
        store.adopt(sign_rotation(signing(packs[i]), public(packs[i + 1]), CREATED + timedelta(days=i)))
    for pack in packs:
        verify_pack(pack.pack_files, store)
    # No way back, and no second successor.
    with pytest.raises(e.InvalidKey, match="was replaced"):
        store.adopt(sign_rotation(signing(packs[2]), public(packs[0])))
    with pytest.raises(e.InvalidKey, match="already has the successor"):
        store.adopt(sign_rotation(signing(packs[0]), public(small_pack())))


def test_a_revoked_key_has_no_successor_and_is_none(store: TrustStore) -> None:
    one, two, three = (small_pack() for _ in range(3))
    store.add(public(one)), store.add(public(two))
    store.honour(sign_revocation(signing(one)))
    for old, new in ((one, three), (two, one)):
        with pytest.raises(e.KeyRevoked):
            store.adopt(sign_rotation(signing(old), public(new)))
    assert store.state().get(public(three)) is None and store.state().find(public(two).text).retired is None


def test_statements_of_the_other_kind(store: TrustStore) -> None:
    pack = small_pack()
    with pytest.raises(e.InvalidKey, match="names no successor"):
        store.adopt(sign_revocation(signing(pack)))
    with pytest.raises(e.InvalidKey, match="revokes nothing"):
        store.honour(sign_rotation(signing(pack), public(small_pack())))


def test_a_pack_may_announce_the_next_key(store: TrustStore) -> None:
    new = small_pack()
    announcing = small_pack(edit=lambda m: m["pumice"].update(next_key=public(new).text))
    store.add(public(announcing), "tests")
    verified = verify_pack(announcing.pack_files, store)
    with pytest.raises(e.NoTrustedKey):  # verifying alone adopts nothing
        verify_pack(new.pack_files, store)
    assert adopt_next_key(verified, store).key == public(new)
    verify_pack(new.pack_files, store)
    verify_pack(announcing.pack_files, store)
    with pytest.raises(e.NoTrustedKey, match="was replaced"):
        verify_pack(made_on(CREATED + timedelta(days=1), announcing.key).pack_files, store)


def test_an_insecure_pack_announces_nothing(store: TrustStore) -> None:
    announcing = small_pack(edit=lambda m: m["pumice"].update(next_key=public(small_pack()).text))
    store.add(public(announcing))
    with pytest.warns(PumiceWarning):
        insecure = verify_pack(announcing.pack_files, store, insecure=True)
    plain = small_pack()
    store.add(public(plain))
    for pack in (insecure, verify_pack(plain.pack_files, store)):
        with pytest.raises(e.InvalidKey, match="next_key"):
            adopt_next_key(pack, store)
    assert len(store.state().keys) == 2


# -- the store ----------------------------------------------------------------------------------------------------------
def test_keys_are_found_by_what_users_write(store: TrustStore) -> None:
    key = SigningKey.generate().public
    store.add(key, "a friend")
    for what in ("a friend", key.text, key.raw.hex(), key.openssh, key.fingerprint, key.fingerprint[:16], key.fingerprint[7:15]):
        assert store.state().find(what).key == key
    for what in ("", "SHA256:", key.fingerprint[:9], "a frien", "nobody"):
        with pytest.raises(e.InvalidKey, match="no trusted key"):
            store.state().find(what)
    store.add(SigningKey.generate().public, "a friend")
    with pytest.raises(e.InvalidKey, match="2 trusted keys"):
        store.remove("a friend")
    store.add(key, "another name")
    assert store.remove("another name").key == key and len(store.state().keys) == 1


@pytest.mark.parametrize("label", ["x" * 65, "a\nb", "\x1b[31m", " a", "\u202ea", "SHA256:" + "a" * 43, "ed25519:x"])
def test_labels(store: TrustStore, label: str) -> None:
    with pytest.raises(e.InvalidTrustStore, match="no label"):
        store.add(SigningKey.generate().public, label)


def test_a_store_holds_so_many_keys(store: TrustStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.packs import trust_store

    monkeypatch.setattr(trust_store, "MAX_KEYS", 2)
    assert MAX_KEYS > 2
    for _ in range(2):
        store.add(SigningKey.generate().public)
    with pytest.raises(e.InvalidTrustStore, match="more than 2"):
        store.add(SigningKey.generate().public)


def test_an_empty_store_is_no_error(store: TrustStore) -> None:
    assert store.state() == TrustState() and not store.allowlist().enforce
    assert not store.path.exists()


def damage(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        value = json.loads(data)
        change(value)
        return json.dumps(value).encode()

    return changed


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"[]",
        lambda data: data.replace(b'"version"', b'"versions"'),
        lambda data: b" " * (2 << 20),
        lambda data: b"\xff" + data,
        damage(lambda v: v.update(version=2)),
        damage(lambda v: v.update(version=True)),
        damage(lambda v: v.update(keys={})),
        damage(lambda v: v.update(more=1)),
        damage(lambda v: v["keys"].append(v["keys"][0])),
        damage(lambda v: v["keys"][0].update(key=SigningKey.generate().public.text)),
        damage(lambda v: v["keys"][0].update(key="ed25519:" + "00" * 32)),
        damage(lambda v: v["keys"][0].update(fingerprint="SHA256:" + "a" * 43)),
        damage(lambda v: v["keys"][0].update(label=1)),
        damage(lambda v: v["keys"][0].update(added="yesterday")),
        damage(lambda v: v["keys"][0].update(retired=0)),
        damage(lambda v: v["keys"][0].update(successor="nobody")),
        damage(lambda v: v["keys"][0].update(retired="2026-11-16")),
        damage(lambda v: v["keys"][0].update(successor="SHA256:" + "a" * 43)),
        damage(lambda v: v["keys"][0].pop("label")),
        damage(lambda v: v["revoked"][0].update(fingerprint="")),
        damage(lambda v: v["revoked"][0].update(by_owner="no")),
        damage(lambda v: v["revoked"].append(v["revoked"][0])),
        damage(lambda v: v["revoked"].append(None)),
    ],
)
def test_a_damaged_store_is_an_error_and_never_an_empty_one(store: TrustStore, change: Callable[[bytes], bytes]) -> None:
    pack = small_pack()
    store.add(public(pack))
    store.revoke(SigningKey.generate().public.text)
    file = store.path / "keys.json"
    file.write_bytes(change(file.read_bytes()))
    damaged = file.read_bytes()
    for use in (store.state, lambda: verify_pack(pack.pack_files, store), lambda: store.add(public(small_pack()))):
        with pytest.raises(e.InvalidTrustStore, match=r"keys\.json is damaged") as caught:
            use()
        assert caught.value.hint
    assert file.read_bytes() == damaged


def test_a_damaged_allowlist_is_an_error(store: TrustStore) -> None:
    pack = small_pack()
    store.add(public(pack))
    (store.path / "allowlist.json").write_bytes(b'{"version": 1}')
    for use in (
        store.allowlist,
        lambda: verify_pack(pack.pack_files, store),
        lambda: store.change_allowlist(lambda found: found),
    ):
        with pytest.raises(e.InvalidTrustStore, match=r"allowlist\.json is damaged"):
            use()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has access lists in place of modes")
def test_a_store_that_others_could_have_written(store: TrustStore) -> None:
    pack = small_pack()
    store.add(public(pack))
    assert store.path.stat().st_mode & 0o777 == 0o700 and (store.path / "keys.json").stat().st_mode & 0o777 == 0o600
    (store.path / "keys.json").chmod(0o622)
    with pytest.raises(Untrusted):
        verify_pack(pack.pack_files, store)
    (store.path / "keys.json").chmod(0o600)
    store.path.chmod(0o770)
    with pytest.raises(Untrusted):
        verify_pack(pack.pack_files, store)
    store.path.chmod(0o700)
    (store.path / "keys.json").rename(store.path / "real")
    (store.path / "keys.json").symlink_to(store.path / "real")
    with pytest.raises(e.InvalidTrustStore):
        verify_pack(pack.pack_files, store)


ADDING = """
import sys
from pathlib import Path
from pumice.packs.keys import SigningKey
from pumice.packs.trust_store import TrustStore
store = TrustStore(Path(sys.argv[1]))
for i in range(8):
    store.add(SigningKey.generate().public, f"{sys.argv[2]}-{i}")
"""


def test_four_processes_that_add_lose_nothing(store: TrustStore) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    running = [subprocess.Popen([sys.executable, "-c", ADDING, store.path, str(i)], env=env) for i in range(4)]
    assert [process.wait(timeout=120) for process in running] == [0] * 4
    assert {entry.label for entry in store.state().keys} == {f"{i}-{j}" for i in range(4) for j in range(8)}


def test_threads_that_add_lose_nothing(store: TrustStore) -> None:
    keys = [SigningKey.generate().public for _ in range(16)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(store.add, keys))
    assert {entry.key for entry in store.state().keys} == {*keys}
