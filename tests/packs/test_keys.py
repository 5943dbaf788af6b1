"""Keys: the forms of public ones, files of private ones, and statements that keys sign about themselves."""

from __future__ import annotations

import base64
import os
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pumice.core.private import Untrusted
from pumice.errors import InputError
from pumice.packs import keys
from pumice.packs.errors import InvalidKey, InvalidSignature
from pumice.packs.extra import MissingExtra
from pumice.packs.keys import GROUP_ORDER, KeyFolder, PublicKey, SigningKey
from pumice.packs.signatures import check_form, sign_manifest, signer_of
from pumice.packs.statements import is_statement, read_statements, sign_revocation, sign_rotation

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
# RFC 8032, section 7.1, test 1.
SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
NO_OWNERS = not hasattr(os, "geteuid")


# -- public keys --------------------------------------------------------------------------------------------------------
def test_the_vector_of_the_rfc() -> None:
    key = SigningKey.from_seed(SEED)
    assert key.public.raw == PUBLIC
    assert key.sign(b"").hex().startswith("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155")


def test_every_form_of_a_public_key() -> None:
    key = PublicKey(PUBLIC)
    plain = key.text.removeprefix("ed25519:")
    pem = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END PUBLIC KEY-----\n"
    forms = [key.text, plain, plain.rstrip("="), PUBLIC.hex(), PUBLIC.hex().upper(), f"ed25519:{PUBLIC.hex()}", key.openssh]
    forms += [f"{key.openssh} me@here", f"  {plain}\n", pem]
    for form in forms:
        assert PublicKey.parse(form) == PublicKey.parse(form.encode()) == key
    assert PublicKey.parse(PUBLIC) == key


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="compares with OpenSSH's fingerprint where it is installed")
def test_the_fingerprint_is_that_of_openssh(tmp_path: Path) -> None:
    key = SigningKey.generate().public
    (tmp_path / "k.pub").write_text(key.openssh + " x\n")
    shown = subprocess.run(["ssh-keygen", "-lf", tmp_path / "k.pub"], capture_output=True, text=True, check=True).stdout
    assert shown.split()[1] == key.fingerprint


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "not 32 bytes"),
        ("ed25519:", "not 32 bytes"),
        (b"\xff" * 31, "neither text nor 32 bytes"),
        (PUBLIC + b"\n", "neither text"),
        ("zz" * 32, "not 32 bytes"),
        ("d7" * 31, "not 32 bytes"),
        ("!" * 44, "neither hex nor base64"),
        ("ED25519:" + PUBLIC.hex(), "neither hex nor base64"),
        # The last character holds bits that mean nothing: one key has one spelling.
        ("11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURp=", "not 32 bytes"),
        ("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQ me", "the algorithm ssh-rsa"),
        ("ecdsa-sha2-nistp256 AAAAE2VjZHNh me", "the algorithm ecdsa-sha2-nistp256"),
        ("ssh-ed25519 AAAA", "as base64 it is not 51 bytes"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "as PEM it holds no public key"),
    ],
)
def test_what_is_no_public_key(given: str | bytes, said: str) -> None:
    with pytest.raises(InvalidKey, match=said):
        PublicKey.parse(given)


def test_keys_of_other_algorithms() -> None:
    from cryptography.hazmat.primitives.asymmetric import ec, x25519
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    for other in (x25519.X25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())):
        pem = other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        with pytest.raises(InvalidKey, match="another algorithm"):
            PublicKey.parse(pem)
        with pytest.raises(InvalidKey, match="another algorithm"):
            SigningKey.from_pem(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), None, "x")


def test_a_private_key_is_not_taken_for_a_public_one() -> None:
    with pytest.raises(InvalidKey, match="private key") as caught:
        PublicKey.parse(SigningKey.generate().to_pem(None))
    assert "export" in caught.value.hint


def add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """The sum of two points of the curve, straight from its definition."""
    (x1, y1), (x2, y2) = a, b
    k = D * x1 * x2 * y1 * y2
    return (x1 * y2 + x2 * y1) * pow(1 + k, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - k, -1, P) % P


def x_of(y: int) -> int | None:
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    for root in (x, x * pow(2, (P - 1) // 4, P) % P):
        if root * root % P == square:
            return root
    return None


def test_every_key_of_small_order_is_refused() -> None:
    """The points whose order divides 8, found as the multiples of one by the group's order."""
    y = 2
    while True:
        x = x_of(y)
        if x is not None:
            point, power, rest = (0, 1), (x, y), GROUP_ORDER
            while rest:
                point, power, rest = add(point, power) if rest & 1 else point, add(power, power), rest >> 1
            if add(add(point, point), add(point, point)) != (0, 1):  # of order 8
                break
        y += 1
    small = [(0, 1)]
    for _ in range(7):
        small.append(add(small[-1], point))
    assert len(set(small)) == 8
    for x, y in small:
        for value in {y, y + P} if y + P < 2**255 else {y}:
            for sign in (x & 1, 1 - (x & 1)):
                with pytest.raises(InvalidKey, match=r"small order|no point of the curve"):
                    PublicKey((value | sign << 255).to_bytes(32, "little"))


def test_a_key_that_is_no_point_is_refused() -> None:
    off = next(y for y in range(2, 100) if x_of(y) is None)
    with pytest.raises(InvalidKey, match="no point of the curve"):
        PublicKey(off.to_bytes(32, "little"))


# -- signatures ---------------------------------------------------------------------------------------------------------
def test_a_signature_is_of_exactly_these_bytes() -> None:
    key, other = SigningKey.generate(), SigningKey.generate()
    signature = sign_manifest(b'{"a": 1}', key)
    assert len(signature) == 64 and signature == sign_manifest(b'{"a": 1}', key)
    assert signer_of(b'{"a": 1}', signature, [other.public, key.public]) == key.public
    assert signer_of(b'{"a":1}', signature, [key.public]) is None  # the same JSON, written in another way
    assert signer_of(b'{"a": 1}', signature, [other.public]) is None
    assert signer_of(b'{"a": 1}', signature, []) is None


def test_every_changed_bit_of_a_signature_is_refused() -> None:
    key = SigningKey.generate()
    signature = sign_manifest(b"text", key)
    for bit in range(512):
        changed = bytearray(signature)
        changed[bit // 8] ^= 1 << bit % 8
        with suppress(InvalidSignature):  # of a form that no signature has
            assert signer_of(b"text", check_form(bytes(changed)), [key.public]) is None


def test_a_second_signature_cannot_be_made_of_one() -> None:
    key = SigningKey.generate()
    signature = sign_manifest(b"text", key)
    twin = signature[:32] + (int.from_bytes(signature[32:], "little") + GROUP_ORDER).to_bytes(32, "little")
    with pytest.raises(InvalidSignature, match="canonical"):
        check_form(twin)
    assert not key.public.verifies(twin, b"text")  # nor does the library take it


@pytest.mark.parametrize("signature", [None, b"", b"\0" * 63, b"\0" * 65, b"\0" * 128])
def test_forms_of_signatures(signature: bytes | None) -> None:
    with pytest.raises(InvalidSignature):
        check_form(signature)


def test_an_empty_signature_is_nobodys() -> None:
    assert signer_of(b"text", check_form(bytes(64)), [SigningKey.generate().public]) is None


# -- files of private keys ----------------------------------------------------------------------------------------------
@pytest.mark.skipif(NO_OWNERS, reason="Windows has access lists in place of modes")
def test_a_private_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path / "packs" / "keys")
    mask = os.umask(0)
    try:
        folder.new("mine")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((folder.path / "mine.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == stat.S_IMODE(folder.path.parent.stat().st_mode) == 0o700
    for mode in (0o640, 0o604, 0o660, 0o666):
        (folder.path / "mine.pem").chmod(mode)
        with pytest.raises(Untrusted, match=r"mine\.pem"):
            folder.open("mine")
        assert "mine.pem" in folder.listed()[0].problem
    (folder.path / "mine.pem").chmod(0o400)
    folder.open("mine")
    assert folder.listed()[0].problem == ""


def test_passphrases(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    made = folder.new("mine", b"correct horse")
    content = (tmp_path / "mine.pem").read_bytes()
    assert content.startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    assert folder.open("mine", b"correct horse").public == folder.open("mine", lambda: b"correct horse").public == made.public
    assert folder.public("mine") == made.public and folder.listed()[0].encrypted
    with pytest.raises(InvalidKey, match="does not open with this passphrase"):
        folder.open("mine", b"wrong horse")
    for nothing in (None, lambda: None):
        with pytest.raises(InvalidKey, match="has a passphrase"):
            folder.open("mine", nothing)
    for bad in (b"", b"x" * 2000):
        with pytest.raises(InvalidKey, match="1 to 1024 bytes"):
            folder.new("other", bad)
    assert "other" not in folder and "mine" in folder


@pytest.mark.skipif(shutil.which("openssl") is None, reason="reads the file with OpenSSL where it is installed")
def test_openssl_reads_an_encrypted_key(tmp_path: Path) -> None:
    made = KeyFolder(tmp_path).new("mine", b"correct horse")
    command = ["openssl", "pkey", "-in", tmp_path / "mine.pem", "-passin", "pass:correct horse", "-pubout"]
    shown = subprocess.run(command, capture_output=True, check=True).stdout
    assert PublicKey.parse(shown) == made.public


def test_nobody_is_asked_for_a_passphrase_that_is_not_needed(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    folder.new("mine")
    folder.open("mine", lambda: pytest.fail("asked"))


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    made = folder.new("mine")
    with pytest.raises(InputError, match="already"):
        folder.new("mine")
    assert folder.open("mine").public == made.public


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a b", "-a", "a\n", "a\0", "x" * 65, "ä"])
def test_names_of_keys(tmp_path: Path, name: str) -> None:
    folder = KeyFolder(tmp_path)
    assert name not in folder
    for use in (folder.new, folder.open, folder.public):
        with pytest.raises(InputError, match="no name of a key"):
            use(name)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_private_key(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    with pytest.raises(InvalidKey, match="there is no key mine"):
        folder.open("mine")
    made = folder.new("mine")
    (tmp_path / "mine.pem").write_bytes(b"nonsense")
    with pytest.raises(InvalidKey, match="no private key"):
        folder.open("mine")
    (tmp_path / "mine.pem").write_bytes(b"x" * (1 << 15))
    with pytest.raises(InvalidKey, match="cannot be read"):
        folder.open("mine")
    (tmp_path / "mine.pem").unlink()
    (tmp_path / "mine.pem").symlink_to(tmp_path / "mine.pub")
    with pytest.raises(InvalidKey, match="cannot be read"):
        folder.open("mine")
    assert folder.public("mine") == made.public


def test_a_key_that_was_copied_here_needs_no_public_file(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    made = folder.new("plain"), folder.new("locked", b"secret")
    for file in tmp_path.glob("*.pub"):
        file.unlink()
    assert [(key.name, key.public) for key in folder.listed()] == [("locked", None), ("plain", made[0].public)]


# -- statements ---------------------------------------------------------------------------------------------------------
def test_statements_are_read_as_signed() -> None:
    old, new = SigningKey.generate(), SigningKey.generate()
    date = datetime(2026, 11, 16, 8, 30, tzinfo=UTC)
    rotation, revocation = sign_rotation(old, new.public, date), sign_revocation(old, date)
    both = read_statements(rotation.text + revocation.text)
    assert both == [rotation, revocation] and is_statement(rotation.text)
    assert (both[0].says, both[0].key, both[0].successor, both[0].date) == ("rotation", old.public, new.public, date)
    assert (both[1].says, both[1].key, both[1].successor) == ("revocation", old.public, None)
    with pytest.raises(InvalidKey, match="own successor"):
        sign_rotation(old, old.public)


def test_every_changed_byte_of_a_statement_is_refused() -> None:
    statement = sign_rotation(SigningKey.generate(), SigningKey.generate().public)
    for at in range(len(statement.text)):
        for change in (1, 0x20, 0x80):
            changed = bytearray(statement.text)
            changed[at] ^= change
            with pytest.raises((InvalidSignature, InvalidKey)):
                read_statements(bytes(changed))
    for text in (statement.text[:-1], statement.text + b"\n", b"", statement.text * 2000):
        with pytest.raises(InvalidSignature):
            read_statements(text)


def test_a_statement_is_no_manifest_and_a_manifest_no_statement() -> None:
    """The signature of one must not serve for the other."""
    key = SigningKey.generate()
    assert not sign_revocation(key).text.lstrip().startswith(b"{")
    manifest = b"{}\n"
    forged = manifest + b"signature: " + base64.b64encode(sign_manifest(manifest, key)) + b"\n"
    with pytest.raises(InvalidSignature):
        read_statements(forged)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    keys._cryptography.cache_clear()
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    try:
        with pytest.raises(MissingExtra) as caught:
            SigningKey.generate()
    finally:
        keys._cryptography.cache_clear()
    assert caught.value.hint == "pip install 'pumice[packs]'"
