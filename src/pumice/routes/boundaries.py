"""Boundary manifests: the places where a long route can stop, in how many items its work is counted, and how it is divided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pumice.routes.documents import DocumentKind, RouteDocument, plain
from pumice.routes.rules import ABSENT, TEXT, Field, Law, Record, Rule, exactly, field_of, is_amount, is_integer, is_text

BOUNDARY_SCHEMA = "kaminos.webgpu-cooperative-boundary-manifest.v0"
DUTY_KINDS = ("compute", "copy", "render", "mixed")
HOST_PHASES = ("cpu-preprocess", "command-encoding", "queue-submission", "readback", "presentation", "other")
_NON_EMPTY = Rule(
    "must be a non-empty array", lambda value: isinstance(value, list) and bool(value), {"type": "array", "minItems": 1}
)


def _counts(value: object) -> bool:
    return is_integer(value) and is_amount(value) and 0 < value < 2**53  # type: ignore[operator]


def _positive(value: object) -> bool:
    return is_amount(value) and value > 0  # type: ignore[operator]


def _phases(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Errors name a phase by its id where it has one: "phases.decode.boundaries[0].unit …"."""
    phases = field_of(manifest, "phases")
    seen: set[str] = set()
    boundaries: set[str] = set()
    for i, phase in enumerate(phases if isinstance(phases, list) else ()):
        name, listed = field_of(phase, "phaseId"), field_of(phase, "boundaries")
        if not is_text(name):
            yield f"phases[{i}].phaseId {TEXT.text}"
        elif name in seen:
            yield f"duplicate phaseId: {name}"
        seen |= {name} if is_text(name) else set()
        if not isinstance(listed, list) or not listed:
            yield f"phases[{i}].boundaries must be a non-empty array"
            continue
        for k, boundary in enumerate(listed):
            path = f"phases.{name}.boundaries[{k}]" if is_text(name) else f"phases[{i}].boundaries[{k}]"
            yield from (f"{path}.{text}" for text in _boundary(boundary))
            own = field_of(boundary, "boundaryId")
            if is_text(own) and own in boundaries:
                yield f"duplicate boundaryId: {own}"
            boundaries |= {own} if is_text(own) else set()


def _boundary(boundary: object) -> Iterator[str]:
    def of(name: str) -> Any:
        return field_of(boundary, name)

    for name in ("boundaryId", "unit"):
        if not is_text(of(name)):
            yield f"{name} {TEXT.text}"
    kind = of("kind")
    if kind not in ("gpu-command", "cpu-work"):
        yield "kind must be gpu-command or cpu-work"
    if of("totalItems") is not None and not _counts(of("totalItems")):
        yield "totalItems must be a positive safe integer"
    if not _positive(of("progressWeight")):
        yield "progressWeight must be finite and greater than zero"
    for name, owner, values in (("commandDutyKind", "gpu-command", DUTY_KINDS), ("hostPhase", "cpu-work", HOST_PHASES)):
        value = of(name)
        if value in (ABSENT, None):
            continue
        if kind in ("gpu-command", "cpu-work") and kind != owner:
            yield f"{name} belongs only to {owner} boundaries"
        elif value not in values:
            yield f"{name} is unsupported"
    yield from (f"chunking{text}" for text in _chunking(of("chunking")))
    if of("yieldPolicy") not in (ABSENT, "after-duty", "none"):
        yield "yieldPolicy must be after-duty or none"
    yield from (f"resources.{text}" for text in _resources(of("resources")))


def _chunking(chunking: object) -> Iterator[str]:
    if not isinstance(chunking, dict):
        yield " must be an object"
        return
    mode = chunking.get("mode")
    if mode not in ("fixed", "adaptive"):
        yield ".mode must be fixed or adaptive"
    counts = {"fixed": ("chunkItems",), "adaptive": ("initialItems", "minItems", "maxItems")}.get(mode or "", ())
    wrong = [name for name in counts if not _counts(chunking.get(name))]
    yield from (f".{name} must be a positive safe integer" for name in wrong)
    if mode != "adaptive":
        return
    if not wrong and chunking["maxItems"] < chunking["minItems"]:
        yield ".maxItems must be at least minItems"
    elif not wrong and not chunking["minItems"] <= chunking["initialItems"] <= chunking["maxItems"]:
        yield ".initialItems must be within minItems and maxItems"
    if not _positive(chunking.get("targetDurationMs")):
        yield ".targetDurationMs must be finite and greater than zero"
    gain = chunking.get("adjustmentGain", 1)
    if not (_positive(gain) and gain <= 1):
        yield ".adjustmentGain must be finite, greater than zero, and at most one"


def _resources(resources: object) -> Iterator[str]:
    for name in ("retain", "produce", "release"):
        listed = field_of(resources, name)
        for i, entry in enumerate(listed if isinstance(listed, list) else ()):
            if not is_text(entry):
                yield f"{name}[{i}] {TEXT.text}"
        known = [entry for entry in listed if is_text(entry)] if isinstance(listed, list) else []
        if len(set(known)) < len(known):
            yield f"{name} must not contain duplicate resource identities"


BOUNDARY_MANIFEST = DocumentKind(
    "boundary manifest",
    BOUNDARY_SCHEMA,
    Record(
        "boundary manifest",
        (
            Field("schema", exactly(BOUNDARY_SCHEMA)),
            Field("manifestId", TEXT),
            Field("routeId", TEXT),
            Field("phases", _NON_EMPTY),
            Law("every boundary has a unit, a weight, a chunking and a total that may be null", _phases),
        ),
    ),
)


def boundary_manifest(manifest_id: str, route_id: str, phases: Mapping[str, list[Mapping[str, Any]]]) -> RouteDocument:
    """The manifest of a route: phases in order, each with its boundaries. A total that is not known yet is null.

    >>> manifest = boundary_manifest("demo.v0", "demo.text.webgpu-local.v0", {"decode": [
    ...     {"boundaryId": "tokens", "kind": "gpu-command", "unit": "token", "totalItems": None, "progressWeight": 1,
    ...      "chunking": {"mode": "fixed", "chunkItems": 8}}]})
    >>> manifest["phases"][0]["boundaries"][0]["yieldPolicy"]
    'after-duty'
    """
    listed = [{"phaseId": name, "boundaries": [_complete(b) for b in boundaries]} for name, boundaries in phases.items()]
    weights = [_weight(phase["boundaries"]) for phase in listed]
    return BOUNDARY_MANIFEST.document(
        {
            "schema": BOUNDARY_SCHEMA,
            "manifestId": manifest_id,
            "routeId": route_id,
            "progressWeight": sum(weights),
            "phases": [
                {
                    "phaseId": phase["phaseId"],
                    "progressWeight": weight,
                    "boundaries": phase["boundaries"],
                    "metadata": {},
                }
                for phase, weight in zip(listed, weights, strict=True)
            ],
            "metadata": {},
        }
    )


def _weight(boundaries: Any) -> float:
    total: float = sum(b["progressWeight"] for b in boundaries if is_amount(b["progressWeight"]))
    return total


def _complete(boundary: Mapping[str, Any]) -> dict[str, Any]:
    """A boundary with every field, in the kit's order."""
    given = plain(boundary)
    gpu = given.get("kind") == "gpu-command"
    chunking, resources = given.get("chunking"), given.get("resources") or {}
    if isinstance(chunking, dict) and chunking.get("mode") == "adaptive":
        chunking = {**chunking, "adjustmentGain": chunking.get("adjustmentGain", 1)}
    return {
        "boundaryId": given.get("boundaryId"),
        "kind": given.get("kind"),
        "unit": given.get("unit"),
        "totalItems": given.get("totalItems"),
        "progressWeight": given.get("progressWeight"),
        "commandDutyKind": given.get("commandDutyKind", "compute" if gpu else None),
        "hostPhase": given.get("hostPhase", None if gpu else "other"),
        "chunking": chunking,
        "yieldPolicy": given.get("yieldPolicy", "after-duty"),
        "resources": {name: resources.get(name, []) for name in ("retain", "produce", "release")},
        "metadata": given.get("metadata", {}),
    }
