"""JSON schemas for answers: closed ones, so that a model invents no properties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Keywords whose values are schemas: by name, in a list, or one.
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains")
# Several schemas for one value: each of them would have to name the properties of the others.
_COMBINING = {"allOf", "not", "if", "dependentSchemas", "unevaluatedProperties", "$dynamicRef"}
_DESCRIBING = {"properties", "$ref", "anyOf", "oneOf"}


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema whose objects have no properties but those that it names, unless it says that they may.

    JSON schema allows any others where nothing is said. Functions and classes do not expect them, and a small model that may
    invent properties seldom finds an end. A schema that combines several for one value is left as it is.

    >>> closed({"properties": {"a": {"properties": {}, "additionalProperties": True}}})
    {'properties': {'a': {'properties': {}, 'additionalProperties': True}}, 'additionalProperties': False}
    >>> closed({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]})
    {'allOf': [{'properties': {'a': {}}}, {'properties': {'b': {}}}]}
    """
    found: dict[str, Any] = dict(schema) if _combines(schema) else _closed(schema)
    return found


def _combines(schema: Any) -> bool:
    """Whether more than one schema holds for some value, so that closing one of them could leave no value at all."""
    if not isinstance(schema, Mapping):
        return False
    if _COMBINING & set(schema) or len(_DESCRIBING & set(schema)) > 1:
        return True
    if "oneOf" in schema and "discriminator" not in schema:  # a value that fits one of the closed ones may fit two open ones
        return True
    return any(_combines(inner) for inner in _inner(schema))


def _inner(schema: Mapping[str, Any]) -> Iterator[Any]:
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, Mapping):
            yield from value.values()
        elif name in _LISTED and isinstance(value, list):
            yield from value
        elif name in _SINGLE:
            yield value


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    found = dict(schema)
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, Mapping):
            found[name] = {key: _closed(inner) for key, inner in value.items()}
        elif name in _LISTED and isinstance(value, list):
            found[name] = [_closed(inner) for inner in value]
        elif name in _SINGLE:
            found[name] = _closed(value)
    if "properties" in found and not {"additionalProperties", "patternProperties"} & set(found):
        found["additionalProperties"] = False
    return found
