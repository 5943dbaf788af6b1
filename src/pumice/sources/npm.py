"""Fetches one file of an npm package into the cache, from the registry that npm is configured for, pinned by its sha256."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import urllib.parse
import zlib
from pathlib import Path, PurePosixPath

from pumice import config
from pumice.errors import FormatError
from pumice.sources.cache import Cache, CacheEntry
from pumice.sources.errors import NoNetwork, NotFound, SourceError, UnsafeArchive, WrongHash
from pumice.sources.files import disk_errors, file_sha256, hash_files
from pumice.sources.progress import FetchMeter, ProgressCallback
from pumice.sources.spec import NpmSpec

_PUBLIC = "https://registry.npmjs.org/"
_MOST_MEMBERS, _MOST_BYTES = 10_000, 64 << 20
_LOCAL = ("localhost", "127.0.0.1", "::1")
_UNPACKED = "unpacked"


def npm_file(spec: NpmSpec, sha256: str, *, progress: ProgressCallback | None = None, offline: bool = False) -> Path:
    """The file of a package that has this sha256, from the cache or the registry; anything else is refused.

    >>> npm_file(NpmSpec("no-such-package", "1.0.0", "a.wasm"), "0" * 64, offline=True)
    Traceback (most recent call last):
        ...
    pumice.sources.errors.NoNetwork: [no-network] the cache has no copy of npm:no-such-package@1.0.0/a.wasm
      hint: run the command once with a network
    """
    home: Path = config.get("home")
    cache = Cache(home)
    with disk_errors(home):
        found = _cached(cache, spec, sha256)
        if found is not None:
            return found.path
        if offline:
            raise NoNetwork(f"the cache has no copy of {spec.text}", hint="run the command once with a network", spec=spec.text)
        with cache.work("npm", spec.name) as work:
            found = _cached(cache, spec, sha256) or _fetch(cache, spec, sha256, work, FetchMeter(progress))
        return found.path


def _cached(cache: Cache, spec: NpmSpec, sha256: str) -> CacheEntry | None:
    entry = cache.find("npm", spec.name)
    return entry if entry is not None and [f.sha256 for f in entry.files] == [sha256] else None


def _fetch(cache: Cache, spec: NpmSpec, sha256: str, work: Path, meter: FetchMeter) -> CacheEntry:
    from pumice.sources.http import Http

    http = Http()
    url = _tarball(spec, http)
    archive = work / "package.tgz"
    # Nothing says whether an older part is of the same file: it is small, and begun anew.
    archive.unlink(missing_ok=True)
    http.download(url, archive, meter)
    meter.phase("unpack")
    target = work / _UNPACKED
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o700)
    name = PurePosixPath(spec.path).name
    unpack_member(archive, f"package/{spec.path}", target / name)
    got = file_sha256(target / name)
    if got != sha256:
        raise WrongHash(
            f"{spec.text} has the sha256 {got}, expected is {sha256}",
            hint="it was deleted; do not trust the registry that npm is configured for",
            got=got,
            expected=sha256,
        )
    files = hash_files(target, [name])
    entry = cache.publish(
        work, target, files, kind="npm", name=spec.name, spec=spec.text, revision=f"sha256:{sha256}", inner=name
    )
    meter.phase("done")
    return entry


def unpack_member(archive: Path, member: str, target: Path) -> None:
    """Write one plain file of a package to `target`; nothing else of the archive is unpacked."""
    try:
        with tarfile.open(archive, "r:gz") as packed:
            for count, info in enumerate(packed):
                if count > _MOST_MEMBERS or info.size > _MOST_BYTES:
                    raise UnsafeArchive(f"{archive.name} is larger than a package of a compiler is", hint="nothing was unpacked")
                if info.name == member and info.isfile():
                    source = packed.extractfile(info)
                    assert source is not None
                    with source, target.open("xb") as out:
                        shutil.copyfileobj(source, out)
                    return
    except (tarfile.TarError, zlib.error, EOFError, ValueError) as e:
        raise FormatError(f"{archive.name} is no whole package: {e}", hint="fetch it again", path=str(archive)) from e
    raise NotFound(f"{archive.name} has no file {member!r}", hint="check the path in the package", path=member)


def _tarball(spec: NpmSpec, http: object) -> str:
    from pumice.sources.http import Http

    assert isinstance(http, Http)
    address = f"{registry().rstrip('/')}/{urllib.parse.quote(spec.package, safe='@')}/{spec.version}"
    _check_open(address)
    _, _, text = http.page(address, "application/json")
    try:
        url = json.loads(text)["dist"]["tarball"]
        if not isinstance(url, str):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SourceError(f"{spec.text}: the registry's answer names no archive", hint="check npm's registry setting") from None
    _check_open(url)
    return url


def _check_open(url: str) -> None:
    """The registry must be encrypted, or on this machine; passwords are npm's own business."""
    parts = urllib.parse.urlsplit(url)
    if parts.username is not None or not (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOCAL)):
        hint = "use a registry over https without a password in its address, or put the file into the cache on another machine"
        raise SourceError("npm's registry cannot be used as it is configured", hint=hint)


def registry() -> str:
    """The registry that npm is configured for: its variable, the user's file, or the public one."""
    named = os.environ.get("NPM_CONFIG_REGISTRY") or os.environ.get("NPM_CONFIG_REGISTRY".lower())
    if named:
        return named
    file = os.environ.get("NPM_CONFIG_USERCONFIG") or os.path.join(os.path.expanduser("~"), ".npmrc")
    try:
        lines = Path(file).read_text("utf-8", "replace").splitlines()
    except OSError:
        return _PUBLIC
    for line in lines:
        key, equals, value = line.partition("=")
        if equals and key.strip() == "registry" and value.strip():
            return value.strip().strip("\"'")
    return _PUBLIC
