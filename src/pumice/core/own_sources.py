"""Where Pumice's source files are, and which this process runs: what is kept for the next start belongs to them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cache

# Where this package is, and not a folder above it that has its name, as a clone's has.
PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@cache
def sources_digest() -> str:
    """A digest of Pumice's source files, as this process found them when it was first asked.

    >>> len(sources_digest())
    64
    """
    return hashlib.sha256(repr(list(_sources())).encode()).hexdigest()


def _sources() -> Iterator[tuple[str, int, int]]:
    """Pumice's source files, as part of the key: an edited one counts as another version."""
    folders = [PACKAGE_FOLDER]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if entry.name.endswith(".py"):
                    found = entry.stat()
                    yield entry.path, found.st_size, found.st_mtime_ns
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
