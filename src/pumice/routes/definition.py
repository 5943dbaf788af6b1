"""Route definitions: a callable local inference with named inputs and outputs, its model, kernels and stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pumice.routes.backend import WEBGPU_LOCAL
from pumice.routes.backpressure import BACKPRESSURE
from pumice.routes.documents import DocumentKind, RouteDocument
from pumice.routes.kernel import QUEUE_SUBMIT_WAIT
from pumice.routes.rules import TEXT, Field, Items, Nested, Record, Rule, exactly, is_text
from pumice.routes.scheduler import SCHEDULER

DEFINITION_SCHEMA = "kaminos.webgpu-route-definition.v0"

_ROLES = Rule(
    "must be a non-empty array", lambda value: isinstance(value, list) and bool(value), {"type": "array", "minItems": 1}
)
ROLE = Record("role", (Field("role", TEXT),))
DEFINITION = DocumentKind(
    "route definition",
    DEFINITION_SCHEMA,
    Record(
        "route",
        (
            Field("schema", exactly(DEFINITION_SCHEMA)),
            Field("routeId", TEXT),
            Field("backendKind", exactly(WEBGPU_LOCAL)),
            Nested("model", Record("model", (Field("id", TEXT),))),
            Nested("kernel", Record("kernel", (Field("profile", TEXT),))),
            Items("inputRoles", ROLE),
            Items("outputRoles", ROLE),
            Field("requiredInputRoles", _ROLES),
            Field("requiredOutputRoles", _ROLES),
            Field("timingSource", TEXT),
            Nested("scheduler", SCHEDULER.record, "null", own_name=True),
            Nested("backpressure", BACKPRESSURE.record, "null", own_name=True),
        ),
    ),
)


@dataclass(frozen=True)
class Role:
    """The name of an input or output, whether it may be left out, and whether its artifact needs an id and a hash.

    >>> Role("mask", required=False, shape=(592, 592)).to_json()["required"]
    False
    """

    role: str
    required: bool = True
    artifact_required: bool = True
    hash_required: bool = True
    shape: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """The role as an entry of `inputRoles` or `outputRoles`."""
        entry: dict[str, Any] = {
            "role": self.role,
            "required": self.required,
            "artifactRequired": self.artifact_required,
            "hashRequired": self.hash_required,
        }
        return entry if self.shape is None else {**entry, "shape": list(self.shape)}


def define_route(
    route_id: str,
    *,
    model: Mapping[str, Any],
    kernel: Mapping[str, Any],
    inputs: Iterable[Role | str],
    outputs: Iterable[Role | str],
    required_features: Iterable[str] = (),
    required_stages: Iterable[str] = (),
    timing_source: str = QUEUE_SUBMIT_WAIT,
    scheduler: Mapping[str, Any] | None = None,
    backpressure: Mapping[str, Any] | None = None,
    worker: Mapping[str, Any] | None = None,
) -> RouteDocument:
    """A definition. A role that is a string is required, with id and hash.

    >>> route = define_route("demo.text.webgpu-local.v0", model={"id": "smollm2"}, kernel={"profile": "plan"},
    ...     inputs=["prompt"], outputs=["text", Role("logits", required=False)], required_stages=["decode"])
    >>> route["requiredOutputRoles"], route["optionalOutputRoles"]
    (('text',), ('logits',))
    """
    taken, given = ([Role(r) if isinstance(r, str) else r for r in roles] for roles in (inputs, outputs))
    return DEFINITION.document(
        {
            "schema": DEFINITION_SCHEMA,
            "routeId": route_id,
            "backendKind": WEBGPU_LOCAL,
            "model": model,
            "kernel": kernel,
            "inputRoles": [role.to_json() for role in taken],
            "outputRoles": [role.to_json() for role in given],
            "requiredInputRoles": [role.role for role in taken if role.required],
            "requiredOutputRoles": [role.role for role in given if role.required],
            "optionalOutputRoles": [role.role for role in given if not role.required],
            "requiredFeatures": sorted(required_features),
            "requiredStages": list(required_stages),
            "timingSource": timing_source,
            "scheduler": scheduler,
            "backpressure": backpressure,
            "worker": worker,
        }
    )


def texts(value: object) -> Iterator[str]:
    """The names in a list of a definition, which no rule says is one."""
    return (name for name in value if is_text(name)) if isinstance(value, list) else iter(())
