"""`pumice models`: the catalogue, what of it is here, what else is in the cache, and how to delete from it."""

from __future__ import annotations

import json
from typing import Any

from pumice import config
from pumice.errors import UnknownName
from pumice.sources import Cache, catalogue, present
from pumice.sources.files import disk_errors, size_text


def collect() -> dict[str, Any]:
    """Everything that is printed, as data.

    >>> [m["name"] for m in collect()["catalogue"]]
    ['smollm2', 'minilm']
    """
    cache = Cache(config.get("home"))
    known = []
    for alias in catalogue():
        entry = present(alias.name)
        known.append({
            "name": alias.name,
            "what": alias.what,
            "licence": alias.licence,
            "spec": alias.spec,
            "sha256": alias.sha256,
            "bytes": alias.bytes,
            "download_bytes": alias.download_bytes,
            "here": entry is not None,
            "path": str(entry.path) if entry else None,
        })  # fmt: skip
    pinned = {alias.spec for alias in catalogue()}
    others = [
        {"name": e.name, "spec": e.spec, "revision": e.revision, "bytes": e.nbytes, "path": str(e.path), "whole": not e.problem()}
        for e in cache.entries()
        if e.spec not in pinned
    ]
    unfinished = [{"name": name, "bytes": size} for name, size in cache.unfinished().items()]
    return {"home": str(cache.home), "catalogue": known, "others": others, "unfinished": unfinished}


def run(*, as_json: bool) -> None:
    """Print the list."""
    report = collect()
    if as_json:
        print(json.dumps(report))
        return
    width = max(len(m["name"]) for m in report["catalogue"])
    for m in report["catalogue"]:
        state = "here" if m["here"] else "not here"
        print(f"{m['name']:<{width}}  {state:<8}  {size_text(m['bytes']):>9}  {m['licence']}  {m['what']}")
    if report["others"]:
        print("\nalso in the cache:")
    for m in report["others"]:
        print(f"{size_text(m['bytes']):>9}  {m['spec']}" + ("" if m["whole"] else "  (damaged: pull it again)"))
    for m in report["unfinished"]:
        print(f"{size_text(m['bytes']):>9}  {m['name']}  (unfinished: the next pull resumes or removes it)")
    print(f"\nthe cache is {report['home']}")


def remove(model: str, *, as_json: bool) -> None:
    """Delete a model from the cache; it is named by short name, spec or the name of its folder."""
    cache = Cache(config.get("home"))
    spec = next((a.spec for a in catalogue() if a.name == model), model)
    found = [e for e in cache.entries() if model == e.name or spec == e.spec]
    if not found and spec.startswith("hf:"):
        moving = present(spec)
        found = [moving] if moving else []
    if not found:
        raise UnknownName(f"the cache has no model {model!r}", hint="see `pumice models`", name=model)
    with disk_errors(cache.home):
        for entry in found:
            cache.remove(entry)
    freed = sum(e.nbytes for e in found)
    print(json.dumps({"removed": [e.spec for e in found], "bytes": freed}) if as_json else f"removed {spec}: {size_text(freed)}")
