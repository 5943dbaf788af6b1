"""Weights per second of every quantised format on the processor, for one row and for many, beside q4_k; and against llama.cpp.

`python bench/quant_rates.py` prints one line for each format: the formats take turns in one run, figures are medians. With
`--processor-time` one thread is measured by its own time, which other programs on the machine do not add to. With `--models`
GGUF files, made by `pumice quantize`, are decoded and prefilled by Pumice and by llama-cpp-python, which `--peer` has.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from measure import Worker, in_turns, medians, thread_settings

from pumice import config
from pumice.backends.host.memory.tiles import Tiles
from pumice.backends.host.native import jit, kernel_tasks
from pumice.core import dtypes
from pumice.core.dtypes import DType

# Weights of one matmul: about 12 MB of q4_k, which no second-level cache holds; many rows read less of it.
_ROWS, _COLUMNS = 8192, 2560
_MANY = 128
_BASE = dtypes.q4_k
_SIDES = Path(__file__).with_name("cpu_sides.py")
_PROMPT, _ANSWER = 128, 24


def _random_tiles(dtype: DType, rows: int) -> Tiles:
    """Random bytes: rates do not depend on the values, and encoding a large matrix takes longer than the measurement."""
    shape = (rows, dtype.nbytes(_COLUMNS))
    return Tiles.of(dtype, (rows, _COLUMNS), np.random.default_rng(0).integers(0, 60, shape, np.uint8))


def _side(dtype: DType, m: int, rows: int, repeats: int, clock: Callable[[], float]) -> Callable[[int], float]:
    """Seconds of a matmul of m rows of x with random weights, the fastest of a few."""
    kernels = jit.kernels()
    assert kernels is not None, "the host's kernels need numba"
    tiles = _random_tiles(dtype, rows)
    x, out = np.ones((m, _COLUMNS), np.float32), np.empty((m, rows), np.float32)
    call = kernels.link(kernel_tasks.packed_matmul(x, tiles, out, kernels.is_wide))

    def seconds() -> float:
        begin = clock()
        call()
        return clock() - begin

    def run(_: int) -> float:
        return min(seconds() for _ in range(repeats))

    return run


def rates(formats: list[DType], m: int, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Weights times rows of x per second."""
    rows = _ROWS if m == 1 else _ROWS // 8
    sides = {d.name: _side(d, m, rows, 3 if m == 1 else 1, clock) for d in formats}
    found = medians(in_turns(sides, rounds, rest=0.0))
    return {name: m * rows * _COLUMNS / seconds for name, seconds in found.items()}


def compare(model: Path, peer: str, rounds: int) -> None:
    """Prints tokens per second of both sides for one file."""
    threads = len(os.sched_getaffinity(0))
    args, environment = (str(threads), str(model)), thread_settings(threads)
    with ExitStack() as stack:
        pythons = {"pumice-text": sys.executable, "llama-text": peer}
        workers = {
            side: stack.enter_context(Worker(python, _SIDES, side, *args, environment=environment))
            for side, python in pythons.items()
        }
        vocab = workers["pumice-text"].ask("vocab")

        def generate(worker: Worker) -> Callable[[int], dict[str, float]]:
            def run(seed: int) -> dict[str, float]:
                tokens = np.random.default_rng(seed).integers(0, vocab, _PROMPT).tolist()
                found: dict[str, float] = worker.ask("generate", tokens=tokens, steps=_ANSWER)
                return found

            return run

        found = in_turns({side: generate(worker) for side, worker in workers.items()}, rounds)
    for what, tokens in (("token", 1), ("prefill", _PROMPT)):
        ours, theirs = (tokens / statistics.median(answer[what] for answer in found[side]) for side in pythons)
        name = "decode" if what == "token" else what
        print(f"{model.name:<28} {name:<8} {ours:>8.1f} tokens/s, llama.cpp {theirs:>8.1f}, ratio {ours / theirs:.2f}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--formats", nargs="*", default=[d.name for d in dtypes.QUANT])
    options.add_argument("--processor-time", action="store_true", help="one thread, by its own time")
    options.add_argument("--models", nargs="*", type=Path, default=[], help="GGUF files to compare with llama.cpp")
    options.add_argument("--peer", default=sys.executable, help="a Python that has llama-cpp-python")
    given = options.parse_args()
    if given.models:
        for model in given.models:
            compare(model, given.peer, given.rounds)
        return
    formats = [dtypes.dtype(name) for name in dict.fromkeys([_BASE.name, *given.formats])]
    clock = time.thread_time if given.processor_time else time.perf_counter
    with config.override(threads=1 if given.processor_time else config.threads):
        one, many = rates(formats, 1, given.rounds, clock), rates(formats, _MANY, given.rounds, clock)
    print(f"{'format':<8} {'one row':>15} {'of q4_k':>8} {f'{_MANY} rows':>15} {'of q4_k':>8}")
    for d in formats:
        n = d.name
        ratios = one[n] / one[_BASE.name], many[n] / many[_BASE.name]
        print(f"{n:<8} {one[n] / 1e9:>10.2f} Gw/s {ratios[0]:>8.2f} {many[n] / 1e9:>10.2f} Gw/s {ratios[1]:>8.2f}")


if __name__ == "__main__":
    main()
