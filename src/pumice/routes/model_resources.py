"""Model resource manifests: which bytes of a file of weights are a buffer each, which tensors are in it, and what identifies it.

A manifest is about one file ("bundle") with its SHA-256. Buffers ("allocations") are ranges of it that do not overlap, each with
tensors in row-major order. Ids follow from the content, so that two routes that need the same buffer find it under the same id.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import Any
from urllib.parse import quote

from pumice.routes.documents import DocumentKind, RouteDocument, plain
from pumice.routes.rules import ABSENT, OBJECT, TEXT, Field, Record, Rule, Schema, exactly, field_of, is_integer, is_text, shown
from pumice.routes.tensors import DTYPE_BYTES

MANIFEST_SCHEMA = "kaminos.webgpu-model-resource-manifest.v1"
_EARLIER_SCHEMA = "kaminos.webgpu-model-resource-manifest.v0"
SEMANTIC, PHYSICAL = "semantic-identity", "content-addressed-physical-dedupe"
# WebGPU's flags of buffers that a queue writes to and kernels read.
COPY_DST, STORAGE = 8, 128
# The names of dtypes in a manifest, each in its one spelling.
_DTYPES = {name: size for name, size in DTYPE_BYTES.items() if not name.startswith("fp")}
_SPELLINGS = {"fp32": "f32", "float32": "f32", "fp16": "f16", "float16": "f16"}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST = 2**53 - 1
_POSITIVE = "must be a positive safe integer"
_COUNT = "must be a non-negative safe integer"


# -- what several kinds of documents share ------------------------------------------------------------------------------
@dataclass(frozen=True)
class DocumentCheck:
    """All checks of a document in one function, as what is checked depends on what was found; `fields` are for its schema."""

    check: Callable[[Mapping[str, Any]], Iterator[str]]
    fields: tuple[Field, ...]

    def errors(self, owner: Mapping[str, Any], path: str) -> Sequence[str]:
        return [path + text for text in self.check(owner)]

    def properties(self) -> Iterator[tuple[str, Schema, bool]]:
        for field in self.fields:
            yield from field.properties()


def whole_kind(
    name: str, title: str, schema: str, check: Callable[[Mapping[str, Any]], Iterator[str]], fields: tuple[Field, ...]
) -> DocumentKind:
    """A kind of documents with one function that checks them; `title` stands in the error of what is no object."""
    table = DocumentCheck(check, (Field("schema", exactly(schema)), *fields))
    return DocumentKind(name, schema, Record(title, (table,), arrays=False))


def is_safe(value: object, least: int = 0) -> bool:
    """A whole number from `least` on that JavaScript counts exactly."""
    return is_integer(value) and least <= value < 2**53  # type: ignore[operator]


def is_digest(value: object) -> bool:
    """A SHA-256 as these documents write it.

    >>> is_digest("ab" * 32), is_digest("AB" * 32)
    (True, False)
    """
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


SAFE = Rule(_COUNT, is_safe, {"type": "integer", "minimum": 0, "maximum": 2**53 - 1})
POSITIVE = Rule(_POSITIVE, lambda value: is_safe(value, 1), {"type": "integer", "minimum": 1, "maximum": 2**53 - 1})
DIGEST = Rule("must be a lowercase SHA-256", is_digest, {"type": "string", "pattern": "^[0-9a-f]{64}$"})


def uri_part(text: str) -> str:
    """Text as JavaScript's encodeURIComponent writes it.

    >>> uri_part("a b/é!")
    'a%20b%2F%C3%A9!'
    """
    return quote(text.encode("utf-8", "surrogatepass"), safe="-_.!~*'()")


def canonical_text(value: Any) -> str:
    """A JSON value with sorted keys and no spaces, numbers and strings as JavaScript writes them.

    >>> canonical_text({"b": [1.0, None, "é"], "a": 1e-7})
    '{"a":1e-7,"b":[1,null,"é"]}'
    """
    if isinstance(value, Mapping):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(f"{_quoted(key)}:{canonical_text(value[key])}" for key in keys) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(canonical_text, value)) + "]"
    if isinstance(value, str):
        return _quoted(value)
    return _number(value) if isinstance(value, float) else shown(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _number(value: float) -> str:
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    if 1e-6 <= abs(value) < 1e-4:
        return format(Decimal(repr(value)), "f")
    return re.sub(r"e([+-])0*", r"e\1", repr(value))


def json_errors(value: Any, label: str, path: str = "") -> Iterator[str]:
    """The first thing in a value that is none of JSON's, or that JSON does not keep."""
    path = path or label
    if value is ABSENT:
        yield f"{label} contains unsupported undefined value at {path}"
    elif isinstance(value, float) and value == 0 and math.copysign(1, value) < 0:
        yield f"{label} must not contain negative zero; invalid value at {path}"
    elif isinstance(value, (Mapping, list)):
        inner = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in inner:
            found = list(json_errors(part, label, f"{path}.{key}" if isinstance(value, Mapping) else f"{path}[{key}]"))
            if found:
                yield found[0]
                return


# -- ids ----------------------------------------------------------------------------------------------------------------
def manifest_identity(model_id: str, revision: str, sha256: str) -> str:
    """What identifies a manifest.

    >>> manifest_identity("m", "1", "ab")
    'm@1#sha256:ab'
    """
    return f"{model_id}@{revision}#sha256:{sha256}"


def _physical_id(sha256: str, allocation: Mapping[str, Any]) -> str:
    place = ":".join(shown(field_of(allocation, name)) for name in ("byteOffset", "byteLength", "usage"))
    return f"kaminos:model-resource:sha256:{sha256}:{place}"


def _semantic_id(manifest: Mapping[str, Any], physical: str, allocation: Mapping[str, Any]) -> str:
    meaning = {
        "modelId": field_of(manifest, "modelId"),
        "revision": field_of(manifest, "revision"),
        "manifestMetadata": field_of(manifest, "metadata"),
        "allocationId": field_of(allocation, "allocationId"),
        "allocationMetadata": field_of(allocation, "metadata"),
        "tensors": field_of(allocation, "tensors"),
    }
    return f"{physical}:semantic:{uri_part(canonical_text(meaning))}"


def sharing_policy(manifest: Mapping[str, Any]) -> str | None:
    """Which id a manifest shares buffers by; None where it names none that there is."""
    found = field_of(field_of(manifest, "resourceSharing"), "policy")
    return found if isinstance(found, str) and found in (SEMANTIC, PHYSICAL) else None


# -- checks -------------------------------------------------------------------------------------------------------------
def manifest_errors(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Everything that is wrong with a manifest."""
    schema = field_of(manifest, "schema")
    if schema == _EARLIER_SCHEMA:
        yield (
            f"schema {_EARLIER_SCHEMA} is an unsupported prior physical-only manifest; "
            f"regenerate it as {MANIFEST_SCHEMA} and choose resourceSharing policy explicitly"
        )
        return
    if schema != MANIFEST_SCHEMA:
        yield f"schema must be {MANIFEST_SCHEMA}"
    model, revision = field_of(manifest, "modelId"), field_of(manifest, "revision")
    for name, value in (("modelId", model), ("revision", revision)):
        if not is_text(value):
            yield f"{name} {TEXT.text}"
    yield from json_errors(field_of(manifest, "metadata"), "manifest metadata")
    if sharing_policy(manifest) is None:
        yield f"resourceSharing.policy must be {SEMANTIC} or {PHYSICAL}"
    bundle = field_of(manifest, "bundle")
    if not isinstance(bundle, Mapping):
        yield "bundle must be an object"
    sha256 = field_of(bundle, "sha256")
    if not is_safe(field_of(bundle, "byteLength"), 1):
        yield f"bundle.byteLength {_POSITIVE}"
    if not is_digest(sha256):
        yield "bundle.sha256 must be a lowercase 64-character SHA-256 hex digest"
    named = is_text(model) and is_text(revision) and isinstance(sha256, str)
    if named and field_of(manifest, "identity") != manifest_identity(model, revision, sha256):
        yield "identity must match modelId, revision, and bundle SHA-256"
    allocations = field_of(manifest, "allocations")
    if not isinstance(allocations, list) or not allocations:
        yield "allocations must be a non-empty array"
        return
    yield from _Allocations(manifest).errors(allocations)


class _Allocations:
    """The checks of all allocations of a manifest, in which names and ranges are unique."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        bundle = field_of(manifest, "bundle")
        self._manifest, self._policy = manifest, sharing_policy(manifest)
        self._sha256, self._bytes = field_of(bundle, "sha256"), field_of(bundle, "byteLength")
        self._metadata_holds = not list(json_errors(field_of(manifest, "metadata"), "metadata"))
        self._ids: set[str] = set()
        self._names: set[str] = set()

    def errors(self, allocations: list[Any]) -> Iterator[str]:
        ranges = []
        for i, allocation in enumerate(allocations):
            where = f"allocations[{i}]"
            if not isinstance(allocation, Mapping):
                yield f"{where} must be an object"
                continue
            yield from self._allocation(where, allocation)
            if (place := _place(allocation)) is not None:
                ranges.append(place)
        yield from ("allocation ranges must not overlap" for _ in _overlaps(ranges))

    def _allocation(self, where: str, allocation: Mapping[str, Any]) -> Iterator[str]:
        name, usage, size = (field_of(allocation, key) for key in ("allocationId", "usage", "byteLength"))
        if not is_text(name):
            yield f"{where}.allocationId {TEXT.text}"
        elif name in self._ids:
            yield f"duplicate allocationId {name}"
        else:
            self._ids.add(name)
        yield from json_errors(field_of(allocation, "metadata"), f"{where}.metadata")
        tensors = field_of(allocation, "tensors")
        listed = tensors if isinstance(tensors, list) else []
        for k, tensor in enumerate(listed):
            if isinstance(tensor, Mapping):
                yield from json_errors(field_of(tensor, "metadata"), f"{where}.tensors[{k}].metadata")
        if not is_safe(field_of(allocation, "byteOffset")):
            yield f"{where}.byteOffset {_COUNT}"
        if not is_safe(size, 1):
            yield f"{where}.byteLength {_POSITIVE}"
        elif size % 4:
            yield f"{where}.byteLength must be a multiple of 4 for queue.writeBuffer"
        if not is_safe(usage, 1):
            yield f"{where}.usage {_POSITIVE}"
        elif not int(usage) & COPY_DST:
            yield f"{where}.usage must include WEBGPU_BUFFER_USAGE.copyDst"
        place = _place(allocation)
        if place is not None and is_safe(self._bytes, -_MOST) and place[1] > self._bytes:
            yield f"{where} range exceeds bundle byteLength and is outside bundle bytes"
        if place is not None:
            yield from self._identity_errors(where, allocation)
        if not listed:
            yield f"{where}.tensors must be a non-empty array"
        yield from self._tensors(where, allocation, listed)

    def _identity_errors(self, where: str, allocation: Mapping[str, Any]) -> Iterator[str]:
        usage = field_of(allocation, "usage")
        if not isinstance(self._sha256, str) or not is_safe(usage, -_MOST):
            return
        physical = _physical_id(self._sha256, allocation)
        if field_of(allocation, "physicalResourceId") != physical:
            yield f"{where}.physicalResourceId must be content-derived from bundle and allocation bytes"
        tensors = field_of(allocation, "tensors")
        parts = [allocation, *(t for t in (tensors if isinstance(tensors, list) else ()) if isinstance(t, Mapping))]
        if not self._metadata_holds or any(list(json_errors(field_of(part, "metadata"), "metadata")) for part in parts):
            return
        semantic = _semantic_id(self._manifest, physical, allocation)
        if field_of(allocation, "semanticResourceId") != semantic:
            yield f"{where}.semanticResourceId must bind model, revision, manifest, allocation, and tensor semantics"
        if field_of(allocation, "resourceId") != (physical if self._policy == PHYSICAL else semantic):
            yield f"{where}.resourceId must match the declared resourceSharing policy"

    def _tensors(self, where: str, allocation: Mapping[str, Any], tensors: list[Any]) -> Iterator[str]:
        ranges, size = [], field_of(allocation, "byteLength")
        for k, tensor in enumerate(tensors):
            here = f"{where}.tensors[{k}]"
            if not isinstance(tensor, Mapping):
                yield f"{here} must be an object"
                continue
            name = field_of(tensor, "name")
            if not is_text(name):
                yield f"{here}.name {TEXT.text}"
            elif name in self._names:
                yield f"duplicate tensor name {name}"
            else:
                self._names.add(name)
            yield from _layout_errors(here, tensor)
            place = _place(tensor)
            if place is not None:
                ranges.append(place)
                if is_safe(size, -_MOST) and place[1] > size:
                    yield f"{here} range exceeds its allocation"
        name = shown(field_of(allocation, "allocationId"))
        yield from (f"tensor ranges overlap in allocation {name}" for _ in _overlaps(ranges))


def _layout_errors(here: str, tensor: Mapping[str, Any]) -> Iterator[str]:
    dtype, shape, offset = (field_of(tensor, name) for name in ("dtype", "shape", "byteOffset"))
    each, count = _DTYPES.get(dtype) if isinstance(dtype, str) else None, _elements(shape)
    if each is None:
        yield f"{here}.dtype must be a normalized supported dtype"
    if count is None:
        yield f"{here}.shape must contain positive safe integer dimensions"
    if not is_safe(offset):
        yield f"{here}.byteOffset {_COUNT}"
    elif each is not None and offset % each:
        yield f"{here}.byteOffset must align to its dtype byte size"
    if not is_safe(field_of(tensor, "byteLength"), 1):
        yield f"{here}.byteLength {_POSITIVE}"
    if each is not None and count is not None and not _is(field_of(tensor, "byteLength"), count * each):
        yield f"{here}.byteLength must equal shape elements * dtype size"
    if count is not None and not _is(field_of(tensor, "elements"), count):
        yield f"{here}.elements must match shape"
    if each is not None and not _is(field_of(tensor, "bytesPerElement"), each):
        yield f"{here}.bytesPerElement must match dtype"
    if isinstance(shape, list) and not _same_numbers(field_of(tensor, "strides"), _strides(shape)):
        yield f"{here}.strides must be contiguous row-major element strides"


def _is(value: object, number: float) -> bool:
    """Equal as JSON is: true is no number."""
    return value == number and not isinstance(value, bool)


def _same_numbers(given: object, wanted: list[float]) -> bool:
    return isinstance(given, list) and len(given) == len(wanted) and all(map(_is, given, wanted))


def _elements(shape: object) -> int | None:
    if not isinstance(shape, list) or not shape or not all(is_safe(dim, 1) for dim in shape):
        return None
    count = math.prod(int(dim) for dim in shape)
    return count if is_safe(count) else None


def _strides(shape: list[Any]) -> list[Any]:
    """Row-major strides of a shape, which need not be a good one: dims that are no numbers count as JavaScript counts them."""
    inner = accumulate(map(as_number, shape[:0:-1]), operator.mul, initial=1)
    return list(inner)[::-1] if shape else []


def as_number(value: object) -> float:
    """A value as JavaScript counts with it.

    >>> as_number(None), as_number([3]), as_number("x")
    (0, 3, nan)
    """
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, list):
        return as_number(value[0]) if len(value) == 1 else math.nan if value else 0
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value.strip() or 0)
    return 0 if value is None else math.nan


def _place(part: Mapping[str, Any]) -> tuple[int, int] | None:
    offset, size = field_of(part, "byteOffset"), field_of(part, "byteLength")
    return (offset, offset + size) if is_safe(offset) and is_safe(size, 1) else None


def _overlaps(ranges: list[tuple[int, int]]) -> Iterator[None]:
    """One for each two that overlap; sorted, so that a long list without any is soon looked through."""
    ordered = sorted(ranges)
    for i, (_, end) in enumerate(ordered):
        after = i + 1
        while after < len(ordered) and ordered[after][0] < end:
            yield
            after += 1


_LIST = Rule("must be a non-empty array", lambda value: isinstance(value, list) and bool(value), {"type": "array", "minItems": 1})
_TENSOR = Record(
    "tensor",
    (
        Field("name", TEXT),
        Field("dtype", Rule("is a dtype", lambda value: value in _DTYPES, {"enum": sorted(_DTYPES)})),
        Field("shape", Rule("", lambda _: True, {"type": "array", "minItems": 1, "items": POSITIVE.schema})),
        Field("strides", Rule("", lambda _: True, {"type": "array", "minItems": 1, "items": POSITIVE.schema})),
        *(Field(name, POSITIVE) for name in ("elements", "bytesPerElement", "byteLength")),
        Field("byteOffset", SAFE),
        Field("metadata", Rule("", lambda _: True, {})),
    ),
)
_ALLOCATION = Record(
    "allocation",
    (
        *(Field(name, TEXT) for name in ("allocationId", "resourceId", "physicalResourceId", "semanticResourceId")),
        Field("byteOffset", SAFE),
        Field("byteLength", Rule("", lambda _: True, {**POSITIVE.schema, "multipleOf": 4})),
        Field("usage", POSITIVE),
        Field("metadata", Rule("", lambda _: True, {})),
        Field("tensors", Rule("", lambda _: True, {**_LIST.schema, "items": _TENSOR.schema()})),
    ),
)
_BUNDLE = Record("bundle", (Field("byteLength", POSITIVE), Field("sha256", DIGEST)))
_SHARING = Record("resourceSharing", (Field("policy", exactly(SEMANTIC, PHYSICAL)),))
MODEL_MANIFEST = whole_kind(
    "model resource manifest",
    "manifest",
    MANIFEST_SCHEMA,
    manifest_errors,
    (
        Field("identity", TEXT),
        Field("modelId", TEXT),
        Field("revision", TEXT),
        Field("metadata", Rule("", lambda _: True, {})),
        Field("bundle", Rule("", lambda _: True, {**OBJECT.schema, **_BUNDLE.schema()})),
        Field("resourceSharing", Rule("", lambda _: True, _SHARING.schema())),
        Field("allocations", Rule("", lambda _: True, {**_LIST.schema, "items": _ALLOCATION.schema()})),
    ),
)


# -- making them --------------------------------------------------------------------------------------------------------
def model_manifest(
    model_id: str,
    revision: str,
    allocations: Iterable[Mapping[str, Any]],
    *,
    byte_length: int,
    sha256: str,
    metadata: Any = None,
    sharing: str = SEMANTIC,
) -> RouteDocument:
    """The manifest of a file of weights of `byte_length` bytes; strides, sizes of elements and ids are worked out.

    >>> tensor = {"name": "w", "dtype": "fp16", "shape": [2, 3], "byteOffset": 0, "byteLength": 12}
    >>> allocation = {"allocationId": "a", "byteOffset": 0, "byteLength": 12, "usage": STORAGE | COPY_DST, "tensors": [tensor]}
    >>> found = model_manifest("m", "1", [allocation], byte_length=12, sha256="ab" * 32)
    >>> found["allocations"][0]["tensors"][0]["strides"], found["identity"][:12]
    ((3, 1), 'm@1#sha256:a')
    """
    head = {
        "schema": MANIFEST_SCHEMA,
        "identity": manifest_identity(model_id, revision, sha256),
        "modelId": model_id,
        "revision": revision,
        "bundle": {"byteLength": byte_length, "sha256": sha256},
        "metadata": plain(metadata),
        "resourceSharing": {"policy": sharing},
    }
    return MODEL_MANIFEST.document({**head, "allocations": [_allocation(head, plain(a)) for a in allocations]})


def _allocation(manifest: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    kept = ("allocationId", "byteOffset", "byteLength", "usage")
    made = {name: given[name] for name in kept if name in given}
    made |= {"metadata": given.get("metadata"), "tensors": [_tensor(tensor) for tensor in given.get("tensors", ())]}
    physical = _physical_id(manifest["bundle"]["sha256"], made)
    semantic = _semantic_id(manifest, physical, made)
    chosen = semantic if sharing_policy(manifest) == SEMANTIC else physical
    return {**made, "resourceId": chosen, "physicalResourceId": physical, "semanticResourceId": semantic}


def _tensor(given: Mapping[str, Any]) -> dict[str, Any]:
    spelled = given.get("dtype")
    dtype = _SPELLINGS.get(spelled.lower(), spelled.lower()) if isinstance(spelled, str) else spelled
    shape = given.get("shape")
    return {
        "name": given.get("name"),
        "dtype": dtype,
        "shape": shape,
        "strides": _strides(shape) if isinstance(shape, list) else None,
        "elements": _elements(shape),
        "bytesPerElement": _DTYPES.get(dtype) if isinstance(dtype, str) else None,
        "byteOffset": given.get("byteOffset"),
        "byteLength": given.get("byteLength"),
        "metadata": given.get("metadata"),
    }
