"""The language in which documents are described: rules of values, fields, parts, lists and laws.

A `Record` is a table of checks. Each check gives error texts, in the table's order, and says the same as JSON Schema.
Nearly all documents are right, and every receipt is checked: a check that finds nothing makes nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

# What a field is that the document does not have; `None` is JSON's null.
ABSENT: Final = object()
_NO_ERRORS: Final = ()
# White space as JavaScript trims it, so that both readers call the same strings empty.
_SPACE = "\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))
_SHA256 = re.compile(r"(?:sha256:)?[0-9a-fA-F]{64}\Z")

Schema = Mapping[str, Any]


def is_text(value: object) -> bool:
    """A string with something else than white space in it.

    >>> is_text(" a "), is_text(" "), is_text(3)
    (True, False, False)
    """
    return isinstance(value, str) and bool(value.strip(_SPACE))


def is_object(value: object) -> bool:
    """A JSON object."""
    return type(value) is dict or isinstance(value, Mapping)  # asking for the type alone is much faster


def is_integer(value: object) -> bool:
    """A whole number; JSON has one type of numbers, so that 2.0 is one too.

    >>> is_integer(2), is_integer(2.0), is_integer(2.5), is_integer(True)
    (True, True, False, False)
    """
    return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


def is_count(value: object, least: int = 1) -> bool:
    """A whole number that JavaScript holds exactly, not below `least`.

    >>> is_count(1), is_count(0), is_count(0, 0), is_count(2**53)
    (True, False, True, False)
    """
    return is_integer(value) and least <= value < 2**53  # type: ignore[operator]


def is_amount(value: object) -> bool:
    """A finite number that is not negative."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def is_shape(value: object) -> bool:
    """A list of whole numbers that is not empty."""
    return isinstance(value, list) and bool(value) and all(map(is_integer, value))


def truthy(value: object) -> bool:
    """Whether JavaScript takes a value for true: lists and objects always are.

    >>> truthy([]), truthy(0), truthy(""), truthy(ABSENT), truthy("no")
    (True, False, False, False, True)
    """
    return value is not ABSENT and (isinstance(value, (Mapping, list)) or bool(value))


def shown(value: object) -> str:
    """A value as the package's texts show it: as JavaScript turns it into a string.

    >>> shown(ABSENT), shown(None), shown(True), shown(2.0), shown([1, [2]]), shown({})
    ('undefined', 'null', 'true', '2', '1,2', '[object Object]')
    """
    if isinstance(value, Mapping):
        return "[object Object]"
    if isinstance(value, (list, tuple)):
        return ",".join("" if inner is None else shown(inner) for inner in value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "undefined" if value is ABSENT else "null" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must be: the text after the field's name in an error, the test, and the same as JSON Schema."""

    text: str
    holds: Callable[[object], bool]
    schema: Schema


TEXT = Rule("must be a non-empty string", is_text, {"type": "string", "pattern": r"\S"})
SHA256 = Rule(
    "must be a SHA-256 in hex",
    lambda value: isinstance(value, str) and bool(_SHA256.match(value)),
    {"type": "string", "pattern": "^(sha256:)?[0-9a-fA-F]{64}$"},
)
BOOLEAN = Rule("must be a boolean", lambda value: isinstance(value, bool), {"type": "boolean"})
AMOUNT = Rule("must be a finite non-negative number", is_amount, {"type": "number", "minimum": 0})
MILLISECONDS = Rule("must be a non-negative number", is_amount, {"type": "number", "minimum": 0})
COUNT = Rule(
    "must be a non-negative integer", lambda value: is_integer(value) and is_amount(value), {"type": "integer", "minimum": 0}
)
ARRAY = Rule("must be an array", lambda value: isinstance(value, list), {"type": "array"})
OBJECT = Rule("must be an object", is_object, {"type": "object"})
TEXT_OR_NULL = Rule(
    "must be null or a non-empty string",
    lambda value: value is None or is_text(value),
    {"anyOf": [{"type": "null"}, {"type": "string", "pattern": r"\S"}]},
)
SHAPE = Rule("must be a non-empty integer array", is_shape, {"type": "array", "minItems": 1, "items": {"type": "integer"}})


def exactly(*values: str) -> Rule:
    """One of these strings; the error names the first, which every reader knows."""
    return Rule(f"must be {values[0]}", lambda value: isinstance(value, str) and value in values, {"enum": list(values)})


def one_of(text: str, values: tuple[str, ...]) -> Rule:
    """One of these strings, with the error's own words."""
    return Rule(text, lambda value: isinstance(value, str) and value in values, {"enum": list(values)})


def or_null(text: str, rule: Rule) -> Rule:
    """Null, or what another rule asks for."""
    return Rule(text, lambda value: value is None or rule.holds(value), {"anyOf": [{"type": "null"}, rule.schema]})


def said(text: str, rule: Rule) -> Rule:
    """The same rule in other words."""
    return Rule(text, rule.holds, rule.schema)


class Check(Protocol):
    """One line of a record's table."""

    def errors(self, owner: Mapping[str, Any], path: str) -> Sequence[str]:
        """The texts of what is wrong; `path` is the owner's, with a dot at its end."""
        ...

    def properties(self) -> Iterator[tuple[str, Schema, bool]]:
        """Name, JSON Schema and whether it is required, of each field that the check is about."""
        ...


def field_of(owner: object, name: str) -> Any:
    """A field, or ABSENT: also where the owner is no object, so that every field is then reported as missing."""
    return owner.get(name, ABSENT) if is_object(owner) else ABSENT  # type: ignore[attr-defined]


def _may_lack(how: str, value: object) -> bool:
    """Whether a field that is "absent" or "null" at most has no value to check."""
    return bool(how) and (value is ABSENT or (value is None and how == "null"))


@dataclass(frozen=True, slots=True)
class Field:
    """A field with a rule. `may_lack`: "absent" skips the rule where the field is missing, "null" also where it is null."""

    name: str
    rule: Rule
    may_lack: str = ""

    def errors(self, owner: Mapping[str, Any], path: str) -> Sequence[str]:
        value = owner.get(self.name, ABSENT)
        if _may_lack(self.may_lack, value) or self.rule.holds(value):
            return _NO_ERRORS
        return (f"{path}{self.name} {self.rule.text}",)

    def properties(self) -> Iterator[tuple[str, Schema, bool]]:
        schema = {"anyOf": [{"type": "null"}, self.rule.schema]} if self.may_lack == "null" else self.rule.schema
        yield self.name, schema, not self.may_lack


@dataclass(frozen=True, slots=True)
class Hash:
    """A field that holds a SHA-256: a string first, then one of the right form."""

    name: str = "sha256"

    def errors(self, owner: Mapping[str, Any], path: str) -> Sequence[str]:
        value = owner.get(self.name, ABSENT)
        if SHA256.holds(value):
            return _NO_ERRORS
        return (f"{path}{self.name} {(SHA256 if TEXT.holds(value) else TEXT).text}",)

    def properties(self) -> Iterator[tuple[str, Schema, bool]]:
        yield self.name, SHA256.schema, True


@dataclass(frozen=True, slots=True)
class Law:
    """A rule that fields obey together; `meaning` is what docs say of it.

    A text that begins with a space is about the owner itself, the others about one of its fields.
    """

    meaning: str
    check: Callable[[Mapping[str, Any]], Iterator[str]]

    def errors(self, owner: Mapping[str, Any], path: str) -> Sequence[str]:
        return [(path[:-1] if text.startswith(" ") else path) + text for text in self.check(owner)]

    def properties(self) -> Iterator[tuple[str, Schema, bool]]:
        return iter(())


@dataclass(frozen=True, slots=True)
class Record:
    """An object described by checks. `name` stands in errors where the whole document is none.

    `arrays`: an array passes for an object without fields, and each field is reported.
    """

    name: str
    checks: tuple[Check, ...]
    arrays: bool = True

    def takes(self, value: object) -> bool:
        """Whether a value is of a type that has fields."""
        return is_object(value) or (self.arrays and isinstance(value, list))

    def errors(self, value: object, path: str = "") -> Sequence[str]:
        """All texts of what is wrong with a value."""
        owner: Any = value
        if not is_object(value):
            if not self.takes(value):
                return (f"{path}{self.name} must be an object",)
            owner = {}
        found: Sequence[str] = _NO_ERRORS
        for check in self.checks:
            if errors := check.errors(owner, path):
                found = [*found, *errors]
        return found

    def schema(self) -> Schema:
        """The same as JSON Schema, without the laws; further fields are lawful."""
        found = [entry for check in self.checks for entry in check.properties()]
        return {
            "type": "object",
            "properties": {name: schema for name, schema, _ in found},
            "required": [name for name, _, required in found if required],
        }


@dataclass(frozen=True, slots=True)
class Nested:
    """A field that holds a record. `own_name`: a part that is missing is reported as "path.name", in the record's words."""

    name: str
    record: Record
    may_lack: str = ""
    own_name: bool = False

    def errors(self, owner: Mapping[str, Any], path: str) -> Sequence[str]:
        value = owner.get(self.name, ABSENT)
        if _may_lack(self.may_lack, value):
            return _NO_ERRORS
        if self.own_name or self.record.takes(value):
            return self.record.errors(value, f"{path}{self.name}.")
        return (f"{path}{self.name} must be an object",)

    def properties(self) -> Iterator[tuple[str, Schema, bool]]:
        schema = self.record.schema()
        yield self.name, {"anyOf": [{"type": "null"}, schema]} if self.may_lack == "null" else schema, not self.may_lack


@dataclass(frozen=True, slots=True)
class Items:
    """A field that holds a list of records or of values."""

    name: str
    item: Record | Rule
    text: str = "must be a non-empty array"
    least: int = 1

    def errors(self, owner: Mapping[str, Any], path: str) -> Sequence[str]:
        value = owner.get(self.name, ABSENT)
        if not isinstance(value, list) or len(value) < self.least:
            return (f"{path}{self.name} {self.text}",)
        rule = self.item
        if isinstance(rule, Rule):
            return [f"{path}{self.name}[{i}] {rule.text}" for i, item in enumerate(value) if not rule.holds(item)]
        found: Sequence[str] = _NO_ERRORS
        for i, item in enumerate(value):
            if errors := rule.errors(item if is_object(item) else {}, f"{path}{self.name}[{i}]."):
                found = [*found, *errors]
        return found

    def properties(self) -> Iterator[tuple[str, Schema, bool]]:
        item = self.item.schema if isinstance(self.item, Rule) else self.item.schema()
        least = {"minItems": self.least} if self.least else {}
        yield self.name, {"type": "array", **least, "items": item}, True
