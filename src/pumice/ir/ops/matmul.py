"""Matmuls, plain and with quantised weights, and the conversion of quantised tensors to floats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from pumice.core import dtypes
from pumice.core.block_formats import FORMATS, LAYOUTS
from pumice.core.blocks import dequantize_rows, quantize_rows
from pumice.core.dims import Shape, shape_text
from pumice.core.dtypes import DType
from pumice.core.precisions import FLOAT_PRECISIONS, MATRIX_ROUNDING, PRECISIONS, check_precision
from pumice.errors import DTypeError, ShapeError
from pumice.ir.gradient import Val
from pumice.ir.gradients import linear as gradients
from pumice.ir.ops.eight_bits import compose_rounding, round_to_eight_bits, rounding_flips
from pumice.ir.precision import DIVISION_ULPS, Evaluation, U, growth, summed
from pumice.ir.registry import Array, Attrs, OpSpec, Packed, Pull, Routine, Sample, Types, register
from pumice.ir.rules import broadcast, given, require_kind, rng, same_dtype
from pumice.ir.traits import Flops, Sizes, SizesText, Traits
from pumice.ir.types import TensorType

_MATMUL_DTYPES = (dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.i32, dtypes.u32)
# Weights are unpacked this many elements at a time: a whole layer as f32 would be eight times the packed tensor.
_UNPACK_ELEMENTS = 1 << 22


def _infer_matmul(types: Types, attrs: Attrs) -> TensorType:
    a, b = given(types)
    check_precision(attrs["precision"], FLOAT_PRECISIONS)
    mixed = a.dtype != b.dtype and a.dtype.is_float and b.dtype.is_float
    dtype = dtypes.f32 if mixed else same_dtype(types)
    if dtype not in _MATMUL_DTYPES:
        raise DTypeError(
            f"takes {', '.join(d.name for d in _MATMUL_DTYPES)}, not {dtype}",
            hint="use qmatmul for quantised weights" if dtype.is_quant else "cast with .astype(...)",
            dtype=dtype.name,
        )
    return TensorType(dtype, _matmul_shape(a.shape, b.shape))


def _matmul_shape(a: Shape, b: Shape) -> Shape:
    shapes = f"{shape_text(a)} and {shape_text(b)}"
    if not a or not b:
        raise ShapeError(
            f"matmul needs operands of rank 1 or more, the shapes are {shapes}",
            hint="multiply by a scalar with *",
            a=a,
            b=b,
        )
    inner = b[0] if len(b) == 1 else b[-2]
    if a[-1] != inner:
        which = "only axis" if len(b) == 1 else "last axis but one"
        raise ShapeError(
            f"the last axis of the first operand, {a[-1]}, must equal the {which} of the second, {inner}: shapes {shapes}",
            hint="transpose one operand if its axes are swapped",
            a=a,
            b=b,
        )
    try:
        batch = broadcast(a[:-2], b[:-2])
    except ShapeError as e:
        raise ShapeError(
            f"the axes before the last two must broadcast, those of {shapes} do not: {e.message}", hint=e.hint, a=a, b=b
        ) from None
    return batch + a[-2:-1] + (b[-1:] if len(b) > 1 else ())


def _matmul(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    a, b = arrays
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.matmul(a, b))


# The least step of f16, half of which is the most that rounding to it takes from a small number.
_F16_STEP = 2.0**-24


def matrix_error(precision: str, x: Array) -> Array | None:
    """How far rounding to the 16 bits of a matrix unit may take each element; None where nothing is rounded to them."""
    rounding = MATRIX_ROUNDING.get(precision)
    if rounding is None:
        return None
    return np.asarray(rounding * np.abs(x) + (_F16_STEP / 2 if precision == "f16" else 0.0))


def rounding_error(e: Evaluation, *others: Any) -> Array | float:
    """What rounding to the 16 bits of a matrix unit may add to a result that is linear in the first two operands.

    `others` are the operands after them, as they are to be given to the op.
    """
    a, b = e.arrays[:2]
    off_a, off_b = (matrix_error(e.attrs["precision"], x) for x in (a, b))
    if off_a is None or off_b is None:
        return 0.0
    return np.asarray(e.again([off_a, np.abs(b), *others]) + e.again([np.abs(a) + off_a, off_b, *others]))


_sums_error = summed(lambda e: e.arrays[0].shape[-1])


def _matmul_error(e: Evaluation) -> Array:
    return np.asarray(_sums_error(e) + rounding_error(e))


def check_blocks(w: TensorType) -> None:
    """Refuses a tensor that is not quantised, or whose rows are no known whole number of blocks."""
    require_kind(w, "quant")
    k = w.shape[-1] if w.shape else 0
    if not w.shape or not isinstance(k, int) or k % w.dtype.block:
        raise ShapeError(
            f"the last axis of a {w.dtype} tensor must be static and a multiple of {w.dtype.block}, "
            f"the shape is {shape_text(w.shape)}",
            hint="pad the rows before quantising, or keep the tensor in f16",
            shape=w.shape,
        )


def _infer_qmatmul(types: Types, attrs: Attrs) -> TensorType:
    x, w = given(types)
    check_precision(attrs["precision"])
    require_kind(x, "float")
    check_blocks(w)
    if w.rank != 2 or not x.shape or x.shape[-1] != w.shape[1]:
        raise ShapeError(
            f"takes x [..., K] and w [N, K] with the same K, the shapes are {shape_text(x.shape)} and {shape_text(w.shape)}",
            hint="w holds one row of K weights for each of the N outputs, as linear layers store it",
            x=x.shape,
            w=w.shape,
        )
    return TensorType(x.dtype, (*x.shape[:-1], w.shape[0]))


def _qmatmul(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    x, w = arrays
    if attrs["precision"] == "fast":
        x = round_to_eight_bits(x)
    n, k = w.shape
    result = np.empty(out.static_shape, x.dtype)
    step = max(1, _UNPACK_ELEMENTS // max(k, 1))
    for start in range(0, n, step):
        rows = dequantize_rows(w.dtype, w.data[start : start + step], k)
        result[..., start : start + step] = x @ rows.T
    return result


def block_sizes(w: Packed) -> Array:
    """The size of each weight for error models: the largest of its block, as offsets may be applied to a block's sum."""
    values = np.abs(dequantize_rows(w.dtype, w.data, w.shape[-1]))
    count = values.shape[-1] // w.dtype.block
    blocks = values.reshape(*values.shape[:-1], count, w.dtype.block).max(axis=-1, initial=0)
    return np.repeat(blocks, w.dtype.block, axis=-1)


def _qmatmul_error(e: Evaluation) -> Array:
    x, w = e.arrays
    weights, roundings = block_sizes(w).T, growth(w.shape[-1])
    if e.attrs["precision"] != "fast":
        sums, off = np.asarray(roundings * U * (np.abs(x) @ weights)), matrix_error(e.attrs["precision"], x)
        off_w = matrix_error(e.attrs["precision"], weights)
        return sums if off is None or off_w is None else sums + off @ weights + (np.abs(x) + off) @ off_w
    # The scale of a block of x is a quotient, and the multiple of it a product; that error is the same for the whole block.
    roundings += 2 * DIVISION_ULPS + 1
    return np.asarray(roundings * U * (np.abs(round_to_eight_bits(x)) @ weights) + rounding_flips(x) @ weights)


def _compose_qmatmul(attrs: Attrs, operands: Mapping[str, Val]) -> Val:
    x, w = operands["x"], operands["w"]
    rounded = compose_rounding(x) if attrs["precision"] == "fast" else x
    return rounded.op("qmatmul", w).cast(x.dtype)


def unpacked_error(e: Evaluation) -> Array:
    """Quantised weights as floats: a product of scales, a product with the code, an offset."""
    return np.asarray(3 * U * block_sizes(e.arrays[0]))


def _infer_dequantize(types: Types, attrs: Attrs) -> TensorType:
    (w,) = given(types)
    check_blocks(w)
    return TensorType(dtypes.f32, w.shape)


def _dequantize(arrays: Sequence[Any], attrs: Attrs, out: TensorType) -> Array:
    (w,) = arrays
    return dequantize_rows(w.dtype, w.data, w.shape[-1])


def _pair(label: str, a: tuple[int, ...], b: tuple[int, ...], dtype: DType = dtypes.f32, right: DType | None = None) -> Sample:
    r = rng()
    if dtype.is_float:
        arrays = tuple(r.standard_normal(s).astype(d.np) for s, d in ((a, dtype), (b, right or dtype)))
    else:
        low = 0 if dtype.kind == "uint" else -9
        arrays = tuple(r.integers(low, 10, s).astype(dtype.np) for s in (a, b))
    return Sample(label, arrays, {})


def _matmul_samples() -> Iterator[Sample]:
    yield _pair("vector by vector", (37,), (37,))
    yield _pair("vector by matrix", (7,), (7, 5))
    yield _pair("matrix by vector", (5, 7), (7,))
    yield _pair("vector by batch", (4,), (3, 4, 5))
    yield _pair("batch by vector", (3, 5, 4), (4,))
    yield _pair("1x1x1", (1, 1), (1, 1))
    yield _pair("5x7x3", (5, 7), (7, 3))
    yield _pair("33x65x17", (33, 65), (65, 17))
    yield _pair("64x64x64", (64, 64), (64, 64))
    yield _pair("130x70x129", (130, 70), (70, 129))
    yield _pair("K=1", (6, 1), (1, 9))
    yield _pair("K=0 gives zeros", (3, 0), (0, 4))
    yield _pair("M=0", (0, 5), (5, 4))
    yield _pair("N=0", (3, 5), (5, 0))
    yield _pair("batch", (3, 4, 5), (3, 5, 6))
    yield _pair("batch of zero", (0, 4, 5), (0, 5, 6))
    yield _pair("broadcast batches", (2, 1, 3, 4), (5, 4, 2))
    yield _pair("2D by 3D", (3, 4), (5, 4, 6))
    yield _pair("3D by 2D", (5, 3, 4), (4, 6))
    yield _pair("M=1, matvec", (1, 300), (300, 256))
    yield _pair("batch of M=1", (3, 1, 64), (3, 64, 40))
    yield _pair("N=1", (70, 33), (33, 1))
    yield _pair("large K", (3, 2000), (2000, 5))
    yield _pair("i32", (9, 20), (20, 11), dtypes.i32)
    yield _pair("u32", (9, 20), (20, 11), dtypes.u32)
    yield _pair("i32 matvec", (1, 40), (40, 33), dtypes.i32)
    big = rng(7).integers(-(2**31), 2**31, (2, 6, 6)).astype(np.int32)
    yield Sample("i32 wraps", (big[0], big[1]), {})
    yield _pair("f16", (17, 34), (34, 19), dtypes.f16)
    yield _pair("f16, odd rows", (5, 7), (7, 3), dtypes.f16)
    yield _pair("f16 matvec", (1, 96), (96, 65), dtypes.f16)
    yield _pair("bf16", (17, 34), (34, 19), dtypes.bf16)
    yield _pair("bf16 batch", (2, 3, 7), (2, 7, 5), dtypes.bf16)
    for half in (dtypes.f16, dtypes.bf16):
        yield _pair(f"f32 by {half}", (33, 66), (66, 70), dtypes.f32, half)
        yield _pair(f"f32 by {half}, odd", (33, 65), (65, 17), dtypes.f32, half)
        yield _pair(f"f32 by {half}, matvec", (1, 96), (96, 130), dtypes.f32, half)
        yield _pair(f"{half} by f32", (34, 66), (66, 19), half, dtypes.f32)
        yield _pair(f"{half} by f32, matvec", (130, 96), (96,), half, dtypes.f32)
        yield _pair(f"f32 by {half}, batch", (2, 3, 8), (2, 8, 6), dtypes.f32, half)
    yield _pair("f16 by bf16", (17, 34), (34, 20), dtypes.f16, dtypes.bf16)
    for precision in ("f16", "bf16"):
        chosen = {"precision": precision}
        for one in (_pair("f32", (33, 66), (66, 70)), _pair("f32 by f16", (40, 72), (72, 64), dtypes.f32, dtypes.f16)):
            yield Sample(f"{one.label}, precision {precision}", one.inputs, chosen)
        yield Sample(f"batch, precision {precision}", _pair("", (2, 17, 40), (2, 40, 24)).inputs, chosen)


def _packed(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Packed:
    return Packed(dtype, shape, quantize_rows(dtype, rng(seed).standard_normal(shape)))


# One of each kind of codes, with every kind of scale, offset and group size among them: even parts of a chunk of a row, and
# not; and one group for a whole row.
_GROUPED = tuple(
    dtypes.dtype(name)
    for name in (
        "i4_g32_f16", "i4_g96_f32", "i8_g64_bf16", "i8_g128_f16", "u4z_g128_f16", "u8z_g32_f32", "u8z_g384_f16", "u4b_g64_bf16",
        "u4b_g32_f32", "u8b_g32_f16", "u8b_g160_bf16", "e4m3_g128_f32", "e4m3_g416_f32", "e5m2_g64_f16", "nvfp4_g192_f32",
    )
)  # fmt: skip


# Numbers of rows that make a matvec of one vector, of several, and tiles; weights of one block a row and of several.
_SIZES = (((1,), 7, 3), ((1,), 130, 1), ((5,), 33, 2), ((40,), 65, 3))
# What does not depend on the format: ranks, dtypes of x, nothing to do, whole tiles and thread groups.
_MORE_SIZES: tuple[tuple[tuple[int, ...], int, int, DType], ...] = (
    ((1,), 64, 8, dtypes.f32),
    ((5,), 130, 1, dtypes.f32),
    ((40,), 64, 3, dtypes.f32),
    ((40,), 130, 8, dtypes.f32),
    ((), 7, 3, dtypes.f32),
    ((2, 3), 64, 1, dtypes.f32),
    ((2, 1), 7, 3, dtypes.f32),
    ((0,), 7, 1, dtypes.f32),
    ((1,), 64, 3, dtypes.f16),
    ((5,), 7, 1, dtypes.f16),
    ((40,), 130, 3, dtypes.f16),
    ((3,), 64, 3, dtypes.bf16),
)


# Formats whose kernels only differ in how four codes are found have fewer sizes, and those of them that find codes like another
# one but for other tables and places have one.
_BY_FOURS = tuple(d for d in dtypes.QUANT if LAYOUTS[d].grid is not None or LAYOUTS[d].trits)
ALIKE = (dtypes.iq3_xxs, dtypes.iq2_s, dtypes.iq2_xxs, dtypes.iq1_s, dtypes.tq2_0)


def _sizes_of(q: DType) -> Iterator[tuple[tuple[int, ...], int, int, DType]]:
    sizes = _SIZES[:1] if q in ALIKE else _SIZES[::3] if q in _BY_FOURS else _SIZES
    yield from ((*size, dtypes.f32) for size in sizes)
    yield from _MORE_SIZES if q in (dtypes.q4_0, dtypes.q8_0, dtypes.q6_k) else ()


def _qmatmul_samples() -> Iterator[Sample]:
    for q in (*dtypes.QUANT, *_GROUPED):
        for lead, n, blocks, dtype in _sizes_of(q):
            k = blocks * q.block
            x = rng(n + k).standard_normal((*lead, k)).astype(dtype.np)
            label = f"{q} {dtype} x {shape_text(x.shape)}, w {shape_text((n, k))}"
            yield Sample(label, (x, _packed(q, (n, k), seed=n)), {})
    yield from _fast_samples()
    for precision in ("f16", "bf16"):
        for q in (dtypes.q4_0, dtypes.q4_k, dtypes.q8_0):
            x = rng(5).standard_normal((40, 2 * q.block)).astype(np.float32)
            yield Sample(f"{q}, precision {precision}", (x, _packed(q, (65, 2 * q.block))), {"precision": precision})


def _fast_samples() -> Iterator[Sample]:
    """Formats with and without offsets, of blocks of 32 and more, and grouped; ties, blocks of zeros, and tiny values."""
    fast = {"precision": "fast"}
    names = ("q4_0", "q5_1", "q8_0", "q4_k", "q6_k", "u4b_g64_bf16")
    for q in map(dtypes.dtype, names):
        for rows, n in ((1, 33), (40, 65)):
            k = 2 * max(q.block, 64)
            x = rng(n + k).standard_normal((rows, k)).astype(np.float32)
            yield Sample(f"fast {q} x {shape_text(x.shape)}, w {shape_text((n, k))}", (x, _packed(q, (n, k), seed=n)), fast)
    w, r = _packed(dtypes.q4_1, (70, 96), seed=1), rng(3)
    ties = r.integers(-252, 253, (3, 96)).astype(np.float32) / 2
    ties[:, ::32] = 127
    yield Sample("fast, ties", (ties, w), fast)
    empty = r.standard_normal((2, 3, 96)).astype(np.float32)
    empty[0, 1], empty[1, :, 32:64], empty[1, 2, :32] = 0, 0, 1e-40
    yield Sample("fast, blocks of zeros, rank 3", (empty, w), fast)
    yield Sample("fast, no rows", (np.zeros((0, 96), np.float32), w), fast)
    for half in (dtypes.f16, dtypes.bf16):
        yield Sample(f"fast {half}", (r.standard_normal((5, 96)).astype(half.np), w), fast)


def _dequantize_samples() -> Iterator[Sample]:
    for q in _GROUPED:
        yield Sample(f"{q} {shape_text((3, 2 * q.block))}", (_packed(q, (3, 2 * q.block)),), {})
    for q in dtypes.QUANT:
        if q in ALIKE:
            yield Sample(f"{q} {shape_text((5, 3 * q.block))}", (_packed(q, (5, 3 * q.block)),), {})
            continue
        for shape in ((q.block,), (5, 3 * q.block), (2, 3, 2 * q.block), (0, q.block)):
            yield Sample(f"{q} {shape_text(shape)}", (_packed(q, shape),), {})
        zeros = Packed(q, (2, q.block), quantize_rows(q, np.zeros((2, q.block))))
        yield Sample(f"{q} zeros", (zeros,), {})


def _flops(left: str) -> Flops:
    return lambda of, attrs, out: 2 * prod(out) * of[left][-1]


def _sizes(left: str, right: str) -> SizesText:
    """M, N and K of a matmul; a vector on the right has one column."""

    def text(of: Sizes, attrs: Attrs, out: tuple[int, ...]) -> str:
        n = out[-1] if len(of[right]) > 1 else 1
        return f"M {prod(out) // max(1, n)}, N {n}, K {of[left][-1]}"

    return text


register(
    OpSpec(
        name="matmul",
        family="matmul",
        summary="matmul over the last two axes",
        operands=("a", "b"),
        infer=_infer_matmul,
        reference=_matmul,
        lowering=Routine("matmul"),
        samples=_matmul_samples,
        error=_matmul_error,
        gradient=gradients.matmul,
        attrs={"precision": "exact"},
        implied=("precision",),
        cost="compute",
        traits=Traits(flops=_flops("a"), sizes=_sizes("a", "b"), pulls=("a",), pulls_again=True, precisions=FLOAT_PRECISIONS),
        rules=(
            "[..., M, K] by [..., K, N] gives [..., M, N]; the axes before the last two broadcast. A rank 1 operand is a row "
            "on the left and a column on the right, and its added axis is dropped from the result, so vector by vector is a "
            "scalar; rank 0 is refused. Both operands have one dtype out of f32, f16, bf16, i32, u32, and so has the result; two "
            "floats that differ give f32. f16 and bf16 sum in f32 and round once at the end; i32 and u32 wrap modulo 2^32. The "
            "order of summation is not fixed. K = 0 gives zeros. With the precision f16 or bf16, a device that has matrix units "
            "for such floats may round operands to them first, where f16 turns numbers beyond 65504 into infinities; others "
            "compute as with exact."
        ),
    )
)

register(
    OpSpec(
        name="qmatmul",
        family="matmul",
        summary="x times the transpose of a quantised weight",
        operands=("x", "w"),
        infer=_infer_qmatmul,
        reference=_qmatmul,
        lowering=Routine("qmatmul"),
        samples=_qmatmul_samples,
        error=_qmatmul_error,
        gradient=gradients.qmatmul,
        composed=_compose_qmatmul,
        attrs={"precision": "exact"},
        implied=("precision",),
        cost="compute",
        traits=Traits(flops=_flops("x"), sizes=_sizes("x", "w"), pulls=("x",), pulls_again=True, precisions=PRECISIONS),
        rules=(
            "x [..., K] by w [N, K] gives [..., N] in x's dtype. w is quantised along K, which is static and a multiple of the "
            "block. Each weight has the value dequantize gives it; products sum in f32 and an f16 or bf16 result rounds once at "
            "the end. With the precision exact, x is not quantised. With fast, x is rounded first: each 32 neighbours of a row "
            "become d*q with d = max|x| / 127 in f32 and q = x/d rounded to the nearest integer, halves to the even one; where d "
            "is below 2^-126 they become 0, and a block with NaN or infinity becomes NaN. A quotient within an ulp or so of a "
            "half may be rounded either way. The gradient is that of exact: rounding counts as the identity. f16 and bf16 are "
            "those of matmul, for x and the values of the weights."
        ),
    )
)

register(
    OpSpec(
        name="dequantize",
        family="matmul",
        summary="the f32 values of a quantised tensor",
        operands=("w",),
        infer=_infer_dequantize,
        reference=_dequantize,
        lowering=Pull("dequantize"),
        samples=_dequantize_samples,
        error=unpacked_error,
        rules=(
            "Blocks run along the last axis, which is static and a multiple of the block. "
            + "; ".join(f"{dtype}: {format.value}" for dtype, format in FORMATS.items())
            + ". d and m are f16 numbers of the block. Grouped "
            "dtypes: s*q (i4, i8, e4m3, e5m2), s*(q-z) (u4z, u8z), s*q+b (u4b, u8b), s*(t*q) (nvfp4, t in e4m3 for "
            "every 16). The arithmetic is f32."
        ),
        no_gradient="quantised weights are not trained",
        differentiable=False,
    )
)
