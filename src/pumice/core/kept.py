"""Files in the user's cache that hold what can be made again: each begins with its digest, and appears as a whole."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

_DIGEST_BYTES = hashlib.sha256().digest_size


def read_kept(path: Path) -> bytes | None:
    """What `keep` put into a file; None if there is none, or something else.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     keep(Path(folder, "new", "a"), b"text")
    ...     Path(folder, "b").write_bytes(b"something else"), read_kept(Path(folder, "b")), read_kept(Path(folder, "new", "a"))
    (14, None, b'text')
    """
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == digest else None


def keep(path: Path, content: bytes) -> None:
    """Puts bytes into a file at once; where that is not possible, the next process makes them again.

    >>> keep(Path(os.devnull, "nowhere"), b"text")
    """
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(hashlib.sha256(content).digest() + content)
            os.replace(made, path)
        except OSError:
            os.unlink(made)
            raise
