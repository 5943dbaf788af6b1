"""Training steps of an MLP and a conv net on the host with one thread and with all of them, in turns, beside PyTorch.

python bench/threads.py [--only mlp,conv] [--rounds 9] [--threads N] [--torch-python PATH]
More threads must not make a step slower: BLAS and our kernels share one thread budget.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from measure import ROOT, Worker, has_modules, in_turns, median_seconds, medians, serve, some_of, thread_settings

BATCH, CLASSES = 64, 10
MODELS = {"mlp": (784,), "conv": (3, 32, 32)}
# Steps of one answer: their median counts.
STEPS = 5


def pumice_step(model: str) -> Callable[[Any, Any], float]:
    """A step of ours."""
    import pumice as pm
    from pumice import nn

    class Mlp(nn.Module):
        def __init__(self) -> None:
            self.layers = [nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, CLASSES)]

        def forward(self, x: pm.Tensor) -> pm.Tensor:
            for layer in self.layers[:-1]:
                x = pm.relu(layer(x))
            logits: pm.Tensor = self.layers[-1](x)
            return logits

    class Conv(nn.Module):
        def __init__(self) -> None:
            self.conv1, self.norm1 = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
            self.conv2, self.norm2 = nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64)
            self.head = nn.Linear(64 * 64, CLASSES)

        def forward(self, x: pm.Tensor) -> pm.Tensor:
            x = pm.max_pool2d(pm.relu(self.norm1(self.conv1(x))), 2)
            x = pm.max_pool2d(pm.relu(self.norm2(self.conv2(x))), 2)
            logits: pm.Tensor = self.head(pm.reshape(x, (x.shape[0], -1)))
            return logits

    def loss(model: Any, x: pm.Tensor, y: pm.Tensor) -> pm.Tensor:
        return nn.cross_entropy(model(x), y)

    inputs = {"x": pm.spec(BATCH, *MODELS[model]), "y": pm.spec(BATCH, dtype="i32")}
    made = {"mlp": Mlp, "conv": Conv}[model]()
    step = pm.train.compile_step(made, loss, pm.optim.AdamW(1e-3), inputs, device="host")
    return lambda x, y: float(step(x=x, y=y))


def torch_step(model: str) -> Callable[[Any, Any], float]:
    """The same in PyTorch."""
    import torch
    from torch import nn

    torch.set_num_threads(int(os.environ["PUMICE_THREADS"]))
    linear = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES)]
    first = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
    made = nn.Sequential(*(linear if model == "mlp" else [*first, *second, nn.Flatten(), nn.Linear(64 * 64, CLASSES)]))
    optimizer = torch.optim.AdamW(made.parameters(), 1e-3)

    def step(x: Any, y: Any) -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(made(torch.from_numpy(x)), torch.from_numpy(y).long())
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def works(side: str, model: str) -> dict[str, Callable[..., Any]]:
    step = {"pumice": pumice_step, "torch": torch_step}[side](model)
    random = np.random.default_rng(0)
    x = random.standard_normal((BATCH, *MODELS[model]), np.float32)
    y = random.integers(0, CLASSES, BATCH).astype(np.int32)
    return {"step": lambda: median_seconds(lambda: step(x, y), STEPS, 0)}


def measure(model: str, threads: int, torch_python: str | None, rounds: int) -> dict[str, float]:
    """Seconds of a step, by side."""
    sides = {"1 thread": ("pumice", 1), f"{threads} threads": ("pumice", threads)}
    if torch_python is not None:
        sides[f"torch, {threads} threads"] = ("torch", threads)
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, (side, count) in sides.items():
            python = sys.executable if side == "pumice" else str(torch_python)
            # Ours gets its own switch alone: that it bounds BLAS too is what is measured.
            settings = {"PUMICE_THREADS": str(count)} if side == "pumice" else thread_settings(count)
            worker = Worker(python, Path(__file__), "--serve", side, "--only", model, environment=settings)
            workers[name] = stack.enter_context(worker)

        def answer(worker: Worker) -> Callable[[int], float]:
            return lambda i: float(worker.ask("step"))

        return medians(in_turns({name: answer(w) for name, w in workers.items()}, rounds))


def main() -> None:
    peers = os.environ.get("PUMICE_BENCH_PYTHON") or str(ROOT / ".bench-venv" / "bin" / "python")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=some_of(MODELS), default=list(MODELS), help=f"some of {','.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--torch-python", default=peers, help="a Python that has torch")
    parser.add_argument("--serve", choices=("pumice", "torch"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(works(args.serve, args.only[0]))
        return
    torch_python = args.torch_python if Path(args.torch_python).exists() and has_modules(args.torch_python, "torch") else None
    if torch_python is None:
        print(f"{args.torch_python} has no torch, only Pumice is measured: --torch-python names another Python", file=sys.stderr)
    for model in args.only:
        found = measure(model, args.threads, torch_python, args.rounds)
        one = found["1 thread"]
        for name, seconds in found.items():
            print(f"{model:>5} {name:>16} {1e3 * seconds:8.2f} ms   {seconds / one:6.3f} × one thread")


if __name__ == "__main__":
    main()
