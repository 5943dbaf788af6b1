"""Reads a bundle back and checks all of it: hashes, plans, how inputs are computed, and that every weight is there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pumice.core.fields import Fields
from pumice.core.json_file import read_json
from pumice.errors import FormatError, PumiceError
from pumice.formats.weights import malformed
from pumice.llm.bundle import FORMAT, MANIFEST, VERSION, manifest_digest, shared_keys
from pumice.llm.step_inputs import check_inputs
from pumice.plan.plan import Plan

_AGAIN = "the bundle is damaged: copy it again, or export it again"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files are what its manifest says."""

    folder: Path
    manifest: Mapping[str, Any]
    plans: Mapping[str, Plan]

    @property
    def nbytes(self) -> int:
        return sum(entry["bytes"] for entry in self.manifest["files"].values())


def read_bundle(folder: str | Path) -> Bundle:
    """The bundle in a folder.

    >>> read_bundle("nowhere")
    Traceback (most recent call last):
    pumice.errors.FormatError: [format] nowhere/bundle.json cannot be read as JSON: there is no such file
      hint: give the folder that `pumice export --bundle` wrote
    """
    base = Path(folder)
    path = base / MANIFEST
    manifest = read_json(path, hint="give the folder that `pumice export --bundle` wrote")
    if manifest.get("format") != FORMAT:
        raise malformed(path, "this is no bundle", hint="give the folder that `pumice export --bundle` wrote")
    version = manifest.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        what = f"made by a newer Pumice: its version is {version}" if newer else f"there is no version {version!r} of bundles"
        raise malformed(path, what, hint="upgrade pumice, or export the model with this one", version=version)
    if manifest.get("sha256") != manifest_digest(manifest):
        raise malformed(path, "its SHA-256 is not that of its contents", hint=_AGAIN)
    try:
        _check_files(base, Fields(manifest, str(path)))
        return Bundle(base, manifest, _Reader(base, manifest).plans())
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        # The hash is right: it was written so, and is no bundle.
        raise malformed(path, f"its entries are not those of a bundle: {type(e).__name__}: {e}", hint=_AGAIN) from e


def _check_files(base: Path, fields: Fields) -> None:
    """Refuses a bundle of which a file is missing, has another size, or other contents."""
    for name, entry in Fields(fields.get("files"), "the table of files").values.items():
        path = base / name
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
            raise malformed(base / MANIFEST, f"the file {name!r} is not in its folder", hint=_AGAIN, file=name)
        known = Fields(entry, f"the entry of {name}")
        size, digest = known.get("bytes"), known.get("sha256")
        if not path.is_file():
            raise malformed(path, "the bundle lacks this file", hint=_AGAIN, file=name)
        if path.stat().st_size != size:
            raise malformed(path, f"it has {path.stat().st_size} bytes, the bundle says {size}", hint=_AGAIN, file=name)
        if _digest(path) != digest:
            raise malformed(path, "its SHA-256 is not what the bundle says", hint=_AGAIN, file=name)


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


class _Reader:
    """Checks that the parts of a bundle fit together."""

    def __init__(self, base: Path, manifest: Mapping[str, Any]) -> None:
        self._base, self._manifest = base, manifest

    def plans(self) -> dict[str, Plan]:
        """The plans by the names of their steps."""
        for file in (self._manifest["tokenizer"]["file"], *((self._manifest["template"] or {}).get("sources", {}).values())):
            self._listed(file)
        found = {}
        check_inputs(self._manifest["sampler"]["slot_states"], f"{MANIFEST}, the states of slots")
        for name, step in self._manifest["steps"].items():
            self._listed(step["plan"])
            try:
                found[name] = Plan.load(self._base / step["plan"])
            except PumiceError as e:
                raise FormatError(f"the step {name}: {e.message}", hint=e.hint, step=name) from e
            self._check_step(name, step, found[name])
        self._check_weights(found)
        return found

    def _listed(self, file: str) -> None:
        if file not in self._manifest["files"]:
            raise self._wrong(f"the file {file!r} has no hash")

    def _wrong(self, what: str) -> FormatError:
        return malformed(self._base / MANIFEST, what, hint=_AGAIN)

    def _check_step(self, name: str, step: Mapping[str, Any], plan: Plan) -> None:
        origin = f"{MANIFEST}, the step {name}"
        check_inputs(step["inputs"], origin)
        wanted = {n.name: n for n in plan.graph.sources("input")}
        if set(step["inputs"]) != set(wanted):
            raise self._wrong(f"the step {name} describes other inputs than its plan has")
        for key, entry in step["inputs"].items():
            if entry["dtype"] != wanted[key].type.dtype.name or len(entry["axes"]) != len(wanted[key].type.shape):
                raise self._wrong(f"the step {name} describes the input {key!r} as something else than its plan")
        shared = self._manifest["shared"]
        rows = list(zip(shared["kind"], shared["name"], shared["nbytes"], shared["which"], strict=True))
        found = [None if k is None else rows[k] for k in step["buffers"]]
        if found != shared_keys(plan):
            raise self._wrong(f"the step {name} shares other buffers than its plan has")

    def _check_weights(self, plans: Mapping[str, Plan]) -> None:
        table = self._manifest["weights"]
        stored = dict(zip(table["name"], zip(table["shape"], table["pieces"], strict=True), strict=True))
        for name, plan in plans.items():
            for node in plan.graph.sources("param"):
                shape, pieces = stored.get(node.name, (None, []))
                if shape != list(node.type.stored_shape):
                    raise self._wrong(f"the weight {node.name!r} of the step {name} is missing, or has another shape")
                for file, offset, size in pieces:
                    self._listed(file)
                    if not 0 <= offset <= offset + size <= self._manifest["files"][file]["bytes"]:
                        raise self._wrong(f"the weight {node.name!r} reaches beyond its shard {file}")
                if sum(size for _, _, size in pieces) != node.type.max_nbytes({}):
                    raise self._wrong(f"the weight {node.name!r} has pieces of another size")
