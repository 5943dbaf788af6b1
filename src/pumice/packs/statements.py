"""Signed statements about keys: 'this key is revoked' and 'my successor is that key', as a few lines of text.

    pumice key statement 1
    says: rotation
    key: ed25519:…
    successor: ed25519:…
    date: 2026-11-16T08:30:00Z
    signature: …

The key itself signs all lines above the signature. A manifest is JSON and never begins with the first line, so that no
signature of the one serves for the other. A file may hold several statements, one after the other.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pumice.packs.errors import InvalidKey, InvalidSignature
from pumice.packs.keys import PublicKey, SigningKey
from pumice.packs.signatures import SIGNATURE_BYTES, check_form

# A statement has about 300 bytes.
MAX_STATEMENTS = 1 << 18
_HEAD = b"pumice key statement 1\n"
_KEY = rb"ed25519:[A-Za-z0-9+/]{43}="
_STATEMENT = re.compile(
    _HEAD + rb"says: (?P<says>rotation|revocation)\nkey: (?P<key>" + _KEY + rb")\n(?:successor: (?P<successor>" + _KEY + rb")\n)?"
    rb"date: (?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z)\nsignature: (?P<signature>[A-Za-z0-9+/]{86}==)\n"
)
_DATE = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Statement:
    """What a key says about itself; only made by `read_statements` and `sign_…`, so that its signature is right.

    >>> key = SigningKey.generate()
    >>> read_statements(sign_revocation(key).text)[0].key == key.public
    True
    """

    says: Literal["rotation", "revocation"]
    key: PublicKey
    successor: PublicKey | None
    date: datetime
    text: bytes


def sign_revocation(key: SigningKey, date: datetime | None = None) -> Statement:
    """The statement that a key must not be trusted any more; everyone who reads it honours it, for ever."""
    return _sign(key, None, date)


def sign_rotation(key: SigningKey, successor: PublicKey, date: datetime | None = None) -> Statement:
    """The statement that another key takes this one's place: packs made after `date` are signed by the successor.

    >>> old, new = SigningKey.generate(), SigningKey.generate()
    >>> sign_rotation(old, new.public).successor == new.public
    True
    """
    if successor == key.public:
        raise InvalidKey("a key cannot be its own successor", hint="make a new one: pumice pack keys new NAME")
    return _sign(key, successor, date)


def read_statements(data: bytes) -> list[Statement]:
    """The statements of a file, all of them with a right signature, or an error.

    >>> read_statements(b"something else")
    Traceback (most recent call last):
    pumice.packs.errors.InvalidSignature: [invalid-signature] this is no signed statement about a key, from byte 0 on
      hint: ask the key's owner for the file again
    """
    hint = "ask the key's owner for the file again"
    found: list[Statement] = []
    at = 0
    while at < len(data) or not found:
        match = _STATEMENT.match(data, at) if len(data) <= MAX_STATEMENTS else None
        if match is None or (match["says"] == b"rotation") is not (match["successor"] is not None):
            raise InvalidSignature(f"this is no signed statement about a key, from byte {at} on", hint=hint)
        key = PublicKey.parse(match["key"].decode())
        signature = base64.b64decode(match["signature"])
        if base64.b64encode(signature) != match["signature"]:
            raise InvalidSignature(f"the signature of the statement of {key.fingerprint} is not plain base64", hint=hint)
        if not key.verifies(check_form(signature), data[at : match.start("signature") - len("signature: ")]):
            raise InvalidSignature(f"the statement of {key.fingerprint} is not signed by that key", hint=hint)
        successor = None if match["successor"] is None else PublicKey.parse(match["successor"].decode())
        if successor == key:
            raise InvalidKey(f"the key {key.fingerprint} names itself as its successor", hint=hint)
        says: Literal["rotation", "revocation"] = "revocation" if successor is None else "rotation"
        found.append(Statement(says, key, successor, _date(match["date"], hint), match[0]))
        at = match.end()
    return found


def is_statement(data: bytes) -> bool:
    """Whether a file claims to hold statements.

    >>> is_statement(b"ssh-ed25519 AAAA")
    False
    """
    return data.startswith(_HEAD)


def _sign(key: SigningKey, successor: PublicKey | None, date: datetime | None) -> Statement:
    written = (datetime.now(UTC) if date is None else date.astimezone(UTC)).strftime(_DATE)
    lines = [f"says: {'revocation' if successor is None else 'rotation'}", f"key: {key.public.text}"]
    lines += [] if successor is None else [f"successor: {successor.text}"]
    body = _HEAD + "\n".join([*lines, f"date: {written}\n"]).encode()
    signature = key.sign(body)
    assert len(signature) == SIGNATURE_BYTES
    return read_statements(body + b"signature: " + base64.b64encode(signature) + b"\n")[0]


def _date(text: bytes, hint: str) -> datetime:
    try:
        return datetime.strptime(text.decode(), _DATE).replace(tzinfo=UTC)
    except ValueError:
        raise InvalidSignature(f"{text.decode()} is no date", hint=hint) from None
