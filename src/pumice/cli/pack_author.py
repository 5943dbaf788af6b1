"""`pumice pack new` and `pumice pack build`: from an empty folder to a pack."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated, Any

import typer

from pumice.cli.pack import Json, pack_app
from pumice.cli.pack_keys import PassphraseFile, passphrase_of


@pack_app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is not there yet, or empty.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="The pack's name; by default the folder's.")] = "",
    language: Annotated[
        str, typer.Option(metavar="wat|c", help="The language of its WASM kernel; wat needs no compiler.")
    ] = "wat",
) -> None:
    """Make a folder with a small pack that builds and passes its test at once."""
    from pumice.packs.new_pack import new_pack

    made = new_pack(folder, name=name, language=language)
    print(
        f"{folder} has the new pack {made}, {folder / 'README.md'} the next commands. The first is\n  pumice pack build {folder}"
    )


@pack_app.command()
def build(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The pack's folder, with kernels.json.")],
    key: Annotated[str, typer.Option(metavar="NAME", help="The key of yours to sign with; else the pack is not signed.")] = "",
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Compile the sources of a pack, fill in hashes and references, check every kernel and write DIR/dist/NAME.zip."""
    from pumice.packs.build import build_pack
    from pumice.packs.keys import KeyFolder

    signer = KeyFolder().open(key, lambda: passphrase_of(key, passphrase_file)) if key else None
    built = build_pack(folder, signer)
    fingerprint = signer.public.fingerprint if signer else ""
    if json:
        found: dict[str, Any] = {"pack": built.manifest.name, "version": built.manifest.version, "path": str(built.path)}
        found |= {"digest": built.files.digest, "signer": fingerprint, "compiled": built.compiled, "kept": built.kept}
        print(json_text.dumps(found))
        return
    for path in built.compiled:
        print(f"{path}: compiled, {len(built.files.files[path])} bytes")
    for path in built.kept:
        print(f"{path}: kept, its source is the same and there is no compiler here (pip install 'pumice[packs-build]')")
    signed = f"signed by {fingerprint}" if signer else "not signed"
    print(f"{built.path}: {built.manifest.name} {built.manifest.version}, {len(built.manifest.kernels)} kernels, {signed}")
