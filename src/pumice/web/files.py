"""The files of a web folder as a server sees them: found by their names alone, with hash and compressed form kept in memory."""

from __future__ import annotations

import gzip
import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pumice.web import STATIC, page_files

_TEXT = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".txt": "text/plain",
    ".md": "text/plain",
    ".ts": "text/plain",
    ".wgsl": "text/plain",
    ".csv": "text/csv",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".svg": "image/svg+xml",
}
_OTHER = {".png": "image/png", ".ico": "image/x-icon", ".wasm": "application/wasm", ".woff2": "font/woff2"}
_BYTES = "application/octet-stream"
# Weights hardly shrink, and are sent by ranges; plans are text.
_COMPRESSED = {*_TEXT, ".plan", ".jinja"}
_SMALLEST, _LARGEST = 512, 64 << 20


@dataclass(frozen=True, slots=True)
class ServedFile:
    """One file as it was when it was last read: path, hash, size, media type, and its bytes under gzip if these are fewer."""

    path: Path
    sha256: str
    size: int
    media_type: str
    gzipped: bytes | None


class WebFolder:
    """Files below a folder, and the built page for names that the folder lacks. Nothing outside is reached, by no name or link.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     _ = (Path(name) / "a b.json").write_text("{}")
    ...     folder = WebFolder(name)
    ...     folder.find("/a b.json").media_type, folder.find("/../etc/passwd"), folder.find("/c.json")
    ('application/json; charset=utf-8', None, None)
    """

    def __init__(self, folder: str | os.PathLike[str], *, page: bool = True) -> None:
        self.folder = Path(folder).resolve()
        self._page = frozenset(page_files()) if page else frozenset()
        self._known: dict[Path, tuple[tuple[int, ...], ServedFile]] = {}
        self._lock = threading.Lock()

    def find(self, url_path: str) -> ServedFile | None:
        """The file of a decoded path of a URL, None if there is none. `/` and what ends with it stand for an `index.html`."""
        parts = _parts(url_path)
        if parts is None:
            return None
        path = _inside(self.folder, parts)
        if path is None and "/".join(parts) in self._page:
            path = _inside(STATIC, parts)
        return None if path is None else self._look(path)

    def _look(self, path: Path) -> ServedFile | None:
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                key = (status.st_ino, status.st_size, status.st_mtime_ns)
                with self._lock:
                    known = self._known.get(path)
                if known is not None and known[0] == key:
                    return known[1]
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                gzipped = None
                if path.suffix in _COMPRESSED and _SMALLEST <= status.st_size <= _LARGEST:
                    file.seek(0)
                    packed = gzip.compress(file.read(), 6, mtime=0)
                    gzipped = packed if len(packed) < status.st_size else None
        except OSError:
            return None
        text = _TEXT.get(path.suffix)
        kind = f"{text}; charset=utf-8" if text else _OTHER.get(path.suffix, _BYTES)
        found = ServedFile(path, sha256, status.st_size, kind, gzipped)
        with self._lock:
            self._known[path] = key, found
        return found


def _parts(url_path: str) -> Sequence[str] | None:
    """The names that a path of a URL consists of; None if one of them could lead elsewhere, or is hidden."""
    parts = url_path.removeprefix("/").split("/")
    if parts[-1] == "":
        parts[-1] = "index.html"
    if any(not part or part.startswith(".") or "\\" in part or ":" in part or not part.isprintable() for part in parts):
        return None
    return parts


def _inside(folder: Path, parts: Sequence[str]) -> Path | None:
    path = folder.joinpath(PurePosixPath(*parts))
    try:
        resolved = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        return None
    return resolved if resolved.is_relative_to(folder) and resolved.is_file() else None
