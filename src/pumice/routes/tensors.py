"""Tensor manifests: where each tensor of a model is in a file of weights, and how large it must be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pumice.routes.documents import DocumentKind, RouteDocument
from pumice.routes.rules import COUNT, TEXT, Field, Items, Law, Record, Rule, exactly, field_of, is_integer, shown

TENSOR_SCHEMA = "kaminos.tensor-manifest.v0"
DTYPE_BYTES = {"fp32": 4, "f32": 4, "fp16": 2, "f16": 2, "u32": 4, "i32": 4, "u8": 1}


def _are_dims(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(is_integer(dim) and dim > 0 for dim in value)


def _size(dtype: object) -> int | None:
    return DTYPE_BYTES.get(dtype) if isinstance(dtype, str) else None


def _known_dtype(tensor: Mapping[str, Any]) -> Iterator[str]:
    dtype = field_of(tensor, "dtype")
    if _size(dtype) is None:
        yield f" unsupported dtype {shown(dtype)}"


def _bytes_fit(tensor: Mapping[str, Any]) -> Iterator[str]:
    size, shape = _size(field_of(tensor, "dtype")), field_of(tensor, "shape")
    if size is not None and _are_dims(shape) and field_of(tensor, "byteLength") != math.prod(shape) * size:
        yield "byteLength must equal shape elements * dtype size"


_DIMS = Rule(
    "must contain positive integer dimensions",
    _are_dims,
    {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 1}},
)
TENSOR = Record(
    "tensor",
    (
        Field("name", TEXT),
        Law(f"the dtype is one of {', '.join(DTYPE_BYTES)}", _known_dtype),
        Field("shape", _DIMS),
        Field("byteOffset", COUNT),
        Field("byteLength", COUNT),
        Law("byteLength is the number of elements times the bytes of the dtype", _bytes_fit),
    ),
)
TENSOR_MANIFEST = DocumentKind(
    "tensor manifest",
    TENSOR_SCHEMA,
    Record(
        "manifest",
        (Field("schema", exactly(TENSOR_SCHEMA)), Field("modelId", TEXT), Field("revision", TEXT), Items("tensors", TENSOR)),
    ),
)


def tensor_manifest(
    model_id: str, revision: str, tensors: Iterable[Mapping[str, Any]], *, weight_format: str = TENSOR_SCHEMA
) -> RouteDocument:
    """The manifest of a file of weights; elements and bytes per element are worked out.

    >>> manifest = tensor_manifest("m", "1", [{"name": "w", "dtype": "f16", "shape": [2, 3], "byteOffset": 0, "byteLength": 12}])
    >>> manifest["tensors"][0]["elements"], manifest["tensors"][0]["bytesPerElement"]
    (6, 2)
    """

    def counted(tensor: Mapping[str, Any]) -> dict[str, Any]:
        shape = tensor.get("shape")
        elements = math.prod(shape) if shape and _are_dims(list(shape)) else None
        return {**tensor, "elements": elements, "bytesPerElement": _size(tensor.get("dtype"))}

    return TENSOR_MANIFEST.document(
        {
            "schema": TENSOR_SCHEMA,
            "modelId": model_id,
            "revision": revision,
            "weightFormat": weight_format,
            "tensors": [counted(tensor) for tensor in tensors],
        }
    )
