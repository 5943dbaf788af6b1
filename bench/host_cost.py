"""What the host does around the work of a GPU: medians of microseconds of ours alone, on a device that computes nothing.

python bench/host_cost.py [--only prompt,token,embed,plan,submit] [--rounds 100] [--json FILE]
To compare checkouts run the script of each, in turns. `submit` times how long a prompt is recorded before the device has work
for the first time: it needs a WebGPU adapter, a software one is enough.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import median_seconds, some_of
from random_models import RandomParams, random_engine, step_graph
from shapes import CAUSAL, MINILM, decoder_shape

import pumice as pm
from pumice.backends.base import Array, Resident
from pumice.backends.null.device import NullDevice, NullSession
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.core.caps import Caps
from pumice.llm.embed import Pooling, encoder_graph
from pumice.llm.engine import Engine
from pumice.llm.requests import Request, SamplingParams
from pumice.llm.sampling import Sampling
from pumice.models.config import ModelArchConfig
from pumice.models.registry import EncoderArchitecture, get_architecture
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan

PROMPT, ANSWER, LENGTH, LAYERS = 512, 64, 128, 30
# A row: what is measured, and microseconds of it.
Row = tuple[str, float]


class TimedSession(NullSession):
    """Notes when a run arrives and when it leaves; results are made once, so that little else takes time here."""

    def __init__(self, device: TimedDevice, plan: Plan, residents: Mapping[int, Resident]) -> None:
        super().__init__(device, plan, residents)
        self._spans = device.spans
        self._known: dict[tuple[int, ...], list[Array]] = {}

    def run(self, env: Mapping[str, int], inputs: Mapping[str, Array], outputs: Sequence[int]) -> list[Array]:
        """The results of the first such run."""
        arrived, wanted = time.perf_counter(), (*env.values(), *outputs)
        if wanted not in self._known:
            self._known[wanted] = super().run(env, inputs, outputs)
        self._spans.append((arrived, time.perf_counter()))
        return self._known[wanted]


class TimedDevice(NullDevice):
    """A null device whose runs are timed."""

    def __init__(self) -> None:
        super().__init__(Caps.preset("h200"))
        self.spans: list[tuple[float, float]] = []

    def open(self, plan: Plan, residents: Mapping[int, Resident] | None = None) -> TimedSession:
        return TimedSession(self, plan, residents or {})


def answer(engine: Engine, device: TimedDevice, prompt: int, steps: int, seed: int) -> tuple[float, float, float]:
    """When a call for a random prompt began, its first token came, and its last."""
    tokens = np.random.default_rng(seed).integers(0, engine.cfg.vocab, prompt).tolist()
    device.spans.clear()
    began = time.perf_counter()
    came = [time.perf_counter() for _ in engine.stream([Request(tokens, SamplingParams(temperature=0), steps)])]
    return began, came[0], came[-1]


def small_engine(device: TimedDevice) -> Engine:
    """An engine for SmolLM2's shape with two layers and few words: the host's part does not depend on these."""
    return random_engine({**CAUSAL["smollm2"], "num_hidden_layers": 2, "vocab_size": 1000}, device)[0]


def prompt_rows(rounds: int) -> list[Row]:
    """A prompt: what comes before the device has work, and between its result and the first token."""
    device = TimedDevice()
    before, after = [], []
    with small_engine(device) as engine:
        for i in range(rounds + 5):
            began, first, _ = answer(engine, device, PROMPT, 1, i)
            if i >= 5:
                before.append(device.spans[0][0] - began)
                after.append(first - device.spans[-1][1])
    return [
        (f"prompt of {PROMPT} tokens: before the device has it", 1e6 * statistics.median(before)),
        ("the same: from the device's result to the first token", 1e6 * statistics.median(after)),
    ]


def token_rows(rounds: int) -> list[Row]:
    """A token step."""
    device, spent = TimedDevice(), []
    with small_engine(device) as engine:
        for i in range(rounds // 5 + 2):
            _, first, last = answer(engine, device, 16, ANSWER, i)
            inside = sum(b - a for a, b in device.spans[1:])
            spent.append((last - first - inside) / (ANSWER - 1))
    return [(f"token step, of {ANSWER} that are decoded", 1e6 * statistics.median(spent[2:]))]


def embed_rows(rounds: int) -> list[Row]:
    """A call of an executable, as embeddings make it."""
    cfg = ModelArchConfig.from_hf(MINILM)
    arch = get_architecture(cfg.model_type)
    assert isinstance(arch, EncoderArchitecture)
    params = RandomParams(cfg, "f32", planned=True)
    specs = {"tokens": pm.spec("B", "T", dtype="i32"), "length": pm.spec("B", dtype="i32")}
    graph = pm.trace(encoder_graph(arch, cfg, Pooling()), params=params.specs, **specs)
    device = TimedDevice()
    with pm.compile(graph, device=device, max={"B": 8, "T": cfg.max_positions}) as exe:
        exe.set_params(dict(params.arrays))
        tokens = np.random.default_rng(0).integers(0, cfg.vocab, (1, LENGTH)).astype(np.int32)
        lengths = np.full(1, LENGTH, np.int32)
        seconds = median_seconds(lambda: exe.run(tokens=tokens, length=lengths), 10 * rounds, 5)
        inside = statistics.median(b - a for a, b in device.spans[5:])
    return [("MiniLM, one text: exe.run but for the device", 1e6 * (seconds - inside))]


def plan_rows(rounds: int) -> list[Row]:
    """Plans of a prompt's step with several regimes: made, and read from the bytes of its file."""
    caps = Caps.preset("h200")
    graph = step_graph(CAUSAL["smollm2"], caps, PROMPT)
    data = build_plan(graph, caps).to_bytes()
    few = max(3, rounds // 10)
    return [
        ("plan for prompts of SmolLM2's shape", 1e6 * median_seconds(lambda: build_plan(graph, caps), few)),
        ("the same read from its file's bytes", 1e6 * median_seconds(lambda: Plan.load_bytes(data), few)),
    ]


def submit_rows(rounds: int) -> list[Row]:
    """How long a prompt's dispatches are recorded before the first submit of them, and in all."""
    device = WebGpuDevice()
    engine, _ = random_engine(decoder_shape(64, LAYERS), device, context=64)
    gpu, submitted = device.gpu, list[float]()
    send = gpu.encode.submit

    def submit(*args: Any) -> None:
        submitted.append(time.perf_counter())
        send(*args)

    exe = engine._runner.prefill_executable(Sampling())
    start, began, first, last = exe._require_open().start, 0.0, [], []

    def started(*args: Any) -> Any:
        nonlocal began
        submitted.clear()
        began = time.perf_counter()
        found = start(*args)
        last.append(time.perf_counter() - began)
        first.append(submitted[0] - began)
        return found

    exe._require_open().start = started  # type: ignore[method-assign]
    gpu.encode.submit = submit  # type: ignore[assignment]
    try:
        with engine:
            for i in range(max(5, rounds // 5)):
                tokens = np.random.default_rng(i).integers(0, engine.cfg.vocab, 40).tolist()
                for _ in engine.stream([Request(tokens, SamplingParams(temperature=0), 1)]):
                    pass
            dispatches = len(exe.plan.regime({"T": 40}).steps)
    finally:
        gpu.encode.submit = send
    return [
        (f"{dispatches} dispatches of a prompt: recorded until the first submit", 1e6 * statistics.median(first[2:])),
        ("the same: until all are submitted", 1e6 * statistics.median(last[2:])),
    ]


GROUPS: dict[str, Callable[[int], list[Row]]] = {
    "prompt": prompt_rows,
    "token": token_rows,
    "embed": embed_rows,
    "plan": plan_rows,
    "submit": submit_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=some_of(GROUPS), default=list(GROUPS), help=f"some of {','.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", type=Path, help="write the rows there too")
    args = parser.parse_args()
    rows = [row for name in args.only for row in GROUPS[name](args.rounds)]
    for work, micros in rows:
        print(f"{micros:10.1f} µs  {work}")
    if args.json is not None:
        args.json.write_text(json.dumps([{"work": work, "us": micros} for work, micros in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
