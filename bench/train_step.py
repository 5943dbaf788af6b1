"""A training step of a character transformer on the host backend against PyTorch eager on the CPU, in turns.

Each runs in a process of its own. CPU time is reported beside wall time, as it says more on a machine that others use too;
memory is the most that a process had resident, and by how much that exceeds what it had before the model was made.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Sizes:
    """The model and the batch."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    context: int = 128
    batch: int = 16
    vocab: int = 96
    dropout: float = 0.0
    packed: bool = False
    threads: int = 2
    fused: bool = False


def pumice_step(sizes: Sizes) -> Callable[[Any, Any], float]:
    """A step of ours."""
    import pumice as pm
    from pumice import nn, optim

    class Model(nn.Module):
        def __init__(self) -> None:
            self.tokens = nn.Embedding(sizes.vocab, sizes.width)
            self.places = nn.Embedding(sizes.context, sizes.width)
            settings = {"causal": True, "dropout": sizes.dropout, "packed": sizes.packed}
            self.blocks = [nn.TransformerBlock(sizes.width, sizes.heads, **settings) for _ in range(sizes.layers)]
            self.norm = nn.LayerNorm(sizes.width)
            self.head = nn.Linear(sizes.width, sizes.vocab)

        def forward(self, x: pm.Tensor) -> pm.Tensor:
            y = self.tokens(x) + self.places(pm.arange(sizes.context))
            for block in self.blocks:
                y = block(y)
            logits: pm.Tensor = self.head(self.norm(y))
            return logits

    def loss(model: Any, x: pm.Tensor, y: pm.Tensor) -> pm.Tensor:
        return nn.cross_entropy(model(x), y)

    shape = pm.spec(sizes.batch, sizes.context, dtype="i32")
    step = pm.train.compile_step(Model(), loss, optim.AdamW(1e-3), {"x": shape, "y": shape}, device="host")
    return lambda x, y: float(step(x=x, y=y))


def torch_step(sizes: Sizes) -> Callable[[Any, Any], float]:
    """The same in plain PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.set_num_threads(sizes.threads)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = sizes.width
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            outputs = [3 * width] if sizes.packed else [width] * 3
            self.inputs = nn.ModuleList([nn.Linear(width, n) for n in outputs])
            self.o, self.fc1, self.fc2 = nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.dropout = nn.Dropout(sizes.dropout)

        def forward(self, x: Any) -> Any:
            y = self.norm1(x)
            projected = [layer(y) for layer in self.inputs]
            parts = projected[0].chunk(3, -1) if sizes.packed else projected
            q, k, v = (t.view(*t.shape[:2], sizes.heads, -1).transpose(1, 2) for t in parts)
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(self.dropout(attended.transpose(1, 2).reshape(x.shape)))
            return x + self.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(sizes.vocab, sizes.width), nn.Embedding(sizes.context, sizes.width)
            self.blocks = nn.Sequential(*[Block() for _ in range(sizes.layers)])
            self.norm, self.head = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, sizes.vocab)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(self.blocks(self.tokens(x) + self.places(torch.arange(sizes.context)))))

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01, fused=sizes.fused or None)

    def step(x: Any, y: Any) -> float:
        logits = model(torch.from_numpy(x))
        loss = F.cross_entropy(logits.view(-1, sizes.vocab), torch.from_numpy(y).view(-1).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def cpu_seconds() -> float:
    """User and system time of this process, all threads together."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident_mib() -> tuple[float, float]:
    """Resident memory now, and the most there has been."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return tuple(int(lines[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def serve(side: str, sizes: Sizes) -> None:
    """Measures so many steps for each number that comes on stdin; one line of JSON for each."""
    if side == "torch":
        import torch  # noqa: F401
    else:
        import pumice  # noqa: F401
    before, _ = resident_mib()
    step = (torch_step if side == "torch" else pumice_step)(sizes)
    generator = np.random.default_rng(0)
    # Text in which each character follows from the one before, so that there is something to learn.
    start = generator.integers(0, sizes.vocab, (sizes.batch, 1))
    ids = ((start + np.arange(sizes.context + 1) * 7) % sizes.vocab).astype(np.int32)
    x, y = np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])
    print(json.dumps({"losses": [step(x, y) for _ in range(3)]}), flush=True)
    for line in sys.stdin:
        walls, used = [], cpu_seconds()
        for _ in range(int(line)):
            begin = time.perf_counter()
            loss = step(x, y)
            walls.append(time.perf_counter() - begin)
        used = (cpu_seconds() - used) / len(walls)
        _, peak = resident_mib()
        print(json.dumps({"walls": walls, "cpu": used, "loss": loss, "peak": peak, "own": peak - before}), flush=True)


class Worker:
    """A process that measures one side."""

    def __init__(self, python: str, side: str, sizes: Sizes) -> None:
        command = [python, __file__, "--serve", side, "--sizes", json.dumps(asdict(sizes))]
        # NumPy's BLAS reads its number when it is loaded.
        threads = dict.fromkeys(("PUMICE_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(sizes.threads))
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **threads})
        self.losses: list[float] = self.answer()["losses"]

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a measuring process ended: see above")
        found: dict[str, Any] = json.loads(line)
        return found

    def measure(self, steps: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", default=sys.executable, help="a Python that has torch (default: this one)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5, help="steps of each side in a round")
    parser.add_argument("--alone", action="store_true", help="measure Pumice only")
    parser.add_argument("--serve", choices=("pumice", "torch"), help=argparse.SUPPRESS)
    parser.add_argument("--sizes", help=argparse.SUPPRESS)
    for name, value in asdict(Sizes()).items():
        if isinstance(value, bool):
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=type(value), default=value)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, Sizes(**json.loads(args.sizes)))
        return
    sizes = Sizes(**{name: getattr(args, name) for name in asdict(Sizes())})
    sides = {"pumice": sys.executable, "torch": args.torch_python}
    if args.alone:
        del sides["torch"]
    elif subprocess.run([args.torch_python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode:
        print(f"{args.torch_python} has no torch, only Pumice is measured: --torch-python names another Python")
        del sides["torch"]
    workers = {side: Worker(python, side, sizes) for side, python in sides.items()}
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in workers}
    for _ in range(args.rounds):
        for side, worker in workers.items():
            found[side].append(worker.measure(args.steps))
    for worker in workers.values():
        worker.close()
    print(f"{'':>8} {'ms/step':>9} {'CPU ms':>9} {'least ms':>9} {'peak MiB':>9} {'own MiB':>9}   losses")
    rows: dict[str, tuple[float, float, float, float, float]] = {}
    for side, answers in found.items():
        walls = [w for a in answers for w in a["walls"]]
        cpu = statistics.median(a["cpu"] for a in answers)
        rows[side] = (1e3 * statistics.median(walls), 1e3 * cpu, 1e3 * min(walls), answers[-1]["peak"], answers[-1]["own"])
        losses = " ".join(f"{v:.4f}" for v in (*workers[side].losses, answers[-1]["loss"]))
        print(f"{side:>8} " + " ".join(f"{v:>9.1f}" for v in rows[side]) + f"   {losses}")
    if "torch" in rows:
        print(f"{'ratio':>8} " + " ".join(f"{a / b:>9.3f}" for a, b in zip(rows["pumice"], rows["torch"], strict=True)))


if __name__ == "__main__":
    main()
