"""Matmuls through BLAS: blocks that the thread pool shares out, and the thread budget that holds for both."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from pumice.backends.host.native import jit
from pumice.backends.host.routines import blas
from pumice.core.threads import thread_count

pytestmark = pytest.mark.skipif(blas._library() is None, reason="NumPy has another BLAS than OpenBLAS: install it from PyPI")
SIZES = [
    ((), 130, 257, 300),
    ((3,), 64, 910, 288),
    ((2, 2), 100, 50, 900),
    ((), 1, 5000, 1000),
    ((), 5000, 1, 1000),
    ((), 700, 3, 2000),
]


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("turned", ["", "x", "y", "xy"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_blocks_make_the_whole(size: tuple[tuple[int, ...], int, int, int], turned: str, shared: bool) -> None:
    library, kernels = blas._library(), jit.kernels()
    if kernels is None or library is None or not library.sgemm:
        pytest.skip("needs numba and an OpenBLAS with 64-bit sizes, as pip installs them")
    batch, rows, columns, depth = size
    random = np.random.default_rng(7)

    def operand(batch: tuple[int, ...], high: int, wide: int, turn: bool) -> np.ndarray:
        made = random.standard_normal((*batch, wide, high) if turn else (*batch, high, wide)).astype(np.float32)
        return made.swapaxes(-1, -2) if turn else made

    x = operand(batch, rows, depth, "x" in turned)
    y = operand(() if shared else batch, depth, columns, "y" in turned)
    out = np.full((*batch, rows, columns), np.nan, np.float32)
    task = blas.gemm(x, y, out, library.sgemm)
    assert task is not None
    with library.limited(1):
        kernels.run([task])
    exact = x.astype(np.float64) @ y.astype(np.float64)
    assert np.abs(out - exact).max() <= 1e-6 * depth * np.abs(exact).std()


def test_what_blas_cannot_read_goes_another_way() -> None:
    x, y = np.ones((200, 400), np.float32)[:, ::2], np.ones((200, 200), np.float32)
    assert blas.gemm(x, y, np.empty((200, 200), np.float32), 1) is None
    assert blas.gemm(x[:, :0], y[:0], np.empty((200, 200), np.float32), 1) is None
    assert blas.gemm(y.astype(np.float64), y, np.empty((200, 200)), 1) is None
    assert (blas.matmul(x, y, np.empty((200, 200), np.float32)) == 200).all()


_RUN = """
import time, numpy as np
import pumice as pm
a = np.random.default_rng(0).standard_normal((700, 700), np.float32)
exe = pm.compile(lambda x: pm.relu(x @ x @ x @ x), x=pm.spec(700, 700), device="host")
exe.run(x=a)
everyone, mine = time.process_time(), time.thread_time()
for _ in range(10):
    result = exe.run(x=a)
mine = time.thread_time() - mine
print((time.process_time() - everyone - mine) / mine, result.tobytes().hex()[:4096])
"""


def _child(threads: int) -> tuple[float, str]:
    done = subprocess.run(
        [sys.executable, "-c", _RUN], capture_output=True, text=True, env={**os.environ, "PUMICE_THREADS": str(threads)}
    )
    assert done.returncode == 0, done.stderr
    others, result = done.stdout.split()
    return float(others), result


@pytest.mark.skipif(thread_count() < 2, reason="one core: there is nothing to share out")
def test_one_thread_means_one() -> None:
    others, alone = _child(1)
    # Processor time of all other threads, as a share of the caller's: BLAS used to have threads of its own here.
    assert others < 0.1
    if jit.available():  # BLAS's own threads may add up in another order
        _, together = _child(2)
        assert together == alone
