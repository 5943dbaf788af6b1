"""Decode and prefill speed of SmolLM2 on this machine's processor, next to llama.cpp where its Python package is installed.

python bench/host_decode.py [--rounds 5] [--threads N] [--json]
Both run in turns, so that a drifting clock rate or a busy neighbour meets them alike; the ratio of the medians counts.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / "src")]

import pumice as pm  # noqa: E402
from pumice.backends.host.jit import thread_count  # noqa: E402
from pumice.llm.requests import Request, SamplingParams, Timings  # noqa: E402
from pumice.sources import resolve  # noqa: E402

MODEL = "smollm2"
PREFILL, PROMPT, STEPS = 256, 16, 64
# (tokens, how many to generate) → seconds for the prompt, seconds for each token after the first
Run = Callable[[list[int], int], tuple[float, float]]


def ours(model: Any) -> Run:
    """Pumice through its engine, which counts prompt and answer apart."""

    def run(tokens: list[int], steps: int) -> tuple[float, float]:
        timings = Timings()
        for _ in model.engine.stream([Request(tokens, SamplingParams(temperature=0), steps)], timings=timings):
            pass
        return timings.prefill_s, timings.decode_s / max(1, timings.decode_tokens)

    return run


def peer(path: Path, threads: int) -> Run:
    """llama.cpp with flash attention, greedy, token by token."""
    import llama_cpp

    llama = llama_cpp.Llama(
        str(path),
        n_ctx=2048,
        n_batch=512,
        n_threads=threads,
        n_threads_batch=threads,
        n_gpu_layers=0,
        flash_attn=True,
        logits_all=False,
        verbose=False,
    )

    def run(tokens: list[int], steps: int) -> tuple[float, float]:
        llama.reset()
        start = time.perf_counter()
        llama.eval(tokens)
        token = llama.sample(temp=0.0)
        first = time.perf_counter()
        for _ in range(steps - 1):
            llama.eval([token])
            token = llama.sample(temp=0.0)
        return first - start, (time.perf_counter() - first) / max(1, steps - 1)

    return run


def measure(runs: dict[str, Run], vocab: int, rounds: int) -> dict[str, dict[str, float]]:
    """Median tokens per second of each, taken in turns; prompts are random, so nothing of the last one is reused."""
    rng = np.random.default_rng(0)
    rates: dict[str, dict[str, list[float]]] = {name: {"prefill": [], "decode": []} for name in runs}
    for i in range(rounds + 1):
        short, long = (rng.integers(0, vocab, n).tolist() for n in (PROMPT, PREFILL))
        for name, run in runs.items():
            prefill, _ = run(long, 1)
            _, decode = run(short, STEPS)
            if i:  # the first round compiles, and finds cold caches
                rates[name]["prefill"].append(PREFILL / prefill)
                rates[name]["decode"].append(1 / decode)
    return {name: {what: statistics.median(found) for what, found in r.items()} for name, r in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=thread_count())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.environ["PUMICE_THREADS"] = str(args.threads)
    with pm.load(MODEL, device="host") as model:
        runs = {"pumice": ours(model)}
        if importlib.util.find_spec("llama_cpp") is not None:
            runs["llama.cpp"] = peer(resolve(MODEL).path, args.threads)
        found = measure(runs, model.engine.cfg.vocab, args.rounds)
    ratios = {what: found["pumice"][what] / found["llama.cpp"][what] for what in found["pumice"]} if len(runs) > 1 else None
    if args.json:
        print(json.dumps({"threads": args.threads, "tokens_per_s": found, "ratio": ratios}))
        return
    print(f"{MODEL} on {args.threads} threads, medians of {args.rounds} rounds, tokens/s")
    for name, rates in found.items():
        print(f"  {name:<10} prefill {PREFILL}: {rates['prefill']:7.1f}   decode {STEPS} after {PROMPT}: {rates['decode']:6.1f}")
    if ratios is None:
        print("  llama.cpp is not here to compare with: pip install llama-cpp-python")
    else:
        print(f"  pumice / llama.cpp: prefill {ratios['prefill']:.2f}, decode {ratios['decode']:.2f}")


if __name__ == "__main__":
    main()
