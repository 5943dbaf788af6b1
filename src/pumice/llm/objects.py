"""Answers as objects: the JSON schema of what is asked for, and the answer as a value of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pumice.errors import InputError
from pumice.llm.answers import Generation
from pumice.llm.schemas import closed


def schema_of(given: Any) -> Mapping[str, Any] | str:
    """The JSON schema of a schema, its text, or a pydantic model. That of a model has its fields and no others.

    >>> schema_of({"type": "integer"})
    {'type': 'integer'}
    >>> schema_of(7)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] the schema is 7
      hint: give a JSON schema, its text, or a pydantic model
    """
    if isinstance(given, Mapping | str):
        return given
    make = getattr(given, "model_json_schema", None)
    if not isinstance(given, type) or make is None:
        raise InputError(f"the schema is {given!r:.60}", hint="give a JSON schema, its text, or a pydantic model", name="schema")
    found: Mapping[str, Any] = closed(make())
    return found


def object_of(answer: Any, schema: Any) -> Any:
    """The value of an answer that follows a schema.

    >>> object_of(Generation('{"a": 1}', finish_reason="stop"), {"type": "object"})
    {'a': 1}
    """
    if not isinstance(answer, Generation):
        raise InputError("generate_object answers one prompt, once", hint="call it for each prompt, without n")
    if answer.finish_reason != "stop":
        tokens = len(answer.tokens)
        raise InputError(f"the object was cut off after {tokens} tokens", hint="allow more max_tokens", name="max_tokens")
    if isinstance(schema, type):
        return schema.model_validate_json(answer.text)  # type: ignore[attr-defined]
    return json.loads(answer.text)
