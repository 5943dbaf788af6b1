"""JSON schemas for answers: closed ones, so that a model invents no properties, with unions that masks can follow."""

from __future__ import annotations

import json
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
    A union whose members differ in a tag, as pydantic writes it (`oneOf`), becomes `anyOf`: no value fits two of them.

    >>> closed({"properties": {"a": {"properties": {}, "additionalProperties": True}}})
    {'properties': {'a': {'properties': {}, 'additionalProperties': True}}, 'additionalProperties': False}
    >>> closed({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]})
    {'allOf': [{'properties': {'a': {}}}, {'properties': {'b': {}}}]}
    """
    found: dict[str, Any] = dict(schema) if _combines(schema, schema) else _closed(schema)
    return found


def _combines(schema: Any, root: Mapping[str, Any]) -> bool:
    """Whether more than one schema holds for some value, so that closing one of them could leave no value at all."""
    if not isinstance(schema, Mapping):
        return False
    if _COMBINING & set(schema) or len(_DESCRIBING & set(schema)) > 1:
        return True
    if "oneOf" in schema and not _has_distinct_tags(schema, root):
        return True  # a value that fits one of the closed members may fit two of the open ones
    return any(_combines(inner, root) for inner in _inner(schema))


def _has_distinct_tags(union: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """Whether all members of a union require some property, each with values of its own, so that no value fits two of them.

    >>> def tagged(value): return {"properties": {"kind": {"const": value}}, "required": ["kind"]}
    >>> union = {"oneOf": [{"$ref": "#/$defs/A"}, tagged("b")]}
    >>> _has_distinct_tags(union, {"$defs": {"A": tagged("a")}}), _has_distinct_tags(union, {"$defs": {"A": tagged("b")}})
    (True, False)
    """
    members = [_tags(member, root) for member in _items(union["oneOf"])]
    for name in members[0] if members else ():
        values = [value for tags in members for value in tags.get(name, ())]
        if all(name in tags for tags in members) and len(set(values)) == len(values):
            return True
    return False


def _tags(schema: Any, root: Mapping[str, Any]) -> dict[str, list[str]]:
    """The properties that an object must have with one of a few values, and those values as JSON."""
    place = _fields(schema).get("$ref")
    if isinstance(place, str) and place.startswith("#/$defs/"):
        schema = _fields(root.get("$defs")).get(place.removeprefix("#/$defs/"))
    required, found = _items(_fields(schema).get("required")), {}
    for name, tag in _fields(_fields(schema).get("properties")).items():
        values = [tag["const"]] if "const" in _fields(tag) else _items(_fields(tag).get("enum"))
        if values and name in required:
            found[name] = [json.dumps(value) for value in values]
    return found


def _fields(value: Any) -> Mapping[str, Any]:
    """A value that should be an object; what is wrong with a schema is said where it is compiled."""
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


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
    if "oneOf" in found:
        found["anyOf"] = found.pop("oneOf")
    if "properties" in found and not {"additionalProperties", "patternProperties"} & set(found):
        found["additionalProperties"] = False
    return found
