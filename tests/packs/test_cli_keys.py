"""`pumice pack keys`, `allow`, `sign` and `verify`, as users run them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli_harness import pumice, refused
from pack_making import SmallPack, small_pack
from pumice.cli.main import error_text
from pumice.cli.pack import pack_app
from pumice.errors import PumiceError, PumiceWarning
from pumice.packs.archive import read_pack
from pumice.packs.keys import KeyFolder, PublicKey, SigningKey
from pumice.packs.statements import read_statements
from pumice.packs.trust import CHECKS, TrustStore


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PUMICE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PUMICE_PASSPHRASE_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def ran(*args: object, code: int = 0) -> str:
    """What a command prints on stdout; in this process, as each start takes a while."""
    done = CliRunner().invoke(pack_app, [*map(str, args)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.stdout


def shown(*args: object, code: int = 0) -> Any:
    out = ran(*args, "--json", code=code)
    assert out.count("\n") == 1
    return json.loads(out)


def unsigned(path: Path) -> Path:
    return small_pack(sign=False).write_zip(path)


# -- sign and verify ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("as_folder", [False, True])
def test_sign_and_verify(tmp_path: Path, as_folder: bool) -> None:
    pack = small_pack(sign=False)
    path = pack.write_folder(tmp_path / "pack") if as_folder else pack.write_zip(tmp_path / "pack.zip")
    (path / "kernels.json" if as_folder else path).chmod(0o644)
    key = shown("keys", "new", "mine")
    assert shown("sign", path, "--key", "mine")["signer"] == key["fingerprint"]
    assert read_pack(path).signature is not None
    assert json.loads(read_pack(path).manifest)["author"]["signing_key"] == key["key"]
    ours = path / "kernels.json.sig" if as_folder else path
    if hasattr(os, "geteuid"):
        assert ours.stat().st_mode & 0o777 == 0o644  # packs are for others to read
    # Nobody trusts the key yet.
    report = shown("verify", path, code=4)
    assert not report["ok"] and report["failed"] == "signature" and report["error"]["code"] == "no-trusted-key"
    ran("keys", "trust", "mine")
    report = shown("verify", path)
    assert report["ok"] and report["signer"] == key["fingerprint"] and not report["insecure"]
    assert [found["check"] for found in report["checks"]] == ["archive", *CHECKS]
    text = ran("verify", path)
    assert text.splitlines()[-1] == "small 1.0.0 is verified" and all(check in text for check in CHECKS)
    before = read_pack(path)
    ran("sign", path, "--key", "mine")  # once more gives the same bytes
    assert read_pack(path) == before


def test_verify_says_which_check_failed_and_which_passed(tmp_path: Path) -> None:
    pack = small_pack()
    TrustStore().add(PublicKey(pack.key.public_key().public_bytes_raw()))  # type: ignore[union-attr]
    pack.files["LICENSE"] += b"x"
    path = pack.write_zip(tmp_path / "pack.zip")
    report = shown("verify", path, code=4)
    assert [found["check"] for found in report["checks"]] == ["archive", *CHECKS[:4]]
    assert report["failed"] == "hashes" and report["error"]["code"] == "hash-mismatch"
    assert report["error"]["fields"]["path"] == "LICENSE"
    text = ran("verify", path, code=4).splitlines()
    assert text[-1].split() == ["hashes", "FAILED"] and [line.split()[0] for line in text[:-1]] == ["archive", *CHECKS[:4]]
    path.write_bytes(b"no zip")
    assert shown("verify", path, code=4)["failed"] == "archive"
    assert shown("verify", tmp_path / "nowhere", code=4)["error"]["code"] == "kernel-not-found"


def test_verify_insecure(tmp_path: Path) -> None:
    with pytest.warns(PumiceWarning, match="INSECURE"):
        report = shown("verify", unsigned(tmp_path / "pack.zip"), "--insecure")
    assert report["insecure"] and report["signer"] == "" and [c["check"] for c in report["checks"]] == ["archive", *CHECKS[1:]]


def test_verify_as_a_process(tmp_path: Path, home: Path) -> None:
    """The last line on stderr says what failed; the warning is loud."""
    path = unsigned(tmp_path / "pack.zip")
    done = pumice("pack", "verify", path, PUMICE_HOME=str(home))
    assert done.returncode == 4 and "signature  FAILED" in done.stdout
    assert "the pack is not signed" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
    done = pumice("pack", "verify", path, "--insecure", PUMICE_HOME=str(home))
    assert done.returncode == 0 and "INSECURE" in done.stderr and "INSECURE" in done.stdout
    refused(pumice("pack", "sign", path, "--key", "nobody", PUMICE_HOME=str(home)), "there is no key nobody", code=4)


def test_a_pack_that_is_not_whole_is_not_signed(tmp_path: Path) -> None:
    pack = small_pack(sign=False)
    pack.files["LICENSE"] = b"another"
    path = pack.write_zip(tmp_path / "pack.zip")
    before = path.read_bytes()
    ran("keys", "new", "mine")
    with pytest.raises(PumiceError, match="LICENSE has the hash"):
        ran("sign", path, "--key", "mine")
    assert path.read_bytes() == before


def test_signing_for_an_author_with_another_key(tmp_path: Path) -> None:
    pack = small_pack()
    path = pack.write_folder(tmp_path / "pack")
    ran("keys", "new", "mine", "--trust")
    done = CliRunner().invoke(pack_app, ["sign", str(path), "--key", "mine"])
    assert done.exit_code == 0 and "its author signs with" in done.stderr
    assert (path / "kernels.json").read_bytes() == pack.files["kernels.json"]
    assert shown("verify", path)["ok"]


def test_a_manifest_keeps_its_layout(tmp_path: Path) -> None:
    pack = small_pack(sign=False)
    pretty = json.dumps(pack.manifest, indent=2).encode() + b"\n"
    path = pack.with_manifest(pretty).write_folder(tmp_path / "pack")
    key = shown("keys", "new", "mine")
    ran("sign", path, "--key", "mine")
    assert (path / "kernels.json").read_bytes() == pretty.replace(b'"signing_key": ""', f'"signing_key": "{key["key"]}"'.encode())


# -- keys ---------------------------------------------------------------------------------------------------------------
def test_new_and_list(home: Path) -> None:
    assert shown("keys", "list") == {"own": [], "trusted": [], "revoked": []}
    assert "pumice pack keys new NAME" in ran("keys", "list")
    made = shown("keys", "new", "mine", "--trust")
    assert made["path"] == str(home / "packs" / "keys" / "mine.pem") and not made["encrypted"]
    text = ran("keys", "new", "other")
    found = shown("keys", "list")
    assert [key["name"] for key in found["own"]] == ["mine", "other"]
    assert found["own"][0]["fingerprint"] == made["fingerprint"] and found["own"][1]["fingerprint"] in text
    assert [(key["label"], key["state"]) for key in found["trusted"]] == [("mine", "trusted")]
    listed = ran("keys", "list")
    assert listed.count(made["fingerprint"]) == 2 and "PRIVATE" not in text + listed
    with pytest.raises(PumiceError, match="already"):
        ran("keys", "new", "mine")


def test_passphrases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_bytes(b"correct horse\r\n")
    wrong.write_bytes(b"wrong")
    assert shown("keys", "new", "mine", "--passphrase-file", secret)["encrypted"]
    assert KeyFolder().open("mine", b"correct horse")
    path = unsigned(tmp_path / "pack.zip")
    with pytest.raises(PumiceError, match="has a passphrase, and none was given"):
        ran("sign", path, "--key", "mine")
    with pytest.raises(PumiceError, match="does not open with this passphrase"):
        ran("sign", path, "--key", "mine", "--passphrase-file", wrong)
    with pytest.raises(PumiceError, match="nowhere cannot be read"):
        ran("sign", path, "--key", "mine", "--passphrase-file", tmp_path / "nowhere")
    ran("sign", path, "--key", "mine", "--passphrase-file", secret)
    monkeypatch.setenv("PUMICE_PASSPHRASE_FILE", str(secret))
    ran("sign", path, "--key", "mine")
    assert shown("keys", "new", "third")["encrypted"]
    monkeypatch.delenv("PUMICE_PASSPHRASE_FILE")
    with pytest.raises(PumiceError, match="no terminal"):
        ran("keys", "new", "another", "--passphrase")
    assert "another" not in KeyFolder()


def test_passphrases_at_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pumice.cli import pack_keys

    answers: list[str] = []
    monkeypatch.setattr(pack_keys.sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.setattr("getpass.getpass", lambda prompt: answers.pop(0))
    answers += ["one", "two"]
    with pytest.raises(PumiceError, match="differ"):
        pack_keys.new_key("mine", passphrase=True)
    answers += ["one", "one"]
    pack_keys.new_key("mine", passphrase=True)
    answers += ["one"]
    assert KeyFolder().open("mine", lambda: pack_keys.passphrase_of("mine", None)) and not answers


def test_trust_takes_keys_files_and_names(tmp_path: Path) -> None:
    keys = [SigningKey.generate().public for _ in range(4)]
    (tmp_path / "a.pub").write_text(keys[1].openssh + " alice@example.org\n")
    (tmp_path / "raw.key").write_bytes(keys[2].raw)
    ran("keys", "trust", keys[0].text, "--label", "by itself")
    ran("keys", "trust", tmp_path / "a.pub")
    ran("keys", "trust", tmp_path / "raw.key")
    ran("keys", "trust", keys[3].raw.hex(), "--label", "hex")
    labels = [(entry.label, entry.key) for entry in TrustStore().state().keys]
    assert labels == [("by itself", keys[0]), ("alice@example.org", keys[1]), ("raw", keys[2]), ("hex", keys[3])]
    ran("keys", "new", "mine")
    with pytest.raises(PumiceError, match="private key"):
        ran("keys", "trust", KeyFolder().path / "mine.pem")
    with pytest.raises(PumiceError, match="no public key"):
        ran("keys", "trust", "nobody")
    ran("keys", "untrust", "hex")
    ran("keys", "remove", keys[0].fingerprint)
    assert [entry.key for entry in TrustStore().state().keys] == keys[1:3]


def test_export(tmp_path: Path) -> None:
    ran("keys", "new", "mine")
    key = KeyFolder().public("mine")
    for form in ("ed25519", "openssh", "hex"):
        assert PublicKey.parse(ran("keys", "export", "mine", "--form", form)) == key
    other = SigningKey.generate().public
    ran("keys", "trust", other.text, "--label", "a friend")
    assert shown("keys", "export", "a friend")["ed25519"] == other.text
    with pytest.raises(PumiceError, match="no trusted key"):
        ran("keys", "export", "nobody")


def test_revoke(tmp_path: Path) -> None:
    other = SigningKey.generate().public
    ran("keys", "trust", other.text, "--label", "a friend")
    assert other.fingerprint in ran("keys", "revoke", "a friend")
    assert shown("keys", "list")["trusted"][0]["state"] == "revoked"
    ran("keys", "revoke", "a friend", "--undo")
    assert shown("keys", "list")["revoked"] == []
    with pytest.raises(PumiceError, match="of your own"):
        ran("keys", "revoke", "a friend", "--out", tmp_path / "x")


def test_a_signed_revocation_goes_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unsigned(tmp_path / "pack.zip")
    ran("keys", "new", "mine")
    key = KeyFolder().public("mine")
    ran("sign", path, "--key", "mine")
    ran("keys", "revoke", "mine", "--out", tmp_path / "revoked.txt")
    with pytest.raises(PumiceError, match="was revoked by its owner"):
        ran("sign", path, "--key", "mine")
    monkeypatch.setenv("PUMICE_HOME", str(tmp_path / "another home"))
    ran("keys", "trust", key.text)
    assert shown("verify", path)["ok"]
    assert shown("keys", "revoke", tmp_path / "revoked.txt")["revoked"][0]["by_owner"]
    assert shown("verify", path, code=4)["error"]["code"] == "key-revoked"
    with pytest.raises(PumiceError, match="by its owner"):
        ran("keys", "revoke", key.fingerprint, "--undo")


def test_rotate_and_adopt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unsigned(tmp_path / "pack.zip")
    ran("keys", "new", "old", "--trust")
    ran("keys", "new", "new")
    old, new = KeyFolder().public("old"), KeyFolder().public("new")
    ran("sign", path, "--key", "new")
    assert "adopted here too" in ran("keys", "rotate", "old", "new", "--out", tmp_path / "rotation.txt")
    assert shown("verify", path)["signer"] == new.fingerprint
    assert [s.successor for s in read_statements(ran("keys", "rotate", "old", "new").encode())] == [new]
    monkeypatch.setenv("PUMICE_HOME", str(tmp_path / "another home"))
    ran("keys", "trust", old.text, "--label", "tests")
    assert shown("verify", path, code=4)["failed"] == "signature"
    assert shown("keys", "adopt", tmp_path / "rotation.txt")["adopted"][0]["fingerprint"] == new.fingerprint
    assert shown("verify", path)["ok"]
    assert f"by {new.fingerprint}" in ran("keys", "list")
    # What was trusted on a key's word is named when that key is revoked.
    assert f"trusted on its word: {new.fingerprint}" in ran("keys", "revoke", old.fingerprint)


def test_adopt_from_a_pack(tmp_path: Path) -> None:
    new = SigningKey.generate().public
    pack: SmallPack = small_pack(edit=lambda m: m["pumice"].update(next_key=new.text))
    path = pack.write_zip(tmp_path / "pack.zip")
    with pytest.raises(PumiceError, match="no key is trusted yet"):
        ran("keys", "adopt", path)
    TrustStore().add(PublicKey(pack.key.public_key().public_bytes_raw()), "tests")  # type: ignore[union-attr]
    assert new.fingerprint in ran("keys", "adopt", path)
    assert TrustStore().state().find("tests").key == new


# -- the allowlist ------------------------------------------------------------------------------------------------------
def test_allow(tmp_path: Path) -> None:
    path = unsigned(tmp_path / "pack.zip")
    ran("keys", "new", "mine", "--trust")
    ran("sign", path, "--key", "mine")
    assert "not enforced" in ran("allow", "list")
    assert shown("allow", "enforce", "on")["enforce"]
    assert shown("verify", path, code=4)["error"]["code"] == "not-in-allowlist"
    found = shown("allow", "add", path)["kernels"]
    assert set(found) == {"relu_wasm", "relu_wgsl"} and shown("verify", path)["ok"]
    ran("allow", "remove", found["relu_wasm"][0], "--kernel", "relu_wasm")
    assert shown("verify", path, code=4)["error"]["fields"]["kernel_id"] == "relu_wasm"
    ran("allow", "remove", "--kernel", "relu_wasm")
    ran("allow", "add", found["relu_wasm"][0])
    assert shown("verify", path)["ok"] and found["relu_wasm"][0] in ran("allow", "list")
    (tmp_path / "list.json").write_text(json.dumps({"version": 1, "kernels": {"rope": ["sha256:" + "A" * 64]}}))
    assert shown("allow", "merge", tmp_path / "list.json")["kernels"]["rope"] == ["sha256:" + "a" * 64]
    assert not shown("allow", "enforce", "off")["enforce"]
    with pytest.raises(PumiceError, match="no hash"):
        ran("allow", "add", "rope")


def test_errors_of_commands_end_with_one_line() -> None:
    with pytest.raises(PumiceError) as caught:
        ran("keys", "untrust", "nobody")
    assert error_text(caught.value) == "pumice: no trusted key is called 'nobody'; pumice pack keys list shows them"
