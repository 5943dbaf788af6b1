"""Signed receipts: a DSSE envelope around an in-toto statement, in one form only.

The file is canonical JSON (keys sorted, no spaces, UTF-8) on one line, so that a signed receipt is also a line of the log:

    {"payload":"…base64…","payloadType":"application/vnd.in-toto+json","signatures":[{"keyid":"ed25519:…","sig":"…base64…"}]}

The payload, decoded, is canonical JSON too: `_type`, `predicateType`, `predicate` (the receipt) and `subject` (its outputs).
Two different files are never the same receipt, and a change of any byte is found.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NoReturn

from pumice.packs.errors import InvalidKey
from pumice.packs.json_text import MAX_DEPTH, MAX_DIGITS, parse_object
from pumice.packs.keys import PublicKey, SigningKey
from pumice.packs.signatures import form_problem
from pumice.receipts.artifacts import base64_bytes, json_bytes
from pumice.receipts.errors import BadSignature, InvalidEnvelope
from pumice.routes.receipts import RECEIPT_SCHEMA

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:pumice:receipt:v1"
# Contents that are kept in a receipt have at most 64 KiB each.
MAX_ENVELOPE = 16 << 20
# The trace of a scheduled run has some tens of thousands.
MAX_VALUES = 500_000
_HINT = "ask for the file again: it is not as Pumice writes signed receipts"
_ENVELOPE_FIELDS = {"payload", "payloadType", "signatures"}
_MAX_WHOLE = 10**MAX_DIGITS
_SCALARS = frozenset({str, float, bool, type(None)})
_STATEMENT_FIELDS = {"_type", "subject", "predicateType", "predicate"}


@dataclass(frozen=True)
class Envelope:
    """A signed receipt whose form and signature are right; whether its key is trusted is another question."""

    line: bytes
    statement: Mapping[str, Any]
    key: PublicKey

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the whole file with its line end, in hex: what `sha256sum` says, and what the next line of a log names."""
        return hashlib.sha256(self.line).hexdigest()

    @property
    def predicate(self) -> Mapping[str, Any]:
        """The receipt's document."""
        found: Mapping[str, Any] = self.statement["predicate"]
        return found

    @property
    def subject(self) -> Sequence[Mapping[str, Any]]:
        """The outputs that the statement is about, by name and digest."""
        found: Sequence[Mapping[str, Any]] = self.statement["subject"]
        return found


def sign_envelope(predicate: Mapping[str, Any], subject: Sequence[Mapping[str, Any]], key: SigningKey) -> bytes:
    """The line of a signed receipt. `predicate` and `subject` are made of dicts, lists and scalars.

    >>> key = SigningKey.generate()
    >>> line = sign_envelope({"schema": "…"}, [{"name": "text", "digest": {"sha256": "ab" * 32}}], key)
    >>> read_envelope(line).predicate, read_envelope(line).key == key.public
    ({'schema': '…'}, True)
    """
    return signed_envelope(predicate, subject, key).line


def signed_envelope(predicate: Mapping[str, Any], subject: Sequence[Mapping[str, Any]], key: SigningKey) -> Envelope:
    """The same as `read_envelope` would give it, without reading it again.

    >>> made = signed_envelope({"schema": "…"}, [], key := SigningKey.generate())
    >>> made == read_envelope(made.line)
    True
    """
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": list(subject),
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    _check_values(statement)
    payload = json_bytes(statement)
    line = _written(payload, key.public, key.sign(pae(PAYLOAD_TYPE, payload)))
    if len(line) > MAX_ENVELOPE:
        _cannot(f"{len(line)} bytes, more than {MAX_ENVELOPE}")
    return Envelope(line, statement, key.public)


def _check_values(statement: Mapping[str, Any]) -> None:
    """Refuses to sign what a reader would refuse: other types than JSON's, too many values, deep nesting, huge numbers."""
    count = 0
    level: list[Any] = [statement]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            if type(value) is dict and not all(type(name) is str for name in value):
                _cannot("a name that is no text")
            items = value.values() if type(value) is dict else value
            count += len(items) or 1
            for item in items:
                kind = type(item)
                if kind is dict or kind is list:
                    inner.append(item)
                elif kind is int:
                    if not -_MAX_WHOLE < item < _MAX_WHOLE:
                        _cannot(f"a number of more than {MAX_DIGITS} digits")
                elif kind not in _SCALARS:
                    _cannot(f"a value of the type {kind.__name__}")
        if count > MAX_VALUES:
            _cannot(f"more than {MAX_VALUES} values")
        if not inner:
            return
        level = inner
    _cannot(f"it nests deeper than {MAX_DEPTH}")


def _cannot(what: str) -> NoReturn:
    raise InvalidEnvelope(f"a receipt cannot hold this: {what}", hint="give fewer and plain values of JSON")


def read_envelope(data: bytes) -> Envelope:
    """The signed receipt in the bytes of a file, or an error that names what is wrong with them.

    >>> read_envelope(b"{}\\n")
    Traceback (most recent call last):
    pumice.receipts.errors.InvalidEnvelope: [invalid-envelope] the envelope has not the fields payload, payloadType, signatures
      hint: ask for the file again: it is not as Pumice writes signed receipts
    """
    envelope = _parsed(data.removesuffix(b"\n"), "the envelope")
    if envelope.get("schema") == RECEIPT_SCHEMA:
        _refuse("the file is a receipt without a signature")
    if envelope.keys() != _ENVELOPE_FIELDS:
        _refuse(f"the envelope has not the fields {', '.join(sorted(_ENVELOPE_FIELDS))}")
    if envelope["payloadType"] != PAYLOAD_TYPE:
        _refuse(f"payloadType is not {PAYLOAD_TYPE}")
    if not data.endswith(b"\n"):
        _refuse("the file does not end with a line end")
    match envelope["signatures"]:
        case [{"keyid": str(keyid), "sig": str(sig)} as entry] if len(entry) == 2:
            pass
        case _:
            _refuse("signatures is not a list of one object with the texts keyid and sig")
    payload = _base64(envelope["payload"], "payload")
    key, signature = _key(keyid), _base64(sig, "sig")
    if problem := form_problem(signature):
        raise BadSignature(f"sig {problem}", hint=_HINT)
    if _written(payload, key, signature) != data:
        _refuse("the file is not canonical JSON: keys sorted, no spaces, no escapes that are not needed")
    if not key.verifies(signature, pae(PAYLOAD_TYPE, payload)):
        raise BadSignature(
            f"the signature is not of this payload by the key {key.text}: payload, sig or keyid was changed",
            hint="ask for the file again; nothing that it says can be believed",
            key=key.text,
        )
    return Envelope(data, _statement(payload), key)


def pae(payload_type: str, payload: bytes) -> bytes:
    """What DSSE signs: type and payload with their lengths, so that neither can run into the other.

    >>> pae("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _statement(payload: bytes) -> Mapping[str, Any]:
    """The statement that a signature was found right for; the signer may still have written anything."""
    statement = _parsed(payload, "the payload")
    if json_bytes(statement) != payload:
        _refuse("the payload is not canonical JSON: keys sorted, no spaces, no escapes that are not needed")
    if statement.keys() != _STATEMENT_FIELDS:
        _refuse(f"the payload has not the fields {', '.join(sorted(_STATEMENT_FIELDS))}")
    for name, wanted in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
        if statement[name] != wanted:
            _refuse(f"{name} is not {wanted}")
    if not isinstance(statement["predicate"], dict):
        _refuse("predicate is not an object")
    listed = statement["subject"]
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        _refuse("subject is not a list of objects")
    return statement


def _parsed(data: bytes, what: str) -> dict[str, Any]:
    return parse_object(data, what, error=InvalidEnvelope, max_bytes=MAX_ENVELOPE, max_values=MAX_VALUES)


def _written(payload: bytes, key: PublicKey, signature: bytes) -> bytes:
    signed = {"keyid": key.text, "sig": base64.b64encode(signature).decode()}
    envelope = {"payloadType": PAYLOAD_TYPE, "payload": base64.b64encode(payload).decode(), "signatures": [signed]}
    return json_bytes(envelope) + b"\n"


@lru_cache(64)  # the lines of a log have few keys
def _key(text: str) -> PublicKey:
    try:
        key = PublicKey.parse(text)
    except InvalidKey as problem:
        raise InvalidEnvelope(f"keyid: {problem.message}", hint=problem.hint) from None
    if key.text != text:
        _refuse("keyid is not the key in the form ed25519:BASE64")
    return key


def _base64(text: object, name: str) -> bytes:
    try:
        return base64_bytes(text)
    except ValueError as problem:
        _refuse(f"{name} {problem}")


def _refuse(problem: str) -> NoReturn:
    raise InvalidEnvelope(problem, hint=_HINT)
