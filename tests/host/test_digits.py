"""Matmuls of one row of x with packed weights: as exact as float32 allows, joined or apart, and tiles filled by a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pumice.backends.host.memory.tiles import Tiles
from pumice.backends.host.native import jit, kernel_tasks
from pumice.core import dtypes
from pumice.core.block_formats import LAYOUTS
from pumice.core.blocks import dequantize_rows, quantize_rows
from pumice.ir.ops.matmul import ALIKE

pytestmark = pytest.mark.skipif(not jit.available(), reason="numba is not installed")
Array = np.ndarray[Any, Any]
QUANTS = tuple(LAYOUTS)
K = 512
EPS = float(np.finfo(np.float32).eps)


def weights(quant: dtypes.DType, rows: int, seed: int = 0) -> tuple[Tiles, Array]:
    """Tiles, and the values that they hold."""
    data = quantize_rows(quant, np.random.default_rng(seed).standard_normal((rows, K)).astype("f4"))
    return Tiles.of(quant, (rows, K), data), dequantize_rows(quant, data, K).astype("f8")


def matmul(x: Array, *tiles: Tiles, way: str = "") -> list[Array]:
    """Matmuls of one row, in the way that is best for this processor, or with kernels for `floats` or `fast`."""
    kernels = jit.kernels()
    assert kernels is not None
    outs = [np.full((1, t.rows), 7, np.float32) for t in tiles]
    tasks = [task for t, out in zip(tiles, outs) for task in kernel_tasks.packed_matmul(x, t, out, True, way == "fast")]
    if way == "floats":
        tasks = [replace(t, kernel=t.kernel.replace("matvec", "matvec_floats")) for t in tasks]
    kernels.run(tasks)
    return [out[0] for out in outs]


def ways(quant: dtypes.DType) -> Iterator[str]:
    """The ways that this processor has for a format: the best one, and floats where that is another."""
    from pumice.backends.host.memory.tile_layout import tile_format
    from pumice.backends.host.native.codegen.block_dots import dots_by_bytes

    yield ""
    if dots_by_bytes(tile_format(quant), exact=True):
        yield "floats"


# Each kernel of the way that is not this processor's own takes seconds to compile: those of formats that differ in kind.
OTHERS = ("q5_1", "q3_k", "mxfp4")
both_ways = pytest.mark.parametrize(
    ("quant", "way"),
    [
        pytest.param(
            q, way, id=f"{q}-{way or 'best'}", marks=() if (not way and q not in ALIKE) or q.name in OTHERS else pytest.mark.slow
        )
        for q in QUANTS
        for way in (ways(q) if jit.available() else ())
    ],
)


def rows_of_x() -> dict[str, Array]:
    rng = np.random.default_rng(1)
    plain = rng.standard_normal((1, K)).astype("f4")
    one = np.zeros((1, K), "f4")
    one[0, 77] = -3.25
    return {
        "plain": plain,
        "of many magnitudes": (plain * np.exp(6 * rng.standard_normal((1, K)))).astype("f4"),
        "tiny": plain * np.float32(1e-33),
        "huge": plain * np.float32(1e30),
        "all alike": np.full((1, K), 0.1, "f4"),
        "a power of two": np.full((1, K), -2.0, "f4"),
        "one number": one,
        "zero": np.zeros((1, K), "f4"),
    }


@both_ways
def test_matmuls_are_as_exact_as_float32_sums(quant: dtypes.DType, way: str) -> None:
    tiles, values = weights(quant, 70)
    wrong = [kind for kind, x in rows_of_x().items() if not is_exact(matmul(x, tiles, way=way)[0], values, x)]
    assert not wrong


def is_exact(got: Array, values: Array, x: Array) -> bool:
    # Codes, before scales and offsets are applied, may be larger than the values by the ratio of their ranges.
    bound = 4 * EPS * (np.abs(values).max(axis=1) * np.abs(x).sum(dtype="f8") + np.finfo("f4").tiny)
    return bool((np.abs(got - values @ x[0].astype("f8")) <= bound).all())


@both_ways
def test_a_number_that_is_not_finite_leaves_no_finite_result(quant: dtypes.DType, way: str) -> None:
    tiles, _ = weights(quant, 40)
    for value in (np.nan, np.inf, -np.inf):
        x = rows_of_x()["plain"].copy()
        x[0, 300] = value
        (got,) = matmul(x, tiles, way=way)
        # In float32 infinity times a weight of 0 is NaN, and anything else infinite: never a number.
        assert not np.isfinite(got).any()


@both_ways
def test_huge_numbers_are_as_finite_as_their_results(quant: dtypes.DType, way: str) -> None:
    """Sums with codes are larger than with weights: they must not be infinite before scales make them smaller."""
    # Weights so small that results are finite up to the largest x.
    data = quantize_rows(quant, np.random.default_rng(3).standard_normal((40, K)).astype("f4") * np.float32(1e-4))
    tiles, values = Tiles.of(quant, (40, K), data), dequantize_rows(quant, data, K).astype("f8")
    plain = rows_of_x()["plain"] / np.abs(rows_of_x()["plain"]).max()
    mixed = plain.copy()
    mixed[0, ::3] *= np.float32(1e-30)
    for size in (1e30, 1e34, 3e35, 1e37, 3e38):
        for row in (plain, mixed, np.full((1, K), 1, "f4")):
            x = (row * np.float32(size)).astype("f4")
            want = values @ x[0].astype("f8")
            (got,) = matmul(x, tiles, way=way)
            assert np.abs(want).max() < np.finfo("f4").max and np.isfinite(got).all()
            assert is_exact(got, values, x)
    # What does not fit in float32 is infinite, not NaN.
    (got,) = matmul(np.full((1, K), 3e38, "f4"), Tiles.of(quant, (40, K), np.repeat(ones(quant), 40, 0)), way=way)
    assert (got == np.inf).all()


def ones(quant: dtypes.DType) -> Array:
    return quantize_rows(quant, np.ones((1, K), "f4"))


@both_ways
def test_any_bytes_are_read_as_the_codec_reads_them(quant: dtypes.DType, way: str) -> None:
    """Random bytes use every code, sub-scale and sign; some scales are 0, and the last tile is not full."""
    data = np.random.default_rng(4).integers(0, 256, (45, quant.nbytes(K)), np.uint8)
    blocks = data.reshape(-1, quant.block_bytes)
    layout = LAYOUTS[quant]
    for at in {layout.scale, layout.least} - {None}:
        if layout.scale_kind == "nibbles":  # the last has the sign and the exponent's top
            blocks[:, at + 6] = blocks[:, at + 6] & 15 | np.random.default_rng(5).choice([0, 0x30, 0xB0], len(blocks))
            continue
        width = {"f16": 2, "e8m0": 1, "f32": 4}[layout.scale_kind]
        blocks[:, at + width - 1] = np.random.default_rng(5).choice([0, 60, 66, 188], len(blocks))
    blocks[::5] = 0
    with np.errstate(all="ignore"):
        values = dequantize_rows(quant, data, K).astype("f8")
    x = rows_of_x()["plain"]
    (got,) = matmul(x, Tiles.of(quant, (45, K), data), way=way)
    # Sums by parts, before offsets are added, may be larger than the values.
    bound = 64 * EPS * np.abs(values).max(axis=1) * np.abs(x).sum() + 1e-30
    np.testing.assert_array_less(np.abs(got - values @ x[0].astype("f8")), bound)


def test_joined_matmuls_are_the_same_as_apart() -> None:
    x = rows_of_x()["plain"]
    made = [
        weights(quant, rows, rows)[0] for quant, rows in zip([dtypes.q4_1] * 3 + [dtypes.q8_0, dtypes.q4_1], (64, 33, 5, 40, 1))
    ]
    tasks = [t for w in made for t in kernel_tasks.packed_matmul(x, w, np.empty((1, w.rows), np.float32), True)]
    assert [(t.kernel, t.parts) for t in kernel_tasks.joined(tasks)] == [
        ("prepare_row", 1), ("matvec_q4_1", 5), ("matvec_q8_0", 2), ("matvec_q4_1", 1),
    ]  # fmt: skip
    for together, w in zip(matmul(x, *made), made):
        np.testing.assert_array_equal(together, matmul(x, w)[0])


def test_another_row_or_a_write_between_keeps_matmuls_apart() -> None:
    x, y = rows_of_x()["plain"], rows_of_x()["tiny"]
    w, _ = weights(dtypes.q4_1, 32)
    first, second = (kernel_tasks.packed_matmul(r, w, np.empty((1, 32), np.float32), True) for r in (x, y))
    assert len(kernel_tasks.joined([*first, *second])) == 4
    add = kernel_tasks.elementwise("add")([y, y], x)
    assert add is not None and len(kernel_tasks.joined([*first, *add, *first])) == 5


@pytest.mark.parametrize("columns", [32, 96, 512])
@pytest.mark.parametrize("rows", [1, 31, 32, 70])
@pytest.mark.parametrize("quant", [dtypes.q4_0, dtypes.q8_0], ids=str)
def test_tiles_filled_by_the_kernel(quant: dtypes.DType, rows: int, columns: int) -> None:
    kernels = jit.kernels()
    assert kernels is not None
    data = np.random.default_rng(2).integers(0, 256, (rows, quant.nbytes(columns))).astype(np.uint8)
    want = Tiles.of(quant, (rows, columns), data)
    got = Tiles.of(quant, (rows, columns), np.zeros_like(data))
    kernels.run(kernel_tasks.interleave(got, data))
    np.testing.assert_array_equal(got.data, want.data)
