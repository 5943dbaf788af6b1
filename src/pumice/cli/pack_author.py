"""`pumice pack new`, `build` and `bench`: from an empty folder to a pack with measured kernels."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pumice.cli.pack import Json, pack_app
from pumice.cli.pack_keys import PassphraseFile, passphrase_of

if TYPE_CHECKING:
    from pumice.packs.trust import VerifiedPack


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
    check: Annotated[
        Literal["all", "host", "none"],
        typer.Option(help="Which kernels to compare with their references: those in WGSL need a WebGPU device."),
    ] = "all",
    json: Json = False,
) -> None:
    """Compile the sources of a pack, fill in hashes and references, check every kernel and write DIR/dist/NAME.zip."""
    from pumice.packs.build import build_pack
    from pumice.packs.keys import KeyFolder

    signer = KeyFolder().open(key, lambda: passphrase_of(key, passphrase_file)) if key else None
    compared: dict[str, str] = {}
    built = build_pack(folder, signer, lambda pack: compared.update(compare_kernels(pack, check)))
    fingerprint = signer.public.fingerprint if signer else ""
    if json:
        found: dict[str, Any] = {"pack": built.manifest.name, "version": built.manifest.version, "path": str(built.path)}
        found |= {"digest": built.files.digest, "signer": fingerprint, "compiled": built.compiled, "kept": built.kept}
        found |= {"compared": compared}
        print(json_text.dumps(found))
        return
    for path in built.compiled:
        print(f"{path}: compiled, {len(built.files.files[path])} bytes")
    for path in built.kept:
        print(f"{path}: kept, its source is the same and there is no compiler here (pip install 'pumice[packs-build]')")
    for kernel, verdict in compared.items():
        print(f"{kernel}: {verdict}")
    signed = f"signed by {fingerprint}" if signer else "not signed"
    print(f"{built.path}: {built.manifest.name} {built.manifest.version}, {len(built.manifest.kernels)} kernels, {signed}")


@pack_app.command()
def bench(
    pack: Annotated[str, typer.Argument(metavar="DIR|FILE|NAME", help="A pack's folder, its zip, or an installed pack.")],
    device: Annotated[str, typer.Option(help="host measures the kernels in WASM, webgpu those in WGSL.")] = "host",
    write: Annotated[bool, typer.Option("--write", help="Put the times into DIR/kernels.json, under benchmarks.")] = False,
    json: Json = False,
) -> None:
    """Measure each kernel of a pack in turn with the built-in one, the CPU on one thread."""
    from pumice.cli.pack_bench import run

    run(pack, device, write=write, as_json=json)


def compare_kernels(pack: VerifiedPack, which: str) -> dict[str, str]:
    """What was found of each kernel that computes an op; BuildFailed if one does not agree with its reference or fails."""
    from pumice.errors import NoDevice
    from pumice.packs.degraded import degraded
    from pumice.packs.errors import BuildFailed
    from pumice.packs.kernels import pack_kernels
    from pumice.run.device import open_device
    from pumice.run.packs import Pack, offer_kernels, wrong_on

    found: dict[str, str] = {}
    opened = Pack(pack, pack_kernels(pack))
    for spec in {"all": ("host", "webgpu"), "host": ("host",), "none": ()}[which]:
        try:
            device = open_device(spec)
        except NoDevice as e:
            found |= {k.id: f"not compared: {e.message}" for k in opened.kernels if k.id not in found}
            continue
        kernels = [k for k in opened.kernels if k.target == device.caps.target]
        offer_kernels(opened, device)
        # A kernel in WASM that fails is no wrong result, as another one stands in for it; its author wants to know.
        failed = {d.kernel: d.message for d in degraded() if d.pack == opened.name}
        wrong = wrong_on(device, opened, kernels)
        failed = {d.kernel: d.message for d in degraded() if d.pack == opened.name and d.kernel not in failed}
        for kernel in kernels:
            if reason := wrong[kernel.id] or failed.get(kernel.id):
                raise BuildFailed(
                    f"the kernel {kernel.id} does not agree with the reference of {kernel.op} on {device.name}: {reason}",
                    hint="mend the kernel, its reference or its conditions (when)",
                    kernel=kernel.id,
                )
        found |= {k.id: f"agrees with the reference on {device.name}" for k in kernels}
    return found
