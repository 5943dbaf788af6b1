"""Errors between a model's name and its files; all are `InputError`, as the caller can fix them."""

from __future__ import annotations

from pumice.errors import InputError


def plain(text: object) -> str:
    """A server's or archive's message made safe to show: one line, shortened, without terminal escapes.

    >>> plain("no\\x1b[2J\\nway"), len(plain("x" * 1000))
    ('no?[2J?way', 301)
    """
    line = "".join(c if c.isprintable() else "?" for c in str(text)[:301])
    return line if len(line) <= 300 else line[:300] + "…"


class SourceError(InputError):
    """A model that could not be found, fetched or trusted.

    >>> SourceError("no such model").exit_code
    2
    """

    code = "source"


class NotFound(SourceError):
    """The file, package, version, repository or revision does not exist."""

    code = "not-found"


class NoAccess(SourceError):
    """It exists, but asks for a login or for terms to be accepted."""

    code = "no-access"


class NoNetwork(SourceError):
    """The place that has it could not be reached, or stopped answering."""

    code = "no-network"
    exit_code = 5  # a script may try again later


class WrongHash(SourceError):
    """The downloaded file is not the pinned one; it has been deleted."""

    code = "wrong-hash"
    exit_code = 4


class TooLarge(SourceError):
    """A server sends more than the requested file can have."""

    code = "too-large"


class UnsafeArchive(SourceError):
    """An archive that would write outside its folder, or far more than it weighs."""

    code = "unsafe-archive"


class NoSpace(SourceError):
    """The disk of the cache is full, or would be."""

    code = "no-space"
