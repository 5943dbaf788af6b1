"""`pumice export`: a model or a function as a bundle or a web folder, or a check of one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pumice.cli.pull import progress_bar
from pumice.core.caps import BROWSERS, PRESETS, Caps
from pumice.errors import InputError
from pumice.llm.bundle_read import read_bundle
from pumice.run.bundle_read import Bundle
from pumice.run.device import open_device
from pumice.sources.files import size_text
from pumice.web.export import changed_page_files, export_bundle, export_web

# What begins the name of a model that is elsewhere; other names with a colon are functions.
_SOURCES = ("hf", "pypi")


def run(
    target: str,
    *,
    bundle: Path | None,
    web: Path | None,
    check: bool,
    variants: str | None,
    force: bool,
    as_json: bool,
    options: Mapping[str, Any],
) -> int:
    """Write a bundle or a web folder and read it back, or only the latter; the exit code."""
    folder = web or bundle
    if check:
        if folder is not None:
            raise InputError("--check takes a folder in place of a model", hint=f"pumice export {folder} --check")
        folder = Path(target)
    elif folder is None or (web and bundle):
        given = "where to write it is not said" if folder is None else "--bundle and --web name two folders"
        raise InputError(given, hint=f"pumice export {target} --web DIR, or --bundle DIR without a page")
    else:
        write = export_web if web else export_bundle
        with _target(target, options) as (what, chosen), progress_bar(quiet=as_json) as progress:
            write(what, folder, variants=_caps(variants), overwrite=force, progress=progress, **chosen)
    found = read_bundle(folder)
    page = (folder / "index.html").is_file()
    changed = changed_page_files(folder) if page else []
    if as_json:
        print(json.dumps(_summary(found, page=page, changed=changed)))
    else:
        print(_line(found, page=page, changed=changed))
    return 0


@contextlib.contextmanager
def _target(name: str, options: Mapping[str, Any]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """The model of that name, the function FILE.py:FUNCTION, or the train step of CONFIG.toml; and the options of each."""
    prefix, _, function = name.rpartition(":")
    is_config = name.endswith(".toml")
    if not is_config and (not prefix or prefix in _SOURCES or not function.isidentifier() or Path(name).exists()):
        yield name, options
        return
    if options:
        first = next(iter(options)).replace("_", "-")
        raise InputError(f"a {'train step' if is_config else 'function'} has no --{first}", hint="leave it out: models have one")
    if is_config:
        from pumice.train.config import load_config
        from pumice.train.launch import configured_step

        with configured_step(load_config(name)) as found:
            yield found
    else:
        from pumice.run.route import load_route

        yield load_route(name), {}


def _caps(names: str | None) -> list[Caps] | None:
    """What to plan for: presets, and devices of this machine."""
    if names is None:
        return None
    found = [Caps.preset(name) if name in PRESETS else open_device(name).caps for name in names.split(",") if name]
    if not found:
        raise InputError("--variants names nothing", hint=f"leave it out, or name some of {', '.join(BROWSERS)}")
    return found


def _summary(bundle: Bundle, *, page: bool, changed: list[str]) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "folder": str(bundle.folder),
        "web": page,
        "page_differs": changed,
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


def _line(bundle: Bundle, *, page: bool, changed: list[str]) -> str:
    manifest, cache = bundle.manifest, bundle.variants[0].entry.get("cache")
    sizes = f", {cache['slots']} × {cache['context']} tokens" if cache else ""
    line = (
        f"{bundle.folder}: {manifest['model'].get('architecture', bundle.kind)}, {len(manifest['files'])} files, "
        f"{size_text(bundle.nbytes)}{sizes}, for {', '.join(v.name for v in bundle.variants)}; every hash is right"
    )
    if changed:
        line += f"\nof the page, {', '.join(changed[:4])} are not those of this Pumice: export it again to replace them"
    return f"{line}\npumice web {bundle.folder} opens it" if page else line
