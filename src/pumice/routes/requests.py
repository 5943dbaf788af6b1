"""Invocation requests: which artifacts a route shall take and give; checked against the route's definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pumice.routes.backend import WEBGPU_LOCAL
from pumice.routes.backpressure import BACKPRESSURE
from pumice.routes.definition import DEFINITION
from pumice.routes.documents import DocumentKind, RouteDocument, invalid, now, plain, same
from pumice.routes.rules import ABSENT, TEXT, Field, Hash, Nested, Record, exactly, field_of, is_integer, is_text
from pumice.routes.scheduler import SCHEDULER

REQUEST_SCHEMA = "kaminos.webgpu-route-request.v0"

REQUEST = DocumentKind(
    "route request",
    REQUEST_SCHEMA,
    Record(
        "request",
        (
            Field("schema", exactly(REQUEST_SCHEMA)),
            Field("requestId", TEXT),
            Field("backendKind", exactly(WEBGPU_LOCAL)),
            Nested("scheduler", SCHEDULER.record, "null", own_name=True),
            Nested("backpressure", BACKPRESSURE.record, "null", own_name=True),
        ),
    ),
)
_SHA256 = Hash()


def artifact_errors(listed: object, path: str, route: Mapping[str, Any], side: str, *, hashed: bool) -> Iterator[str]:
    """What is wrong with the artifacts of one side, "Input" or "Output", against the roles of a valid route.

    A role whose `artifactRequired` or `hashRequired` is false needs no id or hash.
    """
    if not isinstance(listed, list):
        yield f"{path} must be an array"
        return
    roles = {field_of(role, "role"): role for role in route[f"{side.lower()}Roles"]}
    seen: set[str] = set()
    for i, entry in enumerate(listed):
        here, name = f"{path}[{i}]", field_of(entry, "role")
        if not is_text(name):
            yield f"{here}.role {TEXT.text}"
        elif name in seen:
            yield f"{here}.role duplicates {name}"
        elif name not in roles:
            yield f"{here}.role is not defined by route"
        role = roles.get(name, {}) if is_text(name) else {}
        seen |= {name} if is_text(name) else set()
        if role.get("artifactRequired") is not False and not is_text(field_of(entry, "artifactId")):
            yield f"{here}.artifactId {TEXT.text}"
        if hashed and (role.get("hashRequired") is not False or field_of(entry, "sha256") not in (ABSENT, None)):
            yield from _SHA256.errors(entry if isinstance(entry, dict) else {}, f"{here}.")
        shape = field_of(entry, "shape")
        if shape not in (ABSENT, None) and not (isinstance(shape, list) and all(map(is_integer, shape))):
            yield f"{here}.shape must be an integer array when present"
    for name, role in roles.items():
        if role.get("required") is not False and name not in seen:
            yield f"{path} missing required role {name}"


def request_errors(request: object, route: object) -> list[str]:
    """Everything that is wrong with a request for a route."""
    return list(_request_errors(plain(request), plain(route)))


def _request_errors(request: Any, route: Any) -> Iterator[str]:
    if not REQUEST.record.takes(request):
        yield from REQUEST.record.errors(request)
        return
    wrong = DEFINITION.errors(route)
    yield from (f"route.{text}" for text in wrong)
    schema, request_id, kind, scheduler, backpressure = REQUEST.record.checks
    owner = request if isinstance(request, dict) else {}
    yield from schema.errors(owner, "")
    yield from request_id.errors(owner, "")
    if not same_route(owner, "routeId", route):
        yield "routeId must match route definition"
    yield from kind.errors(owner, "")
    if not wrong:
        yield from artifact_errors(field_of(owner, "inputs"), "inputs", route, "Input", hashed=True)
        yield from artifact_errors(field_of(owner, "outputs"), "outputs", route, "Output", hashed=False)
    for name, check in (("scheduler", scheduler), ("backpressure", backpressure)):
        yield from check.errors(owner, "")
        wanted = field_of(route, name)
        if wanted not in (ABSENT, None) and not same(field_of(owner, name), wanted):
            yield f"{name} must match route definition"


def same_route(owner: object, name: str, route: object) -> bool:
    """Whether a field has the route's id; two that have none agree."""
    return same(field_of(owner, name), field_of(route, "routeId"))


def route_request(
    route: Mapping[str, Any],
    request_id: str,
    *,
    inputs: Mapping[str, Mapping[str, Any]],
    outputs: Mapping[str, Mapping[str, Any]],
    config: Mapping[str, Any] | None = None,
    created_at: str | None = None,
) -> RouteDocument:
    """A request with artifacts by role. An optional role that is not given is left out.

    >>> from pumice.routes.predefined import MOGE
    >>> request = route_request(MOGE.definition(), "1", inputs={"source-image": {"artifactId": "i", "sha256": "ab" * 32}},
    ...     outputs={"depth": {"artifactId": "d"}, "normal": {"artifactId": "n"}})
    >>> [artifact["role"] for artifact in request["outputs"]]
    ['depth', 'normal']
    """
    definition = DEFINITION.document(route)

    def listed(given: Mapping[str, Mapping[str, Any]], side: str, fields: tuple[str, ...]) -> list[dict[str, Any]]:
        order = [role["role"] for role in definition[f"{side.lower()}Roles"]]
        names = [name for name in order if name in given] + [name for name in given if name not in order]
        return [{"role": name, **{f: given[name][f] for f in fields if f in given[name]}} for name in names]

    value = {
        "schema": REQUEST_SCHEMA,
        "requestId": request_id,
        "routeId": definition["routeId"],
        "backendKind": definition["backendKind"],
        "inputs": listed(inputs, "Input", ("artifactId", "sha256", "shape", "status")),
        "outputs": listed(outputs, "Output", ("artifactId", "shape")),
        "routeConfig": dict(config or {}),
        "model": definition["model"],
        "kernel": definition["kernel"],
        "scheduler": definition.get("scheduler"),
        "backpressure": definition.get("backpressure"),
        "createdAt": created_at or now(),
    }
    if errors := request_errors(value, definition):
        raise invalid(REQUEST.name, errors)
    return RouteDocument(REQUEST, value)
