"""The cache on disk: entries that appear whole or not at all, a folder for work in progress, and its cleaning."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pumice.core.private import make_private, read_plain
from pumice.core.records import dataclass
from pumice.core.whole_file import sync
from pumice.errors import FormatError
from pumice.sources.errors import NoSpace, UnsafeArchive, WrongHash
from pumice.sources.files import FileInfo, file_sha256, is_disk_full, sync_tree, tree_bytes, write_json
from pumice.sources.lock import exclusive

MANIFEST = "manifest.json"
_FORMAT = 1
_MAX_BYTES = 1 << 26
# What another pull left unfinished stays resumable for this long.
_KEEP_SECONDS = 24 * 3600.0
_STAGE, _TRASH = "stage-", "trash-"


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A complete model in the cache; `path` is what to load, `spec` what it was pulled as, at `revision`."""

    folder: Path
    kind: str
    name: str
    spec: str
    revision: str
    inner: str
    files: tuple[FileInfo, ...]
    times: Mapping[str, int]

    @property
    def content(self) -> Path:
        """The folder of the model's own files."""
        return self.folder / "files"

    @property
    def path(self) -> Path:
        """The file or folder to load."""
        return self.content / self.inner if self.inner else self.content

    @property
    def nbytes(self) -> int:
        """The bytes of all files."""
        return sum(f.size for f in self.files)

    def problem(self, *, full: bool = False) -> str:
        """Why the entry cannot be trusted, or nothing.

        Sizes and times are compared; content is hashed where a time differs, or everywhere with `full`.
        """
        for info in self.files:
            path = self.content / info.path
            try:
                found = path.stat()
            except OSError:
                return f"{info.path} is missing"
            if not stat.S_ISREG(found.st_mode):
                return f"{info.path} is no plain file"
            if found.st_size != info.size:
                return f"{info.path} has {found.st_size} bytes, not {info.size}"
            if (full or found.st_mtime_ns != self.times.get(info.path)) and file_sha256(path) != info.sha256:
                return f"{info.path} does not have the sha256 it was fetched with"
        return ""

    def refresh_times(self) -> None:
        """Remember the files' times after their content proved right, so that it is not hashed each time."""
        times = _times(self.content, self.files)
        if times != self.times:
            # A cache that cannot be written is still good to read.
            with suppress(OSError):
                write_json(self.folder / MANIFEST, _manifest(replace(self, times=times)))


def _times(content: Path, files: Iterable[FileInfo]) -> dict[str, int]:
    return {f.path: (content / f.path).stat().st_mtime_ns for f in files}


def _manifest(entry: CacheEntry) -> dict[str, Any]:
    rows = [{"path": f.path, "size": f.size, "sha256": f.sha256, "mtime_ns": entry.times[f.path]} for f in entry.files]
    return {"format": _FORMAT, "spec": entry.spec, "revision": entry.revision, "path": entry.inner, "files": rows}


def _read_entry(folder: Path) -> CacheEntry | None:
    try:
        data = json.loads(read_plain(folder / MANIFEST, _MAX_BYTES))
        if data["format"] != _FORMAT:
            return None
        files = tuple(FileInfo(str(f["path"]), int(f["size"]), str(f["sha256"])) for f in data["files"])
        times = {str(f["path"]): int(f["mtime_ns"]) for f in data["files"]}
        spec, revision, inner = str(data["spec"]), str(data["revision"]), str(data["path"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    for name in (inner, *times):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            return None
    return CacheEntry(folder, folder.parent.name, folder.name, spec, revision, inner, files, times)


class Cache:
    """The folder `home`: `models/<kind>/<name>/` entries, `refs/` moving names, `tmp/` work in progress, `locks/`.

    >>> import tempfile
    >>> from pumice.sources.files import hash_files
    >>> with tempfile.TemporaryDirectory() as d:
    ...     cache = Cache(Path(d) / "home")
    ...     with cache.work("pypi", "tiny") as work:
    ...         _ = (work / "model.gguf").write_text("GGUF")
    ...         files = hash_files(work, ["model.gguf"])
    ...         _ = cache.publish(work, work, files, kind="pypi", name="tiny", spec="pypi:tiny==1", revision="", inner="")
    ...     cache.find("pypi", "tiny").files[0].size
    4
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._models, self._refs, self._tmp, self._locks = (home / n for n in ("models", "refs", "tmp", "locks"))

    def find(self, kind: str, name: str) -> CacheEntry | None:
        """The complete entry of that name; one whose files were changed or lost does not count."""
        entry = _read_entry(self._models / kind / name)
        if entry is None or entry.problem():
            return None
        entry.refresh_times()
        return entry

    def entries(self) -> Iterator[CacheEntry]:
        """Every entry with a manifest, in the order of kind and name."""
        for folder in sorted(self._models.glob("*/*")):
            entry = _read_entry(folder)
            if entry is not None:
                yield entry

    def unfinished(self) -> dict[str, int]:
        """The work in progress or left over: name and bytes."""
        if not self._tmp.is_dir():
            return {}
        return {p.name: tree_bytes(p) for p in sorted(self._tmp.iterdir())}

    def ref(self, kind: str, name: str) -> str | None:
        """The entry that a moving name, such as a branch, pointed to when it was last pulled."""
        try:
            data = json.loads(read_plain(self._refs / f"{kind}-{name}.json", _MAX_BYTES))
            found = data["name"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return found if isinstance(found, str) and Path(found).name == found else None

    def set_ref(self, kind: str, name: str, target: str) -> None:
        """Point a moving name to an entry."""
        make_private(self._refs)
        write_json(self._refs / f"{kind}-{name}.json", {"name": target})

    @contextmanager
    def work(self, kind: str, name: str) -> Iterator[Path]:
        """A private folder to fetch into, under a lock; what an earlier pull of that name left in it is there to resume.

        It goes away at the end, except after an error that leaves something worth resuming.
        """
        for folder in (self._models / kind, self._tmp, self._locks):
            make_private(folder)
        own = f"{kind}-{name}"
        with exclusive(self._lock(own)) as held:
            self._reap(own, held)
            # Without locks two processes may be here at once, and must not share the folder.
            folder = self._tmp / (own if held else f"{own}.{os.getpid()}.{secrets.token_hex(4)}")
            make_private(folder)
            resumable = False
            try:
                yield folder
            except BaseException as e:
                useless = isinstance(e, NoSpace | WrongHash | UnsafeArchive | FormatError)
                full = isinstance(e, OSError) and is_disk_full(e)
                resumable = not useless and not full and tree_bytes(folder) > 0
                raise
            finally:
                if not resumable:
                    _remove(folder)

    def publish(self, work: Path, source: Path, files: tuple[FileInfo, ...], *, kind: str, name: str, spec: str, revision: str,
                inner: str) -> CacheEntry:  # fmt: skip
        """Make an entry of hashed files below `source`: flush them, write the manifest, rename the whole into place.

        `work` is the folder that `work` gave; `inner` is the path, below the files, of what is to be loaded.
        """
        stage = self._tmp / f"{_STAGE}{work.name}-{secrets.token_hex(4)}"
        content = stage / "files"
        try:
            for file in files:
                make_private((content / file.path).parent)
                os.replace(source / file.path, content / file.path)
            sync_tree(stage)
            entry = CacheEntry(self._models / kind / name, kind, name, spec, revision, inner, files, _times(content, files))
            # Last, so that a folder with a manifest is complete whatever happened to the rename.
            write_json(stage / MANIFEST, _manifest(entry))
            self._swap_in(stage, entry)
        finally:
            _remove(stage)
        return entry

    def _swap_in(self, stage: Path, entry: CacheEntry) -> None:
        self._discard(entry.folder)
        try:
            os.rename(stage, entry.folder)
        except OSError:
            # Only where there are no locks: another process was first, and what it published is as good.
            if self.find(entry.kind, entry.name) is None:
                raise
        sync(entry.folder.parent)

    def remove(self, entry: CacheEntry) -> None:
        """Delete an entry and the moving names that point to it; a process that has it open keeps what it has."""
        make_private(self._tmp)
        self._discard(entry.folder)
        for ref in self._refs.glob(f"{entry.kind}-*.json"):
            if self.ref(entry.kind, ref.stem.removeprefix(f"{entry.kind}-")) == entry.name:
                ref.unlink(missing_ok=True)

    def _discard(self, folder: Path) -> None:
        # Renamed first, so that no process sees a half-deleted entry.
        trash = self._tmp / f"{_TRASH}{secrets.token_hex(8)}"
        with suppress(FileNotFoundError):
            os.rename(folder, trash)
            _remove(trash)

    def _lock(self, work_name: str) -> Path:
        return self._locks / f"{work_name}.lock"

    def _reap(self, own: str, held: bool | None) -> None:
        """Remove what killed pulls left behind, except what is in use or may still be resumed."""
        for path in list(self._tmp.iterdir()):
            if path.name == own:
                continue
            if path.name.startswith(_TRASH):
                _remove(path)
                continue
            staged = path.name.startswith(_STAGE)
            owner = path.name.removeprefix(_STAGE).rsplit("-", 1)[0] if staged else path.name
            with nullcontext(held) if owner == own else exclusive(self._lock(owner), wait=False) as free:
                if (staged and free) or (free is not False and _age(path) > _KEEP_SECONDS):
                    _remove(path)


def _age(folder: Path) -> float:
    newest = 0.0
    for root, _, names in os.walk(folder):
        for path in (root, *(os.path.join(root, n) for n in names)):
            with suppress(OSError):
                newest = max(newest, os.lstat(path).st_mtime)
    return time.time() - newest


def _remove(path: Path) -> None:
    # A leftover that resists now is tried again by the next pull.
    shutil.rmtree(path, ignore_errors=True)
