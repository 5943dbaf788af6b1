"""Time from the start of a process to its first token with SmolLM2 on this machine's processor, next to llama.cpp's.

python bench/start.py [--runs 7] [--device host] [--threads N] [--no-bytecode] [--json]
Each run is a process of its own; ours and the peer's take turns, after one of each that is not counted: it fills the caches.
Processor time is printed too, as it depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src")]

from pumice.backends.host.jit import thread_count  # noqa: E402
from pumice.sources import resolve  # noqa: E402

MODEL, PROMPT = "smollm2", "What is the capital of France?"
PEER = """
import sys
from llama_cpp import Llama
path, threads, prompt = sys.argv[1:]
threads = {"n_threads": int(threads), "n_threads_batch": int(threads)}
llama = Llama(path, n_ctx=2048, n_gpu_layers=0, flash_attn=True, verbose=False, **threads)
for part in llama.create_chat_completion([{"role": "user", "content": prompt}], max_tokens=1, temperature=0.0, stream=True):
    text = part["choices"][0]["delta"].get("content")
    if text:
        print(text, flush=True)
"""
# Seconds to the first byte on stdout, seconds of processor time, megabytes at most.
Run = tuple[float, float, float]


def first_byte(command: Sequence[str], environment: Mapping[str, str]) -> Run:
    """One process, from before it is started to the first byte of its answer; its costs are those of its whole life."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    assert child.stdout is not None
    first = child.stdout.read(1)
    seconds = time.perf_counter() - start
    child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode or not first:
        raise SystemExit(f"{' '.join(command[:4])} … gave no token and ended with {child.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def measure(commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], runs: int) -> dict[str, list[Run]]:
    """All runs of each command, in turns."""
    found: dict[str, list[Run]] = {name: [] for name in commands}
    for i in range(runs + 1):
        for name, command in commands.items():
            run = first_byte(command, environment)
            if i:
                found[name].append(run)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--device", default="host")
    parser.add_argument("--threads", type=int, default=thread_count())
    parser.add_argument("--no-bytecode", action="store_true", help="have Python compile every module at each start")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    ours = [sys.executable, "-m", "pumice.cli.main", "run", MODEL, PROMPT, "--device", args.device]
    commands = {"pumice": [*ours, "--max-tokens", "1", "--temperature", "0"]}
    if importlib.util.find_spec("llama_cpp") is not None:
        commands["llama.cpp"] = [sys.executable, "-c", PEER, str(resolve(MODEL).path), str(args.threads), PROMPT]
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PUMICE_THREADS": str(args.threads), "PYTHONPYCACHEPREFIX": bytecode}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        # An installed package has its bytecode beside it, whatever the shell that runs this says.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if args.no_bytecode:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
            del environment["PYTHONPYCACHEPREFIX"]
        found = measure(commands, environment, args.runs)
    medians = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in found.items()}
    ratio = medians["pumice"][0] / medians["llama.cpp"][0] if "llama.cpp" in medians else None
    if args.json:
        columns = ["seconds", "cpu_seconds", "megabytes"]
        print(json.dumps({"threads": args.threads, "columns": columns, "runs": found, "ratio": ratio}))
        return
    print(f"{MODEL} on {args.device}, {args.threads} threads, process start to first token, medians of {args.runs} runs")
    for name, (seconds, cpu, memory) in medians.items():
        spread = f"{min(r[0] for r in found[name]):.2f}–{max(r[0] for r in found[name]):.2f}"
        print(f"  {name:<10} {seconds:.2f} s ({spread})   processor {cpu:.2f} s   peak memory {memory:.0f} MB")
    if ratio is None:
        print("  llama.cpp is not here to compare with: pip install llama-cpp-python")
    else:
        print(f"  pumice / llama.cpp: {ratio:.2f}")


if __name__ == "__main__":
    main()
