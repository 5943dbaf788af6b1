"""Worker results: a request and the receipt of its run, checked against the route's definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pumice.routes.backend import BACKEND
from pumice.routes.definition import DEFINITION, texts
from pumice.routes.documents import DocumentKind, RouteDocument, invalid, now, plain, same
from pumice.routes.receipts import RECEIPT, require_authoritative
from pumice.routes.requests import artifact_errors, request_errors, same_route
from pumice.routes.rules import ABSENT, TEXT, Field, Record, exactly, field_of, is_text, shown

RESULT_SCHEMA = "kaminos.webgpu-route-result.v0"
RESULT = DocumentKind(
    "route worker result",
    RESULT_SCHEMA,
    Record("result", (Field("schema", exactly(RESULT_SCHEMA)), Field("requestId", TEXT))),
)


def result_errors(result: object, route: object) -> list[str]:
    """Everything that is wrong with a result of a route."""
    return list(_result_errors(plain(result), plain(route)))


def _result_errors(result: Any, route: Any) -> Iterator[str]:
    if not RESULT.record.takes(result):
        yield from RESULT.record.errors(result)
        return
    owner = result if isinstance(result, dict) else {}
    wrong = DEFINITION.errors(route)
    yield from (f"route.{text}" for text in wrong)
    yield from RESULT.record.errors(owner)
    if not same_route(owner, "routeId", route):
        yield "routeId must match route definition"
    request, receipt = field_of(owner, "request"), field_of(owner, "receipt")
    if request not in (ABSENT, None):
        yield from (f"request.{text}" for text in request_errors(request, route))
    yield from (f"receipt.{text}" for text in _receipt_errors(receipt, route, wrong))
    yield from (f"backend.{text}" for text in BACKEND.errors(field_of(owner, "backend")))
    if wrong:
        if not isinstance(field_of(owner, "outputs"), list):
            yield "outputs must be an array"
        return
    yield from artifact_errors(field_of(owner, "outputs"), "outputs", route, "Output", hashed=True)
    yield from _timing_errors(receipt, route)
    yield from _agreement_errors(owner, receipt, route)


def _receipt_errors(receipt: Any, route: Any, wrong: list[str]) -> Iterator[str]:
    """The receipt's own errors, without those about ids and hashes that the route's roles do not require."""
    errors = RECEIPT.errors(receipt)
    yield from errors if wrong else (text for text in errors if not _waived(text, receipt, route))
    if not errors:
        for name in ("requestedRouteId", "effectiveRouteId"):
            if not same_route(receipt, name, route):
                yield f"{name} must match route definition"


def _waived(text: str, receipt: Any, route: Any) -> bool:
    for side in ("input", "output"):
        flags = {field_of(role, "role"): role for role in route[f"{side}Roles"]}
        listed = field_of(receipt, f"{side}s")
        for i, entry in enumerate(listed if isinstance(listed, list) else ()):
            name = field_of(entry, "role")
            role = flags.get(name, {}) if isinstance(name, str) else {}
            for field, flag in (("artifactId", "artifactRequired"), ("sha256", "hashRequired")):
                lacking = field_of(entry, field) in (ABSENT, None)
                if lacking and role.get(flag) is False and text.startswith(f"{side}s[{i}].{field} "):
                    return True
    return False


def _timing_errors(receipt: Any, route: Any) -> Iterator[str]:
    timings = field_of(receipt, "timings")
    if not isinstance(timings, dict):
        return
    source = field_of(timings, "source")
    if is_text(source) and source != route["timingSource"]:
        yield f"receipt.timings.source must be {route['timingSource']}"
    profile = field_of(timings, "profile")
    found = {
        name
        for listed in (field_of(timings, "stages"), field_of(profile, "stageNames"), field_of(profile, "stages"))
        for name in _stage_names(listed)
    }
    required = route.get("requiredStages")
    for stage in required if isinstance(required, list) else ():
        if not isinstance(stage, str) or stage not in found:
            yield f"receipt.timings missing required stage {shown(stage)}"


def _stage_names(stages: object) -> Iterator[str]:
    for stage in stages if isinstance(stages, list) else ():
        name = field_of(stage, "name") if isinstance(stage, dict) else stage
        if isinstance(name, str):
            yield name


def _agreement_errors(result: Mapping[str, Any], receipt: Any, route: Any) -> Iterator[str]:
    """What the result, its receipt and the device must agree on."""
    if isinstance(receipt, dict) and not same(field_of(result, "status"), field_of(receipt, "status")):
        yield "status must match receipt.status"
    features = field_of(field_of(result, "backend"), "features")
    for feature in texts(route.get("requiredFeatures")):
        if isinstance(features, list) and feature not in features:
            yield f"backend.features missing required feature {feature}"


def worker_result(
    route: Mapping[str, Any], request: Mapping[str, Any], receipt: Mapping[str, Any], *, created_at: str | None = None
) -> RouteDocument:
    """The result of a request; status, backend, outputs and timings are the receipt's."""
    value = {
        "schema": RESULT_SCHEMA,
        "requestId": request.get("requestId"),
        "routeId": route.get("routeId"),
        "status": receipt.get("status", "unknown"),
        "request": request,
        "receipt": receipt,
        "backend": receipt.get("backend"),
        "outputs": receipt.get("outputs"),
        "timings": receipt.get("timings"),
        "createdAt": created_at or now(),
    }
    return check_result(value, route)


def check_result(result: Mapping[str, Any], route: Mapping[str, Any]) -> RouteDocument:
    """The result as a document; InvalidDocument names every broken rule."""
    if errors := result_errors(result, route):
        raise invalid(RESULT.name, errors)
    return RouteDocument(RESULT, result)


def require_authoritative_result(result: Mapping[str, Any], route: Mapping[str, Any]) -> RouteDocument:
    """The result, if it is valid and its receipt proves a real run."""
    checked = check_result(result, route)
    require_authoritative(checked["receipt"])
    return checked
