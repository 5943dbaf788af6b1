"""Writes safetensors bytes, right and wrong: malformed files and folders, each with the words that its error must contain."""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

TOP = (1 << 64) - 1


class Case(NamedTuple):
    name: str
    data: bytes
    match: str


def safetensors(header: Any, data: bytes = b"", size: int | None = None) -> bytes:
    """A file: the header as an object, text or bytes; `size` lies about its length."""
    raw = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(raw) if size is None else size) + raw + data


def entry(dtype: str = "F32", shape: Any = (2,), begin: Any = 0, end: Any = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": [begin, end]}


TEXT = json.dumps(entry())
ONE = {"w": entry()}
DATA = bytes(8)


def _files() -> list[Case]:
    def spans(*found: tuple[int, int]) -> dict[str, Any]:
        return {f"t{i}": entry("I8", (max(end - begin, 0),), begin, end) for i, (begin, end) in enumerate(found)}

    def with_field(**fields: Any) -> dict[str, Any]:
        return {"w": {**entry(), **fields}}

    deep = "[" * 100_000
    cases: dict[str, tuple[bytes, str]] = {
        "empty": (b"", "empty"),
        "seven-bytes": (bytes(7), "7 bytes"),
        "only-length": (struct.pack("<Q", 2), "needs 2 bytes, 0 are left"),
        "length-0": (safetensors("", DATA), "header of 0 bytes"),
        "length-1": (safetensors("{", b"}"), "header of 1 bytes"),
        "length-max": (safetensors(ONE, DATA, TOP), "header of 18446744073709551615 bytes"),
        "length-2-63": (safetensors(ONE, DATA, 1 << 63), "header of 9223372036854775808 bytes"),
        "length-100-mb-and-1": (safetensors(ONE, DATA, 100_000_001), "header of 100000001 bytes"),
        "length-100-mb": (safetensors(ONE, DATA, 100_000_000), "needs 100000000 bytes"),
        "length-beyond-end": (safetensors(ONE, b"", 1000), "needs 1000 bytes"),
        "length-one-short": (safetensors(ONE, DATA, len(json.dumps(ONE)) - 1), "header"),
        "length-one-long": (safetensors(ONE, b"x" + DATA, len(json.dumps(ONE)) + 1), "text after the end"),
        "starts-with-space": (safetensors(" {}"), "starts with"),
        "starts-with-list": (safetensors("[]"), "starts with"),
        "starts-with-string": (safetensors('"w"'), "starts with"),
        "not-utf8-name": (safetensors(b'{"\xff":' + json.dumps(entry()).encode() + b"}", DATA), "not valid JSON or UTF-8"),
        "bad-escape": (safetensors(b'{"\\x":1}'), "not valid JSON or UTF-8"),
        "lone-surrogate": (safetensors('{"\\ud800":' + json.dumps(entry()) + "}", DATA), "not valid JSON or UTF-8"),
        "control-in-name": (safetensors('{"a\nb":' + json.dumps(entry()) + "}", DATA), "expected a string"),
        "unterminated-string": (safetensors('{"abc'), "expected a string"),
        "unterminated-object": (safetensors('{"w":{"dtype":"F32"'), "expected ',', found the end"),
        "unterminated-list": (safetensors('{"w":{"shape":[1'), "expected ',', found the end"),
        "no-colon": (safetensors('{"w"}'), "expected ':'"),
        "no-comma": (safetensors('{"w":{"dtype":"F32" "shape":[]}}'), "expected ','"),
        "trailing-comma": (safetensors('{"__metadata__":{},}'), "expected a string"),
        "trailing-text": (safetensors("{}{}"), "text after the end"),
        "single-quotes": (safetensors("{'w':1}"), "expected a string"),
        "comment": (safetensors("{/* */}"), "expected a string"),
        "tensor-is-null": (safetensors('{"w":null}'), "expected '{'"),
        "tensor-is-list": (safetensors('{"w":[]}'), "expected '{'"),
        "tensor-is-nested": (safetensors('{"w":' + deep), "expected '{'"),
        "shape-is-nested": (safetensors('{"w":{"shape":' + deep), "whole number"),
        "duplicate-tensor": (
            safetensors(f'{{"w":{TEXT},"w":{TEXT}}}', DATA),
            "'w' occurs twice",
        ),
        "duplicate-by-escape": (safetensors(f'{{"w":{TEXT},"\\u0077":{TEXT}}}', DATA), "'w' occurs twice"),
        "duplicate-field": (safetensors('{"w":{"dtype":"F32","dtype":"F16"}}', DATA), "'dtype' occurs twice"),
        "duplicate-metadata": (safetensors('{"__metadata__":{},"__metadata__":{}}'), "'__metadata__' occurs twice"),
        "duplicate-metadata-key": (safetensors('{"__metadata__":{"a":"1","a":"2"}}'), "'a' occurs twice"),
        "metadata-number": (safetensors('{"__metadata__":{"a":1}}'), "expected a string"),
        "metadata-null": (safetensors('{"__metadata__":{"a":null}}'), "expected a string"),
        "metadata-object": (safetensors('{"__metadata__":{"a":{}}}'), "expected a string"),
        "metadata-list": (safetensors('{"__metadata__":[]}'), "expected '{'"),
        "metadata-nan": (safetensors('{"__metadata__":{"a":NaN}}'), "expected a string"),
        "name-empty": (safetensors({"": entry()}, DATA), "without a name"),
        "name-too-long": (safetensors({"n" * 5000: entry()}, DATA), "more than 4096"),
        "field-unknown": (safetensors(with_field(extra=[1]), DATA), "unknown field 'extra'"),
        "no-dtype": (safetensors({"w": {"shape": [2], "data_offsets": [0, 8]}}, DATA), "lacks one of"),
        "no-shape": (safetensors({"w": {"dtype": "F32", "data_offsets": [0, 8]}}, DATA), "lacks one of"),
        "no-offsets": (safetensors({"w": {"dtype": "F32", "shape": [2]}}, DATA), "lacks one of"),
        "nothing-in-tensor": (safetensors({"w": {}}, DATA), "lacks one of"),
        "dtype-number": (safetensors(with_field(dtype=1), DATA), "expected a string"),
        "dtype-lower-case": (safetensors(with_field(dtype="f32"), DATA), "'f32', which is not supported"),
        "dtype-unknown": (safetensors(with_field(dtype="F31"), DATA), "'F31', which is not supported"),
        "shape-number": (safetensors(with_field(shape=2), DATA), r"expected '\['"),
        "shape-negative": (safetensors(with_field(shape=[-2]), DATA), "whole number"),
        "shape-float": (safetensors(with_field(shape=[2.0]), DATA), "whole number"),
        "shape-exponent": (safetensors('{"w":{"shape":[2e0]}}', DATA), "whole number"),
        "shape-nan": (safetensors(with_field(shape=[float("nan")]), DATA), "whole number"),
        "shape-infinity": (safetensors(with_field(shape=[float("inf")]), DATA), "whole number"),
        "shape-string": (safetensors(with_field(shape=["2"]), DATA), "whole number"),
        "shape-bool": (safetensors(with_field(shape=[True]), DATA), "whole number"),
        "shape-null": (safetensors(with_field(shape=[None]), DATA), "whole number"),
        "shape-leading-zero": (safetensors('{"w":{"shape":[02]}}', DATA), "expected ','|whole number"),
        "shape-5000-digits": (safetensors('{"w":{"shape":[' + "9" * 5000 + "]}}", DATA), "whole number"),
        "shape-2-64": (safetensors(with_field(shape=[1 << 64]), DATA), "whole number"),
        "shape-17-dims": (safetensors(with_field(shape=[1] * 17), DATA), "more than 16 numbers"),
        "shape-wraps-to-0": (safetensors(with_field(shape=[1 << 32, 1 << 32]), DATA), "elements"),
        "shape-wraps-to-2": (safetensors(with_field(shape=[(1 << 63) + 1, 2]), DATA), "elements"),
        "shape-huge-beside-zero": (safetensors({"w": entry("F32", (0, 1 << 62), 0, 0)}), "elements"),
        "shape-too-large-for-data": (safetensors(with_field(shape=[3]), DATA), "takes 12 bytes"),
        "shape-too-small-for-data": (safetensors(with_field(shape=[1]), DATA), "takes 4 bytes"),
        "dtype-too-small-for-data": (safetensors(with_field(dtype="F16"), DATA), "takes 4 bytes"),
        "0-dim-with-two-values": (safetensors(with_field(shape=[]), DATA), "takes 4 bytes"),
        "offsets-reversed": (safetensors(with_field(data_offsets=[8, 0]), DATA), "takes 8 bytes"),
        "offsets-one": (safetensors(with_field(data_offsets=[8]), DATA), "lacks one of"),
        "offsets-three": (safetensors(with_field(data_offsets=[0, 4, 8]), DATA), "more than 2 numbers"),
        "offsets-empty": (safetensors(with_field(data_offsets=[]), DATA), "lacks one of"),
        "offsets-negative": (safetensors(with_field(data_offsets=[-8, 0]), DATA), "whole number"),
        "offsets-wrap": (safetensors(with_field(data_offsets=[TOP - 3, 4]), DATA), "takes 8 bytes"),
        "offsets-beyond-end": (safetensors({"w": entry(begin=0, end=8)}, bytes(7)), "take 8 bytes, 7 follow"),
        "no-data": (safetensors(ONE), "take 8 bytes, 0 follow"),
        "hole-at-start": (safetensors(spans((8, 16)), bytes(16)), "a hole precedes tensor 't0'"),
        "hole-between": (safetensors(spans((0, 4), (8, 16)), bytes(16)), "a hole precedes tensor 't1'"),
        "hole-between-unsorted": (safetensors(spans((8, 16), (0, 4)), bytes(16)), "a hole precedes tensor 't0'"),
        "overlap-same": (safetensors(spans((0, 8), (0, 8)), DATA), "another tensor overlaps"),
        "overlap-part": (safetensors(spans((0, 8), (4, 12)), bytes(12)), "another tensor overlaps"),
        "overlap-inside": (safetensors(spans((0, 8), (2, 4)), DATA), "another tensor overlaps"),
        "overlap-many": (safetensors({f"t{i}": entry() for i in range(1000)}, DATA), "another tensor overlaps"),
        "empty-tensor-in-the-middle": (safetensors(spans((0, 8), (4, 4)), DATA), "another tensor overlaps"),
        "gap-at-end": (safetensors(ONE, bytes(9)), "1 bytes follow the last tensor"),
        "polyglot-zip-at-end": (safetensors(ONE, DATA + b"PK\x05\x06" + bytes(18)), "22 bytes follow"),
        "data-without-tensors": (safetensors("{}", DATA), "8 bytes follow"),
        "bool-of-value-2": (safetensors({"w": entry("BOOL", (2,), 0, 2)}, b"\1\2"), "bools of value 2"),
        "i64-out-of-range": (
            safetensors({"w": entry("I64", (1,))}, struct.pack("<q", 1 << 31)),
            "values from 2147483648 to 2147483648 do not fit i32",
        ),
        "i64-below-range": (safetensors({"w": entry("I64", (1,))}, struct.pack("<q", -(1 << 31) - 1)), "do not fit i32"),
        "f64-out-of-range": (safetensors({"w": entry("F64", (1,))}, struct.pack("<d", 1e300)), "beyond the range of f32"),
        "html": (b"<!doctype html><html>", "HTML"),
        "git-lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git-LFS pointer"),
        "json-error": (b'{"error":"not found"}', "error message"),
        "not-found": (b"Entry not found", "error message"),
        "pytorch-zip": (b"PK\x03\x04" + bytes(100), "zip archive"),
        "pickle": (b"\x80\x02}q\x00.", "pickle"),
        "gguf": (b"GGUF" + bytes(60), "is a GGUF file"),
        "zeros": (bytes(4096), "header of 0 bytes"),
    }
    for dtype in ("F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "I16", "U16", "U64", "C64"):
        cases[f"dtype-{dtype}"] = (safetensors(with_field(dtype=dtype), DATA), f"'{dtype}', which is not supported")
    return [Case(name, data, match) for name, (data, match) in cases.items()]


CORPUS = _files()


def index(weight_map: Any, **more: Any) -> bytes:
    return json.dumps({"metadata": {"total_size": 8}, "weight_map": weight_map, **more}).encode()


A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
FILE_A, FILE_B = safetensors({"a": entry()}, DATA), safetensors({"b": entry()}, DATA)
BOTH = {A: FILE_A, B: FILE_B}

# Folders: their files, and the words of the error.
FOLDERS: dict[str, tuple[dict[str, bytes], str]] = {
    "no-files": ({}, "no .safetensors file"),
    "only-config": ({"config.json": b"{}"}, "no .safetensors file"),
    "only-pickle": ({"pytorch_model.bin": b"PK"}, "no .safetensors file"),
    "only-gguf": ({"m.gguf": b"GGUF"}, "no .safetensors file"),
    "missing-shard": ({INDEX: index({"a": A, "b": B}), A: FILE_A}, "shards are missing: 'model-00002"),
    "missing-all": ({INDEX: index({f"t{i}": f"s{i}.safetensors" for i in range(9)})}, "and 6 more"),
    "missing-shard-without-index": ({A: FILE_A}, "1 of 2 shards are missing"),
    "absolute": ({INDEX: index({"a": "/etc/passwd"})}, "outside its own folder"),
    "absolute-safetensors": ({INDEX: index({"a": "/tmp/x.safetensors"})}, "outside its own folder"),
    "dot-dot": ({INDEX: index({"a": "../x.safetensors"})}, "outside its own folder"),
    "dot-dot-inside": ({INDEX: index({"a": "s/../../x.safetensors"})}, "outside its own folder"),
    "just-dot-dot": ({INDEX: index({"a": ".."})}, "outside its own folder"),
    "subfolder": ({INDEX: index({"a": "s/x.safetensors"})}, "outside its own folder"),
    "backslash": ({INDEX: index({"a": "..\\x.safetensors"})}, "outside its own folder"),
    "drive": ({INDEX: index({"a": "C:x.safetensors"})}, "outside its own folder"),
    "network-share": ({INDEX: index({"a": "\\\\host\\x.safetensors"})}, "outside its own folder"),
    "nul-in-name": ({INDEX: index({"a": "x\0.safetensors"})}, "outside its own folder"),
    "empty-name": ({INDEX: index({"a": ""})}, "outside its own folder"),
    "long-name": ({INDEX: index({"a": "x" * 3000 + ".safetensors"})}, "shards are missing"),
    "other-suffix": ({INDEX: index({"a": "config.json"}), "config.json": b"{}"}, "no .safetensors file"),
    "not-in-shard": ({INDEX: index({"a": A, "b": B, "c": A}), **BOTH}, "'c' should be in model-00001"),
    "in-the-other-shard": ({INDEX: index({"a": B, "b": B}), **BOTH}, "'a' should be in model-00002"),
    "in-two-shards": ({INDEX: index({"a": A, "b": B}), A: FILE_A, B: safetensors(
        {"a": entry("F32", (2,), 0, 8), "b": entry("F32", (2,), 8, 16)}, bytes(16))}, "'a' is also in model-00001"),
    "in-two-shards-without-index": ({A: FILE_A, B: FILE_A}, "'a' is also in model-00001"),
    "truncated-shard": ({INDEX: index({"a": A, "b": B}), A: FILE_A, B: FILE_B[:-1]}, "00002.safetensors: the tensors"),
    "lfs-shard": ({INDEX: index({"a": A, "b": B}), A: FILE_A, B: b"version https://git-lfs.github.com/spec/v1\n"}, "git-LFS"),
    "lfs-index": ({INDEX: b"version https://git-lfs.github.com/spec/v1\n", **BOTH}, "git-LFS"),
    "html-index": ({INDEX: b"<html>", **BOTH}, "HTML"),
    "empty-index": ({INDEX: b"", **BOTH}, "empty"),
    "index-cut": ({INDEX: index({"a": A})[:-3], **BOTH}, "the index: expected"),
    "index-list": ({INDEX: b"[]", **BOTH}, "expected '{'"),
    "index-no-map": ({INDEX: b'{"metadata":{}}', **BOTH}, "no weight_map"),
    "index-empty-map": ({INDEX: index({}), **BOTH}, "no weight_map"),
    "index-map-is-list": ({INDEX: index([A]), **BOTH}, "expected '{'"),
    "index-value-number": ({INDEX: index({"a": 1}), **BOTH}, "expected a string"),
    "index-value-null": ({INDEX: index({"a": None}), **BOTH}, "expected a string"),
    "index-value-list": ({INDEX: index({"a": [A]}), **BOTH}, "expected a string"),
    "index-duplicate-tensor": ({INDEX: b'{"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}'}, "'a' occurs twice"),
    "index-duplicate-map": ({INDEX: b'{"weight_map":{},"weight_map":{}}'}, "'weight_map' occurs twice"),
    "index-nan": ({INDEX: b'{"metadata":{"total_size":NaN},"weight_map":{}}'}, "expected a value"),
    "index-nested": ({INDEX: b'{"metadata":' + b"[" * 100_000}, "nest deeper"),
    "index-brackets-cross": ({INDEX: b'{"metadata":[{]},"weight_map":{}}'}, "expected a value"),
    "index-trailing": ({INDEX: index({"a": A}) + b"x", **BOTH}, "text after the end"),
    "index-many-shards": ({INDEX: index({f"t{i}": f"s{i}.safetensors" for i in range(1001)})}, "names 1001 shard files"),
}  # fmt: skip
