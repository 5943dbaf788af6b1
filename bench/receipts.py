"""What a receipt costs: a generation without one, and with one that is made and hashed, also saved by a thread, or saved.

python bench/receipts.py [--device host|webgpu] [--model smollm2] [--tokens 128] [--rounds 9] [--json FILE]
They take turns in one process, with the same prompt and seed. "Without" notes no facts at all. A receipt that is saved is
signed, in the log and on the disk before the next prompt; one that a thread saves may get there while the next is answered. What
only the first receipt of a machine costs (hashing the weights, making a key) is measured apart, in an empty home. The goal is 2 %
of 128 tokens.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import in_turns, medians
from random_models import write_checkpoint
from report import commit_name
from shapes import CAUSAL, RANDOM
from warm import Load

import pumice as pm
from pumice import config
from pumice.receipts.log import ReceiptLog

PROMPT = "Explain in a few sentences why the sky is blue, and why sunsets are red."
GOAL = 0.02
KINDS = {"made": "made and hashed", "later": "hashed, a thread saves it", "saved": "signed, logged, saved"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="host")
    parser.add_argument("--model", default="smollm2", help=f"a model, or {RANDOM}NAME: random weights, NAME {','.join(CAUSAL)}")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        pm.load(files_of(args.model, Path(folder)), device=args.device, context=512) as model,
    ):
        found = measure(model, args.tokens, args.rounds, Path(folder))
        name = model.describe_device()["name"]
    without = found["generation_s"]
    print(f"{args.model} on {name}, {args.tokens} tokens, medians of {args.rounds} rounds")
    print(f"  without a receipt         {1e3 * without:9.1f} ms")
    for kind, text in KINDS.items():
        alone, ratio = found[f"{kind}_s"], found[f"{kind}_ratio"]
        print(f"  {text:<25} {1e3 * alone:9.2f} ms  {alone / without:7.2%} of it; the generations' ratio is {ratio:.4f}")
    print(f"  the first one of a home   {1e3 * found['first_s']:9.1f} ms  hashes the weights and makes a key")
    met = {kind: found[f"{kind}_s"] / without <= GOAL for kind in KINDS}
    print(f"  goal: at most {GOAL:.0%}: " + ", ".join(f"{kind} {'met' if held else 'MISSED'}" for kind, held in met.items()))
    if args.json is not None:
        rows = {"model": args.model, "device": name, "tokens": args.tokens, "rounds": args.rounds, "commit": commit_name()}
        args.json.write_text(json.dumps(rows | found, indent=1) + "\n")


def files_of(model: str, folder: Path) -> str:
    """What to load: the model itself, or for a shape a checkpoint with random weights, written here."""
    name = model.removeprefix(RANDOM)
    return model if name == model else str(write_checkpoint(CAUSAL[name], folder / name))


def measure(model: Any, tokens: int, rounds: int, folder: Path) -> dict[str, float]:
    """Seconds of a generation and of each receipt, and ratios of generations with a receipt to those without."""
    files, load = model.files, Load(model.engine.device)
    alone: dict[str, list[float]] = {kind: [] for kind in KINDS}

    def timed(kind: str) -> Callable[[int], float]:
        def run(round: int) -> float:
            model.files = files if kind in alone else None
            load()
            begin = time.perf_counter()
            answer = model.generate(PROMPT, max_tokens=tokens, temperature=0, ignore_eos=True)
            done = time.perf_counter()
            if kind == "made":
                answer.receipt.to_json()
            elif kind == "later":
                answer.receipt.save_later(folder / "later.json")
            elif kind == "saved":
                answer.receipt.save(folder / "receipt.json")
            end = time.perf_counter()
            if kind in alone and round:  # the first round is not counted
                alone[kind].append(end - done)
            return end - begin

        return run

    with config.override(home=folder / "home"):
        answer = model.generate(PROMPT, max_tokens=1)
        begin = time.perf_counter()
        answer.receipt.save(folder / "receipt.json")
        first = time.perf_counter() - begin
        found = medians(in_turns({kind: timed(kind) for kind in ("without", *KINDS)}, rounds))
        ReceiptLog().settle()
    load.close()
    costs = {f"{kind}_s": value for kind, value in medians(alone).items()}
    ratios = {f"{kind}_ratio": found[kind] / found["without"] for kind in alone}
    return {"generation_s": found["without"], **costs, **ratios, "first_s": first}


if __name__ == "__main__":
    main()
