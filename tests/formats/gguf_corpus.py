"""Malformed GGUF files, each with a name and the words that its error must contain."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from formats.gguf_writer import (
    ARRAY,
    BOOL,
    F32,
    F64,
    FORMS,
    I32,
    STRING,
    U8,
    U32,
    U64,
    Tensor,
    array_of,
    gguf,
    pair,
    text,
    u32,
    u64,
)

TOP = (1 << 64) - 1
NAME = pair("general.name", STRING, "a model")
ALIGN = "general.alignment"
TYPE_NAMES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array", "uint64", "int64")
UNSUPPORTED = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    25: "I16",
    27: "I64",
    28: "F64",
    31: "Q4_0_4_4",
    41: "Q1_0",
}


class Case(NamedTuple):
    name: str
    data: bytes
    match: str


def _header() -> list[Case]:
    def case(name: str, data: bytes, match: str) -> Case:
        return Case(f"header-{name}", data, match)

    valid = gguf([NAME], [Tensor()])
    return [
        case("empty-file", b"", "empty"),
        case("bad-magic", gguf(magic=b"FUGG"), "does not start with GGUF"),
        case("magic-lower-case", gguf(magic=b"gguf"), "does not start with GGUF"),
        case("magic-reversed", gguf(magic=b"FUGG"[::-1].lower()), "does not start with GGUF"),
        case("only-magic", b"GGUF", "the version needs 4 bytes, 0 are left"),
        case("one-byte", b"G", "does not start with GGUF"),
        case("version-0", gguf(version=0), "version 0 is not supported"),
        case("version-1", gguf(version=1), "version 1 is not supported"),
        case("version-future", gguf(version=4), "version 4 is not supported"),
        case("version-max", gguf(version=0xFFFFFFFF), "version 4294967295 is not supported"),
        case("big-endian-2", gguf(version=2 << 24), "big endian"),
        case("big-endian-3", gguf(version=3 << 24), "big endian"),
        case("bad-n-tensors", gguf(tensor_count=TOP), "tensors, more than"),
        case("bad-n-tensors-2-63", gguf(tensor_count=1 << 63), "tensors, more than"),
        case("n-tensors-below-cap", gguf(tensor_count=1 << 16), "65536 tensors needs"),
        case("n-tensors-one-too-many", gguf([NAME], [Tensor()], tensor_count=2), "the name of tensor 1 has"),
        case("bad-n-kv", gguf(pair_count=TOP), "key-value pairs, more than"),
        case("bad-n-kv-2-32", gguf(pair_count=1 << 32), "key-value pairs, more than"),
        case("n-kv-below-cap", gguf(pair_count=1 << 16), "65536 key-value pairs needs"),
        case("n-kv-one-too-many", gguf([NAME], pair_count=2), "key-value pairs needs|pair 1"),
        case("n-kv-one-too-few", gguf([NAME, pair("b", U32, 1)], [Tensor()], pair_count=1), "tensor"),
        case("cut-in-version", valid[:6], "the version needs 4 bytes"),
        case("cut-in-n-tensors", valid[:12], "the number of tensors"),
        case("cut-in-n-kv", gguf()[:20], "the number of key-value pairs"),
        case("cut-after-counts", valid[:24], "key-value pairs needs|tensors needs"),
    ]


def _pairs() -> list[Case]:
    def case(name: str, pairs: list[bytes], match: str, **more: int) -> Case:
        return Case(f"kv-{name}", gguf(pairs, **more), match)

    key = text("k")
    deep = array_of(U8, [1])
    for _ in range(64):
        deep = array_of(ARRAY, [deep])
    cases = [
        case("bad-key-size", [text("k", TOP) + u32(U8) + b"\1" * 8], "the key of pair 0 has 18446744073709551615 bytes"),
        case("key-size-2-32", [text("k", 1 << 32) + u32(U8) + b"\1" * 8], "the key of pair 0 has 4294967296 bytes"),
        case("key-beyond-end", [text("k", 5000) + u32(U8) + b"\1" * 8], "the key of pair 0 needs 5000 bytes"),
        case("key-too-long", [pair("k" * 65536, U8, 1)], "the key of pair 0 has 65536 bytes"),
        case("empty-key", [pair("", U8, 1)], "the key of pair 0 has 0 bytes"),
        case("key-not-utf8", [pair(b"\xff\xfe", U8, 1)], "not valid UTF-8"),
        case("key-overlong-utf8", [pair(b"\xc0\xaf", U8, 1)], "not valid UTF-8"),
        case("key-surrogate", [pair(b"\xed\xa0\x80", U8, 1)], "not valid UTF-8"),
        case("key-with-nul", [pair("a\0b", U8, 1)], "contains a NUL"),
        case("duplicate-key", [NAME, NAME], "'general.name' occurs twice"),
        case("duplicate-key-other-type", [pair("k", U8, 1), pair("k", U32, 1)], "'k' occurs twice"),
        case("duplicate-key-with-escape", [pair("\x1b[2J", U8, 1)] * 2, r"'\\x1b\[2J' occurs twice"),
        case("bad-type", [key + u32(13) + bytes(8)], "value type 13"),
        case("bad-type-max", [key + u32(0xFFFFFFFF) + bytes(8)], "value type 4294967295"),
        case("bad-value-size", [key + u32(STRING) + text("abc", TOP)], "has 18446744073709551615 bytes, more than"),
        case("value-size-2-63", [key + u32(STRING) + text("abc", 1 << 63)], "bytes, more than"),
        case("value-size-below-cap", [key + u32(STRING) + text("abc", 64 << 20)], "needs 67108864 bytes"),
        case("value-one-too-long", [key + u32(STRING) + text("a" * 31, 33)], "needs 33 bytes", alignment=1),
        case("value-not-utf8", [pair("k", STRING, text(b"ok\xff"))], "the text of 'k' is not valid UTF-8"),
        case("bool-2", [pair("k", BOOL, 2)], "bool of value 2"),
        case("bool-255", [pair("k", BOOL, 255)], "bool of value 255"),
        case("bool-array-3", [pair("k", ARRAY, array_of(BOOL, [1, 3]))], "bools other than 0 and 1"),
        case("array-type-unknown", [pair("k", ARRAY, u32(99) + u64(1) + bytes(8))], "value type 99"),
        case("array-type-unknown-empty", [pair("k", ARRAY, u32(99) + u64(0) + bytes(8))], "value type 99"),
        case("array-cut-in-type", [pair("k", ARRAY, b"\0")], "the type of 'k' needs 4 bytes", alignment=1),
        case(
            "strings-one-beyond",
            [pair("k", ARRAY, array_of(STRING, ["ab" * 9, "cd"], 3) + bytes(4))],
            "string 2 in 'k'",
            alignment=1,
        ),
        case("string-in-array-too-long", [pair("k", ARRAY, u32(STRING) + u64(1) + text("ab", TOP))], "string 0 in 'k' needs"),
        case("string-in-array-2-63", [pair("k", ARRAY, u32(STRING) + u64(1) + text("ab", 1 << 63))], "string 0 in 'k' needs"),
        case(
            "string-in-array-not-utf8", [pair("k", ARRAY, array_of(STRING, ["a", b"\x80"]))], "string 1 of 'k' is not valid UTF-8"
        ),
        case("arrays-nested-65", [pair("k", ARRAY, deep)], "nest deeper"),
        case("arrays-nested-wide", [pair("k", ARRAY, u32(ARRAY) + u64(1 << 40) + bytes(64))], "needs"),
        case("nested-inner-too-long", [pair("k", ARRAY, array_of(ARRAY, [array_of(F64, [1.0], 1 << 50)]))], "needs"),
        # gguf-py#27188: 43 bytes whose array length hung a reader that followed it.
        Case("kv-gguf-py-27188", gguf([pair("xyz", ARRAY, u32(U8) + u64(1 << 63))], alignment=1)[:43], "left|needs"),
        # CVE-2025-49847 and its kin: the vocabulary's length is the attacker's number.
        case("cve-2025-49847", [pair("tokenizer.ggml.tokens", ARRAY, u32(STRING) + u64(1 << 31) + text("<0x-1>"))], "needs"),
        case("wrong-type-align", [pair(ALIGN, I32, 32)], "is of type int32, not uint32"),
        case("align-string", [pair(ALIGN, STRING, "32")], "is of type string, not uint32"),
        case("align-array", [pair(ALIGN, ARRAY, array_of(U32, [32]))], "is of type array, not uint32"),
        case("align-u64", [pair(ALIGN, U64, 32)], "is of type uint64, not uint32"),
    ]
    cases += [
        case(f"bad-align-{value}", [pair(ALIGN, U32, value)], f"is {value}, not a power of two")
        for value in (0, 1, 2, 3, 4, 13, 24, 48, 100, 1 << 17, 1 << 31, 0xFFFFFFFF)
    ]
    for code in FORMS:
        cases += [
            case(
                f"array-2-63-{TYPE_NAMES[code] if code < 12 else 'float64'}",
                [pair("k", ARRAY, u32(code) + u64(1 << 63))],
                "needs",
            ),
            case(f"array-max-{TYPE_NAMES[code] if code < 12 else 'float64'}", [pair("k", ARRAY, u32(code) + u64(TOP))], "needs"),
        ]
    # 2^61 doubles are 2^64 bytes: a product that wraps to 0 in 64 bits.
    cases.append(case("array-bytes-wrap", [pair("k", ARRAY, u32(F64) + u64(1 << 61))], "needs 18446744073709551616 bytes"))
    cases.append(case("array-floats-wrap", [pair("k", ARRAY, u32(F32) + u64(1 << 62))], "needs 18446744073709551616 bytes"))
    return cases


def _tensors() -> list[Case]:
    def case(name: str, tensors: list[Tensor], match: str, pairs: list[bytes] | None = None, **more: int) -> Case:
        return Case(f"tensor-{name}", gguf(pairs or [NAME], tensors, **more), match)

    w = Tensor()
    block = Tensor("q", "q4_0", (32, 2))
    both = [Tensor("a"), Tensor("b")]
    return [
        case(
            "bad-name-size", [replace(w, name="my_tensor_with_a_very_long_name_" + "x" * 40)], "has 72 bytes, allowed are 1 to 64"
        ),
        case("empty-name", [replace(w, name="")], "the name of tensor 0 has 0 bytes"),
        case("name-not-utf8", [replace(w, name=b"\xc3\x28")], "not valid UTF-8"),
        case("name-with-nul", [replace(w, name="a\0")], "contains a NUL"),
        case("duplicate-name", [w, w], "tensor 'w' occurs twice"),
        case("bad-n-dims", [replace(w, dims=(1, 1, 1, 1, 1))], "has 5 dims"),
        case("n-dims-max", [replace(w, rank=0xFFFFFFFF)], "has 4294967295 dims"),
        case("n-dims-lies", [replace(w, rank=3)], "elements|ggml type|needs|left"),
        case("bad-shape", [replace(w, dims=(TOP, TOP), data=b"")], "elements"),
        case("negative-dim", [replace(w, dims=((1 << 64) - 2,), data=b"")], "elements"),
        case("ne-too-big", [replace(w, dims=(4 * 0x7FFFFFFF, 4 * 0x7FFFFFFF), data=b"")], "elements"),
        case("nbytes-too-big", [replace(w, dims=(1 << 31, 1 << 31), data=b"")], "elements"),
        case("product-wraps-to-0", [replace(w, dims=(1 << 32, 1 << 32), data=b"")], "elements"),
        case("product-wraps-to-1", [replace(w, dims=((1 << 64) - 1, (1 << 64) - 1), data=b"")], "elements"),
        case("huge-dim-beside-zero", [replace(w, dims=(0, 1 << 62), data=b"")], "elements"),
        case("huge-but-allowed", [replace(w, dims=(1 << 20, 1 << 20), data=b"")], "ends at byte"),
        case("int32-dims", [replace(w, dims=(1 << 31, 2), data=bytes(8))], "ends at byte"),
        case("bad-type", [replace(w, code=42)], "ggml type 42, which is not known"),
        case("bad-type-max", [replace(w, code=0xFFFFFFFF)], "ggml type 4294967295"),
        case("type-i32-negative", [replace(w, code=0x80000000)], "ggml type 2147483648"),
        case("bad-offset", [replace(w, offset=TOP)], "not a multiple of 32"),
        case("bad-offset-aligned", [replace(w, offset=TOP - 31)], "ends at byte"),
        case("offset-wraps-to-start", [replace(w, offset=(1 << 64) - 64)], "ends at byte"),
        case("offset-2-63", [replace(w, offset=1 << 63)], "ends at byte"),
        case("offset-misaligned-4", [replace(w, offset=4, data=bytes(64))], "is at 4, not a multiple of 32"),
        case("offset-misaligned-16", [replace(w, offset=16, data=bytes(64))], "is at 16, not a multiple of 32"),
        case("inconsistent-align", both, "not a multiple of 64", [pair(ALIGN, U32, 64)], alignment=32),
        case("bad-align", both, "is 13, not a power of two", [pair(ALIGN, U32, 13)]),
        case("overlap-same-place", [Tensor("a"), Tensor("b", offset=0)], "'a' and 'b' overlap"),
        case("overlap-tail", [Tensor("a", dims=(16,)), Tensor("b", offset=32)], "'a' and 'b' overlap"),
        case("overlap-inside", [Tensor("a", dims=(64,)), Tensor("b", offset=96)], "'a' and 'b' overlap"),
        case("overlap-out-of-order", [Tensor("a", offset=64, dims=(24,)), Tensor("b", dims=(16,), offset=32)], "overlap"),
        case("block-partial", [replace(block, dims=(31, 2), data=bytes(36))], "rows of 31 elements, q4_0 comes in blocks of 32"),
        case("block-partial-row", [replace(block, dims=(16, 2), data=bytes(18))], "rows of 16 elements"),
        case("block-scalar", [replace(block, dims=(), data=bytes(18))], "rows of 1 elements"),
        case(
            "block-256-partial", [Tensor("q", "q6_k", (128, 2), bytes(210))], "rows of 128 elements, q6_k comes in blocks of 256"
        ),
        case("not-enough-data", [w], "ends at byte", short=1),
        case("no-data", [w], "ends at byte", short=8),
        case("half-of-the-last", [Tensor("a"), Tensor("b", dims=(64,))], "ends at byte", short=128),
        case("cut-in-padding", [replace(w, name="wider")], "ends at byte", short=9),
        # CVE-2026-7482: a tensor larger than the file, read past the end of the buffer by who trusted it.
        case("cve-2026-7482", [replace(w, dims=(1 << 24,), data=bytes(8))], "ends at byte"),
        # CVE-2025-53630, CVE-2026-27940: two sizes whose sum wraps to a small buffer.
        case(
            "cve-2025-53630",
            [Tensor("a", "i8", (0x7FFFFFFFFFFFFFC0,), b""), Tensor("b", "i8", (0x7FFFFFFFFFFFFFC0,), b"")],
            "elements",
        ),
        case(
            "cve-2026-27940",
            [Tensor("a", "i8", (1 << 39,), b"", 0), Tensor("b", "i8", (1 << 39,), bytes(32), (1 << 64) - (1 << 39))],
            "ends at byte",
        ),
        # CVE-2026-53923: dims cut to 32 bits look like a small tensor.
        case("cve-2026-53923", [replace(w, dims=((1 << 32) + 2,), data=bytes(8))], "ends at byte"),
    ]


def _types() -> list[Case]:
    return [
        Case(f"type-{name}", gguf([NAME], [Tensor(code=code, dims=(256,))]), f"is of {name}, which is not supported")
        for code, name in UNSUPPORTED.items()
    ]


def _impostors() -> list[Case]:
    lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1234567\n"
    found = {
        "html": (b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
        "html-after-space": (b"\r\n  <html>", "HTML"),
        "xml": (b"<?xml version='1.0'?><Error/>", "HTML or XML"),
        "git-lfs": (lfs, "git-LFS pointer"),
        "json-error": (b'{"error":"Repository not found"}', "error message"),
        "not-found": (b"Entry not found", "error message"),
        "sign-in": (b"Invalid username or password.", "error message"),
        "zip": (b"PK\x03\x04" + bytes(60), "zip archive"),
        "pickle": (b"\x80\x02}q\x00.", "pickle"),
        "gzip": (b"\x1f\x8b\x08" + bytes(30), "gzip"),
        "ggml": (b"lmgg" + bytes(60), "GGML"),
        "ggjt": (b"tjgg" + bytes(60), "GGJT"),
        "zeros": (bytes(4096), "does not start with GGUF"),
        "safetensors": (u64(2) + b"{}", "does not start with GGUF"),
    }
    return [Case(f"impostor-{name}", data, match) for name, (data, match) in found.items()]


def _truncations() -> list[Case]:
    """A file with one of everything, cut in the middle of each part."""
    whole = gguf(
        [
            NAME,
            pair("n", U32, 7),
            pair("tokens", ARRAY, array_of(STRING, ["<s>", "hello", "world"])),
            pair("scores", ARRAY, array_of(F32, [0.0, -1.0, -2.0])),
        ],
        [Tensor("a", "q8_0", (64, 2)), Tensor("b", "f16", (3, 5))],
    )
    return [Case(f"cut-at-{at}", whole[:at], "left|ends at byte|needs") for at in range(30, len(whole), 17)]


CORPUS = _header() + _pairs() + _tensors() + _types() + _impostors() + _truncations()
