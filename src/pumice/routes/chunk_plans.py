"""Chunk plans: the chunks of each buffer of a model manifest, each with its SHA-256: one at a time is loaded and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pumice.routes.documents import DocumentKind, RouteDocument, plain
from pumice.routes.model_resources import (
    DIGEST,
    MODEL_MANIFEST,
    POSITIVE,
    SAFE,
    SEMANTIC,
    is_digest,
    is_safe,
    sharing_policy,
    uri_part,
    whole_kind,
)
from pumice.routes.rules import ABSENT, TEXT, Field, Record, Rule, field_of, is_text, shown

CHUNK_PLAN_SCHEMA = "kaminos.webgpu-model-resource-chunk-plan.v0"
_CAPS = ("maxChunks", "maxBytes", "retentionLimit")
_UNCAPPED = "model resource chunk plans are uncapped; maxChunks, maxBytes, and retentionLimit are not supported"


def capped(document: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether a document sets one of the limits that there are none of."""
    return any(field_of(document, name) not in (ABSENT, None) for name in names)


# -- ids ----------------------------------------------------------------------------------------------------------------
def chunk_identity(chunk: Mapping[str, Any]) -> str:
    """What identifies a chunk: its hash and its size, wherever it is."""
    sha256, size = (shown(field_of(chunk, name)) for name in ("sha256", "byteLength"))
    return f"kaminos:model-resource-chunk:sha256:{sha256}:bytes:{size}"


def _physical_id(allocation: Mapping[str, Any], chunks: list[Any]) -> str:
    """`allocation` is the manifest's."""
    parts = (":".join(shown(field_of(chunk, name)) for name in ("byteOffset", "byteLength", "sha256")) for chunk in chunks)
    return f"kaminos:model-resource-chunks:{shown(allocation['byteLength'])}:{shown(allocation['usage'])}:{','.join(parts)}"


def _ids(manifest: Mapping[str, Any], allocation: Mapping[str, Any], chunks: list[Any]) -> dict[str, str]:
    """The ids of an allocation of the manifest whose chunks are these."""
    physical = _physical_id(allocation, chunks)
    semantic = f"{physical}:manifest-semantic:{uri_part(allocation['semanticResourceId'])}"
    chosen = semantic if sharing_policy(manifest) == SEMANTIC else physical
    return {"resourceId": chosen, "physicalResourceId": physical, "semanticResourceId": semantic}


def plan_identity(plan: Mapping[str, Any]) -> str:
    """What identifies a plan: its id, its manifest, and every chunk in its place."""

    def part(allocation: Mapping[str, Any]) -> str:
        chunks = (f"{uri_part(c['chunkId'])}@{shown(c['byteOffset'])}:{uri_part(c['identity'])}" for c in allocation["chunks"])
        return f"{uri_part(allocation['allocationId'])}={uri_part(allocation['semanticResourceId'])}[{','.join(chunks)}]"

    allocations = "&".join(map(part, plan["allocations"]))
    return f"{uri_part(plan['planId'])}:{uri_part(plan['manifest']['identity'])}#allocations:{allocations}"


# -- checks -------------------------------------------------------------------------------------------------------------
def plan_errors(plan: Mapping[str, Any]) -> Iterator[str]:
    """Everything that is wrong with a plan; of one whose manifest is wrong only that."""
    before = list(_head_errors(plan))
    yield from before
    manifest, allocations = field_of(plan, "manifest"), field_of(plan, "allocations")
    if MODEL_MANIFEST.errors(manifest):
        return
    wanted = manifest["allocations"]
    if not isinstance(allocations, list) or len(allocations) != len(wanted):
        yield "allocations must match every manifest allocation in declaration order"
        return
    coverage = _Coverage(manifest)
    found = [text for i, pair in enumerate(zip(wanted, allocations, strict=True)) for text in coverage.errors(i, *pair)]
    found += coverage.total_errors(plan)
    yield from found
    if not before and not found and field_of(plan, "identity") != plan_identity(plan):
        yield "identity must bind planId, manifest identity, chunk coverage, and allocation semantics"


def _head_errors(plan: Mapping[str, Any]) -> Iterator[str]:
    if field_of(plan, "schema") != CHUNK_PLAN_SCHEMA:
        yield f"schema must be {CHUNK_PLAN_SCHEMA}"
    if not is_text(field_of(plan, "planId")):
        yield f"planId {TEXT.text}"
    if capped(plan, _CAPS):
        yield _UNCAPPED
    yield from (f"manifest: {text}" for text in MODEL_MANIFEST.errors(field_of(plan, "manifest")))


class _Coverage:
    """Checks that the chunks of all allocations are where they should be, and counts them."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self._manifest = manifest
        self._ids: list[str] = []
        self._sizes: list[int] = []

    def errors(self, i: int, wanted: Mapping[str, Any], given: Any) -> Iterator[str]:
        where = f"allocations[{i}]"
        if not isinstance(given, Mapping):
            yield f"{where} must be an object"
            return
        if field_of(given, "allocationId") != wanted["allocationId"]:
            yield f"{where}.allocationId must match manifest allocation declaration order"
        for name in ("byteLength", "usage"):
            if not is_safe(field_of(given, name)) or given[name] != wanted[name]:
                yield f"{where}.{name} must match manifest allocation {name}"
        chunks = field_of(given, "chunks")
        if not isinstance(chunks, list) or not chunks:
            yield f"{where}.chunks must be a non-empty array"
            return
        end = 0
        for k, chunk in enumerate(chunks):
            here = f"{where}.chunks[{k}]"
            if not isinstance(chunk, Mapping):
                yield f"{here} must be an object"
                continue
            yield from self._chunk(here, chunk, end)
            end = _end(chunk, end)
        if end != wanted["byteLength"]:
            yield f"{where}.chunks must provide exact contiguous coverage of {shown(wanted['byteLength'])} bytes"
        if not all(isinstance(chunk, Mapping) for chunk in chunks):
            return
        texts = {
            "physicalResourceId": "must bind ordered chunk coverage",
            "semanticResourceId": "must bind chunk coverage and manifest semantics",
            "resourceId": "must match the manifest resourceSharing policy",
        }
        ids = _ids(self._manifest, wanted, chunks)
        yield from (f"{where}.{name} {text}" for name, text in texts.items() if field_of(given, name) != ids[name])

    def _chunk(self, here: str, chunk: Mapping[str, Any], end: int) -> Iterator[str]:
        name, offset, size = (field_of(chunk, key) for key in ("chunkId", "byteOffset", "byteLength"))
        if not is_text(name):
            yield f"{here}.chunkId {TEXT.text}"
        elif name in self._ids:
            yield f"duplicate model resource chunkId {name}"
        else:
            self._ids.append(name)
        if not is_safe(offset) or offset % 4:
            yield f"{here}.byteOffset must be a non-negative 4-byte-aligned safe integer"
        elif offset != end:
            yield f"{here}.byteOffset must provide contiguous allocation coverage at {shown(end)}"
        if not is_safe(size, 1) or size % 4:
            yield f"{here}.byteLength must be a positive 4-byte-aligned safe integer"
        else:
            self._sizes.append(size)
        if not is_digest(field_of(chunk, "sha256")):
            yield f"{here}.sha256 must be a lowercase 64-character SHA-256 digest"
        if is_text(name) and field_of(chunk, "identity") != chunk_identity(chunk):
            yield f"{here}.identity must bind chunk SHA-256 and byteLength"

    def total_errors(self, plan: Mapping[str, Any]) -> Iterator[str]:
        ids, total, largest = (field_of(plan, name) for name in ("chunkIds", "totalSourceByteLength", "largestChunkByteLength"))
        if not isinstance(ids, list):
            yield "chunkIds must be an array matching chunks in declaration order"
        elif ids != self._ids:
            yield "chunkIds must match chunks in declaration order"
        if not is_safe(total, 1):
            yield f"totalSourceByteLength {POSITIVE.text}"
        elif total != sum(self._sizes):
            yield "totalSourceByteLength must equal all declared chunk bytes"
        if not is_safe(largest, 1):
            yield f"largestChunkByteLength {POSITIVE.text}"
        elif largest != max(self._sizes, default=0):
            yield "largestChunkByteLength must equal the largest declared chunk"


def _end(chunk: Mapping[str, Any], end: int) -> int:
    offset, size = field_of(chunk, "byteOffset"), field_of(chunk, "byteLength")
    if not is_safe(size, 1) or size % 4:
        return end
    start: int = offset if is_safe(offset, 1 - 2**53) else end
    return start + int(size)


_WORDS = {"multipleOf": 4}
_CHUNK = Record(
    "chunk",
    (
        Field("chunkId", TEXT),
        Field("byteOffset", Rule("", lambda _: True, {**SAFE.schema, **_WORDS})),
        Field("byteLength", Rule("", lambda _: True, {**POSITIVE.schema, **_WORDS})),
        Field("sha256", DIGEST),
        Field("identity", TEXT),
    ),
)
_ALLOCATION = Record(
    "allocation",
    (
        *(Field(name, TEXT) for name in ("allocationId", "resourceId", "physicalResourceId", "semanticResourceId")),
        Field("byteLength", POSITIVE),
        Field("usage", POSITIVE),
        Field("chunks", Rule("", lambda _: True, {"type": "array", "minItems": 1, "items": _CHUNK.schema()})),
    ),
)
CHUNK_PLAN: DocumentKind = whole_kind(
    "model resource chunk plan",
    "model resource chunk plan",
    CHUNK_PLAN_SCHEMA,
    plan_errors,
    (
        Field("planId", TEXT),
        Field("identity", TEXT),
        Field("manifest", Rule("", lambda _: True, MODEL_MANIFEST.record.schema())),
        Field("allocations", Rule("", lambda _: True, {"type": "array", "minItems": 1, "items": _ALLOCATION.schema()})),
        Field("chunkIds", Rule("", lambda _: True, {"type": "array", "items": TEXT.schema})),
        Field("totalSourceByteLength", POSITIVE),
        Field("largestChunkByteLength", POSITIVE),
    ),
)


# -- making them --------------------------------------------------------------------------------------------------------
def chunk_plan(plan_id: str, manifest: Mapping[str, Any], chunks: Mapping[str, Iterable[Mapping[str, Any]]]) -> RouteDocument:
    """The plan of a manifest, from `chunkId`, `byteOffset`, `byteLength` and `sha256` of all chunks, by the allocation's id.

    >>> from pumice.routes.model_resources import model_manifest
    >>> tensor = {"name": "w", "dtype": "u8", "shape": [8], "byteOffset": 0, "byteLength": 8}
    >>> allocation = {"allocationId": "a", "byteOffset": 0, "byteLength": 8, "usage": 8, "tensors": [tensor]}
    >>> manifest = model_manifest("m", "1", [allocation], byte_length=8, sha256="ab" * 32)
    >>> halves = [{"chunkId": f"c{k}", "byteOffset": 4 * k, "byteLength": 4, "sha256": "cd" * 32} for k in range(2)]
    >>> plan = chunk_plan("p", manifest, {"a": halves})
    >>> plan["chunkIds"], plan["largestChunkByteLength"]
    (('c0', 'c1'), 4)
    """
    known = plain(MODEL_MANIFEST.document(manifest))
    allocations = []
    for wanted in known["allocations"]:
        listed = [{**plain(chunk), "identity": chunk_identity(chunk)} for chunk in chunks.get(wanted["allocationId"], ())]
        kept = {name: wanted[name] for name in ("allocationId", "byteLength", "usage")}
        allocations.append({**kept, "chunks": listed, **_ids(known, wanted, listed)})
    all_chunks = [chunk for allocation in allocations for chunk in allocation["chunks"]]
    sizes = [chunk["byteLength"] for chunk in all_chunks if is_safe(chunk.get("byteLength"))]
    made = {
        "schema": CHUNK_PLAN_SCHEMA,
        "planId": plan_id,
        "manifest": known,
        "allocations": allocations,
        "chunkIds": [chunk.get("chunkId") for chunk in all_chunks],
        "totalSourceByteLength": sum(sizes),
        "largestChunkByteLength": max(sizes, default=0),
    }
    without_identity = list(plan_errors(made))
    return CHUNK_PLAN.document(made if len(without_identity) > 1 else {**made, "identity": plan_identity(made)})
