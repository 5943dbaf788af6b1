"""What HTTP headers of a request ask for: one byte range, a compressed body, a body only if it changed. Pure functions."""

from __future__ import annotations

import re
from typing import Literal

_RANGE = re.compile(r"bytes=[ \t]*([0-9]{0,19})[ \t]*-[ \t]*([0-9]{0,19})[ \t]*", re.IGNORECASE)


def wanted_range(header: str | None, size: int) -> tuple[int, int] | Literal["all", "unsatisfiable"]:
    """The bytes that a `Range` asks for, as begin and end; several ranges, or what is none, stand for the whole file (RFC 9110).

    >>> [wanted_range(f"bytes={asked}", 100) for asked in ("10-19", "90-", "-5", "90-500")]
    [(10, 20), (90, 100), (95, 100), (90, 100)]
    >>> wanted_range("bytes=100-", 100), wanted_range("bytes=-0", 100), wanted_range("bytes=0-", 0)
    ('unsatisfiable', 'unsatisfiable', 'unsatisfiable')
    >>> [wanted_range(header, 100) for header in (None, "bytes=0-1,5-6", "bytes=9-3", "lines=1-2")]
    ['all', 'all', 'all', 'all']
    """
    match = _RANGE.fullmatch(header or "")
    if match is None or match.groups() == ("", ""):
        return "all"
    first, last = match.groups()
    if not first:
        begin, end = max(size - int(last), 0), size
    else:
        begin, end = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < begin:
            return "all"
    return (begin, end) if begin < end else "unsatisfiable"


def accepts_gzip(header: str | None) -> bool:
    """Whether a body may come compressed with gzip.

    >>> accepts_gzip("gzip, deflate, br"), accepts_gzip("br;q=1, *;q=0.1"), accepts_gzip("GZIP ; Q=0.5")
    (True, True, True)
    >>> accepts_gzip(None), accepts_gzip("identity"), accepts_gzip("gzip;q=0, *"), accepts_gzip("gzip;q=none")
    (False, False, False, False)
    """
    quality: dict[str, float] = {}
    for entry in (header or "").lower().split(","):
        coding, *parameters = (part.strip() for part in entry.split(";"))
        quality[coding] = 1.0
        for name, _, value in (parameter.partition("=") for parameter in parameters):
            if name.strip() == "q":
                quality[coding] = float(value) if re.fullmatch(r"\s*[01](\.[0-9]{0,3})?\s*", value) else 0.0
    return quality.get("gzip", quality.get("*", 0.0)) > 0


def names_tag(header: str | None, tag: str) -> bool:
    """Whether an `If-None-Match` has a tag; weak tags count as strong ones.

    >>> names_tag('"a", W/"b"', '"b"'), names_tag("*", '"b"'), names_tag('"bc"', '"b"'), names_tag(None, '"b"')
    (True, True, False, False)
    """
    if header is None:
        return False
    return header.strip() == "*" or tag in re.findall(r'(?:W/)?("[^"]*")', header)
