"""Text that a command reads: UTF-8 from a file or standard input, or one line about what is wrong with it."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from pumice.errors import InputError

# How long standard input may be silent before a line says what is waited for.
_SILENCE_SECONDS = 2.0
# Characters of a text that is shown beside numbers.
_SHOWN = 60


def whole_prompt(prompt: str | None, *, raw: bool = False) -> str:
    """The prompt of a command line: its argument, with what is piped in behind it; `-` or no argument takes that alone.

    The newlines at its end are the file's and not the question's, but for a `raw` text.
    """
    piped = read_text(Path("-")) if prompt == "-" else _piped_text()
    piped = piped if raw else piped.rstrip("\n")
    if prompt is None or prompt == "-":
        if not piped.strip():
            raise InputError("there is no prompt", hint='pass one, as in: pumice run MODEL "PROMPT", or pipe a text in')
        return piped
    return f"{prompt}\n\n{piped}" if piped.strip() else prompt


def _piped_text() -> str:
    """What is piped or redirected into the command; empty for a terminal, a closed input and devices such as /dev/null."""
    if sys.stdin is None or sys.stdin.closed:
        return ""
    try:
        number = sys.stdin.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, io.UnsupportedOperation):
        return ""
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return ""
    # Some programs leave a pipe open and write nothing to it; without a message this would look like a hang.
    if os.name == "posix" and not select.select([number], [], [], _SILENCE_SECONDS)[0]:
        print("pumice: waiting for standard input to end; `< /dev/null` leaves it out", file=sys.stderr, flush=True)
    return read_text(Path("-"))


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


def text_items(texts: Sequence[str], file: Path | None, verb: str) -> list[str]:
    """The texts of a command line: its arguments, then the lines of the file that are not blank. Errors say `verb`."""
    # Newlines alone end a line: form feeds and the like belong to the text.
    lines = [] if file is None else [line for line in read_text(file).split("\n") if line.strip()]
    if not texts and not lines:
        raise InputError(f"there is no text to {verb}", hint="pass texts, or -f FILE with one a line")
    return [*texts, *lines]


def shortened(text: str) -> str:
    """The start of a text, on one line.

    >>> shortened("one\\n two"), len(shortened("a" * 99))
    ('one two', 60)
    """
    shown = " ".join(text.split())
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
