"""Work memory of kernels comes with their tasks: a system without memory raises an error, and the process lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pumice
from pumice.backends.host.native import jit

pytestmark = [
    pytest.mark.skipif(not jit.available(), reason="numba is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="limits of address space hold for all memory on Linux only"),
]
SOURCE = Path(pumice.__file__).parents[1]

# Makes tasks and what they should give, then takes all memory that the process may still have, and runs them.
PROGRAM = """
import resource
import numpy as np
import pumice as pm
from pumice.backends.host.native import dense, jit, kernel_tasks
from pumice.backends.host.memory.tiles import Tiles
from pumice.core import dtypes
from pumice.core.blocks import dequantize_rows, quantize_rows

rng = np.random.default_rng(0)
x = rng.standard_normal((40, 256)).astype("f4")
out = np.zeros((40, 96), "f4")


def quantised():
    data = quantize_rows(dtypes.q4_k, rng.standard_normal((96, 256)).astype("f4"))
    tasks = kernel_tasks.packed_matmul(x, Tiles.of(dtypes.q4_k, (96, 256), data), out, kernels.is_wide)
    return tasks, x @ dequantize_rows(dtypes.q4_k, data, 256).T


def dense_columns():
    y = rng.standard_normal((256, 96)).astype("f2")
    return dense.matmul(x, y, out), x @ y.astype("f4")


def attention():
    q, k, v = (rng.standard_normal((1, 1, n, 96)).astype("f4") for n in (40, 2000, 2000))
    scores = np.exp(q @ k.swapaxes(2, 3) * np.float32(0.1))
    seen = kernel_tasks.Seen(None, None, None, False, 0)
    arrays = (q, k, v, None, out[None, None], None, None, None, None)
    return kernel_tasks.many_queries(arrays, seen, 0.1), ((scores / scores.sum(-1, keepdims=True)) @ v)[0, 0]


kernels = jit.kernels()
tasks, wanted = {kind}()
call = kernels.link(tasks)
twice = np.empty_like(x)
kernels.run(kernel_tasks.elementwise("add")([x, x], twice))  # loads what a call needs
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096, -1))
hoard = []
# Down to less than any kernel needs; the rest is for the stack.
for size in (1 << 20, 1 << 17):
    try:
        while True:
            hoard.append(bytearray(size))
    except MemoryError:
        pass
try:
    call()
    print("no error")
except MemoryError:
    print("refused")
del hoard
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
call()
found = out[:, : wanted.shape[1]]
print(bool(np.allclose(found, wanted, rtol=1e-3, atol=1e-3)))
"""


@pytest.mark.parametrize("kind", ["quantised", "dense_columns", "attention"])
def test_no_memory_is_an_error_and_not_the_end(kind: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "PUMICE_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM.replace("{kind}", kind)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    assert done.stdout.split() == ["refused", "True"]
