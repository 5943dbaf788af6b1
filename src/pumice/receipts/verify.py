"""Verification of a signed receipt without a device or a network: form, signature, key, rules, contents, openings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pumice.packs.keys import PublicKey
from pumice.packs.trust_store import TrustStore
from pumice.receipts.artifacts import JSON_TYPE, TEXT_TYPE, base64_bytes, json_value
from pumice.receipts.commitments import Opening
from pumice.receipts.envelope import Envelope, read_envelope
from pumice.receipts.errors import ArtifactMismatch, BadOpening, InvalidReceipt, UntrustedSigner
from pumice.receipts.keys import is_own, trusted_keys
from pumice.receipts.log_chain import position_of
from pumice.receipts.log_proofs import verify_inclusion
from pumice.receipts.receipt import subject_of
from pumice.receipts.section import PLAIN_HASH, SALTED_HASH, SIDES, receipt_errors

# In the order in which they are made.
CHECKS = ("form", "signature", "key", "rules", "subject", "artefacts", "openings", "log")
# The signer of a receipt that only `any_key` lets pass.
UNKNOWN = "a key that nobody here vouches for"


@dataclass(frozen=True)
class VerifiedReceipt:
    """A receipt that passed: who signed it, and the contents that are known, by role."""

    envelope: Envelope
    signer: str
    contents: Mapping[str, bytes]

    @property
    def document(self) -> Mapping[str, Any]:
        """The receipt."""
        return self.envelope.predicate

    @property
    def section(self) -> Mapping[str, Any]:
        """What Pumice says of the run."""
        found: Mapping[str, Any] = self.document["pumice"]
        return found


def verify_receipt(
    data: bytes,
    *,
    openings: Iterable[Opening] = (),
    proof: bytes | None = None,
    given: Mapping[str, bytes] = MappingProxyType({}),
    key: PublicKey | None = None,
    any_key: bool = False,
    trust: TrustStore | None = None,
    report: Callable[[str, str], object] = lambda check, found: None,
) -> VerifiedReceipt:
    """The receipt in these bytes, if everything that it says of itself is right; else an error that names what is not.

    The signer must be `key` where that is given, else this machine's own key or a trusted one (`any_key` takes all that sign
    rightly). `given` are contents by role that the receipt has only the hashes of. `report` is called with each of CHECKS and
    what was found, as it passes.

    >>> from pumice.packs.keys import SigningKey
    >>> from pumice.receipts.receipt import example_receipt
    >>> key = SigningKey.generate()
    >>> verify_receipt(example_receipt().sign(key), key=key.public).contents
    {'prompt': b'Hi', 'text': b' there'}
    """
    envelope = read_envelope(data)
    report("form", f"one line of canonical JSON, SHA-256 {envelope.digest}")
    report("signature", f"Ed25519, by {envelope.key.text}")
    trust = trusted_keys() if trust is None else trust
    signer = _signer(envelope.key, "the receipt", key, any_key, trust)
    report("key", signer)
    document = envelope.predicate
    if errors := receipt_errors(document):
        message = f"the receipt breaks {len(errors)} rules: {'; '.join(errors[:5])}"
        raise InvalidReceipt(message, hint="docs/receipts.md has the rules", errors=errors)
    section = document["pumice"]
    report("rules", f"a valid receipt of Pumice {section['version']} for the task {section['task']}")
    if envelope.subject != subject_of(document):
        raise InvalidReceipt("subject is not the list of the receipt's outputs with their hashes", hint="ask for it again")
    report("subject", ", ".join(entry["name"] for entry in envelope.subject))
    contents = {**_contents(document), **_given(document, given)}
    report("artefacts", "salted hashes only" if is_private(document) else f"{len(contents)} contents have their hashes")
    opened = {opening.role: _opened(envelope, opening) for opening in openings}
    report("openings", ", ".join(f"{role} ({len(content)} bytes)" for role, content in opened.items()) or "none given")
    position = section["log"]
    if proof is not None:
        report("log", _proved(data, proof, key, any_key, trust))
    else:
        report("log", "in no log" if position is None else f"says it is line {position['index'] + 1}; give --proof")
    return VerifiedReceipt(envelope, signer, {**contents, **opened})


def is_private(document: Mapping[str, Any]) -> bool:
    """Whether a valid receipt has commitments instead of contents."""
    return next(str(entry["hash"]) for entry, _ in _entries(document).values()) == SALTED_HASH


def check_content(document: Mapping[str, Any], role: str, content: bytes, salt: bytes = b"") -> None:
    """Raises ArtifactMismatch where a content is not the one that a receipt has the hash of."""
    entry, listed = _entries(document)[role]
    found = hashlib.sha256(salt + content).hexdigest()
    if len(content) != entry["bytes"]:
        raise _mismatch(role, f"has {len(content)} bytes, the receipt says {entry['bytes']}")
    if found != listed["sha256"]:
        raise _mismatch(role, f"has the hash {found}, the receipt says {listed['sha256']}")
    if (elements := _elements(entry["mediaType"], content)) is not None and listed.get("shape", [elements]) != [elements]:
        raise _mismatch(role, f"has {elements} elements, the receipt says the shape {listed['shape']}")


def _proved(data: bytes, proof: bytes, wanted: PublicKey | None, any_key: bool, trust: TrustStore) -> str:
    signed = verify_inclusion(data, proof)
    whose = _signer(signed.key, "the checkpoint", wanted, any_key, trust)
    cosigned = "".join(f", co-signed by {c.signer.key.text}" for c in signed.cosignatures)
    position = position_of(read_envelope(data))
    line = 0 if position is None else position[0] + 1
    return f"line {line} of {signed.checkpoint.size} in the log of {whose}{cosigned}"


def _signer(key: PublicKey, what: str, wanted: PublicKey | None, any_key: bool, trust: TrustStore) -> str:
    state = trust.state()
    state.refuse_revoked(key)
    if wanted is not None:
        if key != wanted:
            raise UntrustedSigner(
                f"{what} is signed by {key.text}, not by {wanted.text}", hint="ask its maker for the key", key=key.text
            )
        return "the key that was asked for"
    if is_own(key):
        return "this machine's own key"
    entry = state.get(key)
    if entry is not None and entry.retired is None:
        return f"a trusted key{f' ({entry.label})' if entry.label else ''}"
    if any_key:
        return UNKNOWN
    raise UntrustedSigner(
        f"{what} is signed by {key.text} ({key.fingerprint}), which is not trusted here",
        hint="if you know whose key it is: pumice receipt keys trust KEY; or give it: --key KEY",
        key=key.text,
    )


def _entries(document: Mapping[str, Any]) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    described = document["pumice"]["artifacts"]
    return {listed["role"]: (described[side][listed["role"]], listed) for side in SIDES for listed in document[side]}


def _contents(document: Mapping[str, Any]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for role, (entry, _) in _entries(document).items():
        if entry["hash"] == PLAIN_HASH and "content" in entry:
            found[role] = _decoded(role, entry)
            check_content(document, role, found[role])
    return found


def _given(document: Mapping[str, Any], given: Mapping[str, bytes]) -> Mapping[str, bytes]:
    roles = _entries(document)
    for role, content in given.items():
        if role not in roles:
            raise ArtifactMismatch(f"the receipt has no artefact {role}", hint=f"it has {', '.join(roles)}", role=role)
        if is_private(document):
            raise BadOpening(f"the receipt is private: {role} needs its opening", hint="give --opening FILE", role=role)
        check_content(document, role, content)
    return given


def _decoded(role: str, entry: Mapping[str, Any]) -> bytes:
    if entry["encoding"] == "utf-8":
        return str(entry["content"]).encode()
    try:
        return base64_bytes(entry["content"])
    except ValueError as problem:
        raise _mismatch(role, str(problem)) from None


def _elements(media_type: str, content: bytes) -> int | None:
    """The one number of the shape of a text or a JSON value, from its content; None for arrays."""
    if media_type == TEXT_TYPE:
        return len(content)
    if media_type == JSON_TYPE:
        with suppress(ValueError):
            value = json_value(content)
            return len(value) if isinstance(value, list) else 1
    return None


def _opened(envelope: Envelope, opening: Opening) -> bytes:
    entries = _entries(envelope.predicate)
    if opening.receipt != envelope.digest:
        raise BadOpening(
            f"the opening of {opening.role} is of another receipt, {opening.receipt[:16]}…", hint="give the one of this receipt"
        )
    if opening.role not in entries:
        raise BadOpening(f"the receipt has no artefact {opening.role}", hint=f"it has {', '.join(entries)}", role=opening.role)
    entry, _ = entries[opening.role]
    if entry["hash"] != SALTED_HASH:
        raise BadOpening("the receipt is not private: there is nothing to open", hint="leave --opening out", role=opening.role)
    try:
        check_content(envelope.predicate, opening.role, opening.content, opening.salt)
    except ArtifactMismatch as problem:
        raise BadOpening(
            f"the opening does not fit: {problem.message}", hint="it was changed; ask for it again", role=opening.role
        ) from None
    return opening.content


def _mismatch(role: str, problem: str) -> ArtifactMismatch:
    return ArtifactMismatch(f"the content of {role} {problem}", hint="it is not what the run had; ask for it again", role=role)
