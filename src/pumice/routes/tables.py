"""What tables of records share: rules of counts and amounts that may be null, lists of fields, kinds by their schema ids."""

from __future__ import annotations

from pumice.routes.documents import DocumentKind
from pumice.routes.rules import (
    AMOUNT,
    COUNT,
    OBJECT,
    TEXT,
    Check,
    Field,
    Record,
    Rule,
    exactly,
    is_amount,
    is_integer,
    one_of,
    or_null,
)

POSITIVE = Rule(
    "must be a positive safe integer",
    lambda value: is_integer(value) and is_amount(value) and 0 < value < 2**53,  # type: ignore[operator]
    {"type": "integer", "minimum": 1},
)
FRACTION = Rule(
    "must be a number from 0 to 1",
    lambda value: is_amount(value) and value <= 1,  # type: ignore[operator]
    {"type": "number", "minimum": 0, "maximum": 1},
)
COUNT_OR_NULL = or_null("must be null or a non-negative integer", COUNT)
AMOUNT_OR_NULL = or_null("must be null or a finite non-negative number", AMOUNT)
FRACTION_OR_NULL = or_null("must be null or a number from 0 to 1", FRACTION)
OBJECT_OR_NULL = or_null("must be null or an object", OBJECT)
NULL = Rule("must be null", lambda value: value is None, {"type": "null"})


def status_field(*states: str) -> Field:
    """The status of a record: one of these."""
    return Field("status", one_of(f"must be one of {', '.join(states)}", states))


def text_fields(*names: str) -> tuple[Field, ...]:
    """Fields that hold text."""
    return tuple(Field(name, TEXT) for name in names)


def fields(rule: Rule, *names: str) -> tuple[Field, ...]:
    """Fields with one rule."""
    return tuple(Field(name, rule) for name in names)


def record_kind(name: str, schema: str, *checks: Check) -> DocumentKind:
    """A kind of record, by the part of its schema id that is its own, or by the whole id."""
    full = schema if "." in schema else f"kaminos.webgpu-{schema}.v0"
    return DocumentKind(name, full, Record(name, (Field("schema", exactly(full)), *checks)))
