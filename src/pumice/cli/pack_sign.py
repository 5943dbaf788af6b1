"""`pumice pack sign` and `pumice pack verify`."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pumice.cli.pack import Json, Pack, pack_app
from pumice.cli.pack_keys import PassphraseFile, passphrase_of

if TYPE_CHECKING:
    from pumice.errors import PumiceError
    from pumice.packs.trust import VerifiedPack

FAILED = 4


@pack_app.command()
def sign(
    pack: Pack,
    key: Annotated[str, typer.Option(metavar="NAME", help="The key of yours to sign with.")],
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Check a pack and sign its manifest; a manifest that names no signing key gets this one."""
    from pumice.packs.archive import read_pack, write_zip
    from pumice.packs.keys import KeyFolder, PublicKey
    from pumice.packs.paths import MANIFEST, SIGNATURE
    from pumice.packs.signatures import sign_manifest
    from pumice.packs.trust import TrustStore, check_content

    signer = KeyFolder().open(key, lambda: passphrase_of(key, passphrase_file))
    TrustStore().state().refuse_revoked(signer.public)
    files = read_pack(pack)
    manifest, _ = check_content(files)
    content = files.manifest
    if not manifest.author.signing_key:
        content = _with_key(content, signer.public.text)
    elif PublicKey.parse(manifest.author.signing_key) != signer.public:
        author = PublicKey.parse(manifest.author.signing_key).fingerprint
        print(f"pumice: the manifest says that its author signs with {author}, not with this key", file=sys.stderr)
    entries = {**files.entries, MANIFEST: content, SIGNATURE: sign_manifest(content, signer)}
    if pack.is_dir():
        for name in (MANIFEST, SIGNATURE):
            if entries[name] != files.entries.get(name):
                _replace(pack / name, entries[name], pack / MANIFEST)
    else:
        _replace(pack, write_zip(entries), pack)
    if json:
        print(json_text.dumps({"pack": manifest.name, "version": manifest.version, "signer": signer.public.fingerprint}))
    else:
        print(f"{pack}: {manifest.name} {manifest.version}, signed by {signer.public.fingerprint}")


def _with_key(manifest: bytes, key: str) -> bytes:
    """The manifest with its author's key, laid out as before."""
    value = json_text.loads(manifest)
    value["author"]["signing_key"] = key
    layout: dict[str, Any] = {"indent": 2} if b"\n" in manifest.strip() else {"separators": (",", ":")}
    return json_text.dumps(value, ensure_ascii=False, **layout).encode() + (b"\n" if manifest.endswith(b"\n") else b"")


def _replace(path: Path, content: bytes, like: Path) -> None:
    """Replaces a file as a whole; others may read it as they may read `like`."""
    from pumice.core.whole_file import write_whole
    from pumice.sources.files import disk_errors

    with disk_errors(path.parent):
        mode = like.stat().st_mode & 0o777
        write_whole(path, content)
        path.chmod(mode)


@pack_app.command()
def verify(
    pack: Pack,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Do not ask who signed it; check all else. For packs that you are making.")
    ] = False,
    json: Json = False,
) -> None:
    """Check signature, manifest, versions, features, hashes and allowlist of a pack; the exit code is 4 if one fails."""
    from pumice.errors import PumiceError
    from pumice.packs.archive import read_pack
    from pumice.packs.trust import CHECKS, TrustStore, verify_pack

    passed: dict[str, str] = {}
    verified, error = None, None
    try:
        files = read_pack(pack)
        passed["archive"] = f"{len(files.entries)} files"
        verified = verify_pack(files, TrustStore(), insecure=insecure, report=passed.__setitem__)
    except PumiceError as e:
        error = e
    failed = next((check for check in ("archive", *CHECKS[int(insecure) :]) if check not in passed), "")
    if json:
        print(json_text.dumps(_report(verified, error, passed, failed), default=str))
    else:
        print("".join(f"{check:<10} {found}\n" for check, found in passed.items()), end="")
        print(f"{failed:<10} FAILED" if verified is None else _verdict(verified))
    if error is not None:
        from pumice.cli.main import error_text

        print(error_text(error), file=sys.stderr)
        raise typer.Exit(FAILED)


def _verdict(pack: VerifiedPack) -> str:
    return f"{pack.manifest.name} {pack.manifest.version} is {'INSECURE: nobody vouches for it' if pack.insecure else 'verified'}"


def _report(pack: VerifiedPack | None, error: PumiceError | None, passed: dict[str, str], failed: str) -> dict[str, Any]:
    report: dict[str, Any] = {"ok": pack is not None, "checks": [{"check": k, "found": v} for k, v in passed.items()]}
    if pack is not None:
        report |= {"pack": pack.manifest.name, "version": pack.manifest.version, "digest": pack.digest, "signer": pack.signer}
        report |= {"insecure": pack.insecure, "author": pack.manifest.author.model_dump(mode="json")}
    if error is not None:
        described = {"code": error.code, "message": error.message, "hint": error.hint, "fields": error.fields}
        report |= {"failed": failed, "error": described}
    return report
