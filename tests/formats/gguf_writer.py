"""Writes GGUF bytes piece by piece, so that tests can make every piece wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
# ggml type codes: name → (code, elements of a block, bytes of a block)
TYPES = {
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "q4_0": (2, 32, 18),
    "q4_1": (3, 32, 20),
    "q5_0": (6, 32, 22),
    "q5_1": (7, 32, 24),
    "q8_0": (8, 32, 34),
    "q2_k": (10, 256, 84),
    "q3_k": (11, 256, 110),
    "q4_k": (12, 256, 144),
    "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210),
    "q8_k": (15, 256, 292),
    "iq4_nl": (20, 32, 18),
    "iq4_xs": (23, 256, 136),
    "iq3_s": (21, 256, 110),
    "iq3_xxs": (18, 256, 98),
    "iq2_s": (22, 256, 82),
    "iq2_xs": (17, 256, 74),
    "iq2_xxs": (16, 256, 66),
    "iq1_m": (29, 256, 56),
    "iq1_s": (19, 256, 50),
    "tq2_0": (35, 256, 66),
    "tq1_0": (34, 256, 54),
    "mxfp4": (39, 32, 17),
    "nvfp4": (40, 64, 36),
    "i8": (24, 1, 1),
    "i32": (26, 1, 4),
    "bf16": (30, 1, 2),
}


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes, length: int | None = None) -> bytes:
    """A length and its bytes; `length` lies about it."""
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw) if length is None else length) + raw


def array_of(code: int, values: Sequence[Any], count: int | None = None) -> bytes:
    """An array's type, length and items; items of arrays are given as bytes."""
    if code == ARRAY:
        items = b"".join(values)
    elif code == STRING:
        items = b"".join(text(value) for value in values)
    else:
        items = struct.pack(f"<{len(values)}{FORMS[code]}", *values)
    return u32(code) + u64(len(values) if count is None else count) + items


def pair(key: str | bytes, code: int, value: Any) -> bytes:
    """A key-value pair; arrays, and anything else made wrong on purpose, are given as bytes."""
    if isinstance(value, bytes):
        body = value
    elif code == STRING:
        body = text(value)
    else:
        body = struct.pack("<" + FORMS[code], value)
    return text(key) + u32(code) + body


@dataclass(frozen=True)
class Tensor:
    """A table entry; dims in GGUF's order, fastest first. Without an offset the writer places it after the one before."""

    name: str | bytes = "w"
    kind: str = "f32"
    dims: tuple[int, ...] = (2,)
    data: bytes | None = None
    offset: int | None = None
    code: int | None = None
    rank: int | None = None

    @property
    def nbytes(self) -> int:
        _, block, size = TYPES[self.kind]
        count = 1
        for dim in self.dims:
            count *= dim
        return count // block * size

    @property
    def body(self) -> bytes:
        return bytes(i * 7 % 251 for i in range(self.nbytes)) if self.data is None else self.data

    def entry(self, offset: int) -> bytes:
        rank = len(self.dims) if self.rank is None else self.rank
        code = TYPES[self.kind][0] if self.code is None else self.code
        where = offset if self.offset is None else self.offset
        return text(self.name) + u32(rank) + b"".join(map(u64, self.dims)) + u32(code) + u64(where)


def gguf(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[Tensor] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    pair_count: int | None = None,
    alignment: int = 32,
    short: int = 0,
) -> bytes:
    """A whole file; `short` bytes are cut off its end."""
    table, data = b"", b""
    for tensor in tensors:
        data += bytes(-len(data) % alignment)
        table += tensor.entry(len(data))
        data += tensor.body
    head = magic + u32(version)
    head += u64(len(tensors) if tensor_count is None else tensor_count) + u64(len(pairs) if pair_count is None else pair_count)
    head += b"".join(pairs) + table
    whole = head + bytes(-len(head) % alignment) + data
    return whole[: len(whole) - short]
