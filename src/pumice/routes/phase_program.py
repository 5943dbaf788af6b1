"""Phase programs: named resources, the kernels that bind them, and the phases that dispatch kernels or read results back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pumice.routes.documents import DocumentKind, RouteDocument, invalid, plain
from pumice.routes.rules import (
    ARRAY,
    OBJECT,
    TEXT,
    Field,
    Items,
    Record,
    exactly,
    field_of,
    is_integer,
    is_object,
    is_text,
    one_of,
    truthy,
)

PROGRAM_SCHEMA = "kaminos.webgpu-phase-program.v0"
_TABLES = {"tensor": "tensors", "uniform": "uniforms", "buffer": "buffers", "resource": "resources"}
_REFERENCE = "phase program resource reference"

PHASE_PROGRAM = DocumentKind(
    "phase program",
    PROGRAM_SCHEMA,
    Record(
        "phase program",
        (
            Field("schema", exactly(PROGRAM_SCHEMA)),
            Field("name", TEXT),
            Field("resourceNames", OBJECT),
            Items(
                "phases",
                Record(
                    "phase",
                    (
                        Field("kind", one_of("must be kernel or readback", ("kernel", "readback"))),
                        Field("name", TEXT),
                        Field("dispatch", ARRAY, "absent"),
                        Field("readbacks", ARRAY, "absent"),
                    ),
                ),
            ),
        ),
    ),
)


def phase_program(given: Mapping[str, Any]) -> RouteDocument:
    """A program as a document: every reference is checked, and every dispatch has three numbers.

    `given` has `name`, the tables `tensors`, `uniforms`, `buffers` and `resources` (only their names count here),
    `kernels` with `bindings`, and `phases`. A reference is "tensor:x", or "x" in the first table that has it.

    >>> program = phase_program({"name": "mask", "tensors": {"x": {}, "y": {}}, "kernels": {"k": {"bindings": [
    ...     {"name": "in", "resource": "tensor:x"}, {"name": "out", "resource": "y"}]}},
    ...     "phases": [{"name": "decode", "kernel": "k", "dispatch": [8]}, {"name": "read",
    ...     "readbacks": [{"name": "bytes", "tensor": "y"}]}]})
    >>> program["phases"][0]["dispatch"], program["phases"][0]["kernel"]["bindings"][1]["resource"]
    ((8, 1, 1), 'tensor:y')
    """
    found = plain(given)
    if errors := program_errors(found):
        raise invalid(PHASE_PROGRAM.name, errors)
    return RouteDocument(
        PHASE_PROGRAM,
        {
            "schema": PROGRAM_SCHEMA,
            "name": found["name"],
            "resourceNames": {table: list(_table(found, table)) for table in _TABLES.values()},
            "phases": [_phase(found, phase, i) for i, phase in enumerate(found["phases"])],
            "yieldPolicy": _or_empty(found.get("yieldPolicy")),
            "metadata": _or_empty(found.get("metadata")),
        },
    )


def program_errors(given: object) -> list[str]:
    """Everything that is wrong with a program."""
    return list(_errors(plain(given)))


def _errors(given: Any) -> Iterator[str]:
    if not is_text(given.get("name") if is_object(given) else None):
        yield "phase program name must be a non-empty string"
    phases = given.get("phases") if is_object(given) else None
    if not isinstance(phases, list) or not phases:
        yield "phase program phases must be a non-empty array"
        return
    for phase in phases:
        yield from _phase_errors(given, phase)


def _phase_errors(given: Any, phase: Any) -> Iterator[str]:
    if not isinstance(phase, (dict, list)):
        yield "phase program phase must be an object"
        return
    name = field_of(phase, "name")
    if not isinstance(phase, dict) or not is_text(name):
        yield "phase name must be a non-empty string"
    elif phase.get("kernel") is not None:
        yield from _kernel_errors(given, phase)
        dispatch = phase.get("dispatch")
        if not isinstance(dispatch, list) or not 1 <= len(dispatch) <= 3:
            yield "phase dispatch must be an array with 1 to 3 dimensions"
        elif not all(is_integer(n) and n > 0 for n in dispatch):
            yield "phase dispatch dimensions must be positive integers"
    elif phase.get("readbacks") is not None:
        yield from _readback_errors(given, name, phase["readbacks"])
    else:
        yield f"phase {name} must declare a kernel or readbacks"


def _kernel(given: Any, phase: dict[str, Any]) -> tuple[str, Any]:
    """The name and the kernel of a phase: one of the program's, or one that stands in the phase itself."""
    kernel = phase["kernel"]
    return (kernel, _table(given, "kernels").get(kernel)) if isinstance(kernel, str) else (f"{phase['name']}.kernel", kernel)


def _kernel_errors(given: Any, phase: dict[str, Any]) -> Iterator[str]:
    name, kernel = _kernel(given, phase)
    if not is_text(name):
        yield "phase program kernel name must be a non-empty string"
    elif not isinstance(kernel, (dict, list)):
        yield f"unknown kernel {name}"
    else:
        bindings = field_of(kernel, "bindings")
        if not isinstance(bindings, list) or not bindings:
            yield "phase program kernel bindings must be a non-empty array"
            return
        for binding in bindings:
            yield from _reference_errors(given, field_of(binding, "resource"))


def _table(given: Any, name: str) -> Mapping[str, Any]:
    found = given.get(name)
    return found if isinstance(found, dict) else {}


def _readback_errors(given: Any, phase: str, readbacks: Any) -> Iterator[str]:
    if not isinstance(readbacks, list) or not readbacks:
        yield f"phase {phase} readbacks must be a non-empty array"
        return
    for readback in readbacks:
        if not is_text(readback.get("name") if is_object(readback) else None):
            yield f"phase {phase} readback name must be a non-empty string"
        else:
            yield from _reference_errors(given, _source(readback))


def _source(readback: Mapping[str, Any]) -> Any:
    return readback.get("tensor") if readback.get("tensor") is not None else readback.get("resource")


def _reference_errors(given: Any, reference: Any) -> Iterator[str]:
    if not is_text(reference):
        if not is_object(reference):
            yield f"{_REFERENCE} must be a non-empty string or object"
        return
    kind, colon, name = reference.partition(":")
    if not colon:
        if _table_of(given, reference) is None:
            yield f"unknown resource {reference}"
    elif not name:
        yield f"{_REFERENCE} {reference} is missing a resource name"
    elif kind not in _TABLES:
        yield f"unsupported phase program resource kind {kind}"
    elif name not in _table(given, _TABLES[kind]):
        yield f"unknown resource {name}" if kind == "resource" else f"unknown {kind} resource {name}"


def _table_of(given: Any, name: str) -> str | None:
    return next((kind for kind, table in _TABLES.items() if name in _table(given, table)), None)


def _resolved(given: Any, reference: Any) -> Any:
    """The reference with its table."""
    return reference if not isinstance(reference, str) or ":" in reference else f"{_table_of(given, reference)}:{reference}"


def _or_empty(value: Any) -> Any:
    return value if truthy(value) else {}


def _phase(given: Any, phase: dict[str, Any], number: int) -> dict[str, Any]:
    named = {"name": phase["name"], "phaseIndex": number}
    if phase.get("kernel") is None:
        readbacks = [
            {
                "name": one["name"],
                "tensor": _resolved(given, _source(one)),
                "options": _or_empty(one.get("options")),
                "metadata": _or_empty(one.get("metadata")),
            }
            for one in phase["readbacks"]
        ]
        return {"kind": "readback", **named, "readbacks": readbacks, "metadata": _or_empty(phase.get("metadata"))}
    name, kernel = _kernel(given, phase)
    bindings = [{**one, "resource": _resolved(given, one["resource"])} for one in kernel["bindings"]]
    return {
        "kind": "kernel",
        **named,
        "kernel": {**kernel, "bindings": bindings, "name": kernel.get("name") or name},
        "dispatch": [*phase["dispatch"], 1, 1][:3],
        "yieldAfter": phase.get("yieldAfter", False),
        "yieldReason": phase.get("yieldReason") or f"{given['name']}.{phase['name']}.post-submit",
        "commandDuty": _or_empty(phase.get("commandDuty")),
        "metadata": _or_empty(phase.get("metadata")),
    }
