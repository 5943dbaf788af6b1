"""`pumice pack inspect`: what a pack says and has, and whether it can be trusted; nothing of it is compiled."""

from __future__ import annotations

import hashlib
import json as json_text
from typing import TYPE_CHECKING, Any

from pumice.cli.pack import Json, Pack, pack_app

if TYPE_CHECKING:
    from pathlib import Path

    from pumice.packs.archive import PackFiles
    from pumice.packs.manifest import KernelEntry, Manifest, TensorSpec


@pack_app.command("inspect")
def inspect_pack(pack: Pack, json: Json = False) -> None:
    """Show a pack's kernels, files, hashes and signature, without compiling or trusting any of it."""
    report = collect(pack)
    if json:
        print(json_text.dumps(report))
    else:
        _print(report)


def collect(path: Path) -> dict[str, Any]:
    """Everything that is printed, as data."""
    from pumice.packs.archive import read_pack
    from pumice.packs.manifest import Manifest

    files = read_pack(path)
    manifest = Manifest.from_json(files.manifest)
    return {
        "path": str(path),
        "digest": files.digest,
        **_trust(files),
        "signed": files.signature is not None,
        "bytes": sum(map(len, files.entries.values())),
        "files": _files(files, manifest),
        "kernels": [_kernel(kernel, manifest) for kernel in manifest.kernels],
        "manifest": json_text.loads(manifest.to_json()),
    }


def _trust(files: PackFiles) -> dict[str, Any]:
    """Whether the pack is verified, by whose key, and if it is not, why."""
    from pumice.errors import PumiceError
    from pumice.packs.trust import TrustStore, verify_pack

    try:
        signer = verify_pack(files, TrustStore()).signer
    except PumiceError as error:
        return {
            "verified": False,
            "signer": "",
            "problem": {"code": error.code, "message": error.message, "hint": error.cli_hint},
        }
    return {"verified": True, "signer": signer, "problem": None}


def _files(files: PackFiles, manifest: Manifest) -> list[dict[str, Any]]:
    """Every file that the pack has or lists: size, hash, and how it agrees with the manifest."""
    from pumice.packs.paths import MANIFEST, SIGNATURE

    found, listed = files.entries, manifest.listed_files
    report = []
    for path in sorted(found.keys() | listed.keys()):
        content = found.get(path)
        sha256 = None if content is None else "sha256:" + hashlib.sha256(content).hexdigest()
        if path in (MANIFEST, SIGNATURE):
            state = "not hashed"
        elif path not in listed:
            state = "not listed"
        else:
            state = "missing" if content is None else "as listed" if sha256 == listed[path] else "differs from its hash"
        report.append({"path": path, "bytes": None if content is None else len(content), "sha256": sha256, "state": state})
    return report


def _kernel(kernel: KernelEntry, manifest: Manifest) -> dict[str, Any]:
    new = kernel.pumice.op
    return {
        "id": kernel.id,
        "category": kernel.category,
        "target": kernel.pumice.target,
        "op": kernel.pumice.implements if new is None else f"{manifest.name}.{new.name}",
        "new_op": new is not None,
        "path": kernel.path,
        "inputs": [_tensor(spec) for spec in kernel.inputs],
        "outputs": [_tensor(spec) for spec in kernel.outputs],
        "params": {name: param.type for name, param in kernel.params.items()},
        "when": list(kernel.pumice.when),
        "limits": kernel.resource_limits.model_dump(exclude_none=True),
        "fallback": manifest.fallbacks.get(kernel.id),
    }


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype}[{', '.join(map(str, spec.shape))}]"


def _print(report: dict[str, Any]) -> None:
    from pumice.sources.files import size_text

    said = report["manifest"]
    print(f"{said['name']} {said['version']}  {' '.join(said['description'].split())}")
    print(f"  author     {said['author']['name']} <{said['author']['email']}>, {said['created_at']}")
    print(f"  runtime    {said['min_runtime_version']} to {said['max_runtime_version']}")
    print(f"  digest     {report['digest']}")
    if report["verified"]:
        print(f"  signature  verified: {report['signer']}")
    else:
        print(f"  signature  NOT VERIFIED: {report['problem']['message']}")
    print(f"\n{len(report['kernels'])} kernels")
    for kernel in report["kernels"]:
        kind = f"{kernel['op'] or 'called by its id'}{' (new op)' if kernel['new_op'] else ''}, {kernel['target']}"
        print(f"  {kernel['id']}: {kind}")
        print(f"    {', '.join(kernel['inputs'])} → {', '.join(kernel['outputs'])}")
        for name, text in (
            ("params", ", ".join(f"{name} {type}" for name, type in kernel["params"].items())),
            ("when", " and ".join(kernel["when"])),
            ("limits", ", ".join(f"{name.removeprefix('max_')} {value}" for name, value in kernel["limits"].items())),
            ("fallback", kernel["fallback"]),
        ):
            if text:
                print(f"    {name}: {text}")
    print(f"\n{len(report['files'])} files, {size_text(report['bytes'])}")
    for file in report["files"]:
        size = "-" if file["bytes"] is None else size_text(file["bytes"])
        print(f"  {file['path']:<32} {size:>9}  {(file['sha256'] or '-').removeprefix('sha256:')[:16]}  {file['state']}")
