"""Verifies packs: who signed them, that every byte is what was signed, and that they are for this runtime."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pumice.errors import PumiceWarning
from pumice.packs.archive import PackFiles
from pumice.packs.errors import HashMismatch, InvalidKey, KernelNotFound, NoTrustedKey, UnsafePack
from pumice.packs.keys import PublicKey
from pumice.packs.manifest import Manifest
from pumice.packs.signatures import check_form, signer_of
from pumice.packs.trust_store import TrustedKey, TrustState, TrustStore, parse_date, revoked_error
from pumice.packs.versions import check_features, check_range

__all__ = ["TrustStore", "VerifiedPack", "verify_pack", "find_signer", "check_content", "adopt_next_key", "CHECKS"]

# In the order in which `verify_pack` makes them.
CHECKS = ("signature", "manifest", "versions", "features", "hashes", "allowlist")

# Called with the name of each check that a pack has passed, and what was found.
Report = Callable[[str, str], None]


@dataclass(frozen=True)
class VerifiedPack:
    """A pack that was verified, with the very bytes that were hashed; what is compiled comes from here.

    `digest` is the SHA-256 of the manifest in hex, which names every file by its hash and so the whole pack. `signer` is the
    fingerprint of the key, empty where the pack is `insecure`: taken without asking who signed it. `manifest_bytes` are what was
    signed.
    """

    manifest: Manifest
    files: Mapping[str, bytes]
    digest: str
    signer: str
    insecure: bool = False
    manifest_bytes: bytes = field(default=b"", repr=False)


def verify_pack(
    files: PackFiles,
    trust: TrustStore,
    *,
    insecure: bool = False,
    runtime_version: str | None = None,
    report: Report = lambda check, found: None,
) -> VerifiedPack:
    """Checks a pack in the order signature, manifest, versions, features, hashes, allowlist; the first that fails is an error.

    Until the signature is verified nothing but its check reads the pack. `insecure` leaves out the signature and asks for no
    trusted key, warns of it, and marks the result; all else is still checked.
    """
    if insecure:
        warnings.warn(
            f"INSECURE: the pack with the digest {files.digest[:16]}… is used without asking who signed it",
            PumiceWarning,
            stacklevel=2,
        )
        signer = None
    else:
        signer = find_signer(files, trust.state())
        report("signature", f"by {signer.key.fingerprint}" + (f" ({signer.label})" if signer.label else ""))
    manifest, content = check_content(files, runtime_version=runtime_version, signer=signer, report=report)
    allowlist = trust.allowlist()
    for kernel in manifest.kernels:
        allowlist.check(kernel.id, kernel.hash)
    report("allowlist", f"{len(manifest.kernels)} kernels allowed" if allowlist.enforce else "not enforced")
    by = "" if signer is None else signer.key.fingerprint
    return VerifiedPack(manifest, content, files.digest, by, insecure, files.manifest)


def check_content(
    files: PackFiles,
    *,
    runtime_version: str | None = None,
    signer: TrustedKey | None = None,
    report: Report = lambda check, found: None,
) -> tuple[Manifest, Mapping[str, bytes]]:
    """All checks but those of trust: what an author's tools ask of a pack that is not signed yet."""
    manifest = Manifest.from_json(files.manifest)
    if signer is not None:
        _check_date(manifest, signer)
    report("manifest", f"{manifest.name} {manifest.version}, {len(manifest.kernels)} kernels")
    runtime_version = _own_version() if runtime_version is None else runtime_version
    check_range(manifest.min_runtime_version, manifest.max_runtime_version, runtime_version)
    report("versions", f"{manifest.min_runtime_version} ≤ {runtime_version} ≤ {manifest.max_runtime_version}")
    for kernel in manifest.kernels:
        check_features(kernel)
    report("features", "this runtime has all that the kernels need")
    content = _hashed(manifest, dict(files.files))
    report("hashes", f"{len(content)} files as the manifest says")
    return manifest, content


def adopt_next_key(pack: VerifiedPack, trust: TrustStore) -> TrustedKey:
    """Trusts the successor that a pack's manifest announces (`pumice.next_key`), on the word of the key that signed it."""
    announced = pack.manifest.pumice.next_key
    signer = trust.state().get(pack.signer) if pack.signer else None
    if announced is None or pack.insecure or signer is None:
        why = "announces no next_key" if announced is None else "was not verified, so its next_key means nothing"
        raise InvalidKey(f"the pack {pack.manifest.name} {why}", hint="trust the key itself: pumice pack keys trust KEY")
    return trust.replace_key(signer.key, PublicKey.parse(announced), parse_date(pack.manifest.created_at))


def find_signer(files: PackFiles, state: TrustState) -> TrustedKey:
    """The trusted key that signed a pack; nothing of the pack is parsed."""
    signature = check_form(files.signature)
    usable = [entry for entry in state.keys if state.revocation(entry.key) is None]
    key = signer_of(files.manifest, signature, (entry.key for entry in usable))
    if key is not None:
        return next(entry for entry in usable if entry.key == key)
    # Only to say why: a revoked key whose bytes are known can be named.
    known = {entry.key.fingerprint: entry.key for entry in state.keys}
    known |= {entry.fingerprint: entry.key for entry in state.revoked if entry.key is not None}
    for entry in state.revoked:
        if entry.fingerprint in known and known[entry.fingerprint].verifies(signature, files.manifest):
            raise revoked_error(entry)
    if usable:
        message = f"none of the {len(usable)} trusted keys has signed this manifest: it was changed, or signed by another key"
    else:
        message = "no key is trusted yet, so nobody vouches for this pack"
    raise NoTrustedKey(message, hint="if you trust its author: pumice pack keys trust KEY; for a key of yours give its name")


def _check_date(manifest: Manifest, signer: TrustedKey) -> None:
    """A key that was replaced counts for what it signed before; the date is its own word, so a stolen key must be revoked."""
    if signer.retired is not None and parse_date(manifest.created_at) > signer.retired:
        raise NoTrustedKey(
            f"the key {signer.key.fingerprint} was replaced on {signer.retired:%Y-%m-%d} by {signer.successor}, "
            f"and the pack is of {manifest.created_at}",
            hint="packs made later must be signed by the new key: ask the author",
            key=signer.key.fingerprint,
        )


def _hashed(manifest: Manifest, found: dict[str, bytes]) -> Mapping[str, bytes]:
    """The pack's files, if they are those that the manifest lists, with those hashes."""
    listed = manifest.listed_files
    if missing := sorted(listed.keys() - found.keys()):
        raise KernelNotFound(f"the pack has no file {missing[0]}, which its manifest lists", hint="get it again", path=missing[0])
    if unlisted := sorted(found.keys() - listed.keys()):
        raise UnsafePack(
            f"the pack has the file {unlisted[0]}, which its manifest does not list",
            hint="list it with its hash under pumice.files, or remove it",
            path=unlisted[0],
        )
    for path, expected in listed.items():
        actual = "sha256:" + hashlib.sha256(found[path]).hexdigest()
        if actual != expected:
            raise HashMismatch(
                f"{path} has the hash {actual}, its manifest says {expected}", hint="get the pack again", path=path,
                expected=expected, actual=actual,
            )  # fmt: skip
    return MappingProxyType(found)


def _own_version() -> str:
    from pumice import __version__

    return __version__
