"""Puts compiled kernels into memory without LLVM, whose library takes 46 MB and a tenth of a start only to be loaded.

LLVM compiles kernels for its large code model, in which every address is a word of its own to be filled in, on Linux with x86-64.
Objects that have anything else in them, and those of other systems, are left to LLVM's own loader.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
import sys
from collections.abc import Iterator
from typing import Any

from pumice.core.records import dataclass

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_LITTLE_64_BIT = b"\x7fELF\x02\x01\x01"
_RELOCATABLE, _X86_64 = 1, 62
_NO_BITS, _SYMBOLS, _RELOCATIONS = 8, 2, 4
_WRITE, _ALLOCATE = 1, 2
_UNDEFINED, _FIRST_RESERVED = 0, 0xFF00
_ABSOLUTE_WORD = 1  # R_X86_64_64
_UNWINDING = b".eh_frame"  # for exceptions, which kernels do not have


class NotHere(Exception):
    """Something about an object that only LLVM's loader knows what to do with."""


@dataclass(frozen=True, slots=True)
class _Section:
    name: bytes
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


def load_object(code: bytes, symbol: str) -> int | None:
    """The address of a symbol of an object, which stays in memory for the rest of the process; None where LLVM is to load it.

    >>> load_object(b"something else", "f") is None
    True
    """
    if sys.platform != "linux":
        return None
    try:
        return _load(code, symbol.encode())
    except (NotHere, struct.error, IndexError, ValueError, OSError):
        return None


def _load(code: bytes, symbol: bytes) -> int | None:
    sections = _sections(code)
    places, size = _places(sections)
    symbols = _symbols(code, sections)
    filled = bytearray(size)
    for number, at in places.items():
        section = sections[number]
        if section.kind != _NO_BITS:
            filled[at : at + section.size] = _cut(code, section)
    memory = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def address(name: bytes, section: int, value: int) -> int:
        if section in places:
            return base + places[section] + value
        if section != _UNDEFINED:
            raise NotHere(name)
        return _of_process(name)

    for relocations in (s for s in sections if s.kind == _RELOCATIONS and s.info in places):
        start, end = places[relocations.info], places[relocations.info] + sections[relocations.info].size
        for offset, info, addend in _RELOCATION.iter_unpack(_cut(code, relocations)):
            if info & 0xFFFFFFFF != _ABSOLUTE_WORD or not start <= start + offset <= end - 8:
                raise NotHere(info)
            target = address(*symbols[info >> 32]) + addend
            struct.pack_into("<Q", filled, start + offset, target & (1 << 64) - 1)
    found = [address(*entry) for entry in symbols if entry[0] == symbol and entry[1] in places]
    if not found:
        return None
    memory[:size] = bytes(filled)
    _protect(base, len(memory))
    # Threads of the pool run this code until the process is gone, after Python has let go of every module: it is never freed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    return found[0]


def _sections(code: bytes) -> list[_Section]:
    """The sections of an object of this system."""
    magic, kind, machine, _, _, _, start, _, _, _, _, each, count, names = _HEADER.unpack_from(code)
    if not magic.startswith(_LITTLE_64_BIT) or (kind, machine, each) != (_RELOCATABLE, _X86_64, _SECTION.size):
        raise NotHere(magic)
    rows = [_SECTION.unpack_from(code, start + i * each) for i in range(count)]
    texts = code[rows[names][4] : rows[names][4] + rows[names][5]]
    return [_Section(_text(texts, r[0]), r[1], r[2], *r[4:9]) for r in rows]


def _places(sections: list[_Section]) -> tuple[dict[int, int], int]:
    """Where each section that is needed in memory goes, from the beginning of it all, and how much that is."""
    places, size = {}, 0
    for number, section in enumerate(sections):
        if not section.flags & _ALLOCATE or section.name == _UNWINDING:
            continue
        if section.flags & _WRITE or section.alignment > mmap.PAGESIZE:
            raise NotHere(section.name)
        size = -(-size // max(1, section.alignment)) * max(1, section.alignment)
        places[number] = size
        size += section.size
    return places, size


def _symbols(code: bytes, sections: list[_Section]) -> list[tuple[bytes, int, int]]:
    """The name, section and value of each symbol."""
    found: list[tuple[bytes, int, int]] = []
    for table in (s for s in sections if s.kind == _SYMBOLS):
        texts = _cut(code, sections[table.link])
        for name, _, _, section, value, _ in _SYMBOL.iter_unpack(_cut(code, table)):
            found.append((_text(texts, name), section if section < _FIRST_RESERVED else -1, value))
    return found


def _cut(code: bytes, section: _Section) -> bytes:
    part = code[section.offset : section.offset + section.size]
    if len(part) != section.size:
        raise NotHere(section.name)
    return part


def _text(texts: bytes, start: int) -> bytes:
    return texts[start : texts.index(b"\0", start)]


@functools.cache
def _libraries() -> list[Any]:
    """This process's own symbols and those of the C library, which are among them unless Python was linked in an odd way."""
    return list(_opened())


def _opened() -> Iterator[Any]:
    for name in (None, "libc.so.6", "libm.so.6"):
        try:
            yield ctypes.CDLL(name)
        except OSError:  # another C library than GNU's
            continue


@functools.cache
def _of_process(name: bytes) -> int:
    for library in _libraries():
        try:
            found = ctypes.cast(getattr(library, name.decode()), ctypes.c_void_p).value
        except AttributeError:
            continue
        if found:
            return found
    raise NotHere(name)


def _protect(address: int, size: int) -> None:
    """Makes memory executable, and no longer writable."""
    mprotect = ctypes.CDLL(None).mprotect
    mprotect.argtypes, mprotect.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    if mprotect(address, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise NotHere("the system allows no code in this memory")
