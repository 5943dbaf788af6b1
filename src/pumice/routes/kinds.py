"""All kinds of documents by name and schema id, and the check of any document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.routes.backend import BACKEND
from pumice.routes.backpressure import BACKPRESSURE
from pumice.routes.boundaries import BOUNDARY_MANIFEST
from pumice.routes.chunk_plans import CHUNK_PLAN
from pumice.routes.definition import DEFINITION
from pumice.routes.documents import KIT_VERSION, DocumentKind, plain
from pumice.routes.evidence import EVIDENCE_SCHEMA
from pumice.routes.kernel import KERNEL, TIMING
from pumice.routes.model_packages import MODEL_PACKAGE
from pumice.routes.model_resources import MODEL_MANIFEST
from pumice.routes.own import own_routes
from pumice.routes.predefined import predefined_routes
from pumice.routes.receipts import RECEIPT
from pumice.routes.records import RECORDS
from pumice.routes.requests import REQUEST, request_errors
from pumice.routes.results import RESULT, result_errors
from pumice.routes.rules import field_of
from pumice.routes.runtime_profile import RUNTIME_PROFILE
from pumice.routes.scheduler import SCHEDULER
from pumice.routes.staged import STAGED
from pumice.routes.state_records import STATE_RECORDS
from pumice.routes.tensors import TENSOR_MANIFEST
from pumice.routes.verification import VERIFICATION

# Documents with a schema id of their own, then parts that other documents hold.
KINDS: tuple[DocumentKind, ...] = (
    DEFINITION,
    REQUEST,
    RESULT,
    RECEIPT,
    STAGED,
    RUNTIME_PROFILE,
    SCHEDULER,
    BACKPRESSURE,
    TENSOR_MANIFEST,
    MODEL_MANIFEST,
    CHUNK_PLAN,
    MODEL_PACKAGE,
    BOUNDARY_MANIFEST,
    VERIFICATION,
    *RECORDS,
    *STATE_RECORDS,
    BACKEND,
    KERNEL,
    TIMING,
)
BY_SCHEMA = {kind.schema_id: kind for kind in KINDS if kind.schema_id}


def kind_of(document: object) -> DocumentKind | None:
    """The kind that a document says it is; None where it names no schema that is known here.

    >>> kind_of({"schema": "kaminos.tensor-manifest.v0"}).name
    'tensor manifest'
    """
    schema = field_of(document, "schema")
    return BY_SCHEMA.get(schema) if isinstance(schema, str) else None


def document_errors(document: object, route: Mapping[str, Any] | None = None) -> list[str]:
    """Everything that is wrong with a document of any kind. Requests and results are checked against their route:
    the one given, or the known one that they name.

    >>> document_errors({"schema": "kaminos.webgpu-route-request.v0", "routeId": "nope"})[0]
    'route.route must be an object'
    """
    kind = kind_of(document)
    if kind is None:
        return [f"schema must be one of {', '.join(BY_SCHEMA)}"]
    if kind not in (REQUEST, RESULT):
        return kind.errors(document)
    known = {known["routeId"]: known for known in (*own_routes(), *predefined_routes())}
    wanted = field_of(plain(document), "routeId")
    found = route if route is not None else known.get(wanted) if isinstance(wanted, str) else None
    return (request_errors if kind is REQUEST else result_errors)(document, found)


def schema_contract() -> dict[str, Any]:
    """The schema ids that both sides agree on, and which statuses of receipts are authoritative.

    >>> schema_contract()["authoritativeReceiptStatuses"]
    ['real']
    """
    return {
        "schema": "kaminos.webgpu-route-schema-contract.v0",
        "kitVersion": KIT_VERSION,
        "definitionSchema": DEFINITION.schema_id,
        "requestSchema": REQUEST.schema_id,
        "resultSchema": RESULT.schema_id,
        "receiptSchema": RECEIPT.schema_id,
        "runtimeProfileSchema": RUNTIME_PROFILE.schema_id,
        "evidenceClassificationSchema": EVIDENCE_SCHEMA,
        "schedulerSchema": SCHEDULER.schema_id,
        "backpressureSchema": BACKPRESSURE.schema_id,
        "cooperativeAdapterConformanceSchema": "kaminos.webgpu-cooperative-adapter-conformance-report.v0",
        "authoritativeReceiptStatuses": ["real"],
        "nonAuthoritativeReceiptStatuses": ["fallback", "partial", "cached"],
    }
