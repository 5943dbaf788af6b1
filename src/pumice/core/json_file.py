"""Reads JSON files that come with models: bounded in size, parts and depth, and an error that names the file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pumice.errors import FormatError

# Bytes of a file, and values in it: the largest settings files in use have a tenth. A small value takes some hundred bytes
# of memory, however few bytes it has in the file.
MAX_BYTES = 64 << 20
MAX_PARTS = 1 << 20
# Code that walks or prints a value recurses once a level; Python stops it at a thousand.
MAX_DEPTH = 100

_AGAIN = "download the model again"
_KINDS: Mapping[type, str] = {dict: "an object", list: "a list"}


def read_json(path: Path, *, hint: str = _AGAIN) -> dict[str, Any]:
    """The object in a JSON file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "config.json"
    ...     _ = file.write_text('{"layers": 2}')
    ...     read_json(file)
    {'layers': 2}
    """
    found: dict[str, Any] = parse_json(_bytes(path, hint), path, dict, hint=hint)
    return found


def canonical(value: Any) -> str:
    """The one way to write a JSON value: sorted keys, no spaces, ASCII.

    >>> canonical({"b": [1, 2.5], "a": "é"})
    '{"a":"\\\\u00e9","b":[1,2.5]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def read_optional_json(path: Path | None) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file.

    >>> read_optional_json(None), read_optional_json(Path("nowhere.json"))
    ({}, {})
    """
    return {} if path is None or not os.path.isfile(path) else read_json(path)


def read_json_list(path: Path, *, hint: str = _AGAIN) -> list[Any]:
    """The list in a JSON file.

    >>> read_json_list(Path("nowhere.json"))
    Traceback (most recent call last):
    pumice.errors.FormatError: [format] nowhere.json cannot be read as JSON: there is no such file
      hint: download the model again
    """
    found: list[Any] = parse_json(_bytes(path, hint), path, list, hint=hint)
    return found


def parse_json(text: bytes, path: Path, kind: type, *, hint: str = _AGAIN) -> Any:
    """The value of this kind in JSON that was read already; `path` is what errors name.

    >>> parse_json(b"[" * 100_000, Path("config.json"), list)
    Traceback (most recent call last):
    pumice.errors.FormatError: [format] config.json cannot be read as JSON: it nests deeper than 100
      hint: download the model again
    """
    if sum(text.count(mark) for mark in (b",", b"[", b"{")) > MAX_PARTS:
        raise _wrong(path, f"it has more than {MAX_PARTS} values", hint)
    try:
        value = json.loads(text)
    except RecursionError:
        raise _wrong(path, f"it nests deeper than {MAX_DEPTH}", hint) from None
    except ValueError as error:
        raise _wrong(path, error, hint) from None
    if not isinstance(value, kind):
        raise _wrong(path, f"it holds a {type(value).__name__}, not {_KINDS[kind]}", hint)
    _check_depth(value, path, hint)
    if b"\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # which neither a file name nor a terminal nor a tokenizer takes
            raise _wrong(path, "it holds half of a surrogate pair", hint) from None
    return value


def _bytes(path: Path, hint: str) -> bytes:
    try:
        if not os.path.isfile(path):  # unlike Path.is_file, False for every name that the system does not take
            raise _wrong(path, "there is no such file", hint)
        if (size := path.stat().st_size) > MAX_BYTES:
            raise _wrong(path, f"it has {size} bytes, more than {MAX_BYTES}", hint)
        return path.read_bytes()
    except OSError as error:
        raise _wrong(path, error.strerror or type(error).__name__, hint) from None


def _check_depth(value: Any, path: Path, hint: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [part for parts in level for part in (parts.values() if isinstance(parts, dict) else parts) if _holds(part)]
        if not level:
            return
    raise _wrong(path, f"it nests deeper than {MAX_DEPTH}", hint)


def _holds(value: Any) -> bool:
    return isinstance(value, dict | list)


def _wrong(path: Path, why: object, hint: str) -> FormatError:
    name = str(path)
    name = name if name.isprintable() else repr(name)[1:-1]
    return FormatError(f"{name} cannot be read as JSON: {str(why)[:300]}", hint=hint, path=str(path))
