"""The CPU table: SmolLM2, MiniLM and a training step on this machine's processor, against what a user would pick instead.

python bench/cpu.py [--only decode,embed] [--rounds 7] [--threads N] [--peer-python PATH] [--results FOLDER]
The peers live in an environment of their own, which bench/peers.sh makes; --peer-python or PUMICE_BENCH_PYTHON names another.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from measure import (
    ROOT,
    Life,
    SideError,
    Worker,
    has_modules,
    in_turns,
    live,
    medians,
    some_of,
    start_environment,
    thread_settings,
)
from report import RESULTS, Goal, Row, publish, save, this_machine
from train_step import Sizes, measure_steps

from pumice import config
from pumice.sources import resolve

SIDES = Path(__file__).with_name("cpu_sides.py")
TEXT, ENCODER, QUESTION = "smollm2", "minilm", "What is the capital of France?"
PROMPT, ANSWER, PREFILL = 16, 128, 512
BATCHES, LENGTH = (1, 8, 32), 128
LAYERS = 32
LLAMA_CHAT = """
import sys
from llama_cpp import Llama
path, threads, prompt, tokens = sys.argv[1:]
threads = {"n_threads": int(threads), "n_threads_batch": int(threads)}
llama = Llama(path, n_ctx=2048, n_gpu_layers=0, flash_attn=True, verbose=False, **threads)
message = {"role": "user", "content": prompt}
for part in llama.create_chat_completion([message], max_tokens=int(tokens), temperature=0.0, stream=True):
    text = part["choices"][0]["delta"].get("content")
    if text:
        print(text, flush=True)
"""


@dataclass(frozen=True)
class Setting:
    """What all measurements share."""

    peer_python: str
    threads: int
    rounds: int

    def worker(self, side: str, model: Path, **environment: str) -> Worker:
        python = sys.executable if side.startswith(("pumice", "machine")) else self.peer_python
        return Worker(
            python, SIDES, side, str(self.threads), str(model), environment={**thread_settings(self.threads), **environment}
        )

    def has(self, *modules: str) -> bool:
        found = has_modules(self.peer_python, *modules)
        if not found:
            print(
                f"{self.peer_python} has no {' and '.join(modules)}: bench/peers.sh makes an environment that has",
                file=sys.stderr,
            )
        return found


def text_rows(setting: Setting) -> list[Row]:
    """Decode and prefill of SmolLM2."""
    path = resolve(TEXT).path
    with ExitStack() as stack:
        workers = {"ours": stack.enter_context(setting.worker("pumice-text", path))}
        if setting.has("llama_cpp"):
            workers["peer"] = stack.enter_context(setting.worker("llama-text", path))
        vocab = workers["ours"].ask("vocab")

        def rates(count: int, steps: int, what: str, amount: int) -> dict[str, float]:
            def side(worker: Worker) -> Callable[[int], float]:
                # Another prompt in each round, the same for all sides: nothing of the last one may be reused.
                def run(i: int) -> float:
                    random = Random(count + i)
                    answer = worker.ask("generate", tokens=[random.randrange(vocab) for _ in range(count)], steps=steps)
                    return amount / float(answer[what])

                return run

            return medians(in_turns({name: side(w) for name, w in workers.items()}, setting.rounds))

        decode, prefill = rates(PROMPT, ANSWER, "token", 1), rates(PREFILL, 1, "prefill", PREFILL)
    unit, name = "tokens/s", "llama.cpp"
    title = f"SmolLM2-135M Q4_1: decode {ANSWER} tokens after {PROMPT}, f32 activations"
    return [
        Row("decode", title, unit, decode["ours"], decode.get("peer"), name, Goal(1.1)),
        Row("prefill", f"the same: prefill of {PREFILL} tokens", unit, prefill["ours"], prefill.get("peer"), name, Goal(2.0)),
    ]


def embed_rows(setting: Setting) -> list[Row]:
    """MiniLM embeddings against the better of onnxruntime and torch."""
    path = resolve(ENCODER).path
    with ExitStack() as stack:
        workers = {"ours": stack.enter_context(setting.worker("pumice-embed", path))}
        if setting.has("torch", "transformers"):
            workers["torch"] = stack.enter_context(setting.worker("torch-embed", path))
            if setting.has("onnxruntime", "onnx"):
                with setting.worker("export", path) as export:
                    model = Path(export.ask("export", folder=str(config.home / "bench")))
                workers["onnxruntime"] = stack.enter_context(setting.worker("onnx-embed", model))
        answers = {name: w.ask("vectors", batch=2, length=LENGTH) for name, w in workers.items()}
        for name, vectors in answers.items():
            far = max(abs(a - b) for x, y in zip(answers["ours"], vectors, strict=True) for a, b in zip(x, y, strict=True))
            if far > 1e-5:
                raise SideError(f"the vectors of {name} differ from ours by {far}")
        rows = []
        for batch in BATCHES:
            calls = max(1, 16 // batch)

            def side(worker: Worker, batch: int = batch, calls: int = calls) -> Callable[[int], float]:
                return lambda i: batch / float(worker.ask("embed", batch=batch, length=LENGTH, calls=calls))

            rates = medians(in_turns({name: side(w) for name, w in workers.items()}, setting.rounds))
            ours = rates.pop("ours")
            best = max(rates, key=lambda name: rates[name], default="")
            title = f"MiniLM embeddings, batch {batch} × {LENGTH} tokens"
            data = {"peers": rates}
            rows.append(Row(f"embed {batch}", title, "texts/s", ours, rates.get(best), best, Goal(1.0), data=data))
    return rows


def start_rows(setting: Setting) -> list[Row]:
    """Second start and memory of `pumice run smollm2`."""
    tokens = "32"
    run = [sys.executable, "-m", "pumice.cli.main", "run", TEXT, QUESTION, "--device", "host", "--temperature", "0"]
    commands = {"ours": [*run, "--max-tokens", tokens]}
    if setting.has("llama_cpp"):
        chat = [str(resolve(TEXT).path), str(setting.threads), QUESTION, tokens]
        commands["peer"] = [setting.peer_python, "-c", LLAMA_CHAT, *chat]
    with start_environment(setting.threads) as environment:

        def side(command: Sequence[str]) -> Callable[[int], Life]:
            return lambda i: live(command, environment)

        found = in_turns({name: side(command) for name, command in commands.items()}, setting.rounds)
    first = medians({name: [r.first_byte for r in runs] for name, runs in found.items()})
    cpu = medians({name: [r.cpu for r in runs] for name, runs in found.items()})
    peak = medians({name: [r.peak_mib for r in runs] for name, runs in found.items()})
    name, goal = "llama.cpp", Goal(1.0, least=False, unit="s")
    data = {"cpu_seconds": cpu}
    return [
        Row("start", "process start to first token, second start", "s", first["ours"], first.get("peer"), name, goal, data=data),
        Row("memory", f"peak memory of `pumice run {TEXT}`", "MiB", peak["ours"], peak.get("peer"), name, Goal(2, least=False)),
    ]


def train_rows(setting: Setting) -> list[Row]:
    """A training step."""
    peer = setting.peer_python if setting.has("torch") else None
    steps = measure_steps(Sizes(threads=setting.threads), peer, setting.rounds, 3)
    ours, theirs = steps["pumice"], steps.get("torch")
    title = "training step of a character transformer (4 layers, width 256, context 128, batch 16)"
    wall, memory = (None, None) if theirs is None else (1e3 * theirs.wall, theirs.own_mib)
    goal = Goal(1.0, least=False)
    return [
        Row("train", title, "ms", 1e3 * ours.wall, wall, "torch eager", goal),
        Row("train memory", "the same: memory beyond the imports", "MiB", ours.own_mib, memory, "torch eager", goal),
    ]


def plan_rows(setting: Setting) -> list[Row]:
    """Planning and compiling a model of 32 layers, in a new process each time and without the driver's cache."""

    def side(work: str) -> Callable[[int], float]:
        def run(i: int) -> float:
            with setting.worker("pumice-plan", Path(), MESA_SHADER_CACHE_DISABLE="true") as worker:
                return float(worker.ask(work, layers=LAYERS))

        return run

    seconds = medians(in_turns({work: side(work) for work in ("plan", "compile")}, min(3, setting.rounds)))
    limit = Goal(2.0, least=False, unit="s")
    title = f"decode and prefill of a Llama-shaped model of {LAYERS} layers, cold:"
    return [
        Row("plan", f"{title} trace and plan for a GPU", "s", seconds["plan"], goal=limit),
        Row("compile", f"{title} compile on the software adapter", "s", seconds["compile"], goal=limit),
    ]


def machine_rows(setting: Setting) -> list[Row]:
    """The roofline: what the machine itself can do, and what that would mean for a token that reads all weights once."""
    with Worker(
        sys.executable, SIDES, "machine", str(setting.threads), ".", environment=thread_settings(setting.threads)
    ) as worker:
        compute, read = float(worker.ask("matmul", n=2048)), float(worker.ask("read", nbytes=1 << 29))
    tokens = read / resolve(TEXT).path.stat().st_size
    return [
        Row("roof matmul", "roofline: f32 matmul 2048³ by NumPy", "GFLOP/s", compute / 1e9),
        Row("roof read", "roofline: reading memory", "GB/s", read / 1e9),
        Row("roof decode", "roofline: SmolLM2 decode, if reading the weights were all", "tokens/s", tokens),
    ]


GROUPS: dict[str, Callable[[Setting], list[Row]]] = {
    "start": start_rows,  # first, while this process is small: see `live`
    "decode": text_rows,
    "embed": embed_rows,
    "train": train_rows,
    "plan": plan_rows,
    "machine": machine_rows,
}


def main() -> int:
    peers = os.environ.get("PUMICE_BENCH_PYTHON") or str(ROOT / ".bench-venv" / "bin" / "python")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=some_of(GROUPS), default=list(GROUPS), help=f"some of {','.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of results; RESULTS.md is written beside it")
    parser.add_argument("--peer-python", default=peers if Path(peers).exists() else sys.executable)
    args = parser.parse_args()
    setting = Setting(args.peer_python, args.threads, args.rounds)
    machine, table = this_machine(), f"Processor, {args.threads} threads"
    rows: list[Row] = []
    failed = 0
    for name in args.only:
        print(f"measuring: {name}", file=sys.stderr)
        try:
            found = GROUPS[name](setting)
        except SideError as e:
            failed += 1
            print(f"{name} could not be measured: {e}", file=sys.stderr)
            continue
        save(machine, table, found, folder=args.results)  # at once: a run that is cut off loses only the rest
        rows += found
    publish(machine, table, rows, folder=args.results)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
