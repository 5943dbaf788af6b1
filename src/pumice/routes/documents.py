"""Kinds of documents, and documents: JSON objects that were checked, frozen, with their text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any

from pumice.routes.errors import InvalidDocument
from pumice.routes.rules import Record, Schema

RULES_HINT = "docs/routes.md has the rules of every document"
_SCALARS = frozenset({str, int, float, bool, type(None)})
KIT_VERSION = "0.1.52"  # the version of the npm package whose documents these are


@dataclass(frozen=True)
class DocumentKind:
    """One kind of document: its name, its schema id (empty for parts of other documents) and its table of checks."""

    name: str
    schema_id: str
    record: Record

    @property
    def file_name(self) -> str:
        """The name of its JSON Schema in docs/schemas."""
        return f"{self.schema_id or self.name.replace(' ', '-').lower()}.json"

    def errors(self, value: object) -> list[str]:
        """Everything that is wrong with a value, in the order of the table."""
        return list(self.record.errors(plain(value)))

    def document(self, value: Mapping[str, Any]) -> RouteDocument:
        """The value as a document; InvalidDocument names every broken rule."""
        copied = plain(value)
        if errors := list(self.record.errors(copied)):
            raise invalid(self.name, errors)
        return RouteDocument(self, copied)

    def json_schema(self) -> Schema:
        """The rules of single fields as JSON Schema; laws that join fields are in docs/routes.md."""
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": self.name, **self.record.schema()}


def invalid(name: str, errors: list[str]) -> InvalidDocument:
    """The error of a document that breaks these rules."""
    return InvalidDocument(f"invalid {name}: {'; '.join(errors)}", kind=name, errors=errors, hint=RULES_HINT)


class RouteDocument(Mapping[str, Any]):
    """A checked JSON object that nothing changes any more.

    >>> from pumice.routes.kernel import kernel_metadata
    >>> kernel = kernel_metadata("fused-attention")
    >>> kernel["profile"], kernel.to_json()
    ('fused-attention', '{"kitVersion": "0.1.52", "profile": "fused-attention", "commit": null}')
    """

    def __init__(self, kind: DocumentKind, value: Mapping[str, Any]) -> None:
        self.kind = kind
        self._value: Mapping[str, Any] = _frozen(value)

    def __getitem__(self, name: str) -> Any:
        return self._value[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._value)

    def __len__(self) -> int:
        return len(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and plain(self) == plain(other)

    def __hash__(self) -> int:
        return hash(self._sorted)

    def __repr__(self) -> str:
        return f"<{self.kind.name} {self.to_json()}>"

    @cached_property
    def _sorted(self) -> str:
        return json.dumps(plain(self), sort_keys=True)

    def to_json(self, *, indent: int | None = None) -> str:
        """The document as JSON text, fields in their order."""
        return json.dumps(plain(self), ensure_ascii=False, allow_nan=False, indent=indent)


def plain(value: Any) -> Any:
    """A copy made of dicts, lists and scalars, as `json` reads and writes them.

    >>> plain({"a": (1, MappingProxyType({"b": 2}))})
    {'a': [1, {'b': 2}]}
    """
    kind = type(value)
    if kind in _SCALARS:  # most values are, and asking whether one is a mapping takes a while
        return value
    if kind is dict or kind is MappingProxyType:
        return {name: inner if type(inner) in _SCALARS else plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [inner if type(inner) in _SCALARS else plain(inner) for inner in value]
    if isinstance(value, RouteDocument):
        return plain(value._value)
    return {name: plain(inner) for name, inner in value.items()} if isinstance(value, Mapping) else value


def _frozen(value: Any) -> Any:
    """A copy that nothing changes; documents are such already."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, RouteDocument):
        return value._value
    if type(value) is dict or isinstance(value, Mapping):
        return MappingProxyType({name: _frozen(inner) for name, inner in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def same(a: Any, b: Any) -> bool:
    """Equal as JSON, whatever the order of keys; true and 1 differ.

    >>> same({"a": 1, "b": [2.0]}, {"b": [2], "a": 1}), same(True, 1)
    (True, False)
    """
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b if isinstance(a, (str, type(None))) else bool(a == b)


def now(at: float | None = None) -> str:
    """The time, or that of `time.time`, as documents have it: ISO 8601, UTC, milliseconds.

    >>> now(1.5)
    '1970-01-01T00:00:01.500Z'
    """
    when = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
