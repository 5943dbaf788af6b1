"""What an object file asks of others."""

from __future__ import annotations

import struct

_SYMBOLS = 2  # the type of the section that lists them


def undefined_symbols(data: bytes) -> set[str]:
    """The names that a 64-bit, little-endian ELF object refers to and does not define."""
    assert data[:6] == b"\x7fELF\x02\x01"
    begin, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, begin + 64 * i) for i in range(count)]
    found = set()
    for _, kind, _, _, offset, size, link, _, _, _ in sections:
        if kind != _SYMBOLS:
            continue
        names = sections[link][4]
        for at in range(offset + 24, offset + size, 24):
            name, _, _, section = struct.unpack_from("<IBBH", data, at)
            if section == 0:
                found.add(data[names + name : data.index(b"\0", names + name)].decode())
    return found
