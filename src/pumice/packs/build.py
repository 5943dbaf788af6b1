"""Builds a pack from its folder: compiles kernels, fills in hashes, checks everything and writes the zip.

The folder has `kernels.json`, whose hashes the build fills in, `kernels/*.wgsl`, and the sources of the WASM kernels: `src/X.wat`
or `src/X.c` becomes `kernels/X.wasm`. `src/X.graph` is the reference of the new op X, as text of its own. Every file under `src`
goes into the pack, so that others can build it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.core.private import read_plain
from pumice.core.whole_file import write_whole
from pumice.packs.archive import MAX_FILE_BYTES, PackFiles, write_zip
from pumice.packs.compilers import COMPILERS, can_compile, compile_source
from pumice.packs.errors import BuildFailed, HashMismatch, InvalidManifest
from pumice.packs.json_text import MAX_BYTES, parse_object
from pumice.packs.paths import MANIFEST, path_problem
from pumice.packs.signatures import sign_manifest
from pumice.packs.trust import VerifiedPack, check_content

if TYPE_CHECKING:
    from pumice.packs.keys import SigningKey
    from pumice.packs.manifest import Manifest

SOURCES, DIST = "src", "dist"
_WIDTH = 120
# What stands for a hash until the first build.
NO_HASH = "sha256:" + "0" * 64


@dataclass(frozen=True)
class BuiltPack:
    """A pack that was built: its zip, and for each WASM kernel whether it was compiled or, without a compiler, kept."""

    files: PackFiles
    manifest: Manifest
    path: Path
    compiled: tuple[str, ...]
    kept: tuple[str, ...]


def build_pack(
    folder: Path, signer: SigningKey | None = None, check: Callable[[VerifiedPack], None] = lambda pack: None
) -> BuiltPack:
    """Builds the pack of a folder into `dist/NAME.zip` there; `kernels.json` gets the hashes.

    A signer's key becomes the author's, and the manifest is signed with it; without one the pack is not signed. `check` sees
    the pack before anything of it but the compiled modules is written, and raises what is wrong with it.
    """
    data = read_source(folder)
    compiled, kept = _compile_all(folder, data)
    _fill_references(folder, data)
    _fill_hashes(folder, data)
    if signer is not None and isinstance(data.get("author"), dict):
        data["author"]["signing_key"] = signer.public.text
    files = _collect(folder, data, format_manifest(data).encode())
    manifest, content = check_content(files)
    pack = VerifiedPack(manifest, content, files.digest, "", True, files.manifest)
    _check_kernels(pack)
    check(pack)
    write_source(folder, data)
    if signer is not None:
        files = PackFiles(files.manifest, sign_manifest(files.manifest, signer), files.files)
    path = folder / DIST / f"{manifest.name}.zip"
    _replace_changed(path, write_zip(files.entries))
    return BuiltPack(files, manifest, path, compiled, kept)


def read_source(folder: Path) -> dict[str, Any]:
    """The manifest in a pack's folder, as JSON; its hashes need not be there yet."""
    try:
        data = parse_object(read_plain(folder / MANIFEST, MAX_BYTES), MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidManifest(
            f"{folder} has no {MANIFEST}", hint="`pumice pack new DIR` makes a folder to start with", path=str(folder)
        ) from None
    for kernel in _kernels(data):
        kernel.setdefault("hash", NO_HASH)
    return data


def write_source(folder: Path, data: Mapping[str, Any]) -> None:
    """Replaces the manifest in a pack's folder."""
    _replace_changed(folder / MANIFEST, format_manifest(data).encode())


def read_built(folder: Path) -> VerifiedPack:
    """The pack in a folder as it was last built, for its author: all is checked but who signed it."""
    data = read_source(folder)
    files = _collect(folder, data, read_plain(folder / MANIFEST, MAX_BYTES))
    try:
        manifest, content = check_content(files)
    except HashMismatch as e:
        raise BuildFailed(f"{folder} has changed since it was built: {e.message}", hint=f"pumice pack build {folder}") from None
    return VerifiedPack(manifest, content, files.digest, "", True, files.manifest)


def _kernels(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The kernels' entries as far as they are any: what is wrong with the others, the manifest's models say."""
    kernels = data.get("kernels")
    return [k for k in kernels if isinstance(k, dict)] if isinstance(kernels, list) else []


def _compile_all(folder: Path, data: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compiles the modules that have a source; gives those, and those kept as they are for want of a compiler."""
    compiled, kept = [], []
    for path in sorted({str(k.get("path")) for k in _kernels(data)}):
        source = _source_of(folder, path)
        if source is None:
            continue
        if can_compile(source) or not _is_up_to_date(folder, data, path):
            _replace_changed(folder / path, compile_source(source))
            compiled.append(path)
        else:
            kept.append(path)
    return tuple(compiled), tuple(kept)


def _source_of(folder: Path, path: str) -> Path | None:
    """The source of a module; None if there is none, as for WGSL."""
    if path_problem(path) or not path.endswith(".wasm"):
        return None
    found = [f for suffix in COMPILERS if (f := folder / SOURCES / (Path(path).stem + suffix)).is_file()]
    if len(found) > 1:
        raise BuildFailed(f"{path} has two sources, {found[0].name} and {found[1].name}", hint="remove one of them", path=path)
    return found[0] if found else None


def _is_up_to_date(folder: Path, data: Mapping[str, Any], path: str) -> bool:
    """Whether a module and all sources are those that the manifest has the hashes of."""
    listed = _listed(data)
    recorded = {k.get("hash") for k in _kernels(data) if k.get("path") == path}
    sources = dict(_sources(folder))
    return (
        (folder / path).is_file()
        and recorded == {_hash(_read(folder, path))}
        and bool(sources)
        and all(listed.get(name) == _hash(content) for name, content in sources.items())
    )


def _sources(folder: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted((folder / SOURCES).rglob("*")):
        hidden = any(part.startswith((".", "__")) for part in file.relative_to(folder).parts)
        if file.is_file() and not hidden:
            name = file.relative_to(folder).as_posix()
            yield name, _read(folder, name)


def _listed(data: Mapping[str, Any]) -> dict[str, Any]:
    extension = data.get("pumice")
    listed = extension.get("files") if isinstance(extension, dict) else None
    return listed if isinstance(listed, dict) else {}


def _fill_references(folder: Path, data: Mapping[str, Any]) -> None:
    for kernel in _kernels(data):
        extension = kernel.get("pumice")
        op = extension.get("op") if isinstance(extension, dict) else None
        if isinstance(op, dict) and isinstance(op.get("name"), str):
            name = f"{SOURCES}/{op['name']}.graph"
            if not path_problem(name) and (folder / name).is_file():
                op["reference"] = _read(folder, name).decode(errors="replace")


def _fill_hashes(folder: Path, data: dict[str, Any]) -> None:
    """The hash of every kernel and listed file; the list of sources becomes that of the folder."""
    for kernel in _kernels(data):
        if isinstance(kernel.get("path"), str) and not path_problem(kernel["path"]):
            kernel["hash"] = _hash(_read(folder, kernel["path"]))
    further = {name: "" for name in _listed(data) if not name.startswith(f"{SOURCES}/")}
    files = {name: _hash(_read(folder, name)) for name in further if not path_problem(name)}
    files |= {name: _hash(content) for name, content in _sources(folder)}
    if files or _listed(data):
        data["pumice"] = {**data.get("pumice", {}), "files": dict(sorted(files.items()))}


def _collect(folder: Path, data: Mapping[str, Any], manifest: bytes) -> PackFiles:
    names = {k["path"] for k in _kernels(data) if isinstance(k.get("path"), str)} | set(_listed(data))
    return PackFiles(manifest, None, {name: _read(folder, name) for name in sorted(names) if not path_problem(name)})


def _read(folder: Path, name: str) -> bytes:
    try:
        return read_plain(folder / name, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        hint = (
            "put its source under src, as .wat or .c, or the built file there"
            if name.endswith(".wasm")
            else f"{MANIFEST} lists it"
        )
        raise BuildFailed(f"{folder} has no {name}", hint=hint, path=name) from None


def _hash(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _replace_changed(path: Path, content: bytes) -> None:
    """Replaces a file as a whole, but for one that has this content already: its time stays."""
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


def _check_kernels(pack: VerifiedPack) -> None:
    """Loads every kernel as the runtime will: modules are compiled, WGSL is checked, new ops get their meaning."""
    from pumice.packs.kernels import pack_kernels
    from pumice.packs.wasm.kernel import WasmKernel

    for entry in pack.manifest.kernels:
        if not entry.in_wgsl:
            WasmKernel(entry, pack.files[entry.path]).close()
    pack_kernels(pack)


def format_manifest(value: Any) -> str:
    """A manifest as JSON that people read: what fits a line stands on one.

    >>> print(format_manifest({"name": "a", "kernels": [{"id": "k", "shape": ["rows...", 4]}]}), end="")
    {
      "name": "a",
      "kernels": [{"id": "k", "shape": ["rows...", 4]}]
    }
    """
    entries = [f"  {json.dumps(k, ensure_ascii=False)}: {_format(v, 1)}" for k, v in value.items()]
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _format(value: Any, depth: int) -> str:
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(line) + 2 * depth <= _WIDTH or not isinstance(value, dict | list) or not value:
        return line
    inner, outer = "  " * (depth + 1), "  " * depth
    if isinstance(value, dict):
        parts = [f"{json.dumps(k, ensure_ascii=False)}: {_format(v, depth + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(inner + part for part in parts) + f"\n{outer}}}"
    return "[\n" + ",\n".join(inner + _format(v, depth + 1) for v in value) + f"\n{outer}]"
