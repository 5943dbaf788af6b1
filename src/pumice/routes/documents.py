"""Kinds of documents, and documents: JSON objects that were checked, frozen, with their text."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

from pumice.routes.errors import InvalidDocument
from pumice.routes.rules import Record, Schema

RULES_HINT = "docs/routes.md has the rules of every document"
_SCALARS = frozenset({str, int, float, bool, type(None)})
KIT_VERSION = "0.1.52"  # the version of the npm package whose documents these are
_T = TypeVar("_T")
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


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
        return list(self.record.errors(shared(value)))

    def document(self, value: Mapping[str, Any]) -> RouteDocument:
        """The value as a document; InvalidDocument names every broken rule."""
        if isinstance(value, RouteDocument) and value.kind is self:
            return value
        made = RouteDocument(self, value)
        if errors := list(self.record.errors(made._json)):
            raise invalid(self.name, errors)
        return made

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
        # What checks and writers read. Nothing changes it, so that a document that holds this one shares it.
        self._json: dict[str, Any] = shared(value)

    @cached_property
    def _value(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = _frozen(self._json)
        return found

    def __getitem__(self, name: str) -> Any:
        return self._value[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._json)

    def __len__(self) -> int:
        return len(self._json)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._json == shared(other)

    def __hash__(self) -> int:
        return hash(self._sorted)

    def __repr__(self) -> str:
        return f"<{self.kind.name} {self.to_json()}>"

    @cached_property
    def _sorted(self) -> str:
        return json.dumps(self._json, sort_keys=True)

    @cached_property
    def _derived(self) -> dict[Callable[[dict[str, Any]], Any], Any]:
        return {}

    def derived(self, make: Callable[[dict[str, Any]], _T]) -> _T:
        """What a function makes of the document's JSON; it is called once, as the document stays as it is.

        >>> from pumice.routes.kernel import kernel_metadata
        >>> kernel_metadata("fused-attention").derived(len)
        3
        """
        known = self._derived
        if make not in known:
            known[make] = make(self._json)
        found: _T = known[make]
        return found

    def extended(self, **fields: Any) -> RouteDocument:
        """The same kind of document with further fields: JSON that nobody changes from now on, neither checked nor copied.

        >>> from pumice.routes.kernel import kernel_metadata
        >>> list(kernel_metadata("fused-attention").extended(note=["a"]))
        ['kitVersion', 'profile', 'commit', 'note']
        """
        made = RouteDocument(self.kind, {})
        made._json = {**self._json, **fields}
        return made

    def to_json(self, *, indent: int | None = None) -> str:
        """The document as JSON text, fields in their order."""
        if indent is None:
            return _ENCODER.encode(self._json)
        return json.dumps(self._json, ensure_ascii=False, allow_nan=False, indent=indent)


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
    if kind is list or isinstance(value, (list, tuple)):
        return [inner if type(inner) in _SCALARS else plain(inner) for inner in value]
    if isinstance(value, RouteDocument):
        return plain(value._json)
    return {name: plain(inner) for name, inner in value.items()} if isinstance(value, Mapping) else value


def shared(value: Any) -> Any:
    """The same without copying what documents hold: to read and to write out, and never to change.

    >>> from pumice.routes.kernel import kernel_metadata
    >>> kernel = kernel_metadata("fused-attention")
    >>> shared({"a": kernel})["a"] is shared(kernel)
    True
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is RouteDocument:
        return value._json
    if kind is dict or kind is MappingProxyType:
        return {name: inner if type(inner) in _SCALARS else shared(inner) for name, inner in value.items()}
    if kind is list or kind is tuple:
        return [inner if type(inner) in _SCALARS else shared(inner) for inner in value]
    return plain(value)


_PART = DocumentKind("part", "", Record("part", ()))


def part(value: Mapping[str, Any]) -> RouteDocument:
    """An object that is the same in many documents: copied now, then shared by all that hold it.

    >>> caps = part({"subgroup_sizes": (32, 64)})
    >>> shared({"caps": caps}), shared({"caps": caps})["caps"] is shared(caps)
    ({'caps': {'subgroup_sizes': [32, 64]}}, True)
    """
    return value if isinstance(value, RouteDocument) else RouteDocument(_PART, value)


def _frozen(value: Any) -> Any:
    """A view of JSON values that nothing changes."""
    if type(value) is dict:
        return MappingProxyType({name: _frozen(inner) for name, inner in value.items()})
    return tuple(map(_frozen, value)) if type(value) is list else value


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
    seconds, ms = divmod(int((time.time() if at is None else at) * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ms:03}Z"
