"""Route receipts: what ran, on what device, from which inputs to which outputs, and how long it took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pumice.routes.backend import BACKEND, WEBGPU_LOCAL
from pumice.routes.documents import RULES_HINT, DocumentKind, RouteDocument, now, shared
from pumice.routes.errors import InvalidDocument, NotAuthoritative
from pumice.routes.rules import (
    ABSENT,
    AMOUNT,
    ARRAY,
    SHAPE,
    TEXT,
    Field,
    Hash,
    Items,
    Law,
    Nested,
    Record,
    exactly,
    field_of,
    is_shape,
    is_text,
    said,
    shown,
)
from pumice.routes.staged import STAGED

RECEIPT_SCHEMA = "kaminos.webgpu-route-receipt.v0"
AUTHORITATIVE = ("real",)
NOT_AUTHORITATIVE = ("fallback", "partial", "cached")


def _truthy(value: object) -> bool:
    """Whether a reason is there: any value but null, false, 0 and the empty string."""
    return value is not ABSENT and (bool(value) or isinstance(value, (list, dict, tuple)))


def _fallback(receipt: Mapping[str, Any]) -> Iterator[str]:
    if field_of(receipt, "status") == "fallback" and not is_text(field_of(receipt, "fallbackReason")):
        yield "fallback receipts must include fallbackReason"


_ARTIFACT = (Field("role", TEXT), Field("artifactId", TEXT), Hash())
INPUT = Record("input", _ARTIFACT)
OUTPUT = Record("output", (*_ARTIFACT, Field("status", TEXT), Field("shape", SHAPE)))
MODEL = Record("model", (Field("id", TEXT), Field("revision", TEXT), Field("weightsHash", TEXT), Field("dtype", TEXT)))
TIMINGS = Record(
    "timings",
    (
        Field("source", TEXT),
        Field("totalMs", AMOUNT),
        Field("stages", said("must be an array when present", ARRAY), "null"),
    ),
)
RECEIPT = DocumentKind(
    "route receipt",
    RECEIPT_SCHEMA,
    Record(
        "receipt",
        (
            Field("schema", exactly(RECEIPT_SCHEMA)),
            Field("requestedRouteId", TEXT),
            Field("effectiveRouteId", TEXT),
            Field("status", TEXT),
            Nested("backend", Record("backend", (Field("kind", exactly(WEBGPU_LOCAL)), Field("runtime", TEXT)))),
            Nested("model", MODEL),
            Nested("kernel", Record("kernel", (Field("kitVersion", TEXT), Field("profile", TEXT)))),
            Items("inputs", INPUT),
            Items("outputs", OUTPUT),
            Nested("timings", TIMINGS),
            Law("a fallback says why", _fallback),
        ),
    ),
)


def input_artifact(role: str, artifact: Mapping[str, Any]) -> dict[str, Any]:
    """An artifact with its role, as receipts list inputs."""
    return {"role": role, **artifact}


def output_artifact(role: str, artifact: object, *, key: str = "") -> dict[str, Any]:
    """An artifact with its role, as receipts list outputs; it needs id, hash and shape, and is real unless it says otherwise.

    >>> output_artifact("depth", {"artifactId": "d", "sha256": "ab" * 32})
    Traceback (most recent call last):
    pumice.routes.errors.InvalidDocument: [invalid-document] depth output must include shape
      hint: docs/routes.md has the rules of every document
    """
    name = key or role
    if not isinstance(artifact, Mapping):
        raise artifact_error(f"{name} output must be an object")
    shape = artifact.get("shape")
    listed = list(shape) if isinstance(shape, (list, tuple)) else shape
    for field, held in (
        ("artifactId", is_text(artifact.get("artifactId"))),
        ("sha256", is_text(artifact.get("sha256"))),
        ("shape", is_shape(listed)),
    ):
        if not held:
            raise artifact_error(f"{name} output must include {field}")
    status = artifact.get("status") or "real"
    return {"role": role, "artifactId": artifact["artifactId"], "sha256": artifact["sha256"], "shape": listed, "status": status}


def artifact_error(text: str) -> InvalidDocument:
    """The error of an artifact that a receipt cannot take."""
    return InvalidDocument(text, kind="artifact", errors=[text], hint=RULES_HINT)


def route_receipt(
    route_id: str,
    *,
    backend: Mapping[str, Any],
    model: Mapping[str, Any],
    kernel: Mapping[str, Any],
    inputs: Iterable[Mapping[str, Any]],
    outputs: Iterable[Mapping[str, Any]],
    profile: Mapping[str, Any],
    requested_route_id: str | None = None,
    status: str | None = None,
    fallback_reason: str | None = None,
    runtime: Mapping[str, Any] | None = None,
    created_at: str | None = None,
) -> RouteDocument:
    """A receipt from a captured device and a finished profile of stages; both are checked, as is the whole.

    `runtime` may hold the `scheduler` and `backpressure` profiles of the run.

    >>> from pumice.routes.predefined import MOGE
    >>> MOGE.definition()["routeId"]
    'moge.depth-normal.webgpu-local.v0'
    """
    identity, staged = BACKEND.document(backend), STAGED.document(profile)
    timed = shared(staged)
    timings = {"source": timed["timingSource"], "totalMs": timed["totalMs"], "stages": timed["stages"], "profile": staged}
    value: dict[str, Any] = {
        "schema": RECEIPT_SCHEMA,
        "requestedRouteId": requested_route_id or route_id,
        "effectiveRouteId": route_id,
        "status": status or ("fallback" if fallback_reason else "real"),
        "fallbackReason": fallback_reason,
        "backend": identity,
        "model": model,
        "kernel": kernel,
        "inputs": list(inputs),
        "outputs": list(outputs),
        "timings": timings,
        "createdAt": created_at or now(),
    }
    return RECEIPT.document(value if runtime is None else {**value, "runtime": runtime})


def require_authoritative(receipt: Mapping[str, Any]) -> RouteDocument:
    """The receipt, if it proves a real run: valid, real, no fallback, every output real."""
    checked = RECEIPT.document(receipt)
    if (status := checked["status"]) not in AUTHORITATIVE:
        raise _refused(f"not authoritative: receipt status is {status}")
    if _truthy(reason := checked.get("fallbackReason")):
        raise _refused(f"not authoritative: fallback reason present ({shown(reason)})")
    for output in checked["outputs"]:
        if output["status"] == "partial":
            raise _refused(f"partial output is not authoritative: {output['role']}")
        if output["status"] not in AUTHORITATIVE:
            raise _refused(f"output is not authoritative: {output['role']} status={output['status']}")
    return checked


def _refused(text: str) -> NotAuthoritative:
    return NotAuthoritative(text, hint="run the route again on a real device, or show this receipt as what it says it is")
