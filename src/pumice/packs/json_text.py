"""Reads the JSON of packs and receipts: one meaning only, bounded before anything is built from it."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from pumice.errors import InputError
from pumice.packs.errors import InvalidManifest

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
# Each value takes some hundred bytes of memory, however short it is in the text.
MAX_VALUES = 50_000
# Digits of 2^64; Python's own limit is 4,300, and longer ones cost quadratic time.
MAX_DIGITS = 20

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")
_VALUES = re.compile(rb"[,\[{]")


def parse_object(
    data: bytes, what: str, *, error: type[InputError] = InvalidManifest, max_bytes: int = MAX_BYTES, max_values: int = MAX_VALUES
) -> dict[str, Any]:
    """The object in strict JSON: no duplicate keys, NaN, byte order mark, lone surrogates, deep nesting or huge numbers.

    >>> parse_object(b'{"a": 1, "a": 2}', "kernels.json")
    Traceback (most recent call last):
    pumice.packs.errors.InvalidManifest: [invalid-manifest] kernels.json: the key "a" occurs twice in one object
    """

    def fail(rule: str) -> NoReturn:
        raise error(f"{what}: {rule}", file=what)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            fail(f"the key {json.dumps(next(k for k in keys if keys.count(k) > 1)[:80])} occurs twice in one object")
        return found

    def whole(digits: str) -> int:
        return int(digits) if len(digits.lstrip("-")) <= MAX_DIGITS else fail(f"a number of more than {MAX_DIGITS} digits")

    def real(digits: str) -> float:
        value = float(digits) if len(digits) <= 100 else fail("a number of more than 100 characters")
        return value if math.isfinite(value) else fail(f"{digits} is out of range")

    def constant(name: str) -> NoReturn:
        fail(f"{name} is not a number of JSON")

    if len(data) > max_bytes:
        fail(f"it has {len(data)} bytes, more than {max_bytes}")
    if data.startswith(b"\xef\xbb\xbf"):
        fail("it begins with a byte order mark")
    _check_size(data, fail, max_values)
    try:
        value = json.loads(data.decode(), object_pairs_hook=unique, parse_int=whole, parse_float=real, parse_constant=constant)
        json.dumps(value, ensure_ascii=False).encode()  # escapes can spell half of a surrogate pair
    except UnicodeDecodeError as problem:
        fail(f"byte {problem.start} is not UTF-8")
    except UnicodeEncodeError:
        fail("it holds half of a surrogate pair")
    except ValueError as problem:
        fail(f"it is not JSON: {problem}")
    return value if isinstance(value, dict) else fail("it is not an object")


def _check_size(data: bytes, fail: Any, max_values: int) -> None:
    """Depth and number of values, from the text: the parser recurses once a level."""
    text = _STRING.sub(b"", data)
    if len(_VALUES.findall(text)) > max_values:
        fail(f"it has more than {max_values} values")
    depth = 0
    for mark in _BRACKETS.finditer(text):
        depth += 1 if mark[0] in b"[{" else -1
        if depth > MAX_DEPTH:
            fail(f"it nests deeper than {MAX_DEPTH}")
