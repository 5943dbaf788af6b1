"""What each precision costs in accuracy: perplexity of a text, logits against the f32 run, and the first other greedy token.

python bench/precision.py MODEL… [--text FILE] [--tokens 2048] [--window 256] [--prompts 8] [--answer 48] [--peer-python PATH]
The f32 run has the same weights, unpacked to f32 and multiplied by BLAS. All sides see the same tokens: windows of the text, each
a sequence of its own. llama.cpp, which rounds activations to 8 bits always, is a side where the peers' environment has it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from measure import ROOT, SideError, Worker, has_modules, thread_settings
from report import this_machine

from pumice.sources import resolve

Array = np.ndarray[Any, Any]
SIDES = Path(__file__).with_name("precision_sides.py")
REFERENCE, PEER = "f32", "llama.cpp"


@dataclass
class Score:
    """What is known of one side so far; `first` has the place of the first other token of each answer that has one."""

    nll: list[float] = field(default_factory=list)
    largest: float = 0.0
    squares: float = 0.0
    numbers: int = 0
    same_best: int = 0
    positions: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, logits: Array, reference: Array, tokens: Sequence[int]) -> None:
        """The logits of a window, [T, vocab]: each position's are about the token after it."""
        for row, right, after in zip(logits[:-1], reference[:-1], tokens[1:], strict=True):
            top = row.max()
            self.nll.append(float(top - row[after]) + float(np.log(np.exp(row - top).sum(dtype=np.float64))))
            apart = row.astype(np.float64) - right
            self.largest = max(self.largest, float(np.abs(apart).max()))
            self.squares += float(apart @ apart)
            self.numbers += apart.size
            self.same_best += int(row.argmax() == right.argmax())
            self.positions += 1

    @property
    def perplexity(self) -> float:
        return float(np.exp(np.mean(self.nll)))

    @property
    def rms(self) -> float:
        return float(np.sqrt(self.squares / self.numbers))

    def row(self, name: str, answers: int, count: int) -> str:
        """The side as a row of a Markdown table."""
        first = f"{len(self.first)} of {answers}, at {min(self.first)}" if self.first else f"none in {answers} × {count}"
        best = f"{self.same_best / self.positions:.2%}"
        return f"| {name} | {self.perplexity:.4f} | {self.largest:.4g} | {self.rms:.3g} | {best} | {first} |"


HEADER = (
    "| side | perplexity | largest logit difference | rms | same likeliest token | answers with another token, the first at |\n"
    "|---|---|---|---|---|---|"
)


def first_other(tokens: Sequence[int], right: Sequence[int]) -> int | None:
    """The place, from 1 on, of the first token that differs.

    >>> first_other([5, 6, 7], [5, 6, 8]), first_other([5], [5])
    (3, None)
    """
    return next((k for k, (a, b) in enumerate(zip(tokens, right, strict=True), 1) if a != b), None)


def compare(model: str, text: str, args: argparse.Namespace) -> None:
    """Measures all sides of one model, and prints their table."""
    path, threads = resolve(model).path, args.threads
    names = [REFERENCE, "exact", "fast"]
    if has_modules(args.peer_python, "llama_cpp") and path.suffix == ".gguf":
        names.append(PEER)
    context = max(args.window, args.prompt + args.answer) + 1
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        workers = {}
        for name in names:
            python = args.peer_python if name == PEER else sys.executable
            settings = [name, str(threads), str(path), str(context)]
            workers[name] = stack.enter_context(Worker(python, SIDES, *settings, environment=thread_settings(threads)))
        ids, begin = workers[REFERENCE].ask("encode", text=text), workers[REFERENCE].ask("first")
        each = args.window - len(begin)
        windows = [[*begin, *ids[k : k + each]] for k in range(0, min(len(ids), args.tokens), each)]
        windows = [w for w in windows if len(w) == args.window]
        scores = {name: Score() for name in names}
        for number, window in enumerate(windows, 1):
            print(f"{model}: window {number} of {len(windows)}", file=sys.stderr)
            files = {name: f"{folder}/{k}.npy" for k, name in enumerate(names)}
            for name, worker in workers.items():
                worker.ask("logits", tokens=window, file=files[name])
            reference = np.load(files[REFERENCE])
            for name in names:
                scores[name].add(np.load(files[name], mmap_mode="r"), reference, window)
        prompts = [w[: args.prompt] for w in windows[: args.prompts]]
        for number, prompt in enumerate(prompts, 1):
            print(f"{model}: answer {number} of {len(prompts)}", file=sys.stderr)
            answers = {name: worker.ask("greedy", tokens=prompt, count=args.answer) for name, worker in workers.items()}
            for name, found in answers.items():
                other = first_other(found, answers[REFERENCE])
                if other is not None:
                    scores[name].first.append(other)
    tokens = len(windows) * args.window
    print(f"\n{path.name}, {tokens} tokens of {args.text.name} in windows of {args.window}, {this_machine().name}\n\n{HEADER}")
    for name in names:
        print(scores[name].row(name, len(prompts), args.answer), flush=True)


def main() -> int:
    peers = os.environ.get("PUMICE_BENCH_PYTHON") or str(ROOT / ".bench-venv" / "bin" / "python")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help="as `pumice run` takes it")
    parser.add_argument("--text", type=Path, default=ROOT / "docs" / "design.md", help="a text to measure the perplexity of")
    parser.add_argument("--tokens", type=int, default=2048, help="how many of its tokens")
    parser.add_argument("--window", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--prompts", type=int, default=8, help="greedy answers, to the beginnings of so many windows")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--answer", type=int, default=48, help="tokens of each answer")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peer-python", default=peers if Path(peers).exists() else sys.executable)
    args = parser.parse_args()
    if args.window < 2 or args.tokens < args.window or args.prompt >= args.window:
        parser.error("a window has at least 2 tokens, more than a prompt, and no more than are asked for")
    try:
        text = args.text.read_text(encoding="utf-8")
    except OSError as e:
        parser.error(f"{args.text} cannot be read: {e.strerror or e}")
    failed = 0
    for model in args.models:
        try:
            compare(model, text, args)
        except SideError as e:
            failed += 1
            print(f"{model} could not be measured: {e}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
