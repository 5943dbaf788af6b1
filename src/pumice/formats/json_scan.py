"""A forward-only JSON reader over mapped bytes: it builds nothing that its caller does not keep, and never recurses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from pumice.errors import FormatError
from pumice.formats.weights import MappedFile, malformed, shown

# Levels of nesting in values that are skipped; the formats read here use two.
MAX_DEPTH = 64

_SPACE = re.compile(rb"[ \t\r\n]*+")
# The possessive repeats (*+, ++) keep the matcher from remembering every step of a string of 100 MB.
_STRING = re.compile(rb'"(?:[^"\\\x00-\x1f]++|\\.)*+"')
# Sizes are counts of at most 64 bits, without sign, fraction or exponent.
_COUNT = re.compile(rb"(?:0|[1-9][0-9]{0,19})(?![0-9.eE])")
_ATOM = re.compile(rb"true|false|null|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_HINT = "the file is damaged or was not written by a safetensors library: download it again"


class JsonScan:
    """A position in the JSON text that fills `file[begin:end]`; every method consumes one thing or raises FormatError."""

    def __init__(self, file: MappedFile, begin: int, end: int, what: str) -> None:
        self.file = file
        self.pos = begin
        self.end = end
        self.what = what

    def fail(self, message: str, offset: int | None = None) -> FormatError:
        """The error for something wrong here."""
        return malformed(self.file.path, f"{self.what}: {message}", offset=self.pos if offset is None else offset, hint=_HINT)

    def space(self) -> None:
        found = _SPACE.match(self.file.data, self.pos, self.end)
        self.pos = found.end() if found else self.pos

    def peek(self) -> bytes:
        """The next byte after any space, or nothing at the end."""
        self.space()
        return self.file.data[self.pos : min(self.pos + 1, self.end)]

    def expect(self, mark: bytes) -> None:
        found = self.peek()
        if found != mark:
            raise self.fail(f"expected {mark.decode()!r}, found {_shown_byte(found)}")
        self.pos += 1

    def string(self, cap: int) -> str:
        """A string of at most `cap` bytes as written."""
        self.space()
        found = _STRING.match(self.file.data, self.pos, self.end)
        if found is None:
            raise self.fail(f"expected a string, found {_shown_byte(self.peek())}")
        if found.end() - self.pos > cap + 2:
            raise self.fail(f"a string of {found.end() - self.pos - 2} bytes, more than {cap}")
        try:
            text: str = json.loads(found.group().decode())
            text.encode()  # lone surrogates cannot be encoded, neither to a file name nor to a terminal
        except ValueError as error:
            raise self.fail("a string that is not valid JSON or UTF-8") from error
        self.pos = found.end()
        return text

    def count(self) -> int:
        """A whole number from 0 to 2^64 - 1."""
        self.space()
        found = _COUNT.match(self.file.data, self.pos, self.end)
        if found is None or (value := int(found.group())) >= 1 << 64:
            raise self.fail("expected a whole number of at most 64 bits")
        self.pos = found.end()
        return value

    def counts(self, cap: int) -> tuple[int, ...]:
        """A list of at most `cap` whole numbers."""
        self.expect(b"[")
        found: list[int] = []
        while self.peek() != b"]":
            if found:
                self.expect(b",")
            if len(found) == cap:
                raise self.fail(f"a list of more than {cap} numbers")
            found.append(self.count())
        self.pos += 1
        return tuple(found)

    def keys(self, cap: int) -> Iterator[str]:
        """The keys of an object, each to be followed by reading its value; a key that occurs twice is refused."""
        self.expect(b"{")
        seen: set[str] = set()
        while self.peek() != b"}":
            if seen:
                self.expect(b",")
                self.space()
            at = self.pos
            key = self.string(cap)
            if key in seen:
                raise self.fail(f"key {shown(key)} occurs twice", at)
            seen.add(key)
            self.expect(b":")
            yield key
        self.pos += 1

    def skip(self) -> None:
        """Any value, unread: brackets must match and tokens be JSON's, but nothing of it is kept or used."""
        closing: list[bytes] = []
        while True:
            mark = self.peek()
            if mark in (b"{", b"["):
                if len(closing) == MAX_DEPTH:
                    raise self.fail(f"values nest deeper than {MAX_DEPTH}")
                closing.append(b"}" if mark == b"{" else b"]")
                self.pos += 1
            elif closing and mark == closing[-1]:
                closing.pop()
                self.pos += 1
            elif closing and mark in (b",", b":"):
                self.pos += 1
            else:
                found = (_STRING if mark == b'"' else _ATOM).match(self.file.data, self.pos, self.end)
                if found is None:
                    raise self.fail(f"expected a value, found {_shown_byte(mark)}")
                self.pos = found.end()
            if not closing:
                return

    def finish(self) -> None:
        """Nothing but space may follow."""
        if self.peek():
            raise self.fail("text after the end of the JSON object")


def _shown_byte(found: bytes) -> str:
    return repr(found)[1:] if found else "the end"
