"""Checkpoints that other tools quantised: their codes, zero points and scales, presented as packed weights of our dtypes.

Nothing is rounded: the packed weight holds the file's own codes and scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.core.blocks_group import pack_groups
from pumice.core.dtypes import Codes, DType, ScaleType, grouped, i32, mxfp4
from pumice.core.records import dataclass
from pumice.errors import FormatError
from pumice.formats.quantization import Quantization
from pumice.formats.weights import TensorInfo, WeightFile, WrappedWeights, frozen, malformed, shown

Array = NDArray[Any]
# The column that each nibble of a word of AWQ's belongs to.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# Scales of activations and of the cache, and values that follow from others: no part of a weight.
_ASIDE = ("input_scale", "input_global_scale", "input_zero_point", "activation_scale", "k_scale", "v_scale", "weight_shape")
_DAMAGED = "the checkpoint is damaged, or of a format that its config does not name"


@dataclass(frozen=True, slots=True)
class _QuantizedWeight:
    """A quantised weight [N, K]: its tensors in the file, its dtype here, and the order of its columns."""

    parts: tuple[str, ...]
    dtype: DType
    shape: tuple[int, ...]
    make: Callable[[DType], Array]
    order: Array | None = None


class QuantizedWeights(WrappedWeights):
    """A weight file in which `X.weight` stands for all tensors that hold the quantised weight of X.

    Where the columns of a weight are sorted by group (GPTQ's act-order), `X.order` says which column of the activations
    each one belongs to.
    """

    def __init__(self, weights: WeightFile, quantization: Quantization) -> None:
        self._modules = dict(_READERS[quantization.method](_LayerReader(weights, quantization)))
        self._orders = {f"{name}.order": m.order for name, m in self._modules.items() if m.order is not None}
        taken = {part for m in self._modules.values() for part in m.parts}
        prefixes = tuple(self._modules)
        aside = {f"{prefix}.{what}" for prefix in prefixes for what in _ASIDE}
        plain = {n: info for n, info in weights.tensors.items() if n not in taken and n not in aside}
        packed = {f"{p}.weight": TensorInfo(f"{p}.weight", m.dtype, m.shape) for p, m in self._modules.items()}
        orders = {name: TensorInfo(name, i32, order.shape) for name, order in self._orders.items()}
        super().__init__(weights, {**plain, **packed, **orders})

    def array(self, name: str) -> Array:
        """The tensor; packed weights are assembled on access."""
        if name in self._orders:
            return frozen(self._orders[name])
        module = self._modules.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
        return super().array(name) if module is None else frozen(module.make(module.dtype))

    def is_order(self, name: str) -> bool:
        """Whether a tensor is no file's, but the order of a quantised layer's columns."""
        return name in self._orders

    def is_spare(self, name: str) -> bool:
        """Whether a tensor is a bias of zeros, which some tools write for quantised layers that have none."""
        layer = name.removesuffix(".bias")
        return layer != name and layer in self._modules and not np.any(self._weights.array(name))


class _LayerReader:
    """Finds the tensors of quantised layers and checks that they fit together."""

    def __init__(self, weights: WeightFile, quantization: Quantization) -> None:
        self.weights, self.quantization = weights, quantization

    def layers(self, part: str) -> Iterator[str]:
        """The names of all layers that have a tensor `part`."""
        for name in self.weights.tensors:
            if name.endswith(f".{part}"):
                yield name.removesuffix(f".{part}")

    def has(self, layer: str, part: str) -> bool:
        return f"{layer}.{part}" in self.weights.tensors

    def info(self, layer: str, part: str) -> TensorInfo:
        found = self.weights.tensors.get(f"{layer}.{part}")
        if found is None:
            raise self.wrong(layer, f"has no {part}")
        return found

    def matrix(self, layer: str, part: str) -> tuple[int, int]:
        """The shape of a tensor that must have two axes."""
        shape = self.info(layer, part).shape
        if len(shape) != 2:
            raise self.wrong(layer, f"has a {part} of shape {list(shape)}, not a matrix")
        return shape[0], shape[1]

    def array(self, layer: str, part: str) -> Array:
        return self.weights.array(f"{layer}.{part}")

    def words(self, layer: str, part: str) -> tuple[int, int]:
        """The shape of a matrix of 32-bit words."""
        info = self.info(layer, part)
        if info.dtype.name not in ("i32", "u32"):
            raise self.wrong(layer, f"has a {part} of {info.dtype}, not of 32-bit words")
        return self.matrix(layer, part)

    def scale_type(self, layer: str, part: str) -> ScaleType:
        found = self.info(layer, part).dtype.name
        if found not in ("f16", "bf16", "f32"):
            raise self.wrong(layer, f"has {part} of {found}")
        return found  # type: ignore[return-value]

    def require_shape(self, layer: str, part: str, *shape: int) -> None:
        got = self.info(layer, part).shape
        if got != shape:
            raise self.wrong(layer, f"has {part} of shape {list(got)}, {list(shape)} belongs to its codes")

    def group(self, layer: str, k: int, groups: int, part: int = 32) -> int:
        """The elements of a group, if K divides evenly."""
        if groups == 0 or k % groups or (k // groups) % part:
            raise self.wrong(layer, f"has {groups} groups in {k} columns: groups must be equal, of a multiple of {part}")
        return k // groups

    def module(
        self, layer: str, parts: tuple[str, ...], codes: Codes, size: int, scale: ScaleType, shape: tuple[int, int], **rest: Any
    ) -> tuple[str, _QuantizedWeight]:
        return layer, _QuantizedWeight(tuple(f"{layer}.{p}" for p in parts), grouped(codes, size, scale), shape, **rest)

    def wrong(self, layer: str, what: str) -> FormatError:
        return malformed(self.weights.path, f"the quantised layer {shown(layer)} {what}", hint=_DAMAGED, tensor=layer)


def unpack_words(words: Array, bits: int) -> NDArray[np.uint8]:
    """Codes of 4 or 8 bits out of 32-bit words [..., n], from the low end up.

    >>> unpack_words(np.array([[0x76543210]], np.uint32), 4).tolist()
    [[0, 1, 2, 3, 4, 5, 6, 7]]
    """
    raw = np.ascontiguousarray(words).astype(words.dtype.newbyteorder("<"), copy=False).view(np.uint8)
    if bits == 8:
        return raw
    out = np.empty((*raw.shape[:-1], 2 * raw.shape[-1]), np.uint8)
    np.bitwise_and(raw, 15, out=out[..., ::2])
    np.right_shift(raw, 4, out=out[..., 1::2])
    return out


def _gptq(r: _LayerReader) -> Iterator[tuple[str, _QuantizedWeight]]:
    return (_gptq_layer(r, layer) for layer in r.layers("qweight"))


def _gptq_layer(r: _LayerReader, layer: str) -> tuple[str, _QuantizedWeight]:
    """qweight [K/words, N] along K, qzeros [groups, N/words] along N, scales [groups, N], g_idx [K]."""
    bits, each = r.quantization.bits, 32 // r.quantization.bits
    rows, n = r.words(layer, "qweight")
    k, groups = rows * each, r.matrix(layer, "scales")[0]
    size, scale = r.group(layer, k, groups), r.scale_type(layer, "scales")
    r.require_shape(layer, "scales", groups, n)
    r.require_shape(layer, "qzeros", groups, -(-n // each))
    order = _sorted_columns(r, layer, "g_idx", k, size)

    def make(dtype: DType) -> Array:
        codes = unpack_words(r.array(layer, "qweight").T, bits)
        # Zero points were stored less one, modulo the codes' range.
        stored = unpack_words(r.array(layer, "qzeros"), bits)[:, :n].astype(np.int32)
        zeros = stored + r.quantization.shift & (1 << bits) - 1
        return pack_groups(dtype, codes if order is None else codes[:, order], r.array(layer, "scales").T, zeros.T)

    parts = ("qweight", "qzeros", "scales", *(("g_idx",) if r.has(layer, "g_idx") else ()))
    return r.module(layer, parts, "u4z" if bits == 4 else "u8z", size, scale, (n, k), make=make, order=order)


def _sorted_columns(r: _LayerReader, layer: str, part: str, k: int, size: int) -> Array | None:
    """The columns sorted by group, None if they are already."""
    if not r.has(layer, part):
        return None
    r.require_shape(layer, part, k)
    groups = r.array(layer, part)
    wanted = np.arange(k) // size
    if np.array_equal(groups, wanted):
        return None
    order = np.argsort(groups, kind="stable").astype(np.int32)
    if not np.array_equal(groups[order], wanted):
        raise r.wrong(layer, f"has groups of different sizes, not of {size} columns each")
    return order


def _mxfp4(r: _LayerReader) -> Iterator[tuple[str, _QuantizedWeight]]:
    """Experts as gpt-oss has them: X_blocks [..., N, K/32, 16], two codes a byte, and X_scales [..., N, K/32], powers of two."""
    for name, info in r.weights.tensors.items():
        layer = name.removesuffix("_blocks")
        if layer == name:
            continue
        scales = r.weights.tensors.get(f"{layer}_scales")
        if len(info.shape) < 3 or info.shape[-1] != 16 or scales is None or scales.shape != info.shape[:-1]:
            raise r.wrong(layer, f"has blocks of shape {list(info.shape)}, and no scales that fit")
        if (info.dtype.name, scales.dtype.name) != ("u8", "u8"):
            raise r.wrong(layer, f"has blocks of {info.dtype} and scales of {scales.dtype}, not of u8")
        *lead, blocks, _ = info.shape
        yield layer, _QuantizedWeight((name, f"{layer}_scales"), mxfp4, (*lead, 32 * blocks), partial(_mxfp4_rows, r, layer))


def _mxfp4_rows(r: _LayerReader, layer: str, dtype: DType) -> Array:
    """Blocks with the scale first and codes i and i + 16 in a byte, where the file has codes 2i and 2i + 1."""
    codes, scales = r.weights.array(f"{layer}_blocks"), r.weights.array(f"{layer}_scales")
    out = np.empty((*codes.shape[:-1], dtype.block_bytes), np.uint8)
    out[..., 0] = scales
    each = unpack_words(codes, 4)
    np.bitwise_or(each[..., :16], each[..., 16:] << 4, out=out[..., 1:])
    return out.reshape(*codes.shape[:-2], -1)


def _awq(r: _LayerReader) -> Iterator[tuple[str, _QuantizedWeight]]:
    return (_awq_layer(r, layer) for layer in r.layers("qweight"))


def _awq_layer(r: _LayerReader, layer: str) -> tuple[str, _QuantizedWeight]:
    """qweight [K, N/8] and qzeros [groups, N/8] along N with their nibbles out of order, scales [groups, N]."""
    k, words = r.words(layer, "qweight")
    n, groups = 8 * words, r.matrix(layer, "scales")[0]
    size, scale = r.group(layer, k, groups), r.scale_type(layer, "scales")
    r.require_shape(layer, "scales", groups, n)
    r.require_shape(layer, "qzeros", groups, words)

    def columns(part: str) -> Array:
        nibbles = unpack_words(r.array(layer, part), 4).reshape(-1, words, 8)
        out = np.empty_like(nibbles)
        out[:, :, _AWQ_ORDER] = nibbles
        return out.reshape(-1, n).T

    def make(dtype: DType) -> Array:
        return pack_groups(dtype, columns("qweight"), r.array(layer, "scales").T, columns("qzeros"))

    return r.module(layer, ("qweight", "qzeros", "scales"), "u4z", size, scale, (n, k), make=make)


def _mlx(r: _LayerReader) -> Iterator[tuple[str, _QuantizedWeight]]:
    own = dict(r.quantization.groups)
    return (_mlx_layer(r, layer, own.get(layer, r.quantization.group)) for layer in r.layers("scales"))


def _mlx_layer(r: _LayerReader, layer: str, size: int) -> tuple[str, _QuantizedWeight]:
    """weight [N, K/words] along K, scales and biases [N, groups]."""
    n, words = r.words(layer, "weight")
    groups, scale = r.matrix(layer, "scales")[1], r.scale_type(layer, "scales")
    k = groups * size
    bits = 32 * words // max(1, k)
    if bits not in (4, 8) or words * 32 != k * bits or size % 32:
        raise r.wrong(layer, f"has codes of {32 * words / max(1, k):g} bits in groups of {size}; 4 and 8 bits are supported")
    for part in ("scales", "biases"):
        r.require_shape(layer, part, n, groups)
        if r.scale_type(layer, part) != scale:
            raise r.wrong(layer, "has scales and biases of different dtypes")

    def make(dtype: DType) -> Array:
        found = unpack_words(r.array(layer, "weight"), bits)
        return pack_groups(dtype, found, r.array(layer, "scales"), r.array(layer, "biases"))

    return r.module(layer, ("weight", "scales", "biases"), "u4b" if bits == 4 else "u8b", size, scale, (n, k), make=make)


def _fp8(r: _LayerReader) -> Iterator[tuple[str, _QuantizedWeight]]:
    """weight [N, K] of eight-bit floats; a scale for all, for each row, or for each block of rows and columns."""
    for part in ("weight_scale_inv", "weight_scale"):
        for layer in r.layers(part):
            if r.has(layer, "weight") and r.weights.eight_bit_floats(f"{layer}.weight") is not None:
                yield _fp8_layer(r, layer, part)


def _fp8_layer(r: _LayerReader, layer: str, part: str) -> tuple[str, _QuantizedWeight]:
    n, k = r.matrix(layer, "weight")
    scale, shape = r.scale_type(layer, part), r.info(layer, part).shape
    found = r.weights.eight_bit_floats(f"{layer}.weight")
    assert found is not None
    kind: Codes = "e5m2" if found[0] == "e5m2" else "e4m3"
    down, across = r.quantization.block
    blocks = (-(-n // down), -(-k // across))
    if math.prod(shape) == 1 or shape in ((n,), (n, 1)):
        size = r.group(layer, k, 1)
    elif shape == blocks:
        # The last block of a row may be short; then groups are as long as whole blocks and the rest have in common.
        size = math.gcd(across, k)
        if size % 32:
            raise r.wrong(layer, f"has {k} columns in blocks of {across}: they must have a multiple of 32 in common")
    else:
        raise r.wrong(layer, f"has {part} of shape {list(shape)}: one for all, one a row or {list(blocks)} belong to its codes")

    def make(dtype: DType) -> Array:
        raw = r.weights.eight_bit_floats(f"{layer}.weight")
        assert raw is not None
        scales = r.array(layer, part)
        if shape == blocks and math.prod(shape) > 1 and shape not in ((n,), (n, 1)):
            scales = np.repeat(scales, down, axis=0)[:n]
            scales = np.repeat(scales, across // size, axis=1)[:, : k // size]
        else:
            scales = np.broadcast_to(scales.reshape(-1, 1), (n, 1))
        return pack_groups(dtype, raw[1], np.ascontiguousarray(scales))

    return r.module(layer, ("weight", part), kind, size, scale, (n, k), make=make)


def _nvfp4_layer(r: _LayerReader, layer: str, codes: str, whole: str, *, divides: bool) -> tuple[str, _QuantizedWeight]:
    """codes [N, K/2] with the even column in the low half, weight_scale [N, K/16] in e4m3, and a number for the whole tensor."""
    n, half = r.matrix(layer, codes)
    k = 2 * half
    if r.info(layer, codes).dtype.name != "u8" or k % 64:
        raise r.wrong(layer, f"has a {codes} of {r.info(layer, codes).type}: rows must be bytes, a multiple of 32 of them")
    r.require_shape(layer, "weight_scale", n, k // 16)
    if r.weights.eight_bit_floats(f"{layer}.weight_scale") is None or math.prod(r.info(layer, whole).shape) != 1:
        raise r.wrong(layer, f"has no weight_scale in e4m3, or more than one {whole}")

    def make(dtype: DType) -> Array:
        scales = r.weights.eight_bit_floats(f"{layer}.weight_scale")
        assert scales is not None
        raw = r.array(layer, codes)
        nibbles = np.empty((n, k), np.uint8)
        nibbles[:, ::2], nibbles[:, 1::2] = raw & 15, raw >> 4
        number = np.full((n, 1), r.array(layer, whole).reshape(()), np.float32)
        with np.errstate(divide="ignore"):
            number = np.reciprocal(number) if divides else number
        return pack_groups(dtype, nibbles, number, inner=scales[1])

    return r.module(layer, (codes, "weight_scale", whole), "nvfp4", k, "f32", (n, k), make=make)


def _compressed(r: _LayerReader) -> Iterator[tuple[str, _QuantizedWeight]]:
    """weight_packed with a global scale is nvfp4, without one whole codes in words; else fp8 or int8 weights."""
    for layer in r.layers("weight_packed"):
        if r.has(layer, "weight_global_scale"):
            yield _nvfp4_layer(r, layer, "weight_packed", "weight_global_scale", divides=True)
        else:
            yield _packed_layer(r, layer)
    for layer in r.layers("weight_scale"):
        if r.has(layer, "weight") and r.info(layer, "weight").dtype.name == "i8":
            yield _int8_layer(r, layer)
    yield from _fp8(r)


def _packed_layer(r: _LayerReader, layer: str) -> tuple[str, _QuantizedWeight]:
    """Codes plus half their range in words [N, K/words] along K; scales [N, groups]; zero points [N/words, groups] likewise."""
    n, words = r.words(layer, "weight_packed")
    r.info(layer, "weight_shape")
    shape = r.array(layer, "weight_shape").reshape(-1).tolist()
    if len(shape) != 2 or shape[0] != n or shape[1] <= 0 or words * 32 not in (4 * shape[1], 8 * shape[1]):
        raise r.wrong(layer, f"has {words} words a row and the shape {shape}; codes of 4 and 8 bits are supported")
    k: int = shape[1]
    bits, groups, scale = words * 32 // k, r.matrix(layer, "weight_scale")[1], r.scale_type(layer, "weight_scale")
    size = r.group(layer, k, groups)
    r.require_shape(layer, "weight_scale", n, groups)
    zeros = r.has(layer, "weight_zero_point")
    if zeros:
        r.require_shape(layer, "weight_zero_point", -(-n * bits // 32), groups)
        r.words(layer, "weight_zero_point")
    order = _sorted_columns(r, layer, "weight_g_idx", k, size)
    codes: Codes = ("u4z" if bits == 4 else "u8z") if zeros else ("i4" if bits == 4 else "i8")

    def make(dtype: DType) -> Array:
        found: Array = unpack_words(r.array(layer, "weight_packed"), bits)
        found = found if order is None else found[:, order]
        scales = r.array(layer, "weight_scale")
        if not zeros:
            return pack_groups(dtype, found.astype(np.int16) - (1 << bits - 1), scales)
        return pack_groups(dtype, found, scales, unpack_words(r.array(layer, "weight_zero_point").T, bits).T[:n])

    parts = ["weight_packed", "weight_scale", *(["weight_zero_point"] if zeros else [])]
    parts += ["weight_g_idx"] if r.has(layer, "weight_g_idx") else []
    return r.module(layer, tuple(parts), codes, size, scale, (n, k), make=make, order=order)


def _int8_layer(r: _LayerReader, layer: str) -> tuple[str, _QuantizedWeight]:
    """weight [N, K] of signed bytes; scales, and zero points where there are any, for each row or group."""
    n, k = r.matrix(layer, "weight")
    shape, scale = r.info(layer, "weight_scale").shape, r.scale_type(layer, "weight_scale")
    groups = shape[1] if len(shape) == 2 else 1
    if shape not in ((), (1,), (n,), (n, groups)):
        raise r.wrong(layer, f"has weight_scale of shape {list(shape)}, which does not belong to [{n}, {k}]")
    size, zeros = r.group(layer, k, groups), r.has(layer, "weight_zero_point")

    def make(dtype: DType) -> Array:
        codes = r.array(layer, "weight")
        scales = np.broadcast_to(r.array(layer, "weight_scale").reshape(-1, groups), (n, groups))
        if not zeros:
            return pack_groups(dtype, codes, scales)
        points = np.broadcast_to(r.array(layer, "weight_zero_point").reshape(-1, groups), (n, groups))
        return pack_groups(dtype, codes.astype(np.int16) + 128, scales, points.astype(np.int16) + 128)

    parts = ("weight", "weight_scale", *(("weight_zero_point",) if zeros else ()))
    return r.module(layer, parts, "u8z" if zeros else "i8", size, scale, (n, k), make=make)


def _modelopt(r: _LayerReader) -> Iterator[tuple[str, _QuantizedWeight]]:
    for layer in r.layers("weight_scale_2"):
        yield _nvfp4_layer(r, layer, "weight", "weight_scale_2", divides=False)
    yield from _fp8(r)


_READERS: dict[str, Callable[[_LayerReader], Iterator[tuple[str, _QuantizedWeight]]]] = {
    "gptq": _gptq,
    "awq": _awq,
    "mlx": _mlx,
    "fp8": _fp8,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
}
