"""Dense matmuls by the kernels of native/kernels/matmul.py against float64, in all layouts that arrays come in."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pumice.backends.host.native import dense, jit

KERNELS = jit.kernels()
pytestmark = pytest.mark.skipif(
    KERNELS is None or not KERNELS.is_wide, reason="the kernels need numba and a processor with AVX-512; others use BLAS"
)
# Rows, columns, depth: whole slabs and tiles, and what is left of them; several blocks of k, odd ones too.
SIZES = [(14, 32, 256), (64, 64, 64), (13, 33, 300), (5, 531, 517), (64, 64, 513), (130, 400, 16), (600, 8, 600), (15, 15, 2047)]


def operand(rng: np.random.Generator, shape: tuple[int, ...], turned: bool, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    shape = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
    made = rng.normal(size=shape).astype(np.float32).astype(dtype)
    return made.swapaxes(-1, -2) if turned else made


def check(x: Any, y: Any, batch: tuple[int, ...]) -> list[str]:
    """Runs the tasks into memory full of NaN; the kernels that were used."""
    assert KERNELS is not None
    out = np.full((*batch, x.shape[-2], y.shape[-1]), np.nan, np.float32)
    tasks = dense.matmul(x, y, out)
    assert tasks is not None
    KERNELS.run(tasks)
    exact = x.astype(np.float64) @ y.astype(np.float64)
    np.testing.assert_allclose(out, exact, rtol=0, atol=1e-5 * np.sqrt(x.shape[-1]))
    return [t.kernel for t in tasks]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("turned", list(itertools.product((False, True), repeat=2)), ids=str)
def test_matmuls_of_every_layout(size: tuple[int, int, int], turned: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "_LEAST", 1)
    (rows, columns, depth), rng = size, np.random.default_rng(0)
    for batch in ((), (3,), (2, 3)):
        x = operand(rng, (*batch, rows, depth), turned[0])
        check(x, operand(rng, (*batch, depth, columns), turned[1]), batch)
        check(x, operand(rng, (depth, columns), turned[1]), batch)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def test_matmuls_with_f16_and_bf16(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    for (rows, columns), turned in itertools.product(((100, 70), (20, 333)), (False, True)):
        used = check(operand(rng, (rows, 300), False), operand(rng, (300, columns), turned, dtype), ())
        assert used[-1] == ("matmul_f32" if rows > columns else f"columns_{np.dtype(dtype).name.replace('float', 'f')}")


def test_a_large_right_operand_is_packed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "_MOST_PACKED", 40_000)
    rng = np.random.default_rng(2)
    assert len(check(operand(rng, (300, 500), False), operand(rng, (500, 200), True), ())) > 2
    assert len(check(operand(rng, (6, 40, 100), False), operand(rng, (6, 100, 90), False), (6,))) > 2


def test_results_do_not_depend_on_the_other_rows_or_columns() -> None:
    assert KERNELS is not None
    rng = np.random.default_rng(3)
    x, y = operand(rng, (64, 700), False), operand(rng, (700, 96), False)
    found = []
    for left, right in ((x, y), (x[10:30], y), (x, y[:, 32:70]), (x[10:30], np.asfortranarray(y))):
        out = np.empty((len(left), right.shape[1]), np.float32)
        tasks = dense.matmul(left, right, out)
        assert tasks is not None
        KERNELS.run(tasks)
        found.append(out)
    np.testing.assert_array_equal(found[0][10:30], found[1])
    np.testing.assert_array_equal(found[0][:, 32:70], found[2])
    np.testing.assert_array_equal(found[1], found[3])


def test_infinities_and_nan_stay_in_their_rows() -> None:
    assert KERNELS is not None
    x, y = np.ones((64, 65), np.float32), np.ones((65, 40), np.float32)
    x[3, 64], x[7, 0] = np.nan, np.inf
    out = np.empty((64, 40), np.float32)
    tasks = dense.matmul(x, y, out)
    assert tasks is not None
    KERNELS.run(tasks)
    assert np.isnan(out[3]).all() and np.isposinf(out[7]).all()
    rest = np.delete(out, (3, 7), axis=0)
    np.testing.assert_array_equal(rest, np.full_like(rest, 65))


def test_what_the_kernels_do_not_do_is_refused() -> None:
    x, y, out = np.ones((64, 64), np.float32), np.ones((64, 64), np.float32), np.empty((64, 64), np.float32)
    assert dense.matmul(x[:2], y, out[:2]) is None  # too few rows
    assert dense.matmul(x.astype(np.float64), y, out) is None
    assert dense.matmul(x, y, out.T) is None
    gaps = np.ones((2, 2, 64, 64), np.float32)[:, ::2]
    assert dense.matmul(np.ones((2, 3, 64, 64), np.float32), gaps, np.empty((2, 3, 64, 64), np.float32)) is None


def test_threads_that_multiply_at_the_same_time_do_not_share_scratch() -> None:
    assert KERNELS is not None
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        x, y = operand(rng, (200, 128), False), operand(rng, (128, 96), False)
        out, exact = np.empty((200, 96), np.float32), x @ y
        tasks = dense.matmul(x, y, out)
        assert tasks is not None and KERNELS is not None
        call = KERNELS.link(tasks)
        for _ in range(50):
            out.fill(np.nan)
            call()
            if not np.allclose(out, exact, atol=1e-3):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
