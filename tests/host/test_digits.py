"""Products of one row of x with packed weights: as exact as float32 allows, joined or apart, and tiles filled by a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pumice.backends.host import jit, native
from pumice.backends.host.packed import Tiles
from pumice.core import dtypes
from pumice.core.blocks import dequantize_rows, quantize_rows

pytestmark = pytest.mark.skipif(not jit.available(), reason="numba is not installed")
Array = np.ndarray[Any, Any]
QUANTS = (dtypes.q4_0, dtypes.q4_1, dtypes.q8_0, dtypes.q4_k, dtypes.q6_k)
K = 512
EPS = float(np.finfo(np.float32).eps)


def weights(quant: dtypes.DType, rows: int, seed: int = 0) -> tuple[Tiles, Array]:
    """Tiles, and the values that they hold."""
    data = quantize_rows(quant, np.random.default_rng(seed).standard_normal((rows, K)).astype("f4"))
    return Tiles.of(quant, (rows, K), data), dequantize_rows(quant, data, K).astype("f8")


def product(x: Array, *tiles: Tiles) -> list[Array]:
    kernels = jit.kernels()
    assert kernels is not None
    outs = [np.full((1, t.rows), 7, np.float32) for t in tiles]
    kernels.run([task for t, out in zip(tiles, outs) for task in native.packed_product(x, t, out, True)])
    return [out[0] for out in outs]


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


@pytest.mark.parametrize("kind", rows_of_x())
@pytest.mark.parametrize("quant", QUANTS, ids=str)
def test_products_are_as_exact_as_float32_sums(quant: dtypes.DType, kind: str) -> None:
    x = rows_of_x()[kind]
    tiles, values = weights(quant, 70)
    (got,) = product(x, tiles)
    # Codes, before scales and offsets are applied, may be larger than the values by the ratio of their ranges.
    bound = 4 * EPS * (np.abs(values).max(axis=1) * np.abs(x).sum() + np.finfo("f4").tiny)
    assert (np.abs(got - values @ x[0].astype("f8")) <= bound).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("quant", QUANTS, ids=str)
def test_a_number_that_is_not_finite_leaves_no_finite_result(quant: dtypes.DType, value: float) -> None:
    x = rows_of_x()["plain"].copy()
    x[0, 300] = value
    (got,) = product(x, weights(quant, 40)[0])
    assert not np.isfinite(got).any()


def test_joined_products_are_the_same_as_apart() -> None:
    x = rows_of_x()["plain"]
    made = [
        weights(quant, rows, rows)[0] for quant, rows in zip([dtypes.q4_1] * 3 + [dtypes.q8_0, dtypes.q4_1], (64, 33, 5, 40, 1))
    ]
    tasks = [t for w in made for t in native.packed_product(x, w, np.empty((1, w.rows), np.float32), True)]
    assert [(t.kernel, t.parts) for t in native.joined(tasks)] == [
        ("sums_f32", 1), ("matvec_q4_1", 5), ("matvec_q8_0", 2), ("matvec_q4_1", 1),
    ]  # fmt: skip
    for together, w in zip(product(x, *made), made):
        np.testing.assert_array_equal(together, product(x, w)[0])


def test_another_row_or_a_write_between_keeps_products_apart() -> None:
    x, y = rows_of_x()["plain"], rows_of_x()["tiny"]
    w, _ = weights(dtypes.q4_1, 32)
    first, second = (native.packed_product(r, w, np.empty((1, 32), np.float32), True) for r in (x, y))
    assert len(native.joined([*first, *second])) == 4
    add = native.elementwise("add")([y, y], x)
    assert add is not None and len(native.joined([*first, *add, *first])) == 5


@pytest.mark.parametrize("columns", [32, 96, 512])
@pytest.mark.parametrize("rows", [1, 31, 32, 70])
@pytest.mark.parametrize("quant", [dtypes.q4_0, dtypes.q8_0], ids=str)
def test_tiles_filled_by_the_kernel(quant: dtypes.DType, rows: int, columns: int) -> None:
    kernels = jit.kernels()
    assert kernels is not None
    data = np.random.default_rng(2).integers(0, 256, (rows, quant.nbytes(columns))).astype(np.uint8)
    want = Tiles.of(quant, (rows, columns), data)
    got = Tiles.of(quant, (rows, columns), np.zeros_like(data))
    kernels.run(native.interleave(got, data))
    np.testing.assert_array_equal(got.data, want.data)
