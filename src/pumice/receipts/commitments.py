"""Private receipts: salted commitments instead of contents, and the openings that reveal one artefact to one reader.

The hash of an artefact is SHA-256(salt ‖ content) with 32 random bytes of salt, so that nobody can find a short prompt by trying.
An opening has salt and content; a reader of the receipt can check it, and learns nothing about the other artefacts.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pumice.core.private import make_private, open_private
from pumice.packs.json_text import parse_object
from pumice.receipts.artifacts import Artifact, base64_bytes, json_bytes
from pumice.receipts.errors import BadOpening, ReceiptError
from pumice.receipts.keys import receipts_folder
from pumice.sources.files import disk_errors

OPENING_SCHEMA = "pumice.opening.v1"
OPENINGS_SCHEMA = "pumice.openings.v1"
SALT_BYTES = 32
# Openings hold whole contents as base64; what is larger is kept by its owner as a file.
MAX_OPENING = 64 << 20
_HEX = re.compile(r"[0-9a-f]{64}")
_FIELDS = {"schema", "receipt", "role", "salt", "content"}
_HINT = "ask for the opening again: pumice receipt open FILE ROLE -o OPENING"


def commitment(salt: bytes, content: bytes) -> str:
    """The salted hash of a content, in hex.

    >>> commitment(bytes(32), b"Hi")[:8]
    '7a562011'
    """
    return hashlib.sha256(salt + content).hexdigest()


@dataclass(frozen=True)
class Opening:
    """Salt and content of one artefact of the receipt with this digest."""

    receipt: str
    role: str
    salt: bytes
    content: bytes

    @property
    def sha256(self) -> str:
        """The commitment that it opens."""
        return commitment(self.salt, self.content)

    def to_bytes(self) -> bytes:
        """The opening as a file: one line of canonical JSON."""
        found = {"schema": OPENING_SCHEMA, "receipt": self.receipt, "role": self.role, **_kept(self)}
        return json_bytes(found) + b"\n"


def read_opening(data: bytes) -> Opening:
    """The opening in the bytes of a file; whether it opens a receipt, verification says.

    >>> opening = Opening("ab" * 32, "prompt", bytes(32), b"Hi")
    >>> read_opening(opening.to_bytes()) == opening
    True
    """
    found = parse_object(data, "the opening", error=BadOpening, max_bytes=2 * MAX_OPENING)
    texts = all(isinstance(value, str) for value in found.values())
    if found.keys() != _FIELDS or not texts or found["schema"] != OPENING_SCHEMA or not _HEX.fullmatch(found["receipt"]):
        raise BadOpening(f"this is no opening: it has not the fields {', '.join(sorted(_FIELDS))}", hint=_HINT)
    return _opened(found["receipt"], found["role"], found)


def new_salt() -> bytes:
    """Random bytes that hide what is hashed with them."""
    return os.urandom(SALT_BYTES)


def keep_openings(digest: str, artifacts: Mapping[str, Artifact], salts: Mapping[str, bytes]) -> None:
    """Keeps all openings of a receipt in PUMICE_HOME, readable by the user only."""
    entries = {role: _kept(Opening(digest, role, salt, artifacts[role].content)) for role, salt in salts.items()}
    content = json_bytes({"schema": OPENINGS_SCHEMA, "receipt": digest, "openings": entries}) + b"\n"
    if len(content) > MAX_OPENING:
        raise ReceiptError(
            f"the contents of this private receipt have {len(content)} bytes, more than {MAX_OPENING}",
            hint="make a public receipt, which has hashes of large contents only, or one of a smaller run",
        )
    path = receipts_folder() / "openings"
    with disk_errors(path):
        make_private(path)
        with open_private(path) as folder:
            folder.write(f"{digest}.json", content, durable=True)


def kept_openings(digest: str) -> Mapping[str, Opening]:
    """The openings of a receipt that was made here, by role; none if it was made elsewhere."""
    name = f"{digest}.json"
    try:
        with open_private(receipts_folder() / "openings") as folder:
            data = folder.read(name, MAX_OPENING, secret=True)
    except FileNotFoundError:
        return {}
    found = parse_object(data, name, error=BadOpening, max_bytes=MAX_OPENING)
    entries = found.get("openings")
    if found.get("schema") != OPENINGS_SCHEMA or found.get("receipt") != digest or not isinstance(entries, dict):
        raise BadOpening(f"{name} is damaged: it has not the openings of this receipt", hint="restore it from a copy")
    return {role: _opened(digest, role, entry if isinstance(entry, dict) else {}) for role, entry in entries.items()}


def find_opening(digest: str, role: str) -> Opening:
    """The opening of one artefact, or an error that says which there are.

    >>> find_opening("ab" * 32, "prompt")
    Traceback (most recent call last):
    pumice.receipts.errors.BadOpening: [bad-opening] there are no openings of the receipt abababababababab… here
      hint: only the machine that made a private receipt has them
    """
    openings = kept_openings(digest)
    if not openings:
        raise BadOpening(
            f"there are no openings of the receipt {digest[:16]}… here",
            hint="only the machine that made a private receipt has them",
        )
    if role not in openings:
        raise BadOpening(f"the receipt has no artefact {role}", hint=f"it has {', '.join(openings)}", role=role)
    return openings[role]


def _kept(opening: Opening) -> dict[str, Any]:
    return {"salt": opening.salt.hex(), "content": base64.b64encode(opening.content).decode()}


def _opened(digest: str, role: str, entry: Mapping[str, Any]) -> Opening:
    salt, text = entry.get("salt"), entry.get("content")
    if not isinstance(salt, str) or not _HEX.fullmatch(salt):
        raise BadOpening(f"the opening of {role}: salt is not {SALT_BYTES} bytes in hex", hint=_HINT, role=role)
    try:
        content = base64_bytes(text)
    except ValueError as problem:
        raise BadOpening(f"the opening of {role}: content {problem}", hint=_HINT, role=role) from None
    return Opening(digest, role, bytes.fromhex(salt), content)
