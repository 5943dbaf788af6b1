"""Ed25519 keys: public ones in the forms that people exchange, private ones in files that only their owner can read."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pumice import config
from pumice.core.private import make_private, open_private
from pumice.errors import InputError
from pumice.packs.errors import InvalidKey
from pumice.packs.extra import missing_extra
from pumice.sources.files import disk_errors
from pumice.sources.lock import exclusive

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

RAW_BYTES = 32
# A key file, public or private, has some hundred bytes.
MAX_FILE = 1 << 14
# What OWASP recommends for PBKDF2 with SHA-256: a guess takes about a fifth of a second. The library's own encryption of PKCS #8
# takes 2,048 rounds and cannot be given more.
KDF_ROUNDS = 600_000
MAX_PASSPHRASE = 1024

_OID_PBES2, _OID_PBKDF2, _OID_HMAC_SHA256, _OID_AES_256_CBC = (
    bytes.fromhex(code) for code in ("2a864886f70d01050d", "2a864886f70d01050c", "2a864886f70d0209", "60864801650304012a")
)
_SEQUENCE, _INTEGER, _OCTETS, _NULL, _OID = 0x30, 0x02, 0x04, 0x05, 0x06
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SSH_TYPE = b"ssh-ed25519"
_FORMS = "32 raw bytes, hex, base64 (with or without ed25519:), an OpenSSH line or a PEM file"
# The curve: -x² + y² = 1 + d·x²·y² over integers modulo p; its points that matter have the order q.
_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
# y of the points whose order divides 8: with such a key, one signature fits many messages.
_SMALL_ORDER_8 = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
_SMALL_ORDER = {0, 1, _P - 1, _SMALL_ORDER_8, _P - _SMALL_ORDER_8}


@cache
def _cryptography() -> Any:
    """The parts of `cryptography` that keys need, imported when the first key does."""
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import ciphers, serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
        from cryptography.hazmat.primitives.ciphers import algorithms, modes
    except ImportError:
        raise missing_extra("cryptography") from None
    return SimpleNamespace(
        InvalidSignature=exceptions.InvalidSignature,
        UnsupportedAlgorithm=exceptions.UnsupportedAlgorithm,
        PublicKey=ed25519.Ed25519PublicKey,
        PrivateKey=ed25519.Ed25519PrivateKey,
        Cipher=ciphers.Cipher,
        AES=algorithms.AES,
        CBC=modes.CBC,
        pem=serialization,
    )


@dataclass(frozen=True)
class PublicKey:
    """A public key; `parse` reads the forms that people write. Points that are not on the curve or of small order are refused.

    >>> key = PublicKey.parse("ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=")
    >>> key == PublicKey.parse(key.raw) == PublicKey.parse(key.raw.hex()) == PublicKey.parse(key.openssh)
    True
    >>> key.fingerprint
    'SHA256:bbXpuKG6zhzdmnxq256TlqzFBzRl2f6OOg722cYNbU8'
    """

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != RAW_BYTES:
            raise InvalidKey(f"an Ed25519 key has {RAW_BYTES} bytes, this one {len(self.raw)}", hint=f"give {_FORMS}")
        y = int.from_bytes(self.raw, "little") & (1 << 255) - 1
        if y >= _P or not _on_curve(y):
            raise InvalidKey("these bytes are no Ed25519 key: they name no point of the curve", hint="ask its owner for it again")
        if y in _SMALL_ORDER:
            raise InvalidKey("a key of small order proves nothing: its signatures fit many messages", hint="do not use this key")

    @staticmethod
    def parse(given: str | bytes) -> PublicKey:
        """The key in text, or in the bytes of a file."""
        if isinstance(given, bytes):
            if len(given) == RAW_BYTES:
                return PublicKey(given)
            try:
                given = given[:MAX_FILE].decode("ascii")
            except UnicodeDecodeError:
                raise _unreadable("it is neither text nor 32 bytes") from None
        text = given.strip()
        if text.startswith("-----BEGIN"):
            return _from_pem(text)
        if text.startswith(_SSH_TYPE.decode() + " "):
            return _from_openssh(text)
        if (other := re.match(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+ ", text)) is not None:
            raise InvalidKey(f"this is a key of the algorithm {other[0].strip()}", hint="packs are signed with Ed25519 keys")
        text = text.removeprefix("ed25519:")
        if re.fullmatch(r"[0-9a-fA-F]{64}", text):
            return PublicKey(bytes.fromhex(text))
        return PublicKey(_base64(text, RAW_BYTES))

    @cached_property
    def fingerprint(self) -> str:
        """What `ssh-keygen -l` shows for it: SHA256: and the unpadded base64 of the SHA-256 of its OpenSSH form."""
        digest = hashlib.sha256(_ssh_blob(self.raw)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @property
    def text(self) -> str:
        """The form of manifests: ed25519: and base64."""
        return "ed25519:" + base64.b64encode(self.raw).decode()

    @property
    def openssh(self) -> str:
        """The form of `authorized_keys` and `.pub` files, without a comment."""
        return f"{_SSH_TYPE.decode()} {base64.b64encode(_ssh_blob(self.raw)).decode()}"

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether this key made the signature of exactly these bytes."""
        parts = _cryptography()
        try:
            parts.PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except parts.InvalidSignature:
            return False
        return True


class SigningKey:
    """A private key in memory.

    >>> key = SigningKey.generate()
    >>> key.public.verifies(key.sign(b"text"), b"text"), key.public.verifies(key.sign(b"text"), b"texts")
    (True, False)
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PublicKey(key.public_key().public_bytes_raw())

    @staticmethod
    def generate() -> SigningKey:
        """A new key from the system's random numbers."""
        return SigningKey(_cryptography().PrivateKey.generate())

    @staticmethod
    def from_seed(seed: bytes) -> SigningKey:
        """The key of 32 secret bytes."""
        if len(seed) != RAW_BYTES:
            raise InvalidKey(f"the seed of a key has {RAW_BYTES} bytes, this one {len(seed)}")
        return SigningKey(_cryptography().PrivateKey.from_private_bytes(seed))

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of the signature."""
        return self._key.sign(message)

    def to_pem(self, passphrase: bytes | None) -> bytes:
        """PKCS #8 as PEM, encrypted (PBES2: PBKDF2 with SHA-256, AES-256) where there is a passphrase."""
        pem = _cryptography().pem
        encoding = pem.Encoding.PEM if passphrase is None else pem.Encoding.DER
        content: bytes = self._key.private_bytes(encoding, pem.PrivateFormat.PKCS8, pem.NoEncryption())
        return content if passphrase is None else _encrypted_pem(content, _checked(passphrase))

    @staticmethod
    def from_pem(content: bytes, passphrase: bytes | None, name: str) -> SigningKey:
        """The key in a PEM file; `name` is what errors call it."""
        parts = _cryptography()
        if is_encrypted(content) and passphrase is None:
            raise InvalidKey(f"the key {name} has a passphrase, and none was given", hint=PASSPHRASE_HINT, key=name)
        if not is_encrypted(content):
            passphrase = None
        try:
            key = parts.pem.load_pem_private_key(content, None if passphrase is None else _checked(passphrase))
        except (ValueError, TypeError, parts.UnsupportedAlgorithm):
            if passphrase is not None:
                raise InvalidKey(f"the key {name} does not open with this passphrase", hint=PASSPHRASE_HINT, key=name) from None
            raise InvalidKey(f"the key {name} is no private key as PEM", hint="make one: pumice pack keys new NAME") from None
        if not isinstance(key, parts.PrivateKey):
            raise InvalidKey(f"{name} is a key of another algorithm", hint="packs are signed with Ed25519 keys", key=name)
        return SigningKey(key)


PASSPHRASE_HINT = "give --passphrase-file FILE, set PUMICE_PASSPHRASE_FILE, or answer at a terminal"
Passphrase = bytes | None | Callable[[], bytes | None]


def is_encrypted(content: bytes) -> bool:
    """Whether a private key's PEM file needs a passphrase.

    >>> is_encrypted(SigningKey.generate().to_pem(None))
    False
    """
    return b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in content


@dataclass(frozen=True, slots=True)
class OwnKey:
    """One of the user's own keys; `public` is None where only its passphrase would tell it, `problem` why it cannot be used."""

    name: str
    public: PublicKey | None
    encrypted: bool
    problem: str = ""


class KeyFolder:
    """The user's own keys: NAME.pem, with mode 0600, and NAME.pub in PUMICE_HOME/packs/keys.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     folder = KeyFolder(Path(d))
    ...     made = folder.new("mine")
    ...     folder.open("mine").public == made.public == folder.listed()[0].public
    True
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = config.home / "packs" / "keys" if path is None else path

    def new(self, name: str, passphrase: bytes | None = None, *, key: SigningKey | None = None) -> SigningKey:
        """Makes and keeps a key; one of that name is never replaced."""
        _check_name(name)
        key = SigningKey.generate() if key is None else key
        content = key.to_pem(passphrase)
        with disk_errors(self.path):
            make_private(self.path)
            with exclusive(self.path / ".lock"), open_private(self.path) as folder:
                if (self.path / f"{name}.pem").exists():
                    raise InputError(f"there is a key {name} already", hint="choose another name", path=str(self._file(name)))
                folder.write(f"{name}.pub", f"{key.public.openssh} {name}\n".encode())
                folder.write(f"{name}.pem", content, durable=True)
        return key

    def open(self, name: str, passphrase: Passphrase = None) -> SigningKey:
        """A key, ready to sign; a passphrase given as a function is only asked for where the key has one.

        A file that others can read is refused (`Untrusted`): the key may be known to them.
        """
        content = self._read(f"{name}.pem", name, secret=True)
        if callable(passphrase):
            passphrase = passphrase() if is_encrypted(content) else None
        return SigningKey.from_pem(content, passphrase, name)

    def public(self, name: str) -> PublicKey:
        """The public half of a key, for which no passphrase is needed."""
        _check_name(name)
        if (self.path / f"{name}.pub").exists():
            return PublicKey.parse(self._read(f"{name}.pub", name))
        return self.open(name).public

    def listed(self) -> list[OwnKey]:
        """All keys by name."""
        return [self._described(path.stem) for path in sorted(self.path.glob("*.pem")) if _NAME.fullmatch(path.stem)]

    def __contains__(self, name: str) -> bool:
        return _NAME.fullmatch(name) is not None and self._file(name).is_file()

    def _described(self, name: str) -> OwnKey:
        encrypted = False
        try:
            encrypted = is_encrypted(self._read(f"{name}.pem", name, secret=True))
            has_public = not encrypted or (self.path / f"{name}.pub").exists()
            return OwnKey(name, self.public(name) if has_public else None, encrypted)
        except InputError as e:
            return OwnKey(name, None, encrypted, e.message)

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.pem"

    def _read(self, file: str, name: str, *, secret: bool = False) -> bytes:
        _check_name(name)
        try:
            with open_private(self.path) as folder:
                return folder.read(file, MAX_FILE, secret=secret)
        except FileNotFoundError:
            own = ", ".join(path.stem for path in sorted(self.path.glob("*.pem"))) or "none"
            raise InvalidKey(f"there is no key {name}", hint=f"yours: {own}; pumice pack keys new {name}", key=name) from None
        except OSError as e:
            raise InvalidKey(f"the key {name} cannot be read: {e.strerror or e}", hint=f"look at {self.path}", key=name) from None


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r} is no name of a key", hint="letters, digits, . _ and -, at most 64, a letter or digit first")


def _checked(passphrase: bytes) -> bytes:
    if not 0 < len(passphrase) <= MAX_PASSPHRASE:
        raise InvalidKey(f"a passphrase has 1 to {MAX_PASSPHRASE} bytes, this one {len(passphrase)}", hint="choose another one")
    return passphrase


def _encrypted_pem(plain: bytes, passphrase: bytes) -> bytes:
    """PKCS #8's EncryptedPrivateKeyInfo (RFC 5958 and 8018), as OpenSSL reads it."""
    parts = _cryptography()
    salt, iv = os.urandom(16), os.urandom(16)
    pad = 16 - len(plain) % 16
    secret = hashlib.pbkdf2_hmac("sha256", passphrase, salt, KDF_ROUNDS, 32)
    cipher = parts.Cipher(parts.AES(secret), parts.CBC(iv)).encryptor()
    encrypted = cipher.update(plain + bytes([pad]) * pad) + cipher.finalize()
    rounds = _der(_INTEGER, KDF_ROUNDS.to_bytes(KDF_ROUNDS.bit_length() // 8 + 1, "big"))
    hmac = _der(_SEQUENCE, _der(_OID, _OID_HMAC_SHA256), _der(_NULL))
    kdf = _der(_SEQUENCE, _der(_OID, _OID_PBKDF2), _der(_SEQUENCE, _der(_OCTETS, salt), rounds, hmac))
    scheme = _der(_SEQUENCE, _der(_OID, _OID_AES_256_CBC), _der(_OCTETS, iv))
    method = _der(_SEQUENCE, _der(_OID, _OID_PBES2), _der(_SEQUENCE, kdf, scheme))
    text = base64.b64encode(_der(_SEQUENCE, method, _der(_OCTETS, encrypted))).decode()
    lines = [text[i : i + 64] for i in range(0, len(text), 64)]
    return "\n".join(["-----BEGIN ENCRYPTED PRIVATE KEY-----", *lines, "-----END ENCRYPTED PRIVATE KEY-----\n"]).encode()


def _der(tag: int, *parts: bytes) -> bytes:
    """One value of DER, shorter than 256 bytes."""
    content = b"".join(parts)
    return bytes([tag, *([0x81] if len(content) > 127 else []), len(content)]) + content


@lru_cache(maxsize=256)
def _on_curve(y: int) -> bool:
    """Whether there is an x for this y: (y² - 1) / (d·y² + 1) is a square."""
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    return square == 0 or pow(square, (_P - 1) // 2, _P) == 1


def _ssh_blob(raw: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in (_SSH_TYPE, raw))


def _base64(text: str, size: int) -> bytes:
    """Bytes of one base64 text only: no other characters, no bits that mean nothing."""
    padded = text if text.endswith("=") else text + "=" * (-len(text) % 4)
    try:
        found = base64.b64decode(padded, validate=True)
    except (binascii.Error, ValueError):
        raise _unreadable("it is neither hex nor base64") from None
    if len(found) != size or base64.b64encode(found).decode() != padded:
        raise _unreadable(f"as base64 it is not {size} bytes")
    return found


def _from_openssh(text: str) -> PublicKey:
    blob = _base64(text.split()[1], len(_ssh_blob(bytes(RAW_BYTES))))
    raw = blob[-RAW_BYTES:]
    if blob != _ssh_blob(raw):
        raise _unreadable("its type and its content differ")
    return PublicKey(raw)


def _from_pem(text: str) -> PublicKey:
    if "PRIVATE KEY-----" in text:
        raise InvalidKey("this is a private key", hint="give its public half to others: pumice pack keys export NAME")
    parts = _cryptography()
    try:
        key = parts.pem.load_pem_public_key(text.encode())
    except (ValueError, parts.UnsupportedAlgorithm):
        raise _unreadable("as PEM it holds no public key") from None
    if not isinstance(key, parts.PublicKey):
        raise InvalidKey("this is a key of another algorithm", hint="packs are signed with Ed25519 keys")
    return PublicKey(key.public_bytes_raw())


def _unreadable(why: str) -> InvalidKey:
    return InvalidKey(f"this is no public key: {why}", hint=f"give {_FORMS}")
