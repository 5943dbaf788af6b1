"""The GPU table: products, language models and embeddings on this machine's GPU, against PyTorch on the same one.

python bench/gpu.py [--only matmul,matvec] [--rounds 5] [--devices webgpu,vulkan]
Every group is measured on each device in turn; Vulkan is left out, with the reason, where it cannot be used.
Weights are random. PyTorch runs in processes of its own; where there is none, or no CUDA, only ours is measured. Each group of
rows is kept as soon as it is there. bench/gpu_check.py checks the results of every op on the same machine.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from encode import measure as measure_encoding
from encode import measure_recorded
from measure import SideError, Worker, in_turns, median_seconds, medians, some_of
from random_models import RandomParams, generate, random_engine
from report import Goal, Machine, Row, plain_table, publish, save, this_machine
from shapes import CAUSAL, MINILM
from warm import Load

import pumice as pm
from pumice.backends.gpu.device import GpuDevice
from pumice.backends.null.device import NullDevice
from pumice.backends.vulkan.device import VulkanDevice
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.core.blocks import quantize_rows
from pumice.core.dtypes import dtype
from pumice.errors import PumiceError
from pumice.llm.embed import Pooling, encoder_graph
from pumice.llm.engine import Engine
from pumice.models.config import ModelArchConfig
from pumice.models.registry import EncoderArchitecture, get_architecture

PEERS = Path(__file__).with_name("gpu_peers.py")
TABLE = "GPU, through WebGPU and Vulkan"
DEVICES: dict[str, Callable[[], GpuDevice]] = {"webgpu": WebGpuDevice, "vulkan": VulkanDevice}
SIZE, OUT, IN = 4096, 4096, 16384
COPY_BYTES = 1 << 30
# Weights that take turns: together they exceed any cache.
WEIGHTS, ROUNDS_OF_WEIGHTS = 8, 8
PROMPT, ANSWER, PREFILL, CACHE = 16, 128, 512, 256
BATCHES, LENGTH = (1, 32, 256), 128
# onnxruntime's WebGPU build is not on that machine: what it reached there, texts a second by batch.
ORT_WEBGPU, ORT_DATE = {1: 216.0, 32: 2907.0, 256: 547.0}, "2026-11-15"


class Bench:
    """The device, the peers' processes, and the rows so far."""

    def __init__(self, device: GpuDevice, rounds: int, stack: ExitStack, peers: bool, workers: dict[str, Worker | None]) -> None:
        self.device, self.rounds = device, rounds
        self._stack, self.has_peers = stack, peers
        # All devices are compared with the same processes.
        self._workers = workers
        self.warm = Load(device)
        stack.callback(self.warm.close)
        self.engines: dict[str, tuple[Engine, int]] = {}

    def prepare(self, names: Sequence[str]) -> None:
        """Loads causal models, ours while the peers compile theirs, which takes a minute; nothing is measured meanwhile."""
        workers = [w for name in names if (w := self.peer(name)) is not None]
        for w in workers:
            w.send("prepare", prompt=PROMPT, steps=ANSWER, cache_length=CACHE)
        for name in names:
            self.engines[name] = random_engine(CAUSAL[name], self.device)
            generate(self.engines[name][0], PREFILL, 8, seed=1)
        for w in workers:
            w.answer()

    def peer(self, side: str) -> Worker | None:
        """The process of a peer, started when it is first asked for; None where there is no CUDA."""
        if side not in self._workers:
            worker = Worker(sys.executable, PEERS, side) if self.has_peers else None
            self._workers[side] = self._stack.enter_context(worker) if worker else None
        return self._workers[side]

    def turns(self, ours: Callable[[int], float], peer: Callable[[Worker], float], side: str) -> dict[str, float]:
        """Medians of both sides, taken in turns; without a peer of ours alone."""
        self.warm()
        sides = {"ours": ours}
        worker = self.peer(side)
        if worker is not None:
            sides["peer"] = lambda i: peer(worker)
        return medians(in_turns(sides, self.rounds, rest=0.0))

    @functools.cached_property
    def copy_bandwidth(self) -> float:
        """Bytes a second of a copy on the device, read and written: the best that either side reaches."""
        x = np.ones(COPY_BYTES // 4, np.float32)
        with Repeated(self.device, lambda p, x, k: x + 1.0, 8, {"x": x}, fuse=False) as ours:
            self.warm()
            best = 2 * COPY_BYTES / ours.seconds()
        worker = self.peer("math")
        return max(best, float(worker.ask("copy", nbytes=COPY_BYTES)) if worker else 0.0)

    def matmul_rates(self, dtype: str) -> dict[str, float]:
        """Operations a second of a square matmul, "ours" and, where there is one, the "peer"'s."""
        rng = np.random.default_rng(0)
        scale = np.float32(SIZE**0.5)
        params = {name: (rng.standard_normal((SIZE, SIZE), np.float32) / scale).astype(dtype) for name in ("x", "w")}
        with Repeated(self.device, lambda p, x, k: x @ p["w"], 8, params) as ours:
            found = self.turns(ours.seconds, lambda w: float(w.ask("matmul", n=SIZE, dtype=dtype)), "math")
        return {name: 2 * SIZE**3 / seconds for name, seconds in found.items()}


class Repeated:
    """Measures one application of fn(params, x, k) on the device: `times` + 1 of them in one run, less the cost of one.

    The device's own clock takes the time where it has one. Params are uploaded once; the first x is the param of that name.
    """

    def __init__(self, device: GpuDevice, fn: Callable[..., Any], times: int, params: dict[str, Any], **options: Any) -> None:
        specs = {name: pm.spec(*a.shape, dtype=a.dtype) for name, a in params.items()} | options.pop("types", {})

        def chain(n: int, **more: Any) -> pm.Executable:
            def model(params: Any) -> Any:
                x = params["x"]
                for k in range(n):
                    x = fn(params, x, k)
                return x.reshape(-1)[:1]

            return pm.compile(model, params=specs, device=device, **options, **more)

        self._stamps = device.caps.timestamps
        self.times, self.long = times, chain(times + 1)
        self.long.set_params(params)
        self.short = chain(1, store=self.long.store)

    def seconds(self, _: int = 0) -> float:
        long, short = (self._run_seconds(exe) for exe in (self.long, self.short))
        return (long - short) / self.times

    def _run_seconds(self, exe: pm.Executable) -> float:
        return float(exe.profile(repeats=5).device_seconds) if self._stamps else median_seconds(exe.run, 5)

    def __enter__(self) -> Repeated:
        return self

    def __exit__(self, *error: object) -> None:
        self.long.close()
        self.short.close()


# -- rows ---------------------------------------------------------------------------------------------------------------
def matmul_rows(bench: Bench) -> list[Row]:
    """Square products."""

    def rates(dtype: str) -> dict[str, float]:
        return {name: 1e-12 * rate for name, rate in bench.matmul_rates(dtype).items()}

    f32, f16 = rates("float32"), rates("float16")
    unit, note = "TFLOP/s", "" if "peer" not in f16 else f"torch with tensor cores: {f16['peer']:.0f}"
    return [
        Row("matmul f32", f"f32 matmul {SIZE}³", unit, f32["ours"], f32.get("peer"), "torch f32, TF32 off", Goal(0.8)),
        Row("matmul f16", f"f16 matmul {SIZE}³", unit, f16["ours"], f32["ours"], "our f32", Goal(1.3), note),
    ]


def matvec_rows(bench: Bench) -> list[Row]:
    """A vector times a matrix, whose bytes per second are compared with those of a copy."""
    rng = np.random.default_rng(0)
    names = [f"w{k}" for k in range(WEIGHTS)]
    block = rng.standard_normal((64, IN), np.float32) * np.float32(0.02)
    # Each weight meets another vector each time, or the products would be found to be the same.
    count = WEIGHTS * ROUNDS_OF_WEIGHTS
    vectors = {f"x{k}" if k else "x": rng.standard_normal((1, IN), np.float32) for k in range(count + 1)}
    rows = []
    for kind, bound in (("f16", 0.85), ("q4_k", 0.6), ("q8_0", 0.6)):
        if kind == "f16":
            weight, types = np.tile(block.astype(np.float16), (OUT // 64, 1)), {}
        else:
            weight = np.tile(quantize_rows(dtype(kind), block), (OUT // 64, 1))
            types = {name: pm.spec(OUT, IN, dtype=kind) for name in names}

        def apply(p: Any, last: Any, k: int, kind: str = kind) -> Any:
            x, w = p[f"x{k}" if k else "x"], p[names[k % WEIGHTS]]
            y = x @ w.T if kind == "f16" else pm.qmatmul(x, w)
            return y if k == 0 else pm.maximum(last, y)

        params = {**vectors, **dict.fromkeys(names, weight)}
        with Repeated(bench.device, apply, count, params, types=types) as ours:
            bench.warm()
            rate = medians({"": [weight.nbytes / ours.seconds() for _ in range(bench.rounds)]})[""]
        title = f"{kind} matvec {OUT} × {IN}, rotating weights"
        rows.append(Row(f"matvec {kind}", title, "TB/s", rate / 1e12, bench.copy_bandwidth / 1e12, "device copy", Goal(bound)))
    return rows


def text_rows(bench: Bench, name: str, title: str, bound: float) -> list[Row]:
    """Decode of a causal model; with it dispatches, encoding and idle time, or prefill and bandwidth."""
    engine, nbytes = bench.engines[name]
    seeds = iter(range(2, 1000))

    def decode(i: int) -> float:
        t = generate(engine, PROMPT, ANSWER, next(seeds))
        return t.decode_s / t.decode_tokens

    def prefill(i: int) -> float:
        return generate(engine, PREFILL, 1, next(seeds)).prefill_s

    sides: dict[str, Callable[[int], float]] = {"ours": decode}
    worker = bench.peer(name)
    if worker is not None:

        def peer(i: int, way: str) -> float:
            return float(worker.ask(way, prompt=PROMPT, steps=ANSWER))

        sides |= {way: functools.partial(peer, way=way) for way in ("generate", "loop")}
    bench.warm()
    token = medians(in_turns(sides, bench.rounds, rest=0.0))
    rate = {side: 1 / seconds for side, seconds in token.items()}
    work, unit = f"{title} f16 decode, {ANSWER} tokens after {PROMPT}", "tokens/s"
    rows = [
        Row(
            f"{name} decode", work, unit, rate["ours"], rate.get("generate"), "transformers, static cache + compile", Goal(bound)
        ),
        Row(f"{name} loop", work, unit, rate["ours"], rate.get("loop"), "a loop of one's own around the compiled step"),
    ]
    if name == "llama1b":
        used, copy = nbytes * rate["ours"] / 1e12, bench.copy_bandwidth / 1e12
        rows.append(Row(f"{name} bandwidth", "the same: weights read", "TB/s", used, copy, "device copy", Goal(0.6)))
    first = bench.turns(prefill, lambda w: float(w.ask("prefill", count=PREFILL)), name)
    speed = {side: PREFILL / seconds for side, seconds in first.items()}
    goal = Goal(0.25) if name == "llama1b" else None
    work = f"{title} f16 prefill, {PREFILL} tokens"
    rows.append(Row(f"{name} prefill", work, "tokens/s", speed["ours"], speed.get("peer"), "torch f16", goal))
    generate(engine, PROMPT, ANSWER, next(seeds))  # the clock as it was above, and a sequence as long
    busy = engine.profile().device_seconds
    idle = 100 * max(0.0, 1 - busy / token["ours"])
    limit, data = Goal(10, least=False, unit="%"), {"busy_seconds": busy, "token_seconds": token["ours"]}
    rows.append(Row(f"{name} idle", f"{title}: GPU idle between tokens", "%", idle, goal=limit, data=data))
    engine.close()
    return rows


def encoding_rows(bench: Bench) -> list[Row]:
    """What a decode step costs the host."""

    def steps(layers: int) -> int:
        engine, _ = random_engine({**CAUSAL["tiny"], "num_hidden_layers": layers}, NullDevice(bench.device.caps), context=64)
        generate(engine, 4, 4, seed=layers)
        return next(int(v["steps"][0]) for k, v in engine.report().items() if k.startswith("(True"))

    each = (steps(6) - steps(2)) / 4
    rows = [Row("dispatches", "decode dispatches per layer", "dispatches", each, goal=Goal(7, least=False, unit="dispatches"))]
    if isinstance(bench.device, VulkanDevice):
        spent = measure_recorded(bench.device, 400, 30)
        return [
            *rows,
            Row("record", "host time to record a dispatch, once", "µs", spent["record_us"]),
            Row("submit", "host time to submit it as it is recorded, of 400", "µs", spent["submit_us"]),
        ]
    raw = measure_encoding("", 400, 30)["raw_us"]
    return [*rows, Row("encode", "host time to encode a dispatch", "µs", raw, goal=Goal(2.5, least=False, unit="µs"))]


def minilm_rows(bench: Bench) -> list[Row]:
    """MiniLM in f32: token ids from the host in, vectors on the host out."""
    cfg = ModelArchConfig.from_hf(MINILM)
    arch = get_architecture(cfg.model_type)
    assert isinstance(arch, EncoderArchitecture)
    params = RandomParams(cfg, "f32")
    specs = {"tokens": pm.spec("B", "T", dtype="i32"), "length": pm.spec("B", dtype="i32")}
    graph = pm.trace(encoder_graph(arch, cfg, Pooling()), params=params.specs, **specs)
    rows, quoted = [], []
    # As `EmbeddingModel` has it: one executable for all batches.
    with pm.compile(graph, device=bench.device, max={"B": max(BATCHES), "T": cfg.max_positions}) as exe:
        exe.set_params(dict(params.arrays))
        for batch in BATCHES:
            tokens = np.random.default_rng(batch).integers(0, cfg.vocab, (batch, LENGTH)).astype(np.int32)
            lengths = np.full(batch, LENGTH, np.int32)

            def ours(i: int, tokens: Any = tokens, lengths: Any = lengths) -> float:
                return median_seconds(lambda: exe.run(tokens=tokens, length=lengths), 7, 1)

            def peer(w: Worker, batch: int = batch) -> float:
                return float(w.ask("embed", batch=batch, length=LENGTH, repeats=7))

            rate = {side: batch / seconds for side, seconds in bench.turns(ours, peer, "minilm").items()}
            title = f"MiniLM f32, batch {batch} × {LENGTH} tokens"
            rows.append(Row(f"minilm {batch}", title, "texts/s", rate["ours"], rate.get("peer"), "torch eager", Goal(0.9)))
            name = f"onnxruntime-webgpu, measured on {ORT_DATE}, not in this run"
            quoted.append(Row(f"minilm {batch} ort", title, "texts/s", rate["ours"], ORT_WEBGPU[batch], name, Goal(4)))
    return rows + quoted


GROUPS: dict[str, Callable[[Bench], list[Row]]] = {
    "matmul": matmul_rows,
    "matvec": matvec_rows,
    "encode": encoding_rows,
    "minilm": minilm_rows,
    "smollm2": functools.partial(text_rows, name="smollm2", title="SmolLM2-135M", bound=3.0),
    "llama1b": functools.partial(text_rows, name="llama1b", title="Llama-3.2-1B", bound=2.0),
}


def run_groups(benches: Sequence[Bench], names: Sequence[str], machine: Machine) -> tuple[list[Row], int]:
    """The rows of all groups; each is kept at once, so that a run that is cut off loses only the rest."""
    rows: list[Row] = []
    failed = 0
    for name, bench in ((name, bench) for name in names for bench in benches):
        began, api = time.perf_counter(), bench.device.backend
        try:
            found = [replace(row, key=f"{row.key} {api}", device=api) for row in GROUPS[name](bench)]
        except (PumiceError, SideError) as e:
            failed += 1
            print(f"{name} could not be measured on {api}: {type(e).__name__}: {e}", file=sys.stderr)
            continue
        save(machine, TABLE, found)
        rows += found
        print(f"{plain_table(found)}\n({name} on {api}: {time.perf_counter() - began:.0f} s)\n", file=sys.stderr, flush=True)
    return rows, failed


def open_devices(names: Sequence[str]) -> list[GpuDevice]:
    """The devices that can be opened; of others the reason is printed."""
    found: list[GpuDevice] = []
    for name in names:
        try:
            found.append(DEVICES[name]())
        except PumiceError as e:
            print(f"{name} is left out: {e.message}", file=sys.stderr)
    return found


def has_cuda() -> bool:
    """Whether this Python's torch has a GPU, asked in a process of its own."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=some_of(GROUPS), default=list(GROUPS), help=f"some of {','.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--devices", type=some_of(DEVICES), default=list(DEVICES), help=f"some of {','.join(DEVICES)}")
    parser.add_argument("--alone", action="store_true", help="no peers")
    args = parser.parse_args()
    names = args.only
    devices = open_devices(args.devices)
    if not devices:
        return 1
    machine = this_machine(devices[0].name)
    peers = not args.alone and has_cuda()
    with ExitStack() as stack:
        workers: dict[str, Worker | None] = {}
        benches = [Bench(device, args.rounds, stack, peers, workers) for device in devices]
        for bench in benches:
            bench.prepare([name for name in names if name in CAUSAL])
        rows, failed = run_groups(benches, names, machine)
    publish(machine, TABLE, rows)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
