"""Weights per second of every quantised format on the processor, for one row, for few and for many; and against llama.cpp.

`python bench/quant_rates.py` prints one line for each format: the formats take turns in one run, figures are medians. For one
row it also prints the share of the bandwidth at which the same threads read memory. With `--fast` x is rounded to eight bits.
With `--processor-time` one thread is measured by its own time, which other programs on the machine do not add to. With
`--models` GGUF files, made by `pumice quantize`, are decoded and prefilled by Pumice and by llama-cpp-python, which `--peer` has.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from measure import Worker, in_turns, medians, thread_settings

from pumice import config
from pumice.backends.host.memory.tiles import SLACK, Tiles
from pumice.backends.host.native import jit, kernel_tasks, levels
from pumice.core import dtypes
from pumice.core.dtypes import DType
from pumice.ir.registry import Array

# Weights of one matmul: about 12 MB of q4_k, which no second-level cache holds; many rows read less of it.
_ROWS, _COLUMNS = 8192, 2560
# A matmul with one row is repeated over several such weights, which together no cache holds.
_BYTES = 160 << 20
_GROUPED = ("u4z_g128_f16", "u4b_g64_bf16", "i8_g128_f16")
_ROWS_OF_X = (1, 4, 8, 128)
_SIDES = Path(__file__).with_name("cpu_sides.py")
_PROMPT, _ANSWER = 128, 24


def _random_tiles(dtype: DType, rows: int) -> Tiles:
    """Random bytes: rates do not depend on the values, and encoding a large matrix takes longer than the measurement."""
    shape = (rows, dtype.nbytes(_COLUMNS))
    return Tiles.of(dtype, (rows, _COLUMNS), np.random.default_rng(0).integers(0, 60, shape, np.uint8))


def _side(dtype: DType, m: int, rows: int, fast: bool, clock: Callable[[], float]) -> Callable[[int], float]:
    """Seconds of a matmul of m rows of x with random weights, of which there are so many that none is in a cache if m is 1."""
    kernels = jit.kernels()
    assert kernels is not None, "the host's kernels need numba"
    tiles = _random_tiles(dtype, rows)
    copies = [tiles] + [replace(tiles, data=_copied(tiles.data)) for _ in range(_BYTES // tiles.data.nbytes if m == 1 else 0)]
    x, out = np.ones((m, _COLUMNS), np.float32), np.empty((m, rows), np.float32)
    calls = [kernels.link(kernel_tasks.packed_matmul(x, t, out, kernels.is_wide, fast)) for t in copies]

    def run(_: int) -> float:
        begin = clock()
        for call in calls:
            call()
        return (clock() - begin) / len(calls)

    return run


def _copied(data: Array) -> Array:
    """A copy with as much memory behind it as kernels may read."""
    found = np.empty(data.size + SLACK, np.uint8)[: data.size]
    np.copyto(found, data)
    return found


def rates(formats: list[DType], m: int, rounds: int, fast: bool, clock: Callable[[], float]) -> dict[str, float]:
    """Weights times rows of x per second."""
    rows = _ROWS if m == 1 else _ROWS // 8
    found: dict[str, float] = {}
    # A few formats at a time: their copies fill the memory.
    for first in range(0, len(formats), 4):
        sides = {d.name: _side(d, m, rows, fast, clock) for d in formats[first : first + 4]}
        found |= medians(in_turns(sides, rounds, rest=0.0))
    return {name: m * rows * _COLUMNS / seconds for name, seconds in found.items()}


def bandwidth(threads: int, clock: Callable[[], float]) -> float:
    """Bytes per second that so many threads read together from memory that no cache holds: the best of a few times."""
    parts = [np.ones(_BYTES // 8, np.int64) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:

        def seconds() -> float:
            begin = clock()
            if threads == 1:
                np.bitwise_or.reduce(parts[0])
            else:
                list(pool.map(np.bitwise_or.reduce, parts))
            return clock() - begin

        return threads * _BYTES / min(seconds() for _ in range(7))


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
    options.add_argument("--formats", nargs="*", default=[*(d.name for d in dtypes.QUANT), *_GROUPED])
    options.add_argument("--rows", nargs="*", type=int, default=_ROWS_OF_X, help="rows of x")
    options.add_argument("--fast", action="store_true", help="x rounded to eight bits")
    options.add_argument("--processor-time", action="store_true", help="one thread, by its own time")
    options.add_argument("--models", nargs="*", type=Path, default=[], help="GGUF files to compare with llama.cpp")
    options.add_argument("--peer", default=sys.executable, help="a Python that has llama-cpp-python")
    given = options.parse_args()
    if given.models:
        for model in given.models:
            compare(model, given.peer, given.rounds)
        return
    formats = [dtypes.dtype(name) for name in given.formats]
    clock = time.thread_time if given.processor_time else time.perf_counter
    with config.override(threads=1 if given.processor_time else config.threads):
        found = {m: rates(formats, m, given.rounds, given.fast, clock) for m in given.rows}
        read = bandwidth(1 if given.processor_time else len(os.sched_getaffinity(0)), clock)
    level = levels.current().name
    print(f"level {level}, {'fast' if given.fast else 'exact'}, memory is read at {read / 1e9:.1f} GB/s")
    print(f"{'format':<16}" + "".join(f"{f'{m} rows':>13}{'of read':>9}" if m == 1 else f"{f'{m} rows':>13}" for m in given.rows))
    for d in formats:
        cells = []
        for m in given.rows:
            cells.append(f"{found[m][d.name] / 1e9:>8.2f} Gw/s")
            if m == 1:
                cells.append(f"{found[m][d.name] * d.block_bytes / d.block / read:>9.2f}")
        print(f"{d.name:<16}" + "".join(cells))


if __name__ == "__main__":
    main()
