"""Matrix products on the host backend against NumPy's own, alternating in one run: the ratio is what counts."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import pumice as pm

SHAPES = ((1024, 1024, 1024), (2048, 2048, 2048), (1, 2048, 2048), (64, 2048, 2048))


def alternate(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median seconds of both, measured in turns so that a drifting clock rate meets them alike."""
    times: tuple[list[float], list[float]] = ([], [])
    first(), second()
    for _ in range(rounds):
        for run, found in zip((first, second), times, strict=True):
            start = time.perf_counter()
            run()
            found.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def measure(m: int, k: int, n: int, rounds: int) -> tuple[float, float]:
    """Median seconds of Pumice and of NumPy for [m, k] by [k, n]."""
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    with pm.compile(lambda a, b: a @ b, a=pm.spec(m, k), b=pm.spec(k, n), device="host") as exe:
        np.testing.assert_allclose(exe.run(a=a, b=b), a @ b, rtol=1e-4, atol=1e-3)
        return alternate(lambda: exe.run(a=a, b=b), lambda: np.matmul(a, b), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    rounds: int = parser.parse_args().rounds
    print(f"{'shape':>18} {'pumice':>12} {'numpy':>12} {'time ratio':>11}")
    for m, k, n in SHAPES:
        ours, theirs = measure(m, k, n, rounds)
        rates = [2e-9 * m * k * n / t for t in (ours, theirs)]
        print(f"{f'{m}x{k}x{n}':>18} {rates[0]:>5.1f} GFLOP/s {rates[1]:>4.1f} GFLOP/s {ours / theirs:>10.3f}")


if __name__ == "__main__":
    main()
