"""How tensors and uniforms lie in GPU memory: row-major strides, padded allocations, WGSL's alignment of uniform fields."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from pumice.routes.errors import RouteError
from pumice.routes.rules import is_count, is_object, is_text

_DTYPES = {"f32": 4, "f16": 2, "u32": 4, "i32": 4}
_ALIASES = {"fp32": "f32", "float32": "f32", "fp16": "f16", "float16": "f16"}
_CODES = {"f32": "f", "u32": "I", "i32": "i"}
_LANES = {"vec2": (2, 8), "vec3": (3, 16), "vec4": (4, 16)}
_RANGES = {"u32": (0, 2**32 - 1), "i32": (-(2**31), 2**31 - 1)}
DEFAULT_USAGE = 128 | 8 | 4  # storage, copied to and from


class PackingError(RouteError):
    """A tensor or a uniform that has no layout."""

    code = "packing"
    advice = "tensors are f32, f16, u32 or i32; uniforms are f32, u32, i32 and their vec2, vec3 and vec4"


_require = PackingError.require


def tensor_layout(name: str, shape: Sequence[int], dtype: str, *, usage: int = DEFAULT_USAGE) -> dict[str, Any]:
    """A tensor's record: its allocation is a multiple of four bytes.

    >>> layout = tensor_layout("mask", [3], "f16")
    >>> layout["strides"], layout["byteLength"], layout["allocationByteLength"]
    ([1], 6, 8)
    """
    _require(is_text(name), "tensor name must be a non-empty string")
    _require(is_text(dtype), "tensor dtype must be a non-empty string")
    kind = _ALIASES.get(dtype.lower(), dtype.lower())
    _require(kind in _DTYPES, f"unsupported tensor dtype {dtype}")
    sizes = list(shape) if isinstance(shape, (list, tuple)) else []
    _require(bool(sizes), "tensor shape must be a non-empty array")
    _require(all(is_count(size) for size in sizes), "tensor shape must contain positive integer dimensions")
    _require(is_count(usage, 0), "tensor usage must be a non-negative integer")
    elements, size = math.prod(sizes), _DTYPES[kind]
    return {
        "schema": "kaminos.webgpu-tensor.v0",
        "name": name,
        "dtype": kind,
        "shape": sizes,
        "strides": [math.prod(sizes[i + 1 :]) for i in range(len(sizes))],
        "elements": elements,
        "bytesPerElement": size,
        "byteLength": elements * size,
        "allocationByteLength": -(-elements * size // 4) * 4,
        "ownsBuffer": True,
        "paddingReserved": True,
        "usage": usage,
        "bufferOffset": 0,
        "metadata": {},
    }


def uniform_fields(schema: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Where the fields of a uniform block lie, and how many bytes it has.

    >>> fields, size = uniform_fields([{"name": "a", "type": "f32"}, {"name": "b", "type": "vec3<f32>"}])
    >>> [field["offset"] for field in fields], size
    ([0, 16], 32)
    """
    _require(isinstance(schema, (list, tuple)) and bool(schema), "uniform schema must be a non-empty array")
    fields: list[dict[str, Any]] = []
    end = 0
    for given in schema:
        name, kind = (given.get("name"), given.get("type")) if is_object(given) else (None, None)
        _require(is_text(name), "uniform field name must be a non-empty string")
        _require(is_text(kind), f"uniform field {name} type must be a non-empty string")
        scalar, lanes, align = _uniform_type(str(kind))
        _require(bool(scalar), f"unsupported uniform type {kind}")
        _require(all(one["name"] != name for one in fields), f"duplicate uniform field {name}")
        offset = -(-end // align) * align
        fields.append({"name": name, "type": kind, "offset": offset, "byteLength": 4 * lanes, "align": align, "lanes": lanes})
        end = offset + 4 * lanes
    return fields, -(-end // 16) * 16


def _uniform_type(kind: str) -> tuple[str, int, int]:
    """Scalar type, lanes and alignment; no scalar where the type is not known."""
    if kind in _CODES:
        return kind, 1, 4
    vector, _, scalar = kind.removesuffix(">").partition("<")
    known = vector in _LANES and scalar in _CODES and kind.endswith(">")
    return (scalar, *_LANES[vector]) if known else ("", 0, 1)


def pack_uniforms(schema: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> bytes:
    """The bytes of a uniform block. Integers that do not fit are refused, as they would silently become others.

    >>> pack_uniforms([{"name": "n", "type": "u32"}], {"n": 7}).hex()
    '07000000000000000000000000000000'
    """
    fields, size = uniform_fields(schema)
    data = bytearray(size)
    for one in fields:
        name, value = one["name"], values.get(one["name"])
        scalar, lanes, _ = _uniform_type(one["type"])
        if lanes == 1:
            _require(_finite(value), f"uniform {name} must be a finite number")
            numbers: list[Any] = [value]
        else:
            _require(isinstance(value, (list, tuple)), f"uniform {name} must be an array-like value")
            assert value is not None
            numbers = list(value)
            _require(len(numbers) == lanes, f"uniform {name} must have {lanes} lanes")
            for i, number in enumerate(numbers):
                _require(_finite(number), f"uniform {name}[{i}] must be finite")
        if scalar in _RANGES:
            least, most = _RANGES[scalar]
            fits = all(float(number).is_integer() and least <= number <= most for number in numbers)
            _require(fits, f"uniform {name} must fit {scalar}")
            numbers = [int(number) for number in numbers]
        struct.pack_into(f"<{lanes}{_CODES[scalar]}", data, one["offset"], *numbers)
    return bytes(data)


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
