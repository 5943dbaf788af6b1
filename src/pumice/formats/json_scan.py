"""A forward-only JSON reader over mapped bytes: it builds nothing that its caller does not keep, and never recurses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from pumice.errors import FormatError
from pumice.formats.weights import MappedFile, malformed, shown

# Levels of nesting and number of tokens in a value that is skipped; what is skipped in real files is a handful of numbers.
MAX_DEPTH = 64
MAX_SKIPPED = 100_000

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
        self._data = file.data

    def fail(self, message: str, offset: int | None = None) -> FormatError:
        """The error for something wrong here."""
        return malformed(self.file.path, f"{self.what}: {message}", offset=self.pos if offset is None else offset, hint=_HINT)

    def peek(self) -> str:
        """The next character after any space, as one byte of it reads; nothing at the end."""
        if self.pos < self.end and self._data[self.pos] > 32:  # the common case, without the matcher
            return chr(self._data[self.pos])
        found = _SPACE.match(self._data, self.pos, self.end)
        self.pos = found.end() if found else self.pos
        return chr(self._data[self.pos]) if self.pos < self.end else ""

    def expect(self, mark: str) -> None:
        """One of the marks of JSON."""
        found = self.peek()
        if found != mark:
            raise self.fail(f"expected {mark!r}, found {_shown(found)}")
        self.pos += 1

    def string(self, cap: int) -> str:
        """A string of at most `cap` bytes as written."""
        mark = self.peek()
        found = _STRING.match(self._data, self.pos, self.end)
        if found is None:
            raise self.fail(f"expected a string, found {_shown(mark)}")
        begin, end = self.pos + 1, found.end() - 1
        if end - begin > cap:
            raise self.fail(f"a string of {end - begin} bytes, more than {cap}")
        raw = self._data[begin:end]
        try:
            text = raw.decode()
            if b"\\" in raw:
                text = json.loads(f'"{text}"')
                text.encode()  # escapes can spell lone surrogates, which fit neither a file name nor a terminal
        except ValueError as error:
            raise self.fail("a string that is not valid JSON or UTF-8") from error
        self.pos = end + 1
        return text

    def count(self) -> int:
        """A whole number from 0 to 2^64 - 1."""
        self.peek()
        found = _COUNT.match(self._data, self.pos, self.end)
        if found is None or (value := int(found.group())) >= 1 << 64:
            raise self.fail("expected a whole number of at most 64 bits")
        self.pos = found.end()
        return value

    def counts(self, cap: int) -> tuple[int, ...]:
        """A list of at most `cap` whole numbers."""
        self.expect("[")
        found: list[int] = []
        while self.peek() != "]":
            if found:
                self.expect(",")
            if len(found) == cap:
                raise self.fail(f"a list of more than {cap} numbers")
            found.append(self.count())
        self.pos += 1
        return tuple(found)

    def keys(self, cap: int) -> Iterator[str]:
        """The keys of an object, each to be followed by reading its value; a key that occurs twice is refused."""
        self.expect("{")
        seen: set[str] = set()
        while self.peek() != "}":
            if seen:
                self.expect(",")
                self.peek()
            at = self.pos
            key = self.string(cap)
            if key in seen:
                raise self.fail(f"key {shown(key)} occurs twice", at)
            seen.add(key)
            self.expect(":")
            yield key
        self.pos += 1

    def skip(self) -> None:
        """Any value, unread: brackets must match and tokens be JSON's, but nothing of it is kept or used."""
        closing = ""
        for _ in range(MAX_SKIPPED):
            mark = self.peek()
            if mark in ("{", "["):
                if len(closing) == MAX_DEPTH:
                    raise self.fail(f"values nest deeper than {MAX_DEPTH}")
                closing += "}" if mark == "{" else "]"
                self.pos += 1
            elif mark and closing.endswith(mark):
                closing = closing[:-1]
                self.pos += 1
            elif closing and mark in (",", ":"):
                self.pos += 1
            else:
                found = (_STRING if mark == '"' else _ATOM).match(self._data, self.pos, self.end)
                if found is None:
                    raise self.fail(f"expected a value, found {_shown(mark)}")
                self.pos = found.end()
            if not closing:
                return
        raise self.fail(f"a value of more than {MAX_SKIPPED} tokens")

    def finish(self) -> None:
        """Nothing but space may follow."""
        if self.peek():
            raise self.fail("text after the end of the JSON object")


def _shown(mark: str) -> str:
    return repr(mark) if mark else "the end"
