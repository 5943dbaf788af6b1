"""Signatures of manifests: Ed25519 over the exact bytes of kernels.json, 64 raw bytes in kernels.json.sig."""

from __future__ import annotations

from collections.abc import Iterable

from pumice.packs.errors import InvalidSignature
from pumice.packs.keys import GROUP_ORDER, PublicKey, SigningKey

SIGNATURE_BYTES = 64
_SIGN = "sign it: pumice pack sign PACK --key NAME"


def sign_manifest(manifest: bytes, key: SigningKey) -> bytes:
    """The signature of a manifest's bytes; the same ones give the same signature.

    >>> key = SigningKey.generate()
    >>> signer_of(b"{}", sign_manifest(b"{}", key), [key.public]) == key.public
    True
    """
    return key.sign(manifest)


def check_form(signature: bytes | None) -> bytes:
    """A signature that is there and has the one form that signatures have; whose it is remains to be seen.

    >>> check_form(b"short")
    Traceback (most recent call last):
    pumice.packs.errors.InvalidSignature: [invalid-signature] kernels.json.sig has 5 bytes; a signature has 64
      hint: sign it: pumice pack sign PACK --key NAME
    """
    if signature is None:
        raise InvalidSignature("the pack is not signed: there is no kernels.json.sig", hint=_SIGN)
    if problem := form_problem(signature):
        raise InvalidSignature(f"kernels.json.sig {problem}", hint=_SIGN)
    return signature


def form_problem(signature: bytes) -> str:
    """What is wrong with the form of a signature; nothing if it has the one that signatures have.

    >>> form_problem(b"short"), form_problem(bytes(64))
    ('has 5 bytes; a signature has 64', '')
    """
    if len(signature) != SIGNATURE_BYTES:
        return f"has {len(signature)} bytes; a signature has {SIGNATURE_BYTES}"
    # Otherwise anybody could make a second valid signature from one, by adding the group's order.
    if int.from_bytes(signature[SIGNATURE_BYTES // 2 :], "little") >= GROUP_ORDER:
        return "holds no canonical signature of Ed25519"
    return ""


def signer_of(message: bytes, signature: bytes, keys: Iterable[PublicKey]) -> PublicKey | None:
    """The first of the keys that made the signature of exactly these bytes.

    >>> key, other = SigningKey.generate(), SigningKey.generate()
    >>> signer_of(b"{ }", sign_manifest(b"{}", key), [other.public, key.public])
    """
    return next((key for key in keys if key.verifies(signature, message)), None)
