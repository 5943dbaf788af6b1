"""The CPU table: language models, MiniLM and training steps on this machine's processor, against what a user would pick instead.

python bench/cpu.py [--only smollm2,embed] [--rounds 7] [--threads N] [--level avx2] [--peer-python PATH] [--results FOLDER]
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

from gguf_files import random_like, real_file
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
from pumice.backends.host.native import levels
from pumice.core.block_formats import FORMATS
from pumice.sources import resolve

SIDES = Path(__file__).with_name("cpu_sides.py")
# A text to continue: one of the models has no chat template.
TEXT, ENCODER, QUESTION = "smollm2", "minilm", "The capital of France is"
PROMPT, ANSWER, PREFILL = 16, 128, 512
BATCHES, LENGTH = (1, 8, 32), 128
LAYERS = 32
LLAMA_START = """
import sys
from llama_cpp import Llama
path, threads, prompt, tokens = sys.argv[1:]
threads = {"n_threads": int(threads), "n_threads_batch": int(threads)}
llama = Llama(path, n_ctx=2048, n_gpu_layers=0, flash_attn=True, verbose=False, **threads)
for part in llama.create_completion(prompt, max_tokens=int(tokens), temperature=0.0, stream=True):
    text = part["choices"][0]["text"]
    if text:
        print(text, flush=True)
"""


@dataclass(frozen=True)
class Setting:
    """What all measurements share."""

    peer_python: str
    threads: int
    rounds: int
    level: str
    answer: int = ANSWER
    processor_time: bool = False
    formats: tuple[str, ...] = ()

    def worker(self, side: str, model: Path, **environment: str) -> Worker:
        python = sys.executable if side.startswith(("pumice", "machine")) else self.peer_python
        settings = {**thread_settings(self.threads), "PUMICE_CPU": self.level, **environment}
        return Worker(python, SIDES, side, str(self.threads), str(model), environment=settings)

    def has(self, *modules: str) -> bool:
        found = has_modules(self.peer_python, *modules)
        if not found:
            print(
                f"{self.peer_python} has no {' and '.join(modules)}: bench/peers.sh makes an environment that has",
                file=sys.stderr,
            )
        return found


@dataclass(frozen=True)
class TextGoals:
    """What a language model is to reach against llama.cpp: decode and prefill, exact and fast."""

    decode: Goal | None = None
    decode_fast: Goal | None = None
    prefill: Goal | None = None
    prefill_fast: Goal | None = None


def language_rows(setting: Setting, key: str, name: str, path: Path, goals: TextGoals) -> list[Row]:
    """Decode and prefill of one file, exact and fast, in turns with llama.cpp, which always rounds activations to 8 bits."""
    with ExitStack() as stack:
        sides = {"exact": "pumice-text", "fast": "pumice-text-fast"}
        workers = {kind: stack.enter_context(setting.worker(side, path)) for kind, side in sides.items()}
        if setting.has("llama_cpp"):
            workers["peer"] = stack.enter_context(setting.worker("llama-text", path))
        vocab = workers["exact"].ask("vocab")

        clock = "_cpu" if setting.processor_time else ""

        def rates(count: int, steps: int, what: str, amount: int) -> dict[str, float]:
            def side(worker: Worker) -> Callable[[int], float]:
                # Another prompt in each round, the same for all sides: nothing of the last one may be reused.
                def run(i: int) -> float:
                    random = Random(count + i)
                    answer = worker.ask("generate", tokens=[random.randrange(vocab) for _ in range(count)], steps=steps)
                    return amount / float(answer[what + clock])

                return run

            return medians(in_turns({name: side(w) for name, w in workers.items()}, setting.rounds))

        decode, prefill = rates(PROMPT, setting.answer, "token", 1), rates(PREFILL, 1, "prefill", PREFILL)
    titles = {
        "decode": f"decode {setting.answer} tokens after {PROMPT}",
        "prefill": f"prefill of {PREFILL} tokens",
    }
    rows = []
    for work, found in (("decode", decode), ("prefill", prefill)):
        for kind, end in (("exact", ""), ("fast", "_fast")):
            goal = getattr(goals, work + end)
            title = f"{name}: {titles[work]}, {kind}"
            place = f"{key} {work}" + (" fast" if end else "")
            rows.append(Row(place.strip(), title, "tokens/s", found[kind], found.get("peer"), "llama.cpp", goal))
    return rows


def smollm2_rows(setting: Setting) -> list[Row]:
    """SmolLM2-135M."""
    goals = TextGoals(decode=Goal(1.6), prefill=Goal(2.6))
    return language_rows(setting, "", "SmolLM2-135M Q4_1", resolve(TEXT).path, goals)


def qwen_rows(setting: Setting) -> list[Row]:
    """Qwen2.5-Coder-1.5B."""
    wide = setting.level != "avx2"
    decode, prefill = (0.95, 0.8) if wide else (0.9, 0.6)
    goals = TextGoals(Goal(decode), Goal(1.0), Goal(prefill), Goal(1.5 if wide else 1.2))
    return language_rows(setting, "qwen", "Qwen2.5-Coder-1.5B Q4_K_M", real_file("qwen"), goals)


def gemma_rows(setting: Setting) -> list[Row]:
    """Gemma-3-270M."""
    goals = TextGoals(decode=Goal(1.1), decode_fast=Goal(1.3), prefill_fast=Goal(1.5))
    return language_rows(setting, "gemma", "Gemma-3-270M Q4_K_M", real_file("gemma"), goals)


def format_rows(setting: Setting) -> list[Row]:
    """Qwen's shapes with random weights in each format that `pumice quantize` writes."""
    rows = []
    for dtype, form in FORMATS.items():
        if form.not_written or (setting.formats and dtype.name not in setting.formats):
            continue
        path = random_like(real_file("qwen"), config.home / "bench" / f"qwen-random-{dtype}.gguf", dtype)
        goals = TextGoals(decode=Goal(0.95), decode_fast=Goal(0.95))
        rows += language_rows(setting, f"qwen {dtype}", f"Qwen2.5-Coder-1.5B's shapes, all {dtype}", path, goals)
        path.unlink()  # the next one takes as much room
    return rows


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
    """Second start and memory of `pumice run`, for a small file and larger ones."""
    files = {"": resolve(TEXT).path, "gemma": real_file("gemma"), "qwen": real_file("qwen")}
    return [row for key, path in files.items() for row in _start_rows(setting, key, path)]


def _start_rows(setting: Setting, key: str, path: Path) -> list[Row]:
    tokens = "32"
    run = [sys.executable, "-m", "pumice.cli.main", "run", str(path), QUESTION, "--device", "host", "--temperature", "0", "--raw"]
    commands = {"ours": [*run, "--max-tokens", tokens]}
    if setting.has("llama_cpp"):
        commands["peer"] = [setting.peer_python, "-c", LLAMA_START, str(path), str(setting.threads), QUESTION, tokens]
    with start_environment(setting.threads) as environment:
        environment["PUMICE_CPU"] = setting.level

        def side(command: Sequence[str]) -> Callable[[int], Life]:
            return lambda i: live(command, environment)

        found = in_turns({name: side(command) for name, command in commands.items()}, setting.rounds)
    first = medians({name: [r.first_byte for r in runs] for name, runs in found.items()})
    cpu = medians({name: [r.cpu for r in runs] for name, runs in found.items()})
    peak = medians({name: [r.peak_mib for r in runs] for name, runs in found.items()})
    name, title, data = "llama.cpp", f"{key or TEXT}: process start to first token, second start", {"cpu_seconds": cpu}
    start, memory = Goal(1.0, least=False), Goal(1.1, least=False)
    return [
        Row(f"{key} start".strip(), title, "s", first["ours"], first.get("peer"), name, start, data=data),
        Row(f"{key} memory".strip(), f"{key or TEXT}: peak memory", "MiB", peak["ours"], peak.get("peer"), name, memory),
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
    "smollm2": smollm2_rows,
    "gemma": gemma_rows,
    "qwen": qwen_rows,
    "formats": format_rows,
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
    parser.add_argument("--level", default=levels.current().name, help="the level of our kernels, at most the processor's own")
    parser.add_argument("--tokens", type=int, default=ANSWER, help="tokens of an answer")
    parser.add_argument("--processor-time", action="store_true", help="language models by processor time, for --threads 1")
    parser.add_argument("--formats", type=some_of(d.name for d in FORMATS), default=[], help="those of the group `formats`")
    args = parser.parse_args()
    if args.processor_time and args.threads != 1:
        parser.error("--processor-time takes --threads 1: several threads also count while they wait for each other")
    how = (args.tokens, args.processor_time, tuple(args.formats))
    setting = Setting(args.peer_python, args.threads, args.rounds, args.level, *how)
    machine, table = this_machine(), f"Processor, {args.threads} threads, {args.level}"
    if args.processor_time:
        table += ", by processor time"
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
