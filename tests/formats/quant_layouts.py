"""Quantised layers as other tools store them, written element by element from their layouts, with the weights they mean."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
_KINDS = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "uint32": "U32", "int64": "I64", "int8": "I8",
    "uint8": "U8", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
FLOATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
SCALES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def save(path: Path, tensors: Mapping[str, Array]) -> Path:
    """A safetensors file."""
    header: dict[str, Any] = {}
    body = b""
    for name, a in tensors.items():
        raw = np.ascontiguousarray(a).tobytes()
        header[name] = {"dtype": _KINDS[a.dtype.name], "shape": list(a.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def _words(codes: Array, bits: int, axis: int) -> Array:
    """Codes into 32-bit words along an axis: the first of them in the lowest bits."""
    each = 32 // bits
    moved = np.moveaxis(codes.astype(np.uint64), axis, -1)
    words = sum(moved[..., i::each] << np.uint64(bits * i) for i in range(each))
    return np.moveaxis(np.asarray(words).astype(np.uint32), -1, axis).view(np.int32)


def _codes(rng: Any, bits: int, *shape: int) -> Array:
    return np.asarray(rng.integers(0, 1 << bits, shape))


def _scales(rng: Any, kind: str, *shape: int) -> Array:
    return np.asarray(rng.uniform(0.001, 0.05, shape) * rng.choice([-1, 1], shape)).astype(SCALES[kind])


def gptq(
    n: int, k: int, *, bits: int = 4, group: int = 128, act_order: bool = False, v2: bool = False, seed: int = 0
) -> tuple[dict[str, Array], Array]:
    rng = np.random.default_rng(seed)
    size = k if group == -1 else group
    codes, zeros, scales = _codes(rng, bits, k, n), _codes(rng, bits, k // size, n), _scales(rng, "f16", k // size, n)
    g_idx = np.arange(k) // size
    if act_order:
        rng.shuffle(g_idx)
    weight = scales[g_idx].astype(np.float32) * (codes - zeros[g_idx]).astype(np.float32)
    stored = zeros if v2 else (zeros - 1) % (1 << bits)
    tensors = {
        "qweight": _words(codes, bits, 0),
        "qzeros": _words(stored, bits, 1),
        "scales": scales,
        "g_idx": g_idx.astype(np.int32),
    }
    return tensors, weight.T


def awq(n: int, k: int, *, group: int = 128, seed: int = 0) -> tuple[dict[str, Array], Array]:
    rng = np.random.default_rng(seed)
    codes, zeros, scales = _codes(rng, 4, k, n), _codes(rng, 4, k // group, n), _scales(rng, "f16", k // group, n)
    rows = np.arange(k) // group
    weight = scales[rows].astype(np.float32) * (codes - zeros[rows]).astype(np.float32)

    def shuffled(a: Array) -> Array:
        # Bits 0…3 hold column 0, bits 4…7 column 2, then 4, 6, 1, 3, 5, 7.
        return _words(a.reshape(len(a), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(a.shape), 4, 1)

    return {"qweight": shuffled(codes), "qzeros": shuffled(zeros), "scales": scales}, weight.T


def mlx(n: int, k: int, *, bits: int = 4, group: int = 64, scale: str = "bf16", seed: int = 0) -> tuple[dict[str, Array], Array]:
    rng = np.random.default_rng(seed)
    codes, scales, biases = _codes(rng, bits, n, k), _scales(rng, scale, n, k // group), _scales(rng, scale, n, k // group)
    columns = np.arange(k) // group
    weight = scales[:, columns].astype(np.float32) * codes.astype(np.float32) + biases[:, columns].astype(np.float32)
    return {"weight": _words(codes, bits, 1).view(np.uint32), "scales": scales, "biases": biases}, weight


def fp8(
    n: int, k: int, *, kind: str = "e4m3", per: str = "block", scale: str = "f32", block: int = 128, seed: int = 0
) -> tuple[dict[str, Array], Array]:
    rng = np.random.default_rng(seed)
    codes = rng.standard_normal((n, k)).astype(FLOATS[kind])
    shape = {"tensor": (), "one": (1,), "row": (n,), "column": (n, 1), "block": (-(-n // block), -(-k // block))}[per]
    scales = _scales(rng, scale, *shape)
    wide = np.asarray(scales).astype(np.float32)
    if per == "block":
        wide = wide[np.arange(n) // block][:, np.arange(k) // block]
    elif per == "row":
        wide = wide[:, None]
    return {"weight": codes, "weight_scale_inv" if per == "block" else "weight_scale": np.asarray(scales)}, codes.astype(
        np.float32
    ) * wide


def nvfp4(n: int, k: int, *, modelopt: bool = False, seed: int = 0) -> tuple[dict[str, Array], Array]:
    rng = np.random.default_rng(seed)
    codes = _codes(rng, 4, n, k)
    inner = rng.uniform(0, 448, (n, k // 16)).astype(ml_dtypes.float8_e4m3fn)
    whole = np.float32([0.0037 if modelopt else 512.0])
    factor = whole[0] if modelopt else np.float32(1) / whole[0]
    weight = factor * (inner.astype(np.float32).repeat(16, axis=1) * E2M1[codes])
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    if modelopt:
        return {"weight": packed, "weight_scale": inner, "weight_scale_2": whole.reshape(()), "input_scale": whole}, weight
    return {"weight_packed": packed, "weight_scale": inner, "weight_global_scale": whole, "input_global_scale": whole}, weight


def packed(
    n: int, k: int, *, bits: int = 4, group: int = 128, zeros: bool = False, act_order: bool = False, seed: int = 0
) -> tuple[dict[str, Array], Array]:
    rng = np.random.default_rng(seed)
    half = 1 << bits - 1
    codes, points = _codes(rng, bits, n, k) - half, _codes(rng, bits, n, k // group) - half
    scales = _scales(rng, "bf16", n, k // group)
    g_idx = np.arange(k) // group
    if act_order:
        rng.shuffle(g_idx)
    weight = scales[:, g_idx].astype(np.float32) * (codes - (points[:, g_idx] if zeros else 0)).astype(np.float32)
    tensors = {"weight_packed": _words(codes + half, bits, 1), "weight_scale": scales, "weight_shape": np.array([n, k])}
    if zeros:
        tensors["weight_zero_point"] = _words(points + half, bits, 0)
    if act_order:
        tensors["weight_g_idx"] = g_idx.astype(np.int32)
    return tensors, weight


def int8(n: int, k: int, *, zeros: bool = False, groups: int = 1, seed: int = 0) -> tuple[dict[str, Array], Array]:
    rng = np.random.default_rng(seed)
    codes, points = (rng.integers(-128, 128, s).astype(np.int8) for s in ((n, k), (n, groups)))
    scales = _scales(rng, "f32", n, groups)
    wide, offsets = (a.astype(np.float32).repeat(k // groups, axis=1) for a in (scales, points))
    weight = wide * (codes.astype(np.float32) - (offsets if zeros else 0))
    return {"weight": codes, "weight_scale": scales, **({"weight_zero_point": points} if zeros else {})}, weight
