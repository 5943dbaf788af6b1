"""Checks a JSON value against a JSON Schema, for the keywords that ours use; any other is an error."""

from __future__ import annotations

import re
from typing import Any

_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_IGNORED = {"$schema", "$defs", "title", "description", "default", "patternProperties"}


def agrees(value: Any, schema: Any, root: Any) -> bool:
    """Whether a value is as the schema says; `root` is where its references point."""
    return all(key in _IGNORED or _CHECKS[key](value, rule, schema, root) for key, rule in schema.items())


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    if kind == "integer":  # which 1.0 is in JSON Schema
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, _TYPES[kind])


def _reference(value: Any, rule: str, schema: Any, root: Any) -> bool:
    found = root
    for part in rule.removeprefix("#/").split("/"):
        found = found[part]
    return agrees(value, found, root)


def _properties(value: Any, rule: Any, schema: Any, root: Any) -> bool:
    return not isinstance(value, dict) or all(agrees(value[name], rule[name], root) for name in rule.keys() & value.keys())


def _additional(value: Any, rule: Any, schema: Any, root: Any) -> bool:
    """The rule of all properties that no other keyword covers; pattern properties are checked here too."""
    if not isinstance(value, dict):
        return True
    patterns = schema.get("patternProperties", {})
    for name, content in value.items():
        covering = [inner for pattern, inner in patterns.items() if re.search(pattern.replace("$", r"\Z"), name)]
        if not all(agrees(content, inner, root) for inner in covering):
            return False
        if not covering and name not in schema.get("properties", {}) and rule is False:
            return False
    return True


_CHECKS = {
    "$ref": _reference,
    "type": lambda value, rule, *_: _is(value, rule),
    "enum": lambda value, rule, *_: value in rule,
    "anyOf": lambda value, rule, _, root: any(agrees(value, choice, root) for choice in rule),
    "properties": _properties,
    "additionalProperties": _additional,
    "propertyNames": lambda value, rule, _, root: not isinstance(value, dict) or all(agrees(n, rule, root) for n in value),
    "required": lambda value, rule, *_: not isinstance(value, dict) or set(rule) <= value.keys(),
    "items": lambda value, rule, _, root: not isinstance(value, list) or all(agrees(item, rule, root) for item in value),
    "minItems": lambda value, rule, *_: not isinstance(value, list) or len(value) >= rule,
    "maxItems": lambda value, rule, *_: not isinstance(value, list) or len(value) <= rule,
    "minProperties": lambda value, rule, *_: not isinstance(value, dict) or len(value) >= rule,
    "maxProperties": lambda value, rule, *_: not isinstance(value, dict) or len(value) <= rule,
    "minLength": lambda value, rule, *_: not isinstance(value, str) or len(value) >= rule,
    "maxLength": lambda value, rule, *_: not isinstance(value, str) or len(value) <= rule,
    "pattern": lambda value, rule, *_: not isinstance(value, str) or bool(re.search(rule.replace("$", r"\Z"), value)),
    "minimum": lambda value, rule, *_: not _is(value, "number") or value >= rule,
    "maximum": lambda value, rule, *_: not _is(value, "number") or value <= rule,
}
