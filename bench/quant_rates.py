"""Weights per second of every quantised format on the processor, for one row and for many, beside q4_k; and against llama.cpp.

`python bench/quant_rates.py` prints one line for each format: the formats take turns in one run, figures are medians.
`--models` decodes and prefills a random Llama-shaped GGUF file in each format with Pumice and, where it is installed, with
llama-cpp-python.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from measure import in_turns, medians, seconds_of

from pumice.backends.host import jit, native
from pumice.backends.host.packed import Tiles
from pumice.core import dtypes
from pumice.core.dtypes import DType

# Weights of one matmul: about 12 MB of q4_k, which no second-level cache holds; many rows read less of it.
_ROWS, _COLUMNS = 8192, 2560
_MANY = 128
_BASE = dtypes.q4_k


def _random_tiles(dtype: DType, rows: int) -> Tiles:
    """Random bytes: rates do not depend on the values, and encoding a large matrix takes longer than the measurement."""
    shape = (rows, dtype.nbytes(_COLUMNS))
    return Tiles.of(dtype, (rows, _COLUMNS), np.random.default_rng(0).integers(0, 60, shape, np.uint8))


def _side(dtype: DType, m: int, rows: int, repeats: int) -> Callable[[int], float]:
    """Seconds of a matmul of m rows of x with random weights."""
    kernels = jit.kernels()
    assert kernels is not None, "the host's kernels need numba"
    tiles = _random_tiles(dtype, rows)
    x, out = np.ones((m, _COLUMNS), np.float32), np.empty((m, rows), np.float32)
    call = kernels.link(native.packed_product(x, tiles, out, kernels.is_wide))

    def run(_: int) -> float:
        return min(seconds_of(call) for _ in range(repeats))

    return run


def rates(formats: list[DType], m: int, rounds: int) -> dict[str, float]:
    """Weights times rows of x per second."""
    rows = _ROWS if m == 1 else _ROWS // 8
    sides = {d.name: _side(d, m, rows, 3 if m == 1 else 1) for d in formats}
    found = medians(in_turns(sides, rounds, rest=0.0))
    return {name: m * rows * _COLUMNS / seconds for name, seconds in found.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--formats", nargs="*", default=[d.name for d in dtypes.QUANT])
    given = options.parse_args()
    formats = [dtypes.dtype(name) for name in dict.fromkeys([_BASE.name, *given.formats])]
    one, many = rates(formats, 1, given.rounds), rates(formats, _MANY, given.rounds)
    print(f"{'format':<8} {'one row':>16} {'of q4_k':>8} {f'{_MANY} rows':>16} {'of q4_k':>8}")
    for d in formats:
        n = d.name
        ratios = one[n] / one[_BASE.name], many[n] / many[_BASE.name]
        print(f"{n:<8} {one[n] / 1e9:>10.2f} Gw/s {ratios[0]:>8.2f} {many[n] / 1e9:>10.2f} Gw/s {ratios[1]:>8.2f}")


if __name__ == "__main__":
    main()
