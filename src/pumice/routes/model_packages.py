"""Model packages: several manifests of one model, some with chunk plans, that are loaded one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pumice.routes.chunk_plans import CHUNK_PLAN, capped
from pumice.routes.documents import DocumentKind, RouteDocument, plain, same
from pumice.routes.model_resources import MODEL_MANIFEST, POSITIVE, as_number, is_safe, uri_part, whole_kind
from pumice.routes.rules import ABSENT, TEXT, Field, Record, Rule, exactly, field_of, is_text

PACKAGE_SCHEMA = "kaminos.webgpu-model-resource-package.v0"
_CAPS = ("maxResources", "maxBytes", "retentionLimit")
_UNCAPPED = "model resource packages are uncapped; maxResources, maxBytes, and retentionLimit are not supported"
# What of a manifest is compared: fields that no rule names may differ.
_MANIFEST_FIELDS = ("schema", "identity", "modelId", "revision", "bundle", "metadata", "resourceSharing", "allocations")


def package_identity(package: Mapping[str, Any]) -> str:
    """What identifies a package: its id, its model, and every manifest and chunk plan in it, in order."""

    def part(resource: Mapping[str, Any]) -> str:
        manifest, plan = resource["manifest"], resource.get("chunkPlan")
        allocations = ",".join(uri_part(a["semanticResourceId"]) for a in manifest["allocations"])
        chunks = f":chunks:{uri_part(plan['identity'])}" if plan else ""
        return f"{uri_part(resource['resourceId'])}={uri_part(manifest['identity'])}#allocations:{allocations}{chunks}"

    who = f"{uri_part(package['packageId'])}:{uri_part(package['modelId'])}@{uri_part(package['revision'])}"
    return f"{who}#resources:{'&'.join(map(part, package['resources']))}"


# -- checks -------------------------------------------------------------------------------------------------------------
def package_errors(package: Mapping[str, Any]) -> Iterator[str]:
    """Everything that is wrong with a package."""
    found = list(_errors(package))
    yield from found
    if not found and field_of(package, "identity") != package_identity(package):
        yield "identity must match packageId, modelId, revision, and ordered resource manifests"


def _errors(package: Mapping[str, Any]) -> Iterator[str]:
    if field_of(package, "schema") != PACKAGE_SCHEMA:
        yield f"schema must be {PACKAGE_SCHEMA}"
    for name in ("packageId", "modelId", "revision"):
        if not is_text(field_of(package, name)):
            yield f"{name} {TEXT.text}"
    if capped(package, _CAPS):
        yield _UNCAPPED
    resources = field_of(package, "resources")
    if not isinstance(resources, list) or not resources:
        yield "resources must be a non-empty array"
        return
    children = _Children(package)
    for i, resource in enumerate(resources):
        yield from children.errors(f"resources[{i}]", resource)
    yield from children.total_errors()


class _Children:
    """Checks the resources of a package, in which names are unique, and sums them up."""

    def __init__(self, package: Mapping[str, Any]) -> None:
        self._package = package
        self._ids: list[str] = []
        self._tensors: set[str] = set()
        self._sizes: list[int] = []
        self._sources: list[float] = []
        self._chunked = False

    def errors(self, where: str, resource: Any) -> Iterator[str]:
        if not isinstance(resource, Mapping):
            yield f"{where} must be an object"
            return
        name, manifest, plan = (field_of(resource, key) for key in ("resourceId", "manifest", "chunkPlan"))
        if not is_text(name):
            yield f"{where}.resourceId {TEXT.text}"
        elif name in self._ids:
            yield f"duplicate package resourceId {name}"
        else:
            self._ids.append(name)
        wrong = MODEL_MANIFEST.errors(manifest)
        if wrong:
            yield from (f"{where}.manifest: {text}" for text in wrong)
            return
        # What JavaScript takes for false is no plan.
        chunked = plan is not ABSENT and (bool(plan) or isinstance(plan, (list, Mapping)))
        kind = field_of(resource, "loadKind")
        if kind not in (ABSENT, None) and kind != ("chunks" if chunked else "source"):
            yield f"{where}.loadKind must match the declared child loader"
        size = manifest["bundle"]["byteLength"]
        if chunked:
            yield from self._plan_errors(where, manifest, plan)
        else:
            self._sources.append(size)
        for key in ("modelId", "revision"):
            if manifest[key] != field_of(self._package, key):
                yield f"{where}.manifest.{key} must match package {key}"
        self._sizes.append(size)
        for tensor in (t["name"] for a in manifest["allocations"] for t in a["tensors"]):
            if tensor in self._tensors:
                yield f"duplicate package tensor name {tensor}; tensor names must be unique"
            self._tensors.add(tensor)

    def _plan_errors(self, where: str, manifest: Mapping[str, Any], plan: Any) -> Iterator[str]:
        self._chunked = True
        wrong = CHUNK_PLAN.errors(plan)
        yield from (f"{where}.chunkPlan: {text}" for text in wrong)
        largest = field_of(plan, "largestChunkByteLength")
        self._sources.append(as_number(manifest["bundle"]["byteLength"] if largest in (ABSENT, None) else largest))
        if not wrong and not all(same(manifest[name], plan["manifest"][name]) for name in _MANIFEST_FIELDS):
            yield f"{where}.manifest must match the exact normalized chunkPlan.manifest"

    def total_errors(self) -> Iterator[str]:
        ids = field_of(self._package, "resourceIds")
        if not isinstance(ids, list):
            yield "resourceIds must be an array matching resources in declaration order"
        elif ids != self._ids:
            yield "resourceIds must match resources in declaration order"
        sums = {
            "totalByteLength": (sum(self._sizes), "the sum of resource bundle byte lengths"),
            "largestResourceByteLength": (max(self._sizes, default=0), "the largest resource bundle byte length"),
            "largestSourceByteLength": (_largest(self._sources), "the largest ordinary resource or declared chunk"),
        }
        for name, (wanted, what) in sums.items():
            value = field_of(self._package, name)
            if name == "largestSourceByteLength" and value is ABSENT and not self._chunked:
                continue  # packages of an earlier release have none, as it is the largest resource
            if not is_safe(value, 1):
                yield f"{name} {POSITIVE.text}"
            elif value != wanted:
                yield f"{name} must equal {what}"


def _largest(sizes: list[float]) -> float:
    """The largest; no number where one of them is none."""
    return math.nan if any(map(math.isnan, sizes)) else max(sizes, default=0)


_RESOURCE = Record(
    "resource",
    (
        Field("resourceId", TEXT),
        Field("loadKind", exactly("source", "chunks"), "absent"),
        Field("manifest", Rule("", lambda _: True, MODEL_MANIFEST.record.schema())),
        Field("chunkPlan", Rule("", lambda _: True, CHUNK_PLAN.record.schema()), "absent"),
    ),
)
MODEL_PACKAGE: DocumentKind = whole_kind(
    "model resource package",
    "model resource package",
    PACKAGE_SCHEMA,
    package_errors,
    (
        *(Field(name, TEXT) for name in ("packageId", "modelId", "revision", "identity")),
        Field("resources", Rule("", lambda _: True, {"type": "array", "minItems": 1, "items": _RESOURCE.schema()})),
        Field("resourceIds", Rule("", lambda _: True, {"type": "array", "items": TEXT.schema})),
        Field("totalByteLength", POSITIVE),
        Field("largestResourceByteLength", POSITIVE),
        Field("largestSourceByteLength", POSITIVE, "absent"),
    ),
)


# -- making them --------------------------------------------------------------------------------------------------------
def model_package(package_id: str, model_id: str, revision: str, resources: Iterable[tuple[str, RouteDocument]]) -> RouteDocument:
    """The package of a model: its manifests and chunk plans by their resource ids, in the order in which they are loaded.

    >>> from pumice.routes.model_resources import model_manifest
    >>> tensor = {"name": "w", "dtype": "u8", "shape": [8], "byteOffset": 0, "byteLength": 8}
    >>> allocation = {"allocationId": "a", "byteOffset": 0, "byteLength": 8, "usage": 8, "tensors": [tensor]}
    >>> manifest = model_manifest("m", "1", [allocation], byte_length=8, sha256="ab" * 32)
    >>> model_package("p", "m", "1", [("weights", manifest)])["totalByteLength"]
    8
    """
    listed: list[dict[str, Any]] = []
    for name, document in resources:
        value = plain(document)
        if document.kind is CHUNK_PLAN:
            listed.append({"resourceId": name, "loadKind": "chunks", "manifest": value["manifest"], "chunkPlan": value})
        else:
            listed.append({"resourceId": name, "loadKind": "source", "manifest": value})
    sizes = [entry["manifest"]["bundle"]["byteLength"] for entry in listed]
    sources = [
        entry["chunkPlan"]["largestChunkByteLength"] if "chunkPlan" in entry else size for entry, size in zip(listed, sizes)
    ]
    made = {
        "schema": PACKAGE_SCHEMA,
        "packageId": package_id,
        "modelId": model_id,
        "revision": revision,
        "resources": listed,
        "resourceIds": [entry["resourceId"] for entry in listed],
        "totalByteLength": sum(sizes),
        "largestResourceByteLength": max(sizes, default=0),
        "largestSourceByteLength": max(sources, default=0),
    }
    return MODEL_PACKAGE.document({**made, "identity": package_identity(made)})
