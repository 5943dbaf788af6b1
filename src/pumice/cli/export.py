"""`pumice export`: a bundle of a model, or a check of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pumice.core.caps import PRESETS, Caps
from pumice.errors import InputError
from pumice.llm.bundle import export_bundle
from pumice.llm.bundle_read import Bundle, read_bundle
from pumice.run.device import open_device
from pumice.sources.files import size_text


def run(
    model: str, folder: Path | None, *, check: bool, device: str, force: bool, as_json: bool, options: Mapping[str, Any]
) -> int:
    """Write a bundle and read it back, or only the latter; the exit code."""
    if check:
        if folder is not None:
            raise InputError("--check takes the folder of a bundle in place of a model", hint=f"pumice export {folder} --check")
        folder = Path(model)
    else:
        if folder is None:
            raise InputError("where to write the bundle is not said", hint=f"pumice export {model} --bundle DIR")
        caps = Caps.preset(device) if device in PRESETS else open_device(device).caps
        if not caps.dispatches:
            raise InputError(f"{device} runs no kernels that a bundle could hold", hint="plan for browser-baseline or webgpu")
        export_bundle(model, folder, caps=caps, overwrite=force, **options)
    found = read_bundle(folder)
    print(json.dumps(_summary(found)) if as_json else _line(found))
    return 0


def _summary(bundle: Bundle) -> dict[str, Any]:
    steps = {name: {"dispatches": len(plan.steps), "sha256": plan.sha256} for name, plan in bundle.plans.items()}
    described = {key: bundle.manifest[key] for key in ("model", "cache", "sha256")}
    return {
        "bundle": str(bundle.folder),
        **described,
        "bytes": bundle.nbytes,
        "files": len(bundle.manifest["files"]),
        "steps": steps,
    }


def _line(bundle: Bundle) -> str:
    files, cache = bundle.manifest["files"], bundle.manifest["cache"]
    return (
        f"{bundle.folder}: {bundle.manifest['model']['architecture']}, {len(files)} files, {size_text(bundle.nbytes)}, "
        f"{cache['slots']} × {cache['context']} tokens; every hash is right"
    )
