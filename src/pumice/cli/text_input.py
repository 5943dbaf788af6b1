"""Text that a command reads: UTF-8 from a file or standard input, or one line about what is wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path

from pumice.errors import InputError


def read_text(file: Path) -> str:
    """The text of a file; `-` is standard input. Line ends become newlines.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     _ = (Path(d) / "a.txt").write_bytes(b"one\\r\\ntwo")
    ...     read_text(Path(d) / "a.txt")
    'one\\ntwo'
    """
    name = "standard input" if str(file) == "-" else str(file)
    try:
        # Bytes: what Python makes of bad ones on standard input depends on the locale.
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return data.decode("utf-8").replace("\r\n", "\n")
    except OSError as e:
        raise InputError(f"{name} cannot be read: {e.strerror}", hint="give a text file in UTF-8") from None
    except UnicodeDecodeError as e:
        raise InputError(f"{name} is not UTF-8: byte {e.start} is {data[e.start]:#04x}", hint="convert it to UTF-8") from None
