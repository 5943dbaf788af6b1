"""Decoding, prefill, embeddings and a training step on the host by the number of threads, alone and beside busy programs.

python bench/cores.py [--threads 1,2,4,8,16] [--only decode,train] [--busy 8] [--rounds 3]

Models have random weights. Each number of threads has a process of its own, and all are asked in turns. `--busy` is the number of
other programs that keep a core each busy during a second pass; by default half the cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
from measure import Worker, in_turns, median_seconds, medians, require_native, serve, some_of
from random_models import RandomParams, generate, random_engine
from report import RESULTS, commit_name, this_machine, write_json
from scaling import Series
from shapes import MINILM, decoder_shape

# What a point is: seconds for one token, one prompt, one batch, one step.
TITLES = {
    "decode": "a token, q4_k weights of 0.2 B params",
    "prefill": "a prompt of 256 tokens, the same model",
    "embed": "MiniLM, 32 texts of 128 tokens",
    "train": "a train step of a character transformer",
}
TOKENS, PROMPT, TEXTS, LENGTH = 24, 256, 32, 128


def decoding() -> dict[str, Callable[..., float]]:
    """Seconds for a token and for a prompt."""
    from pumice.backends.select import open_device

    shape = decoder_shape(1024, 12, max_position_embeddings=2048)
    engine, _ = random_engine(shape, open_device("host"), context=PROMPT + 64, dtype="q4_k")
    seeds = iter(range(1, 1 << 20))

    def decode() -> float:
        found = generate(engine, 8, TOKENS, next(seeds))
        return found.decode_s / found.decode_tokens

    return {"decode": decode, "prefill": lambda: generate(engine, PROMPT, 2, next(seeds)).prefill_s}


def embedding() -> dict[str, Callable[..., float]]:
    """Seconds for a batch of texts."""
    import pumice as pm
    from pumice.llm.embed import Pooling, encoder_graph
    from pumice.models.config import ModelArchConfig
    from pumice.models.registry import EncoderArchitecture, get_architecture

    cfg = ModelArchConfig.from_hf(MINILM)
    arch = get_architecture(cfg.model_type)
    assert isinstance(arch, EncoderArchitecture)
    params = RandomParams(cfg, "f32")
    specs = {"tokens": pm.spec("B", "T", dtype="i32"), "length": pm.spec("B", dtype="i32")}
    graph = pm.trace(encoder_graph(arch, cfg, Pooling()), params=params.specs, **specs)
    exe = pm.compile(graph, device="host", max={"B": TEXTS, "T": LENGTH})
    exe.set_params(dict(params.arrays))
    inputs = {"tokens": np.zeros((TEXTS, LENGTH), np.int32), "length": np.full(TEXTS, LENGTH, np.int32)}
    return {"embed": lambda: median_seconds(partial(exe.run, inputs), 1, 0)}


def training() -> dict[str, Callable[..., float]]:
    """Seconds for a step."""
    from train_step import Sizes, pumice_step

    sizes = Sizes()
    step = pumice_step(sizes)
    x, y = (np.random.default_rng(i).integers(0, sizes.vocab, (sizes.batch, sizes.context)).astype(np.int32) for i in range(2))
    return {"train": lambda: median_seconds(lambda: step(x, y), 2, 0)}


def works(names: list[str]) -> dict[str, Callable[..., float]]:
    made: dict[str, Callable[..., float]] = {}
    for make, kinds in ((decoding, {"decode", "prefill"}), (embedding, {"embed"}), (training, {"train"})):
        if kinds & set(names):
            made |= make()
    return made


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """So many other processes that compute without end."""
    others = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(count)]
    for p in others:
        p.start()
    try:
        yield
    finally:
        for p in others:
            p.terminate()
            p.join()


def measure(names: list[str], threads: list[int], busy: int, rounds: int) -> dict[str, Series]:
    """Seconds of each work by the number of threads."""
    found = {name: Series(TITLES[name], "threads", -1) for name in names}
    with ExitStack() as stack:
        workers: dict[int, Worker] = {}
        for count in threads:
            arguments = ("--serve", "--only", ",".join(names))
            workers[count] = Worker(sys.executable, Path(__file__), *arguments, environment={"PUMICE_THREADS": str(count)})
            stack.enter_context(workers[count])
            if count == threads[0]:
                # The first one compiles what all find in the cache.
                for name in names:
                    workers[count].ask(name)
        for others in (0, busy) if busy else (0,):
            line = f"beside {others} busy programs" if others else "alone"
            with busy_programs(others):
                for name in names:
                    sides = {str(n): lambda i, w=w, name=name: float(w.ask(name)) for n, w in workers.items()}
                    for n, seconds in medians(in_turns(sides, rounds)).items():
                        found[name].add(line, int(n), seconds)
    return found


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    counts = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= cores]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=lambda text: [int(n) for n in text.split(",")], default=counts, help="such as 1,2,4")
    parser.add_argument("--only", type=some_of(TITLES), default=list(TITLES), help=f"some of {','.join(TITLES)}")
    parser.add_argument("--busy", type=int, default=cores // 2, help="other programs in the second pass; 0 leaves it out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    require_native()
    if args.serve:
        serve(works(args.only))
        return
    found = measure(args.only, args.threads, args.busy, args.rounds)
    stamp = {"when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), "commit": commit_name()}
    machine = this_machine()
    series = {name: {**asdict(s), **stamp} for name, s in found.items()}
    write_json(RESULTS / f"scaling-threads-{machine.name}.json", {"machine": asdict(machine), "series": series})
    for s in found.values():
        for line, points in s.lines.items():
            one = points[0][1]
            print(f"{s.title}, {line}: " + "  ".join(f"{n:g}: {1e3 * t:.2f} ms ({one / t:.2f} ×)" for n, t in points))


if __name__ == "__main__":
    main()
