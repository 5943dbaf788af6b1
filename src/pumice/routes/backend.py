"""Backend identity: the device that ran, as it was captured; what was not captured stays absent and is an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pumice.routes.documents import DocumentKind, RouteDocument
from pumice.routes.errors import RouteError
from pumice.routes.kernel import TIMESTAMP_QUERY
from pumice.routes.rules import TEXT, Field, Law, Record, Rule, exactly, field_of, is_object, one_of

WEBGPU_LOCAL = "webgpu-local"
# "native" is Pumice's own value: a device that wgpu or the host opened, and no browser.
RUNTIMES = ("browser", "native")
TIMESTAMP_STATES = ("requested", "available", "unavailable", "disabled")
# The limits that an identity records, of all that a device has.
LIMITS = (
    "maxBufferSize",
    "maxStorageBufferBindingSize",
    "maxComputeWorkgroupStorageSize",
    "maxComputeInvocationsPerWorkgroup",
    "maxComputeWorkgroupSizeX",
    "maxComputeWorkgroupSizeY",
)


def _timestamps(identity: Mapping[str, Any]) -> Iterator[str]:
    if field_of(identity, "timestampQuery") != "requested":
        return
    for name in ("requestedFeatures", "features"):
        listed = field_of(identity, name)
        if not isinstance(listed, list) or TIMESTAMP_QUERY not in listed:
            yield f"timestamp-query requested state must include timestamp-query in {name}"


BACKEND = DocumentKind(
    "WebGPU backend identity",
    "",
    Record(
        "identity",
        (
            Field("kind", exactly(WEBGPU_LOCAL)),
            Field("runtime", exactly(*RUNTIMES)),
            Field("adapterName", TEXT),
            Field(
                "features",
                Rule(
                    "must be an array (empty is lawful for a zero-feature device)",
                    lambda value: isinstance(value, list),
                    {"type": "array"},
                ),
            ),
            Field(
                "limits",
                Rule(
                    "must be a non-empty object",
                    lambda value: is_object(value) and bool(value),
                    {"type": "object", "minProperties": 1},
                ),
            ),
            Field("timestampQuery", one_of("has unsupported state", TIMESTAMP_STATES)),
            Law("requested timestamps are among the requested and the effective features", _timestamps),
        ),
    ),
)


def backend_identity(
    adapter_name: str,
    *,
    features: Iterable[str],
    limits: Mapping[str, int],
    requested_features: Iterable[str] = (),
    timestamp_query: str = "unavailable",
    runtime: str = "native",
    browser: str | None = None,
) -> RouteDocument:
    """The device of a run. Features and limits are the opened device's: what an adapter supports proves nothing.

    >>> identity = backend_identity("NVIDIA H200", features=["shader-f16"], limits={"maxBufferSize": 1 << 30})
    >>> identity["runtime"], identity["timestampQuery"]
    ('native', 'unavailable')
    """
    return BACKEND.document(
        {
            "kind": WEBGPU_LOCAL,
            "runtime": runtime,
            "adapterName": adapter_name,
            "browser": browser,
            "requestedFeatures": sorted(requested_features),
            "features": sorted(features),
            "limits": {name: limits[name] for name in LIMITS if name in limits},
            "timestampQuery": timestamp_query,
        }
    )


def device_request(features: Iterable[str], limits: Mapping[str, int], *, timestamps: str = "prefer") -> dict[str, Any]:
    """What to ask an adapter with these features and limits for: timestamps (prefer, require or disable) and all its limits.

    >>> device_request(["timestamp-query"], {"maxBufferSize": 8, "maxBindGroups": 4})
    {'requiredFeatures': ['timestamp-query'], 'requiredLimits': {'maxBufferSize': 8}, 'timestampQuery': 'requested'}
    """
    if timestamps not in ("prefer", "require", "disable"):
        raise RouteError(f"timestampQuery has unsupported value {timestamps}", hint="use prefer, require or disable")
    available = TIMESTAMP_QUERY in list(features)
    if timestamps == "require" and not available:
        raise RouteError("timestamp-query required but not supported by adapter", hint="prefer it, or choose another adapter")
    wanted = available and timestamps != "disable"
    return {
        "requiredFeatures": [TIMESTAMP_QUERY] if wanted else [],
        "requiredLimits": {name: limits[name] for name in LIMITS if name in limits},
        "timestampQuery": "requested" if wanted else "disabled" if timestamps == "disable" else "unavailable",
    }
