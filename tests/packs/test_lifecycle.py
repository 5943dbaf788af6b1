"""The life of installed packs: install, upgrade, rollback, words of the user, removal; a bad pack is never left active."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pack_making import new_key, public_text, small_pack
from pumice.backends.select import open_device
from pumice.errors import PumiceWarning
from pumice.packs.choice import Choices
from pumice.packs.errors import (
    HashMismatch,
    HealthCheckFailed,
    KernelNotFound,
    KeyRevoked,
    NoTrustedKey,
    PackError,
    PackStateError,
)
from pumice.packs.health import Finding
from pumice.packs.keys import PublicKey, SigningKey
from pumice.packs.statements import sign_rotation
from pumice.packs.store import PackStore
from pumice.packs.trust import TrustStore, VerifiedPack
from pumice.run.packs import device_key, kernels_in_use

KEY = new_key()


def healthy(pack: VerifiedPack) -> Sequence[Finding]:
    return [Finding(kernel, "loads") for kernel in pack.manifest.kernel_ids]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home that trusts KEY."""
    TrustStore(tmp_path / "home" / "packs" / "trust").add(PublicKey.parse(public_text(KEY)), "tests")
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> PackStore:
    return PackStore(home, check=healthy)


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    """Makes a signed pack as a zip."""
    count = iter(range(100))

    def make(**options: Any) -> Path:
        return small_pack(**{"key": KEY, **options}).write_zip(tmp_path / f"{next(count)}.zip")

    return make


Made = Callable[..., Path]


def versions(store: PackStore) -> dict[str, str]:
    return {pack.name: pack.version for pack in store.installed()}


def test_a_pack_is_installed_read_back_and_removed(store: PackStore, made: Made, home: Path) -> None:
    change = store.install(made())
    assert (change.what, change.name, change.before) == ("installed", "small", None)
    assert [f.kernel for f in change.findings] == ["relu_wasm", "relu_wgsl"]
    (found,) = PackStore(home).installed()
    pack = PackStore(home).active("small")
    assert (found.version, found.digest, found.insecure, found.enabled) == ("1.0.0", pack.digest, False, True)
    assert found.signer == pack.signer == PublicKey.parse(public_text(KEY)).fingerprint
    assert set(pack.files) == {"relu.wasm", "relu.wgsl", "LICENSE"}
    assert store.remove("small").what == "removed"
    assert PackStore(home).installed() == []
    with pytest.raises(KernelNotFound, match="no pack named 'small'"):
        store.active("small")


def test_a_folder_is_as_good_as_a_zip(store: PackStore, tmp_path: Path) -> None:
    pack = small_pack(key=KEY)
    store.install(pack.write_folder(tmp_path / "folder"))
    assert store.install(pack.write_zip(tmp_path / "pack.zip")).what == "unchanged"


def test_an_upgrade_keeps_the_version_before_and_rollback_brings_it_back(store: PackStore, made: Made) -> None:
    store.install(made())
    change = store.upgrade(made(version="2.0.0"))
    assert change.what == "upgraded" and change.before and change.before.version == "1.0.0"
    assert store.active("small").manifest.version == "2.0.0"
    assert store.previous("small").manifest.version == "1.0.0"
    back = store.rollback("small")
    assert back.what == "rolled back" and back.pack and back.pack.version == "1.0.0"
    assert store.active("small").manifest.version == "1.0.0"
    store.rollback("small")
    assert store.active("small").manifest.version == "2.0.0"


def test_another_build_of_the_same_version_is_an_upgrade(store: PackStore, made: Made) -> None:
    store.install(made())
    assert store.install(made(files={"LICENSE": b"Another one.\n"})).what == "upgraded"
    assert store.active("small").files["LICENSE"] == b"Another one.\n"
    assert store.previous("small").files["LICENSE"] == b"Public domain.\n"


def test_what_cannot_be_done_is_an_error_that_says_what_can(store: PackStore, made: Made) -> None:
    with pytest.raises(PackStateError, match="no pack named 'small' is installed that could be upgraded"):
        store.upgrade(made())
    store.install(made())
    with pytest.raises(PackStateError, match="no version of small before"):
        store.rollback("small")
    for order in (store.rollback, store.remove, store.enable, store.disable, store.active):
        with pytest.raises(KernelNotFound, match="there are small"):
            order("smal")
    for order in (store.enable, store.disable):
        with pytest.raises(KernelNotFound, match="has no kernel 'gelu'") as refused:
            order("small", kernel="gelu")
        assert "relu_wasm" in refused.value.hint


def test_two_packs_with_the_same_kernel_ids_live_side_by_side(store: PackStore, made: Made) -> None:
    store.install(made(name="one"))
    store.install(made(name="two", files={"LICENSE": b"Another one.\n"}))
    store.disable("one", kernel="relu_wasm")
    assert versions(store) == {"one": "1.0.0", "two": "1.0.0"}
    assert store.active("one").manifest.kernel_ids == store.active("two").manifest.kernel_ids
    assert store.active("one").digest != store.active("two").digest
    assert (store.use_of("one", "relu_wasm"), store.use_of("two", "relu_wasm")) == ("never", "measured")
    store.remove("one")
    assert [p.manifest.name for p in store.enabled()] == ["two"]


# --- the user's word ---


def test_the_users_word_holds_for_a_pack_or_a_kernel_and_survives_an_upgrade(store: PackStore, made: Made) -> None:
    store.install(made())
    assert store.use_of("small", "relu_wasm") == "measured"
    store.enable("small", use="always")
    store.enable("small", kernel="relu_wgsl", use="measured")
    store.upgrade(made(version="2.0.0"))
    assert (store.use_of("small", "relu_wasm"), store.use_of("small", "relu_wgsl")) == ("always", "measured")
    store.disable("small")
    assert store.use_of("small", "relu_wasm") == "never" and store.enabled() == []
    store.enable("small")
    assert store.use_of("small", "relu_wasm") == "always" and [p.manifest.name for p in store.enabled()] == ["small"]
    store.disable("small", kernel="relu_wasm")
    assert store.use_of("small", "relu_wasm") == "never"
    store.enable("small", kernel="relu_wasm")
    assert store.use_of("small", "relu_wasm") == "measured"
    store.enable("small", use="measured")
    assert store.installed()[0].kernels == {}


def test_choices_follow_the_store(store: PackStore, made: Made) -> None:
    store.install(made())
    choices = Choices(store.folder, store.use_of, versions={})
    kernel = SimpleNamespace(pack="small", id="relu_wasm", op="relu", pack_digest=store.active("small").digest)
    assert choices.prefers("cpu", kernel, "f32[8]") is None
    choices.record("cpu", kernel, "f32[8]", 1.0, 2.0)
    assert choices.prefers("cpu", kernel, "f32[8]") is True
    store.disable("small", kernel="relu_wasm")
    assert choices.prefers("cpu", kernel, "f32[8]") is False


def test_of_two_enabled_packs_the_one_with_the_larger_gain_computes_the_op(
    store: PackStore, made: Made, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUMICE_HOME", str(home))
    device = open_device("host")
    for name in ("one", "two", "three"):
        store.install(made(name=name))
    gains = {"one": 0.9, "two": 0.5, "three": 1.2}
    choices = Choices(store.folder, store.use_of)
    for name, ratio in gains.items():
        kernel = SimpleNamespace(pack=name, id="relu_wasm", op="relu", pack_digest=store.active(name).digest)
        choices.record(device_key(device), kernel, "f32[8]", ratio, 1.0)

    def used() -> tuple[list[str], str]:
        found = [k.pack for k in kernels_in_use(device, None)]
        with pm.compile(lambda x: pm.relu(x), x=pm.spec(64), device="host") as exe:
            np.testing.assert_array_equal(exe.run(x=np.arange(-32, 32, dtype="f4")), np.maximum(np.arange(-32, 32), 0))
            (variant,) = [s.variant for s in exe.plan.steps]
        return found, variant.removeprefix("pack ").split("@")[0]

    assert used() == (["two", "one"], "two")
    store.enable("three", use="always")
    assert used() == (["three", "two", "one"], "three")
    store.disable("three")
    store.disable("two", kernel="relu_wasm")
    assert used() == (["one"], "one")


# --- trust ---


def test_nothing_of_an_unverified_pack_is_stored_or_checked(tmp_path: Path, made: Made) -> None:
    def never(pack: VerifiedPack) -> Sequence[Finding]:
        raise AssertionError("checked an unverified pack")

    store = PackStore(tmp_path / "other", check=never)
    with pytest.raises(NoTrustedKey):
        store.install(made())
    assert store.installed() == [] and not list(tmp_path.glob("other/packs/blobs/*"))


def test_an_insecure_pack_is_marked_for_good_and_a_signed_one_can_take_its_place(store: PackStore, made: Made) -> None:
    with pytest.warns(PumiceWarning, match="INSECURE"):
        store.install(made(sign=False, key=None), insecure=True)
    (found,) = store.installed()
    assert found.insecure and found.signer == ""
    with pytest.warns(PumiceWarning, match="INSECURE"):
        assert store.active("small").insecure
    change = store.upgrade(made(version="2.0.0"))
    assert change.before and change.before.insecure and change.pack and not change.pack.insecure
    with pytest.warns(PumiceWarning, match="INSECURE"):
        store.rollback("small")
    assert store.installed()[0].insecure


def test_the_same_pack_verified_later_loses_its_mark(store: PackStore, made: Made) -> None:
    with pytest.warns(PumiceWarning, match="INSECURE"):
        store.install(made(), insecure=True)
    store.install(made())
    (found,) = store.installed()
    assert not found.insecure and found.signer and found.previous is None
    assert not store.active("small").insecure


def test_an_older_version_replaces_a_later_one_only_if_the_user_says_so(store: PackStore, made: Made) -> None:
    old, new = made(version="1.9.0"), made(version="1.10.0rc1")
    store.install(new)
    for order in (store.install, store.upgrade):
        with pytest.raises(PackStateError, match=r"small 1\.9\.0 is older than 1\.10\.0rc1, which is installed"):
            order(old)
    assert versions(store) == {"small": "1.10.0rc1"}
    assert store.upgrade(old, older=True).what == "downgraded"
    assert store.upgrade(new).what == "upgraded"


def test_another_trusted_key_does_not_take_over_a_pack_unasked(store: PackStore, made: Made, home: Path) -> None:
    other = new_key()
    TrustStore(home / "packs" / "trust").add(PublicKey.parse(public_text(other)), "other")
    store.install(made())
    newer = made(version="2.0.0", key=other)
    with pytest.raises(PackStateError, match="the installed one was signed by"):
        store.install(newer)
    assert versions(store) == {"small": "1.0.0"}
    store.install(newer, new_signer=True)
    assert versions(store) == {"small": "2.0.0"}


def test_a_key_that_signed_its_successor_is_followed(store: PackStore, made: Made, home: Path) -> None:
    old, new, newest = (SigningKey.generate() for _ in range(3))
    trust = TrustStore(home / "packs" / "trust")
    trust.add(old.public, "author")
    store.install(made(key=raw(old)))
    trust.adopt(sign_rotation(old, new.public))
    trust.adopt(sign_rotation(new, newest.public))
    store.install(made(version="2.0.0", key=raw(newest)))
    assert versions(store) == {"small": "2.0.0"}


def raw(key: SigningKey) -> Any:
    from cryptography.hazmat.primitives import serialization

    return serialization.load_pem_private_key(key.to_pem(None), None)


def test_a_revoked_key_ends_the_use_of_its_packs_and_says_so(store: PackStore, made: Made, home: Path) -> None:
    store.install(made())
    TrustStore(home / "packs" / "trust").revoke("tests")
    with pytest.raises(KeyRevoked):
        store.active("small")
    with pytest.warns(PumiceWarning, match="the pack small is not used"):
        assert store.enabled() == []
    assert store.installed()[0].name == "small"  # it can still be listed, disabled and removed
    store.remove("small")


# --- the health check ---


class Checks:
    """A check that fails at chosen calls."""

    def __init__(self, *bad: int, error: type[BaseException] | None = None) -> None:
        self.bad, self.error, self.seen = bad, error, list[VerifiedPack]()

    def __call__(self, pack: VerifiedPack) -> Sequence[Finding]:
        self.seen.append(pack)
        if len(self.seen) - 1 not in self.bad:
            return healthy(pack)
        if self.error:
            raise self.error("no")
        return [Finding("relu_wasm", "loads", "answers 1 for 2"), Finding("relu_wgsl", "loads")]


def test_a_pack_that_fails_before_the_switch_changes_nothing(home: Path, made: Made) -> None:
    PackStore(home, check=healthy).install(made())
    before = snapshot(home)
    checks = Checks(0)
    with pytest.raises(HealthCheckFailed, match=r"1 of 2 kernels failed: relu_wasm: answers 1 for 2; small 1.0.0 is active"):
        PackStore(home, check=checks).install(made(version="2.0.0"))
    assert snapshot(home) == before and len(checks.seen) == 1
    with pytest.raises(HealthCheckFailed, match="no other is installed"):
        PackStore(home, check=Checks(0)).install(made(name="other"))
    assert snapshot(home) == before


@pytest.mark.parametrize("error", [None, HashMismatch, RuntimeError, KeyboardInterrupt, OSError])
def test_a_pack_that_fails_after_the_switch_is_rolled_back(home: Path, made: Made, error: type[BaseException] | None) -> None:
    PackStore(home, check=healthy).install(made())
    before = snapshot(home)
    checks = Checks(1, error=error)
    expected = error if error and not issubclass(error, PackError) else HealthCheckFailed
    with pytest.raises(expected) as refused:
        PackStore(home, check=checks).install(made(version="2.0.0"))
    assert snapshot(home) == before
    assert PackStore(home).active("small").manifest.version == "1.0.0"
    # The second check had what was read back from the disk.
    assert checks.seen[1] is not checks.seen[0] and checks.seen[1].digest == checks.seen[0].digest
    if isinstance(refused.value, HealthCheckFailed):
        assert "small 1.0.0 is active again" in refused.value.message and refused.value.fields["rollback_seconds"] >= 0


def test_a_rollback_without_grace_period_still_has_the_version_before(home: Path, made: Made) -> None:
    good = PackStore(home, check=healthy, grace=0)
    good.install(made())
    good.install(made(version="2.0.0"))
    before = snapshot(home)
    with pytest.raises(HealthCheckFailed, match=r"small 2.0.0 is active again"):
        PackStore(home, check=Checks(1), grace=0).install(made(version="3.0.0"))
    assert snapshot(home) == before
    assert good.previous("small").manifest.version == "1.0.0"


def test_a_first_install_that_fails_after_the_switch_leaves_nothing(home: Path, made: Made) -> None:
    with pytest.raises(HealthCheckFailed, match="no small is installed again"):
        PackStore(home, check=Checks(1)).install(made())
    assert PackStore(home).installed() == [] and not list((home / "packs" / "blobs").iterdir())


def test_a_rollback_to_a_version_that_fails_is_undone(home: Path, made: Made) -> None:
    good = PackStore(home, check=healthy)
    good.install(made())
    good.upgrade(made(version="2.0.0"))
    before = snapshot(home)
    with pytest.raises(HealthCheckFailed, match=r"small 2.0.0 is active again"):
        PackStore(home, check=Checks(0)).rollback("small")
    assert snapshot(home) == before


def test_what_the_disk_gives_back_is_checked_after_the_switch(home: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that loses bytes on the way: the switch is undone."""
    store = PackStore(home, check=healthy)
    store.install(made())
    write = os.replace

    def lossy(src: Any, dst: Any, **more: Any) -> None:
        write(src, dst, **more)
        if str(dst).endswith(".zip"):
            path = next((home / "packs" / "blobs").glob(str(dst)))
            path.write_bytes(path.read_bytes()[:-1] + b"\xff")

    with monkeypatch.context() as m:
        m.setattr(os, "replace", lossy)
        with pytest.raises(HealthCheckFailed, match=r"damaged or was changed; small 1.0.0 is active again"):
            store.install(made(version="2.0.0"))
    assert store.active("small").manifest.version == "1.0.0"


@pytest.mark.slow
def test_rolling_back_takes_less_than_a_second(home: Path, made: Made) -> None:
    PackStore(home, check=healthy).install(made())
    big = {f"data/{i}.bin": os.urandom(1 << 20) for i in range(30)}
    with pytest.raises(HealthCheckFailed) as refused:
        PackStore(home, check=Checks(1)).install(made(version="2.0.0", files=big))
    assert refused.value.fields["rollback_seconds"] < 1


def snapshot(home: Path) -> dict[str, bytes]:
    """Everything that says which packs are active."""
    return {p.relative_to(home).as_posix(): p.read_bytes() for p in (home / "packs").rglob("*") if p.is_file()}


# --- readers and writers ---


def test_a_pack_is_read_once_so_that_what_was_checked_is_what_is_used(
    home: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file changes between the check and the switch: what was verified is installed."""
    path = made()
    evil = small_pack(sign=False, files={"LICENSE": b"evil"}).zip_bytes()

    def swapping(pack: VerifiedPack) -> Sequence[Finding]:
        path.write_bytes(evil)
        return healthy(pack)

    PackStore(home, check=swapping).install(path)
    assert PackStore(home).active("small").files["LICENSE"] == b"Public domain.\n"


def test_a_blob_that_was_swapped_for_another_signed_pack_is_refused(store: PackStore, made: Made, home: Path) -> None:
    store.install(made())
    store.install(made(name="other"))
    one, two = (store.folder / "blobs" / f"{p.current.blob}.zip" for p in store.installed())
    one.write_bytes(two.read_bytes())
    with pytest.raises(HashMismatch):
        store.active("other")
    assert store.install(made(name="other")).what == "repaired"
    assert store.active("other").manifest.name == "other"


def test_readers_see_whole_packs_while_a_writer_changes_them(home: Path, made: Made) -> None:
    paths = [made(version=f"{i}.0.0", files={"LICENSE": b"%d" % i * 1000}) for i in range(1, 5)]
    PackStore(home, check=healthy).install(paths[0])
    done = threading.Event()
    problems: list[str] = []
    reads = [0]

    def read() -> None:
        store = PackStore(home)
        while not done.is_set():
            try:
                pack = store.active("small")
            except Exception as e:
                problems.append(repr(e))
                return
            if pack.files["LICENSE"] != pack.manifest.version[0].encode() * 1000:
                problems.append("half a pack")
            reads[0] += 1

    threads = [threading.Thread(target=read) for _ in range(3)]
    for t in threads:
        t.start()
    try:
        writer = PackStore(home, check=healthy, grace=0)
        for i in range(24):
            writer.install(paths[(i + 1) % 4], older=True)
        while reads[0] < 10 and not problems:
            time.sleep(0.01)
    finally:
        done.set()
        for t in threads:
            t.join()
    assert problems == []
    assert len(list((home / "packs" / "blobs").iterdir())) == 2


def test_writers_take_turns(home: Path, made: Made) -> None:
    paths = [made(name=f"pack{i}") for i in range(6)]
    problems: list[BaseException] = []

    def install(path: Path) -> None:
        try:
            PackStore(home, check=healthy).install(path)
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=install, args=(path,)) for path in paths]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not problems and len(PackStore(home).installed()) == 6


def test_a_missing_blob_is_an_error_that_says_what_to_do(store: PackStore, made: Made) -> None:
    store.install(made())
    for path in (store.folder / "blobs").iterdir():
        path.unlink()
    with pytest.raises(PackStateError, match=r"the zip of small 1.0.0 is missing") as refused:
        store.active("small")
    assert "install the pack again" in refused.value.hint
    assert store.install(made()).what == "repaired"
    assert store.active("small").manifest.version == "1.0.0" and store.install(made()).what == "unchanged"
