"""Two checkouts call by call: a living process of each, one call of the other after each of the one.

python bench/pairs.py OLD [NEW] [--only embed,train] [--rounds 25] [--json FILE]
Planning is measured cold, in a new process for each call.
Finer than before_after.py, which runs whole tables in turns: on a machine whose clock drifts by a tenth within minutes, only
calls that follow each other compare. A ratio is the new speed over the old one, the median of all pairs of calls.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from measure import ROOT, Worker, checkout, in_turns, some_of, thread_settings

from pumice.sources import resolve

LAYERS = 32


class ColdWorker:
    """Answers each call in a process of its own, which has done nothing yet."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        self._make = make

    def ask(self, work: str, **args: Any) -> Any:
        """What a new process answers."""
        with self._make() as worker:
            return worker.ask(work, **args)

    def __enter__(self) -> ColdWorker:
        return self

    def __exit__(self, *error: object) -> None:
        """Its processes have ended."""


# A work, and what a worker answers in seconds for the round of that number.
Call = tuple[str, Callable[[Worker | ColdWorker, int], float]]


def decode_calls() -> Iterator[Call]:
    """SmolLM2: another prompt in each round, the same for both."""

    def run(worker: Worker | ColdWorker, i: int, count: int, steps: int, what: str) -> float:
        random = Random(count + i)
        return float(worker.ask("generate", tokens=[random.randrange(32000) for _ in range(count)], steps=steps)[what])

    yield "SmolLM2 decode, 64 tokens after 16", lambda w, i: run(w, i, 16, 64, "token")
    yield "SmolLM2 prefill, 512 tokens", lambda w, i: run(w, i, 512, 1, "prefill")


def embed_calls() -> Iterator[Call]:
    """MiniLM embeddings."""
    for batch in (1, 8, 32):
        calls = max(1, 4 // batch)
        yield (
            f"MiniLM, batch {batch} × 128 tokens",
            lambda w, i, b=batch, n=calls: float(w.ask("embed", batch=b, length=128, calls=n)),
        )


def train_calls() -> Iterator[Call]:
    """The train step of a character transformer."""
    yield "train step of a character transformer", lambda w, i: float(w.ask("measure", steps=1)["walls"][0])


def plan_calls() -> Iterator[Call]:
    """Tracing and planning the two steps of a Llama-shaped model."""
    yield f"trace and plan {LAYERS} layers for a GPU, cold", lambda w, i: float(w.ask("plan", layers=LAYERS))


GROUPS: dict[str, Callable[[], Iterator[Call]]] = {
    "decode": decode_calls,
    "embed": embed_calls,
    "train": train_calls,
    "plan": plan_calls,
}


def start(group: str, checkout: Path, threads: int) -> Worker | ColdWorker:
    """What answers the calls of a group for a checkout: a process, by the checkout's own benchmark script."""
    bench, count = checkout / "bench", str(threads)
    environment = {**thread_settings(threads), "PYTHONPATH": os.pathsep.join([str(checkout / "src"), str(bench)])}
    if group == "train":
        # Only what every checkout knows; the rest is as usual.
        sizes = json.dumps({"threads": threads})
        return Worker(sys.executable, bench / "train_step.py", "--serve", "pumice", "--sizes", sizes, environment=environment)
    if group == "plan":
        return ColdWorker(
            lambda: Worker(sys.executable, bench / "cpu_sides.py", "pumice-plan", count, ".", environment=environment)
        )
    side, model = ("pumice-text", "smollm2") if group == "decode" else ("pumice-embed", "minilm")
    return Worker(sys.executable, bench / "cpu_sides.py", side, count, str(resolve(model).path), environment=environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=checkout)
    parser.add_argument("new", type=checkout, nargs="?", default=ROOT)
    parser.add_argument("--only", type=some_of(GROUPS), default=list(GROUPS), help=f"some of {','.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="write the rows there too")
    args = parser.parse_args()
    rows = []
    for group in args.only:
        with ExitStack() as stack:
            checkouts = {"old": args.old, "new": args.new}
            workers = {name: stack.enter_context(start(group, path, args.threads)) for name, path in checkouts.items()}
            for work, call in GROUPS[group]():
                sides = {name: lambda i, w=worker, c=call: c(w, i) for name, worker in workers.items()}
                found = in_turns(sides, args.rounds, warm=2)
                ratio = statistics.median(a / b for a, b in zip(found["old"], found["new"], strict=True))
                old, new = (1e3 * statistics.median(found[name]) for name in ("old", "new"))
                rows.append({"work": work, "unit": "ms", "old": old, "new": new, "ratio": ratio})
                print(f"{ratio:5.2f}  {old:9.2f} → {new:9.2f} ms  {work}", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
