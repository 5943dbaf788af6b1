"""`pumice export`: a bundle of a model, or a check of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pumice.core.caps import BROWSERS, PRESETS, Caps
from pumice.errors import InputError
from pumice.llm.bundle import export_bundle
from pumice.llm.bundle_read import read_bundle
from pumice.run.bundle_read import Bundle
from pumice.run.device import open_device
from pumice.sources.files import size_text


def run(
    model: str, folder: Path | None, *, check: bool, variants: str | None, force: bool, as_json: bool, options: Mapping[str, Any]
) -> int:
    """Write a bundle and read it back, or only the latter; the exit code."""
    if check:
        if folder is not None:
            raise InputError("--check takes the folder of a bundle in place of a model", hint=f"pumice export {folder} --check")
        folder = Path(model)
    else:
        if folder is None:
            raise InputError("where to write the bundle is not said", hint=f"pumice export {model} --bundle DIR")
        export_bundle(model, folder, variants=None if variants is None else _targets(variants), overwrite=force, **options)
    found = read_bundle(folder)
    print(json.dumps(_summary(found)) if as_json else _line(found))
    return 0


def _targets(names: str) -> list[Caps]:
    """What to plan for: presets, and devices of this machine."""
    found = [Caps.preset(name) if name in PRESETS else open_device(name).caps for name in names.split(",") if name]
    if not found:
        raise InputError("--variants names nothing", hint=f"leave it out, or name some of {', '.join(BROWSERS)}")
    return found


def _summary(bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "bundle": str(bundle.folder),
        **{key: manifest[key] for key in ("kind", "model", "sha256")},
        "bytes": bundle.nbytes,
        "files": len(manifest["files"]),
        "variants": [
            {
                **{key: variant.entry[key] for key in ("name", "caps", "cache") if key in variant.entry},
                "steps": {n: {"dispatches": len(p.steps), "sha256": p.sha256} for n, p in variant.plans.items()},
            }
            for variant in bundle.variants
        ],
    }


def _line(bundle: Bundle) -> str:
    manifest, cache = bundle.manifest, bundle.variants[0].entry.get("cache")
    sizes = f", {cache['slots']} × {cache['context']} tokens" if cache else ""
    return (
        f"{bundle.folder}: {manifest['model'].get('architecture', bundle.kind)}, {len(manifest['files'])} files, "
        f"{size_text(bundle.nbytes)}{sizes}, for {', '.join(v.name for v in bundle.variants)}; every hash is right"
    )
