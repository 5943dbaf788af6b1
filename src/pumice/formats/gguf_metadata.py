"""The key-value part of a GGUF header: a cursor that trusts no length, and values that are decoded when they are read."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from mmap import mmap
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from pumice.errors import FormatError
from pumice.formats.string_lengths import StringLengths
from pumice.formats.weights import MappedFile, malformed, shown

# Header bytes (key-values and tensor infos). Real ones are below 30 MB, nearly all of it vocabulary.
MAX_HEADER = 256 << 20
# Key-value pairs; real files have some fifty.
MAX_PAIRS = 1 << 16
# The format's own bound on keys.
MAX_KEY = (1 << 16) - 1
# One string value. The longest in use is a whole tokenizer.json in one key, about 35 MB.
MAX_STRING = 64 << 20
# Strings in arrays cost a Python step each, so all of a file's arrays share this budget: a vocabulary of 262,144 tokens
# with its merges is below 800,000.
MAX_STRINGS = 1 << 21
# Arrays in arrays, which no known writer uses: in all, and how deep (parsing recurses once a level).
MAX_ARRAYS = 1 << 16
MAX_DEPTH = 8

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_READERS = {code: struct.Struct(spec) for code, spec in _SCALARS.items()}
_NUMPY = {code: np.dtype(spec) for code, spec in _SCALARS.items()}
_TYPE_NAMES = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array", "uint64", "int64", "float64",
)  # fmt: skip
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# A character that no token of a vocabulary has.
_SEPARATOR = 0

_NO_PATH = Path()

_DAMAGED = "the file is truncated or damaged: compare its size with the source and download it again"
_HOSTILE = "the file is damaged or hostile: download it again from a source you trust"


class Cursor:
    """A reading position in a header; every read is checked against what remains before anything is allocated."""

    __slots__ = ("arrays", "end", "file", "lengths", "pos", "strings")

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.pos = 0
        self.end = min(file.size, MAX_HEADER)
        self.strings = MAX_STRINGS
        self.arrays = MAX_ARRAYS
        self.lengths = StringLengths(file)

    def need(self, count: int, what: str) -> None:
        """Raise unless `count` more bytes are there."""
        left = self.end - self.pos
        if count <= left:
            return
        if self.end < self.file.size:
            raise self.fail(f"{what} takes the header beyond {MAX_HEADER} bytes", needed=count)
        raise self.fail(f"{what} needs {count} bytes, {left} are left", _DAMAGED, needed=count, left=left)

    def fail(self, what: str, hint: str = _HOSTILE, **fields: Any) -> FormatError:
        """The error for something wrong at the current position."""
        return malformed(self.file.path, what, offset=self.pos, hint=hint, **fields)

    def u32(self, what: str) -> int:
        self.need(4, what)
        (value,) = _U32.unpack_from(self.file.data, self.pos)
        self.pos += 4
        return int(value)

    def u64(self, what: str) -> int:
        self.need(8, what)
        (value,) = _U64.unpack_from(self.file.data, self.pos)
        self.pos += 8
        return int(value)

    def count(self, what: str, each: int, cap: int) -> int:
        """A 64-bit count of things that take at least `each` bytes; neither above the cap nor more than can follow."""
        start = self.pos
        value = self.u64(f"the number of {what}")
        if value > cap:
            self.pos = start
            raise self.fail(f"{value} {what}, more than the {cap} that are read", count=value, cap=cap)
        self.need(value * each, f"{value} {what}")
        return value

    def name(self, what: str, cap: int) -> str:
        """A key or tensor name: bounded, valid UTF-8, not empty, without NUL (where readers in C would cut it)."""
        start = self.pos
        length = self.u64(f"the length of {what}")
        if not 0 < length <= cap:
            self.pos = start
            raise self.fail(f"{what} has {length} bytes, allowed are 1 to {cap}", length=length, cap=cap)
        self.need(length, what)
        raw = self.file.data[self.pos : self.pos + length]
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not valid UTF-8: {raw[:40]!r}") from error
        if "\0" in text:
            raise self.fail(f"{what} contains a NUL: {shown(text)}")
        self.pos += length
        return text


class StringArray(Sequence[str]):
    """The strings of a metadata array, decoded on access; `tolist` decodes all at once.

    >>> words = StringArray(b"".join(len(w).to_bytes(8, "little") + w for w in [b"to", b"be"]), array("Q", [0, 10, 20]))
    >>> words[-1], words.tolist(), words.raw(0)
    ('be', ['to', 'be'], b'to')
    """

    __slots__ = ("_bounds", "_data", "_key", "_path")

    def __init__(self, data: bytes | mmap, bounds: array[int], path: Path = _NO_PATH, key: str = "") -> None:
        self._data = data
        self._bounds = bounds  # where each string ends; its text starts 8 bytes (the length) after the end before it
        self._path = path
        self._key = key

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def raw(self, index: int) -> bytes:
        """The bytes of one string, whether they are UTF-8 or not."""
        index = range(len(self))[index]
        return self._data[self._bounds[index] + 8 : self._bounds[index + 1]]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        try:
            return self.raw(index).decode()
        except UnicodeDecodeError as error:
            raise malformed(
                self._path,
                f"string {index} of {shown(self._key)} is not valid UTF-8",
                offset=self._bounds[range(len(self))[index]] + 8 + error.start,
                hint=_HOSTILE,
                key=self._key,
            ) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def tolist(self) -> list[str]:
        """All strings."""
        # The lengths in between become separators, and all is decoded and cut at once: several times as fast as one by one.
        first = self._bounds[0]
        blob = self._data[first : self._bounds[-1]]
        bounds = np.frombuffer(self._bounds, np.uint64).astype(np.int64) - first
        kept = np.ones(len(blob), bool)
        for byte in range(7):
            kept[bounds[:-1] + byte] = False
        bytes_left = np.frombuffer(blob, np.uint8).copy()
        bytes_left[bounds[:-1] + 7] = _SEPARATOR
        try:
            found = bytes_left[kept].tobytes().decode().split(chr(_SEPARATOR))[1:]
        except UnicodeDecodeError:
            found = []
        # A string that holds a separator, or is not UTF-8, must be decoded separately.
        return found if len(found) == len(self) else [self[i] for i in range(len(self))]

    def __repr__(self) -> str:
        return f"<StringArray of {len(self)}>"


class _Text:
    """Where a long string is; decoding waits until the value is read, as a header may hold 64 MB of them."""

    __slots__ = ("length", "offset")

    def __init__(self, offset: int, length: int) -> None:
        self.offset = offset
        self.length = length


class Metadata(Mapping[str, Any]):
    """The key-values of a GGUF file: int, float, bool, str, NumPy arrays, `StringArray`, or lists for nested arrays."""

    def __init__(self, file: MappedFile, values: dict[str, Any], types: dict[str, str], span: tuple[int, int]) -> None:
        self._file, self._span = file, span
        self._values = values
        self._types = types

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if not isinstance(value, _Text):
            return value
        raw = self._file.data[value.offset : value.offset + value.length]
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise malformed(
                self._file.path,
                f"the text of {shown(key)} is not valid UTF-8",
                offset=value.offset + error.start,
                hint=_HOSTILE,
                key=key,
            ) from error

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def type_of(self, key: str) -> str:
        """The stored type's name, such as uint32 or array."""
        return self._types[key]

    def digest(self) -> str:
        """The SHA-256 of all its bytes in the file."""
        return hashlib.sha256(memoryview(self._file.data)[slice(*self._span)]).hexdigest()


def metadata_digest(metadata: Mapping[str, Any]) -> str | None:
    """The digest of metadata that a file holds, None of any other.

    >>> metadata_digest({"general.name": "mine"}) is None
    True
    """
    return metadata.digest() if isinstance(metadata, Metadata) else None


def read_pairs(cursor: Cursor, count: int) -> Metadata:
    """`count` key-value pairs at the cursor."""
    values: dict[str, Any] = {}
    types: dict[str, str] = {}
    begin = cursor.pos
    for index in range(count):
        start = cursor.pos
        key = cursor.name(f"the key of pair {index}", MAX_KEY)
        if key in values:
            raise malformed(cursor.file.path, f"key {shown(key)} occurs twice", offset=start, hint=_HOSTILE, key=key)
        code = _value_type(cursor, key)
        types[key] = _TYPE_NAMES[code]
        values[key] = _value(cursor, key, code)
    cursor.lengths.keep()
    return Metadata(cursor.file, values, types, (begin, cursor.pos))


def _value_type(cursor: Cursor, key: str) -> int:
    code = cursor.u32(f"the type of {shown(key)}")
    if code >= len(_TYPE_NAMES):
        cursor.pos -= 4
        raise cursor.fail(f"{shown(key)} has value type {code}, which GGUF does not have", key=key, type=code)
    return code


def _value(cursor: Cursor, key: str, code: int) -> Any:
    if code == _STRING:
        return _string(cursor, key)
    if code == _ARRAY:
        return _array(cursor, key, 1)
    reader = _READERS[code]
    cursor.need(reader.size, f"the value of {shown(key)}")
    (value,) = reader.unpack_from(cursor.file.data, cursor.pos)
    if code == _BOOL:
        if value > 1:
            raise cursor.fail(f"{shown(key)} is a bool of value {value}", key=key)
        value = bool(value)
    cursor.pos += reader.size
    return value


def _string(cursor: Cursor, key: str) -> _Text:
    what = f"the text of {shown(key)}"
    length = cursor.u64(what)
    if length > MAX_STRING:
        cursor.pos -= 8
        raise cursor.fail(f"{what} has {length} bytes, more than {MAX_STRING}", key=key, length=length, cap=MAX_STRING)
    cursor.need(length, what)
    text = _Text(cursor.pos, length)
    cursor.pos += length
    return text


def _array(cursor: Cursor, key: str, depth: int) -> NDArray[Any] | StringArray | list[Any]:
    if depth > MAX_DEPTH:
        raise cursor.fail(f"the arrays of {shown(key)} nest deeper than {MAX_DEPTH}", key=key)
    code = _value_type(cursor, key)
    count = cursor.u64(f"the length of array {shown(key)}")
    if code in _NUMPY:
        return _numbers(cursor, key, code, count)
    # A string takes its length, an array its type and length: a count that cannot fit is refused before any loop.
    cursor.need(count * (8 if code == _STRING else 12), f"array {shown(key)} of {count} {_TYPE_NAMES[code]} values")
    if code == _STRING:
        if count > cursor.strings:
            raise cursor.fail(f"array {shown(key)} takes the file beyond {MAX_STRINGS} strings", key=key, count=count)
        cursor.strings -= count
        return _strings(cursor, key, count)
    if count > cursor.arrays:
        raise cursor.fail(f"array {shown(key)} takes the file beyond {MAX_ARRAYS} nested arrays", key=key, count=count)
    cursor.arrays -= count
    return [_array(cursor, key, depth + 1) for _ in range(count)]


def _numbers(cursor: Cursor, key: str, code: int, count: int) -> NDArray[Any]:
    dtype = _NUMPY[code]
    cursor.need(count * dtype.itemsize, f"array {shown(key)} of {count} {_TYPE_NAMES[code]} values")
    # A view, although it may be misaligned: NumPy reads it all the same, and a copy would cost what the file asks for.
    found = np.frombuffer(cursor.file.data, dtype, count, cursor.pos)
    if code == _BOOL:
        if count and found.max() > 1:
            raise cursor.fail(f"array {shown(key)} holds bools other than 0 and 1", key=key)
        found = found.view(np.bool_)
    cursor.pos += count * dtype.itemsize
    return found


def _strings(cursor: Cursor, key: str, count: int) -> StringArray:
    data, end, pos = cursor.file.data, cursor.end, cursor.pos
    known = cursor.lengths.bounds(pos, count, end)
    if known is not None:
        cursor.pos = known[-1]
        return StringArray(data, known, cursor.file.path, key)
    bounds = array("Q", [pos])
    unpack, append = _U64.unpack_from, bounds.append
    # The one loop over a vocabulary at opening: it follows the lengths and decodes nothing.
    for index in range(count):
        if end - pos < 8:
            cursor.pos = pos
            cursor.need(8, f"the length of string {index} in {shown(key)}")
        pos += 8 + unpack(data, pos)[0]
        if pos > end:
            cursor.pos = bounds[-1] + 8
            cursor.need(pos - cursor.pos, f"string {index} in {shown(key)}")
        append(pos)
    cursor.lengths.note(cursor.pos, bounds)
    cursor.pos = pos
    return StringArray(data, bounds, cursor.file.path, key)
