"""Several sequences at once: tokens a second against llama.cpp (processor) or torch (GPU), and requests that arrive over time.

python bench/batch.py [--device host|webgpu|vulkan] [--sequences 1,4,16] [--lengths 16,200] [--rounds 3]
    [--precision exact|f16] [--alone]
python bench/batch.py --arrivals 512 [--loads 0.3,0.6,0.9]
On the host the model is SmolLM2, and the peer llama.cpp's batched decoding in the environment that bench/peers.sh makes. On a
GPU it is Llama-1B with random weights, and the peer torch's compiled step over a static cache, where this Python has CUDA.
Arrivals come from a Poisson process, at rates relative to the throughput that is measured first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from gpu_bench import PRECISIONS
from measure import ROOT, SideError, Worker, has_cuda, has_modules, in_turns, medians, thread_settings
from report import RESULTS, Goal, Machine, Row, commit_name, figure, plain_table, publish, save, this_machine, write_json
from shapes import CAUSAL, RANDOM

HERE = Path(__file__).parent
SIDES = HERE / "batch_sides.py"
NEW_TOKENS = 64
GPU_APIS = {"webgpu": "WebGPU", "vulkan": "Vulkan"}
PERCENTILES = [*range(100), 99.5, 99.9, 100]


@dataclass(frozen=True)
class Setting:
    """What all measurements share; `lengths` are those of prompts on the host, of full caches on a GPU."""

    model: str
    device: str
    sequences: Sequence[int]
    lengths: Sequence[int]
    rounds: int
    threads: int
    peer_python: str
    alone: bool
    precision: str

    @property
    def context(self) -> int:
        return max(self.lengths) + NEW_TOKENS

    def ours(self, cache_dtype: str) -> Worker:
        """Pumice by this Python, which has what an installation has; a side without numba refuses to measure the host."""
        options = {"model": self.model, "device": self.device, "context": self.context, "cache_dtype": cache_dtype}
        text = json.dumps({**options, "slots": max(self.sequences)})
        return Worker(sys.executable, SIDES, "pumice", text, environment=thread_settings(self.threads))


def whole_numbers(text: str) -> list[int]:
    """The type of an option that takes numbers from 1 on, separated by commas.

    >>> whole_numbers("1,4")
    [1, 4]
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers from 1 on")
    return found


def shares(text: str) -> list[float]:
    """The type of an option that takes positive numbers, separated by commas.

    >>> shares("0.3,0.9")
    [0.3, 0.9]
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [0.0]
    if not all(0 < f < 100 for f in found):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of positive numbers")
    return found


# -- the processor ------------------------------------------------------------------------------------------------------
def host_rows(setting: Setting, ours: Worker, keep: Callable[[Sequence[Row]], None]) -> list[Row]:
    """Each number of sequences with each length of prompts, against llama.cpp where the model is a GGUF file."""
    from pumice.sources import resolve

    rows: list[Row] = []
    with ExitStack() as stack:
        sides = {"ours": ours}
        path = None if setting.model.startswith(RANDOM) else resolve(setting.model).path
        if not setting.alone and path is not None and path.suffix == ".gguf":
            if has_modules(setting.peer_python, "llama_cpp"):
                options = json.dumps({"model": str(path), "threads": setting.threads})
                settings = thread_settings(setting.threads)
                worker = Worker(setting.peer_python, SIDES, "llama", options, environment=settings)
                sides["peer"] = stack.enter_context(worker)
            else:
                print(f"{setting.peer_python} has no llama_cpp: bench/peers.sh makes an environment that has", file=sys.stderr)
        for sequences in setting.sequences:
            for length in setting.lengths:
                found = _host_pair(setting, sides, sequences, length)
                keep(found)
                rows += found
    return rows


def _host_pair(setting: Setting, workers: dict[str, Worker], sequences: int, length: int) -> list[Row]:
    """The rows of one number of sequences and one length: with the prompts' time, and while all sequences decode.

    llama.cpp can keep all sequences in one cache or each in its own part; which is faster depends on their number. It is
    measured with both, and the better counts.
    """

    def side(worker: Worker, **options: Any) -> Callable[[int], dict[str, Any]]:
        # Other prompts in each round, the same for all sides: nothing of the last ones may be reused.
        def run(i: int) -> dict[str, Any]:
            prompts = workers["ours"].ask("prompts", count=sequences, length=length, seed=1000 * length + i)
            found = worker.ask("batch", prompts=prompts, steps=NEW_TOKENS, **options)
            counts = {len(tokens) for tokens in found["tokens"]}
            if counts != {NEW_TOKENS}:
                raise SideError(f"{worker.name} made {sorted(counts)} tokens where {NEW_TOKENS} were asked for")
            if found["decode"] is None:
                raise SideError(f"{worker.name}: the first sequence ended before the last one began")
            return dict(found)

        return run

    sides = {"ours": side(workers["ours"])}
    if "peer" in workers:
        ways = {"apart": False, "unified": True} if sequences > 1 else {"apart": False}
        sides |= {name: side(workers["peer"], unified=unified) for name, unified in ways.items()}
    found = in_turns(sides, setting.rounds)
    whole = medians({name: [sequences * NEW_TOKENS / r["seconds"] for r in runs] for name, runs in found.items()})
    decode = medians({name: [r["decode"] for r in runs] for name, runs in found.items()})
    note = ""
    data: dict[str, Any] = {"whole": whole, "decode": decode}
    best = max((name for name in sides if name != "ours"), key=lambda name: decode[name], default="")
    if best:
        pairs = [
            (a, b)
            for ours, peer in zip(found["ours"], found[best], strict=True)
            for x, y in zip(ours["tokens"], peer["tokens"], strict=True)
            for a, b in zip(x, y, strict=True)
        ]
        same = sum(a == b for a, b in pairs)
        note = f"{same} of {len(pairs)} tokens as llama.cpp's"
        data |= {"same": same, "tokens": len(pairs)}
    name = "SmolLM2-135M" if setting.model == "smollm2" else setting.model
    work = f"{name}: {sequences} at once, prompts of {length} tokens, {NEW_TOKENS} new ones each"
    key, peer, unit, goal = f"{sequences} x {length}", f"llama.cpp, batched, caches {best}", "tokens/s", Goal(1.2)
    return [
        Row(f"batch {key}", work, unit, whole["ours"], whole.get(best), peer, goal, note, data),
        Row(f"decode {key}", "the same: while all decode", unit, decode["ours"], decode.get(best), peer, goal),
    ]


# -- a GPU --------------------------------------------------------------------------------------------------------------
def gpu_rows(setting: Setting, device: Any, keep: Callable[[Sequence[Row]], None], stack: ExitStack) -> list[Row]:
    """Token steps at each number of sequences, while the cache of each fills up to each length, with the device's roofline."""
    from batch_sides import PAGE
    from gpu_batch import batch_rows, prepare_batches
    from gpu_bench import SMALL, Bench, Peers, Sizes, precision_option, with_precision
    from random_models import random_weights

    from pumice.llm.engine import Engine
    from pumice.llm.weights import ModelWeights

    name = setting.model.removeprefix(RANDOM)
    if name == setting.model:
        raise SideError(f"torch is measured with random weights: --model {RANDOM}NAME, NAME one of {','.join(CAUSAL)}")
    peers = Peers(sys.executable if not setting.alone and has_cuda(sys.executable) else None, stack)
    prepare_batches(peers, name, setting.sequences, setting.lengths)
    # Those of the copy and the matmul that the roofline is made of.
    sizes = SMALL if device.caps.software else Sizes()
    bench = Bench(device, peers, stack, sizes=sizes, rounds=setting.rounds, precision=setting.precision)
    slots = max(setting.sequences)
    # A context from which prompts are read in parts of the usual size: else the first sequence ends before the last one begins.
    room: dict[str, Any] = {"slots": slots, "context": 8 * setting.context, "memory": slots * (setting.context + PAGE)}
    weights = random_weights(CAUSAL[name], device, **precision_option(ModelWeights, setting.precision))
    engine = stack.enter_context(Engine(weights, **room, cache_dtype="f16"))
    peers.settle()
    named = partial(with_precision, precision=setting.precision)
    works = setting.sequences, setting.lengths
    found = batch_rows(bench, engine, name, *works, new_tokens=NEW_TOKENS, keep=lambda row: keep([named(row)]))
    return [named(row) for row in found]


# -- arrivals -----------------------------------------------------------------------------------------------------------
def arrival_rows(
    setting: Setting, ours: Worker, count: int, loads: Sequence[float], results: Path, machine: Machine
) -> list[Row]:
    """Time to the first token and between tokens when requests come by a Poisson process, at shares of the throughput."""
    most = max(setting.sequences)

    def prompts(n: int, seed: int) -> list[list[int]]:
        each = [ours.ask("prompts", count=n, length=length, seed=seed + length) for length in setting.lengths]
        return [each[k % len(each)][k] for k in range(n)]

    # As much as the engine does when there is always work.
    busy = min(count, 2 * most)
    saturated = [ours.ask("arrivals", prompts=prompts(busy, s), offsets=[0.0] * busy, steps=NEW_TOKENS) for s in range(1, 3)]
    capacity = busy / saturated[-1]["seconds"]
    print(f"{capacity * NEW_TOKENS:.0f} tokens/s, {capacity:.2f} requests/s with always {most} to run", file=sys.stderr)
    rows, runs = [], {}
    for load in loads:
        rng = np.random.default_rng(int(1000 * load))
        offsets = np.cumsum(rng.exponential(1 / (load * capacity), count)).tolist()
        found = ours.ask("arrivals", prompts=prompts(count, 7), offsets=offsets, steps=NEW_TOKENS)
        first = [1e3 * t[0] for t in found["times"]]
        between = [1e3 * (b - a) for t in found["times"] for a, b in pairwise(t)]
        lines = {"time to first token": first, "time between tokens": between}
        runs[f"{load:g}"] = {name: np.percentile(values, PERCENTILES).tolist() for name, values in lines.items()}
        for name, values in lines.items():
            p50, p99 = np.percentile(values, [50, 99]).tolist()
            work = f"{count} requests at {load:g} of the throughput ({load * capacity:.2f} a second): {name}, p50"
            data = {"p99": p99, "rate": load * capacity}
            rows.append(Row(f"arrivals {load:g} {name}", work, "ms", p50, note=f"p99 {figure(p99)} ms", data=data))
    stamp = {"when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), "commit": commit_name()}
    title = f"{setting.model}, {count} requests of {NEW_TOKENS} tokens after {' or '.join(map(str, setting.lengths))}"
    data = {"title": title, "percentiles": PERCENTILES, "requests_per_s": capacity, "loads": runs, **stamp}
    path = write_json(results / f"arrivals-{machine.name}.json", {"machine": asdict(machine), "arrivals": data})
    draw(setting, path)
    return rows


def draw(setting: Setting, path: Path) -> None:
    """The plot, by whichever Python has matplotlib."""
    for python in (setting.peer_python, sys.executable):
        if has_modules(python, "matplotlib"):
            subprocess.run([python, str(HERE / "plot.py"), str(path)], check=True)
            return
    print(f"no matplotlib: python bench/plot.py {path.name} draws the plot where there is", file=sys.stderr)


def main() -> int:
    peers = os.environ.get("PUMICE_BENCH_PYTHON") or str(ROOT / ".bench-venv" / "bin" / "python")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="host", help="host, or webgpu or vulkan, or one of several with :N or :NAME")
    parser.add_argument("--model", help=f"a model, or {RANDOM}NAME: random weights in one of the shapes {','.join(CAUSAL)}")
    parser.add_argument("--sequences", type=whole_numbers, help="how many at once: 1,4,16 on the host, 1,8,32,128 else")
    parser.add_argument("--lengths", type=whole_numbers, help="tokens of prompts (16,200), on a GPU of full caches (128,1024)")
    parser.add_argument("--precision", choices=PRECISIONS, default="exact", help="of ours, in the table of a GPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--alone", action="store_true", help="no peers")
    parser.add_argument("--arrivals", type=int, metavar="N", help="N requests that arrive over time, in place of the table")
    parser.add_argument("--loads", type=shares, default=[0.3, 0.6, 0.9], help="arrival rates as shares of the throughput")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of results; RESULTS.md is written beside it")
    parser.add_argument("--peer-python", default=peers if Path(peers).exists() else sys.executable)
    args = parser.parse_args()
    host = args.device == "host"
    api = args.device.partition(":")[0]
    if not host and api not in GPU_APIS:
        parser.error(f"--device is host, webgpu or vulkan, not {args.device}")
    setting = Setting(
        model=args.model or ("smollm2" if host else f"{RANDOM}llama1b"),
        device=args.device,
        sequences=args.sequences or ([1, 4, 16] if host else [1, 8, 32, 128]),
        lengths=args.lengths or ([16, 200] if host or args.arrivals else [128, 1024]),
        rounds=args.rounds,
        threads=args.threads,
        peer_python=args.peer_python,
        alone=args.alone,
        precision=args.precision,
    )
    if args.precision != "exact" and (host or args.arrivals):
        parser.error("--precision is for the table of a GPU")
    if not host and not args.arrivals and min(setting.lengths) <= NEW_TOKENS:
        parser.error(f"caches must hold more than the {NEW_TOKENS} new tokens")
    with ExitStack() as stack:
        try:
            from pumice.backends.select import open_device

            device = None if host or args.arrivals else open_device(args.device)
            # What torch keeps its cache in is f16; on the host both sides have what is usual there.
            ours: Any = None if device else stack.enter_context(setting.ours("f32" if host else "f16"))
            machine = this_machine(device.name if device else ours.ask("device"))
            table = "Several sequences at once, " + (f"{setting.threads} threads" if host else f"through {GPU_APIS[api]}")

            def keep(rows: Sequence[Row]) -> None:
                # At once: a run that is cut off loses only the rest.
                save(machine, table, rows, folder=args.results)
                print(plain_table(rows), file=sys.stderr, flush=True)

            if device is not None:
                rows = gpu_rows(setting, device, keep, stack)
            elif args.arrivals:
                rows = arrival_rows(setting, ours, args.arrivals, args.loads, args.results, machine)
            else:
                rows = host_rows(setting, ours, keep)
        except SideError as e:
            print(f"could not be measured: {e}", file=sys.stderr)
            return 1
    publish(machine, table, rows, folder=args.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
