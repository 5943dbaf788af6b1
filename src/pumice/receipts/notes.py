"""Signed notes and checkpoints of transparency logs, in the formats of c2sp.org (signed-note, tlog-checkpoint, tlog-cosignature).

A checkpoint says how many lines a log has and what the Merkle root over them is:

    pumice.receipts/11f0…
    10
    CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

    — pumice.receipts/11f0… base64(key id, signature)
    — pumice.cosigner/92ab… base64(key id, time, signature)

The first line, the origin, ends with the public key of the log in hex, and so does the name of a co-signer: a checkpoint can be
checked without any other file. Whether a key is trusted is another question. Notes in general may have signatures of unknown
keys, which readers skip; here every line must be one that can be checked, so that no byte of a checkpoint can be changed.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from pumice.packs.errors import InvalidKey
from pumice.packs.keys import PublicKey, SigningKey
from pumice.packs.signatures import form_problem
from pumice.receipts.artifacts import base64_bytes
from pumice.receipts.errors import BadSignature, InvalidCheckpoint
from pumice.receipts.merkle import HASH_BYTES

LOG_PREFIX = "pumice.receipts/"
COSIGNER_PREFIX = "pumice.cosigner/"
MAX_NOTE = 1 << 16
MAX_SIGNATURES = 64
# Types of signatures: a log's own over the text, and a co-signer's over the time and the text.
ED25519, COSIGNATURE = 1, 4
_ID_BYTES, _TIME_BYTES = 4, 8
_MAX_SIZE = 1 << 53
_DASH = "\N{EM DASH} "
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,15}")
_HINT = "ask for the checkpoint again: it is not as Pumice writes them"


@dataclass(frozen=True, slots=True)
class Verifier:
    """A key that signs notes under a name; `kind` is the type of its signatures.

    >>> foo = Verifier.parse("example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k")
    >>> foo.name, foo.kind, foo.key_id.hex()
    ('example.com/foo', 1, '530d903a')
    """

    name: str
    key: PublicKey
    kind: int = ED25519

    @property
    def key_id(self) -> bytes:
        """The four bytes by which signature lines name the key."""
        return hashlib.sha256(f"{self.name}\n".encode() + bytes([self.kind]) + self.key.raw).digest()[:_ID_BYTES]

    @property
    def text(self) -> str:
        """The form that people exchange: name, key id in hex, and type and key in base64, with + between them."""
        return f"{self.name}+{self.key_id.hex()}+{base64.b64encode(bytes([self.kind]) + self.key.raw).decode()}"

    @staticmethod
    def parse(text: str) -> Verifier:
        """The key in the form that `text` has."""
        name, _, rest = text.partition("+")
        id_text, _, encoded = rest.partition("+")
        found = plain_base64(encoded, "the key")
        if len(found) != 1 + HASH_BYTES or found[0] not in (ED25519, COSIGNATURE):
            _refuse("the key of a co-signer is no Ed25519 key with its type")
        verifier = Verifier(name, PublicKey(found[1:]), found[0])
        if not _is_name(name) or verifier.key_id.hex() != id_text:
            _refuse("name, key id and key of a co-signer do not belong together")
        return verifier

    def check(self, text: str, signature: bytes) -> int | None:
        """Raises BadSignature unless the signature is this key's over the text. Gives the time of a co-signature."""
        when, message = None, text.encode()
        if self.kind == COSIGNATURE:
            when, signature = int.from_bytes(signature[:_TIME_BYTES], "big"), signature[_TIME_BYTES:]
            message = _cosigned(text, when)
        problem = form_problem(signature)
        if problem or not self.key.verifies(signature, message):
            why = problem or "is not of this text: text, time or signature was changed"
            raise BadSignature(
                f"the signature of {self.name} {why}", hint="nothing that it says can be believed", signer=self.name
            )
        return when


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    """How many lines a log has, and the Merkle root over them.

    >>> print(LogCheckpoint("example.com/log", 3, bytes(32)).text, end="")
    example.com/log
    3
    AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
    """

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """What is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


@dataclass(frozen=True, slots=True)
class Cosignature:
    """That a co-signer saw this checkpoint at that time, consistent with all earlier ones of the log; seconds since 1970."""

    signer: Verifier
    time: int


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """A checkpoint whose signatures are all right; whose keys are trusted is another question."""

    data: bytes
    checkpoint: LogCheckpoint
    key: PublicKey
    cosignatures: tuple[Cosignature, ...]


def log_origin(key: PublicKey) -> str:
    """The name of the log that a key signs."""
    return LOG_PREFIX + key.raw.hex()


def sign_checkpoint(size: int, root: bytes, key: SigningKey) -> bytes:
    """The checkpoint of the key's log.

    >>> key = SigningKey.generate()
    >>> found = read_checkpoint(sign_checkpoint(3, bytes(32), key))
    >>> found.checkpoint.size, found.key == key.public, found.cosignatures
    (3, True, ())
    """
    text = LogCheckpoint(log_origin(key.public), size, root).text
    return f"{text}\n{_signature_line(Verifier(log_origin(key.public), key.public), key.sign(text.encode()))}".encode()


def cosign(signed: SignedCheckpoint, key: SigningKey, *, now: int | None = None) -> bytes:
    """The checkpoint with one more co-signature.

    >>> log, other = SigningKey.generate(), SigningKey.generate()
    >>> cosigned = read_checkpoint(cosign(read_checkpoint(sign_checkpoint(3, bytes(32), log)), other, now=1_800_000_000))
    >>> [(c.signer.key == other.public, c.time) for c in cosigned.cosignatures]
    [(True, 1800000000)]
    """
    when = int(time.time()) if now is None else now
    signer = cosigner(key.public)
    if any(known.signer == signer for known in signed.cosignatures):
        raise InvalidCheckpoint("the checkpoint has a co-signature of this key already", hint="one is enough", signer=signer.name)
    signature = when.to_bytes(_TIME_BYTES, "big") + key.sign(_cosigned(signed.checkpoint.text, when))
    return signed.data + _signature_line(signer, signature).encode()


def cosigner(key: PublicKey) -> Verifier:
    """The name and type under which a key co-signs."""
    return Verifier(COSIGNER_PREFIX + key.raw.hex(), key, COSIGNATURE)


def read_checkpoint(data: bytes, witnesses: Iterable[Verifier] = ()) -> SignedCheckpoint:
    """The checkpoint in the bytes of a file, with all its signatures checked.

    `witnesses`: co-signers whose names do not hold their keys.

    >>> read_checkpoint(b"text")
    Traceback (most recent call last):
    pumice.receipts.errors.InvalidCheckpoint: [invalid-checkpoint] the checkpoint has no empty line before its signatures
      hint: ask for the checkpoint again: it is not as Pumice writes them
    """
    text, lines = read_note(data)
    checkpoint = _parse_checkpoint(text)
    known = {witness.name: witness for witness in witnesses}
    cosignatures: list[Cosignature] = []
    for number, (name, key_id, signature) in enumerate(lines):
        if number == 0:
            if name != checkpoint.origin:
                _refuse("the first signature is not by the log that the first line names")
            verifier = Verifier(name, _key_in(name, LOG_PREFIX))
        else:
            verifier = known.get(name) or cosigner(_key_in(name, COSIGNER_PREFIX))
        if verifier.key_id != key_id:
            _refuse(f"the key id of the signature of {name} is not that of its key")
        when = verifier.check(text, signature)
        if number:
            cosignatures.append(Cosignature(verifier, when or 0))
    return SignedCheckpoint(data, checkpoint, _key_in(checkpoint.origin, LOG_PREFIX), tuple(cosignatures))


def read_note(data: bytes) -> tuple[str, list[tuple[str, bytes, bytes]]]:
    """The text of a signed note, and name, key id and signature of each line below it, which are not checked yet.

    >>> note = "Hello\\n\\n\N{EM DASH} example.com/foo AAAAAAA=\\n"
    >>> read_note(note.encode())
    ('Hello\\n', [('example.com/foo', b'\\x00\\x00\\x00\\x00', b'\\x00')])
    """
    if len(data) > MAX_NOTE:
        _refuse(f"the checkpoint has {len(data)} bytes, more than {MAX_NOTE}")
    try:
        note = data.decode()
    except UnicodeDecodeError as problem:
        _refuse(f"byte {problem.start} of the checkpoint is not UTF-8")
    if any(c < " " and c != "\n" for c in note):
        _refuse("the checkpoint holds a control character")
    text, empty, signatures = note.rpartition("\n\n")
    if not empty:
        _refuse("the checkpoint has no empty line before its signatures")
    if not signatures.endswith("\n"):
        _refuse("the checkpoint does not end with a line end: it is cut off, or something follows it")
    lines = signatures[:-1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        _refuse(f"the checkpoint has {len(lines)} signatures, more than {MAX_SIGNATURES}")
    found = [_parse_signature(line) for line in lines]
    names = [name for name, _, _ in found]
    if len(set(names)) < len(names):
        _refuse(f"{next(name for name in names if names.count(name) > 1)} has signed the checkpoint twice")
    return text + "\n", found


def _parse_signature(line: str) -> tuple[str, bytes, bytes]:
    name, space, encoded = line.removeprefix(_DASH).partition(" ")
    if not line.startswith(_DASH) or not space or not _is_name(name):
        _refuse("a signature line is not an em dash, a name and base64, with one space between them")
    found = plain_base64(encoded, f"the signature of {name}")
    if len(found) <= _ID_BYTES:
        _refuse(f"the signature of {name} has only {len(found)} bytes")
    return name, found[:_ID_BYTES], found[_ID_BYTES:]


def _parse_checkpoint(text: str) -> LogCheckpoint:
    lines = text[:-1].split("\n")
    if len(lines) != 3:
        _refuse(f"the text of a checkpoint has 3 lines: origin, size and root, this one {len(lines)}")
    origin, size, root = lines
    if not _DECIMAL.fullmatch(size) or int(size) > _MAX_SIZE:
        _refuse("the size in the checkpoint is no plain number")
    found = plain_base64(root, "the root in the checkpoint")
    if len(found) != HASH_BYTES:
        _refuse(f"the root in the checkpoint has {len(found)} bytes, not {HASH_BYTES}")
    _key_in(origin, LOG_PREFIX)
    return LogCheckpoint(origin, int(size), found)


def _key_in(name: str, prefix: str) -> PublicKey:
    """The key that a name ends with."""
    encoded = name.removeprefix(prefix)
    if name.startswith(prefix) and re.fullmatch(r"[0-9a-f]{64}", encoded):
        try:
            return PublicKey(bytes.fromhex(encoded))
        except InvalidKey as problem:
            _refuse(f"{name}: {problem.message}")
    if prefix == COSIGNER_PREFIX:
        raise InvalidCheckpoint(
            f"the co-signer {name} is not known, and its line cannot be checked",
            hint="give its key: --witness NAME+ID+KEY",
            signer=name,
        )
    _refuse(f"the origin is not {prefix} and a public key in hex")


def _cosigned(text: str, when: int) -> bytes:
    return f"cosignature/v1\ntime {when}\n{text}".encode()


def _signature_line(signer: Verifier, signature: bytes) -> str:
    return f"{_DASH}{signer.name} {base64.b64encode(signer.key_id + signature).decode()}\n"


def _is_name(name: str) -> bool:
    return bool(name) and len(name) <= 256 and name.isprintable() and "+" not in name and not any(c.isspace() for c in name)


def plain_base64(text: str, what: str) -> bytes:
    """The bytes of a base64 text; `what` is what the error names."""
    try:
        return base64_bytes(text)
    except ValueError as problem:
        _refuse(f"{what} {problem}")


def _refuse(problem: str) -> NoReturn:
    raise InvalidCheckpoint(problem, hint=_HINT)
