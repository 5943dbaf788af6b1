"""A training step against PyTorch, in turns: on the host against the CPU, on a GPU against CUDA.

The model is a transformer, of characters or of GPT-2's size, or one of the networks in train_models.py. Parameters are f32, and
so are matmuls unless a transformer's `--precision` is another: ours then compiles the step with it, PyTorch runs under autocast.

Each runs in a process of its own. CPU time is reported beside wall time, as it says more on a machine that others use too;
memory is the most that a process had resident, and by how much that exceeds what it had before the model was made.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure import Worker, cpu_seconds, has_modules, in_turns, resident_mib, serve, thread_settings
from train_models import NETWORKS, pumice_train, torch_train


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
    device: str = "host"
    fused: bool = False
    compile: bool = False
    network: str = ""
    precision: str = "f32"


CHOICES = {"device": ("host", "webgpu", "vulkan"), "precision": ("f32", "f16", "bf16")}
MODELS: dict[str, dict[str, Any]] = {
    "characters": {},
    **{name: {"network": name} for name in NETWORKS},
    "gpt2": {"layers": 12, "width": 768, "heads": 12, "context": 512, "batch": 4, "vocab": 50257},
}


def pumice_step(sizes: Sizes, device: Any = None) -> Callable[[Any, Any], float]:
    """A step of ours, on the device that is given or that the sizes name."""
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
    options: dict[str, Any] = {"device": device or sizes.device, "precision": sizes.precision}
    step = pm.train.compile_step(Model(), loss, optim.AdamW(1e-3), {"x": shape, "y": shape}, **options)
    return lambda x, y: float(step(x=x, y=y))


def torch_step(sizes: Sizes) -> Callable[[Any, Any], float]:
    """The same in PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.set_num_threads(sizes.threads)
    device = torch.device("cpu" if sizes.device == "host" else "cuda")

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
            return self.head(self.norm(self.blocks(self.tokens(x) + self.places(torch.arange(sizes.context, device=x.device)))))

    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01, fused=sizes.fused or None)

    forward = torch.compile(model) if sizes.compile else model
    if sizes.precision not in ("f32", "bf16"):
        raise ValueError(f"PyTorch's side has the precisions f32 and bf16, not {sizes.precision}")

    def step(x: Any, y: Any) -> float:
        with torch.autocast(device.type, torch.bfloat16, enabled=sizes.precision == "bf16"):
            logits = forward(torch.from_numpy(x).to(device))
            loss = F.cross_entropy(logits.view(-1, sizes.vocab), torch.from_numpy(y).to(device).view(-1).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def works(side: str, sizes: Sizes, device: Any = None) -> dict[str, Callable[..., Any]]:
    """What the process of a side answers to; `device` is one of ours that is open already."""
    import numpy as np

    if side == "torch":
        import torch  # noqa: F401
    else:
        import pumice  # noqa: F401
    before, _ = resident_mib()
    if sizes.network:
        network = NETWORKS[sizes.network]
        step = torch_train(network, sizes.threads, sizes.device) if side == "torch" else pumice_train(network, sizes.device)
        x, y = network.batch()
    else:
        step = torch_step(sizes) if side == "torch" else pumice_step(sizes, device)
        generator = np.random.default_rng(0)
        # Text in which each character follows from the one before, so that there is something to learn.
        start = generator.integers(0, sizes.vocab, (sizes.batch, 1))
        ids = ((start + np.arange(sizes.context + 1) * 7) % sizes.vocab).astype(np.int32)
        x, y = np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])

    def measure(steps: int) -> dict[str, Any]:
        walls, losses, used = [], [], cpu_seconds()
        for _ in range(steps):
            begin = time.perf_counter()
            losses.append(step(x, y))
            walls.append(time.perf_counter() - begin)
        used = (cpu_seconds() - used) / steps
        _, peak = resident_mib()
        return {"walls": walls, "cpu": used, "losses": losses, "peak": peak, "own": peak - before}

    return {"measure": measure}


@dataclass(frozen=True)
class Cost:
    """What a step costs a side: seconds, of the processor too, and memory; and the losses, which should be alike."""

    wall: float
    least: float
    cpu: float
    peak_mib: float
    own_mib: float
    first_loss: float
    last_loss: float

    @staticmethod
    def of(answers: list[dict[str, Any]], first_loss: float) -> Cost:
        walls = [w for a in answers for w in a["walls"]]
        cpu = statistics.median(a["cpu"] for a in answers)
        last = answers[-1]
        return Cost(statistics.median(walls), min(walls), cpu, last["peak"], last["own"], first_loss, last["losses"][-1])


def measure_steps(sizes: Sizes, torch_python: str | None, rounds: int, steps: int) -> dict[str, Cost]:
    """The cost of a step of Pumice and, where a Python has it, of PyTorch."""
    pythons = {"pumice": sys.executable, **({"torch": torch_python} if torch_python else {})}
    script, text, threads = Path(__file__), json.dumps(asdict(sizes)), thread_settings(sizes.threads)
    with ExitStack() as stack:
        workers = {
            side: stack.enter_context(Worker(python, script, "--serve", side, "--sizes", text, environment=threads))
            for side, python in pythons.items()
        }
        first = {side: w.ask("measure", steps=3)["losses"][0] for side, w in workers.items()}

        def side(worker: Worker) -> Callable[[int], dict[str, Any]]:
            return lambda i: dict(worker.ask("measure", steps=steps))

        found = in_turns({name: side(w) for name, w in workers.items()}, rounds, warm=0)
    return {name: Cost.of(answers, first[name]) for name, answers in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", default=sys.executable, help="a Python that has torch (default: this one)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5, help="steps of each side in a round")
    parser.add_argument("--alone", action="store_true", help="measure Pumice only")
    parser.add_argument("--serve", choices=("pumice", "torch"), help=argparse.SUPPRESS)
    parser.add_argument("--sizes", help=argparse.SUPPRESS)
    parser.add_argument("--model", choices=tuple(MODELS), default="characters", help="sizes to start from")
    for name, value in asdict(Sizes()).items():
        if isinstance(value, bool):
            parser.add_argument(f"--{name}", action="store_true", default=None)
        else:
            parser.add_argument(f"--{name}", type=type(value), choices=CHOICES.get(name))
    args = parser.parse_args()
    if args.serve:
        serve(works(args.serve, Sizes(**json.loads(args.sizes))))
        return
    given = {name: value for name in asdict(Sizes()) if (value := getattr(args, name)) is not None}
    sizes = Sizes(**{**MODELS[args.model], **given})
    if sizes.network and sizes.precision != "f32":
        parser.error(f"--precision is for transformers: {sizes.network} is measured in f32")
    torch_python = None if args.alone or not has_modules(args.torch_python, "torch") else args.torch_python
    if torch_python is None and not args.alone:
        print(f"{args.torch_python} has no torch, only Pumice is measured: --torch-python names another Python")
    found = measure_steps(sizes, torch_python, args.rounds, args.steps)
    print(f"{'':>8} {'ms/step':>9} {'CPU ms':>9} {'least ms':>9} {'peak MiB':>9} {'own MiB':>9}   losses")
    rows: dict[str, tuple[float, ...]] = {}
    for side, c in found.items():
        rows[side] = (1e3 * c.wall, 1e3 * c.cpu, 1e3 * c.least, c.peak_mib, c.own_mib)
        print(f"{side:>8} " + " ".join(f"{v:>9.1f}" for v in rows[side]) + f"   {c.first_loss:.4f} … {c.last_loss:.4f}")
    if "torch" in rows:
        print(f"{'ratio':>8} " + " ".join(f"{a / b:>9.3f}" for a, b in zip(rows["pumice"], rows["torch"], strict=True)))


if __name__ == "__main__":
    main()
