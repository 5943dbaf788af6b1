"""A foreground of 60 frames a second beside work on the same device: how late its frames are, and what that costs the work.

python bench/foreground.py [--device host|webgpu] [--works generate,train,matmul] [--seconds 4] [--rounds 3] [--json FILE]
The work runs in three ways, by turns in one process: not at all (idle), cooperative (in ranges that leave the device to
others in between), and disabled (as it runs without scheduling). The foreground is a thread: on a GPU it runs a small
compute frame through a store of its own and reads it back; on the host it computes a small frame in NumPy. A frame gap is the
time between the ends of two frames. A model that is no path and not pulled has random weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from measure import some_of
from random_models import random_engine
from report import this_machine
from shapes import CAUSAL

import pumice as pm
from pumice import nn, optim, train
from pumice.backends.base import Device
from pumice.backends.select import open_device
from pumice.errors import PumiceError
from pumice.llm.engine import Engine
from pumice.llm.requests import Request, SamplingParams
from pumice.sources import resolve

WORKS = ("generate", "train", "matmul")
MODES = ("idle", "cooperative", "disabled")
# The most that the p99 of the frame gaps may be, beside the idle one.
GOALS = {True: 1.5, False: 2.0}
PROMPT, ANSWER, CONTEXT = 64, 64, 512
FRAME = 256
# A thread that computes in Python may keep the others waiting for this long; its own choice is 5 ms, a third of a frame.
SWITCH_SECONDS = 2e-4


# -- the foreground -------------------------------------------------------------------------------------------------------
class Foreground:
    """A thread that makes a frame `hz` times a second, while it runs; `gaps` has the milliseconds between their ends."""

    def __init__(self, frame: Callable[[], object], hz: float) -> None:
        self.frame, self.period = frame, 1 / hz
        self.gaps: list[float] = []
        self.seen: Callable[[], None] = lambda: None  # called after each frame
        self._running, self._stop = threading.Event(), False
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while not self._stop:
            self._idle.set()
            self._running.wait()
            self._idle.clear()
            due, last = time.perf_counter(), 0.0
            while self._running.is_set() and not self._stop:
                left = due - time.perf_counter()
                if left > 0:
                    time.sleep(left)
                self.frame()
                self.seen()
                now = time.perf_counter()
                if last:
                    self.gaps.append((now - last) * 1e3)
                last = now
                # One frame at a time: those that were missed are not made up for.
                due = max(due + self.period, now)

    def beside(self, work: Callable[[], Any]) -> tuple[Any, list[float]]:
        """What the work answers, and the frame gaps while it ran."""
        self.gaps = []
        self._running.set()
        try:
            answer = work()
        finally:
            self._running.clear()
            self._idle.wait()
        return answer, self.gaps

    def close(self) -> None:
        self._stop = True
        self._running.set()
        self._thread.join()


def gpu_frame(device: Device, stack: ExitStack) -> Callable[[], object]:
    """A small compute frame through a store of its own: dispatched and read back."""
    store = stack.enter_context(pm.Store(device))

    def shade(x: Any, t: Any) -> Any:
        y = pm.sin(x * 3.0 + t) * pm.cos(x - t)
        return pm.tanh(y + pm.roll(y, 1, axis=0) * 0.5).mean(axis=1)

    exe = stack.enter_context(pm.compile(shade, x=pm.spec(FRAME, FRAME), t=pm.spec(), store=store))
    picture, clock = np.random.default_rng(0).random((FRAME, FRAME), np.float32), [0.0]

    def frame() -> object:
        clock[0] += 1 / 60
        return exe.run(x=picture, t=np.float32(clock[0]))

    return frame


def host_frame() -> Callable[[], object]:
    """A small frame in NumPy, about a millisecond."""
    picture, clock = np.random.default_rng(0).random((FRAME // 2, FRAME), np.float32), [0.0]

    def frame() -> object:
        clock[0] += 1 / 60
        y = np.sin(picture * np.float32(3) + np.float32(clock[0])) * np.cos(picture - np.float32(clock[0]))
        return np.tanh(y + np.roll(y, 1, axis=0) * np.float32(0.5)).mean(axis=1)

    return frame


# -- the work -------------------------------------------------------------------------------------------------------------
@dataclass
class Work:
    """Something that runs again and again: `steps(mode)` begins anew and gives (units, a digest of their output) each time."""

    name: str
    unit: str
    steps: Callable[[str], Iterator[tuple[int, str]]]
    cooperate: Callable[[Any], None]
    note: str = ""


def digest(*arrays: Any) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()[:16]


def generation(device: Device, model: str, stack: ExitStack) -> Work:
    """Greedy answers to random prompts, another one each time: each answer is a unit of so many tokens."""
    engine, source = _engine(device, model, stack)

    def steps(mode: str) -> Iterator[tuple[int, str]]:
        for seed in range(1 << 20):
            tokens = np.random.default_rng(seed).integers(0, engine.cfg.vocab, PROMPT).tolist()
            request = Request(tokens, SamplingParams(temperature=0), ANSWER)
            found = [event.token for event in engine.stream([request])]
            yield len(found), digest(np.array(found))

    return Work("generate", "tokens", steps, engine.cooperate, source)


def _engine(device: Device, model: str, stack: ExitStack) -> tuple[Engine, str]:
    """The model's engine; where it is not there, and the network is not asked for it, one of its shape with random weights."""
    try:
        path = resolve(model, offline=True).path
    except PumiceError:
        if model not in CAUSAL:
            raise
        dtype = "f16" if device.caps.is_gpu else "f32"
        engine, nbytes = random_engine(CAUSAL[model], device, dtype=dtype, context=CONTEXT, slots=1)
        stack.callback(engine.close)
        return engine, f"the shape of {model} with random weights, {nbytes / 1e6:.0f} MB"
    loaded = stack.enter_context(pm.load(path, "generate", device=device, context=CONTEXT, slots=1))
    return loaded.engine, path.name


def training(device: Device, small: bool, stack: ExitStack) -> Work:
    """Steps of a small transformer over characters, from the same weights each time."""
    layers, width, context, batch = (1, 64, 32, 4) if small else (4, 256, 128, 16)
    vocab = 96

    class Model(nn.Module):
        def __init__(self) -> None:
            self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
            self.blocks = [nn.TransformerBlock(width, 4, causal=True) for _ in range(layers)]
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab)

        def forward(self, x: pm.Tensor) -> pm.Tensor:
            y = self.tokens(x) + self.places(pm.arange(context))
            for block in self.blocks:
                y = block(y)
            found: pm.Tensor = self.head(self.norm(y))
            return found

    def loss(model: Any, x: pm.Tensor, y: pm.Tensor) -> pm.Tensor:
        return nn.cross_entropy(model(x), y)

    shape = pm.spec(batch, context, dtype="i32")
    store = stack.enter_context(pm.Store(device))
    step = stack.enter_context(
        train.compile_step(Model(), loss, optim.AdamW(1e-3), {"x": shape, "y": shape}, seed=0, store=store)
    )
    first = step.params()

    def steps(mode: str) -> Iterator[tuple[int, str]]:
        step.reset()
        step.set_params(first)
        draw = np.random.default_rng(0)
        while True:
            x = draw.integers(0, vocab, (batch, context)).astype(np.int32)
            yield 1, digest(np.float32(step(x=x, y=np.roll(x, -1, axis=1))))

    text = f"{layers} layers of {width}, {batch} × {context} tokens, AdamW"
    return Work("train", "steps", steps, store.cooperate, text)


def matmuls(device: Device, target_ms: float, largest: float | None, size: int, stack: ExitStack) -> Work:
    """One large matmul again and again; cooperative ones are planned in pieces of about the target's time."""
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((size, size), np.float32) for _ in range(2))

    def product(params: Any) -> Any:
        # Both are on the device already, and a row of sums is read back: nothing takes time beside the matmul.
        return pm.relu(params["a"] @ params["b"]).mean(axis=1)

    def compiled(most: float | None) -> Any:
        store = stack.enter_context(pm.Store(device, largest_step=most))
        return stack.enter_context(pm.compile(product, params={"a": a, "b": b}, store=store))

    whole = compiled(None)
    seconds = min(_seconds(whole.run) for _ in range(3))
    flops = 2.0 * size**3
    if largest is None:
        largest = flops / seconds * target_ms / 1e3
    split = compiled(largest) if device.caps.dispatches else whole

    def steps(mode: str) -> Iterator[tuple[int, str]]:
        exe = split if mode == "cooperative" else whole
        while True:
            yield 1, digest(exe.run())

    def cooperate(c: Any) -> None:
        for exe in (whole, split):
            exe.cooperate(c)

    pieces = split.report().in_pieces
    text = f"{size}³ f32, {flops / 1e9:.0f} GFLOP in {seconds * 1e3:.0f} ms; " + (f"in pieces: {pieces}" if pieces else "whole")
    return Work("matmul", "matmuls", steps, cooperate, text)


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


# -- measuring ------------------------------------------------------------------------------------------------------------
@dataclass
class Found:
    """What one work was like in one mode, over all rounds."""

    gaps: list[float] = field(default_factory=list)
    units: int = 0
    rates: list[float] = field(default_factory=list)  # units a second, of each round
    digests: list[list[str]] = field(default_factory=list)
    verified: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates) if self.rates else 0.0

    def gap(self, share: float) -> float:
        return float(np.quantile(self.gaps, share)) if self.gaps else float("nan")

    def to_dict(self) -> dict[str, Any]:
        gaps = {"p50": self.gap(0.5), "p99": self.gap(0.99), "max": self.gap(1.0), "count": len(self.gaps)}
        return {"gaps_ms": gaps, "units": self.units, "rate": self.rate, "rates": self.rates, "verification": self.verified}


class Bench:
    """The foreground, and what was found for every work and mode."""

    def __init__(self, foreground: Foreground, args: argparse.Namespace) -> None:
        self.foreground, self.args = foreground, args

    def measure(self, work: Work) -> dict[str, Found]:
        """All modes by turns, another one first in each round; the first units are not counted."""
        found = {mode: Found() for mode in MODES}
        for mode in MODES[1:]:
            self._run(work, mode, Found(), 0.0)
        for k in range(self.args.rounds):
            for mode in (*MODES[k % 3 :], *MODES[: k % 3]):
                time.sleep(0.2)
                self._run(work, mode, found[mode], self.args.seconds)
        return found

    def _run(self, work: Work, mode: str, into: Found, seconds: float) -> None:
        if mode == "idle":
            _, gaps = self.foreground.beside(lambda: time.sleep(seconds))
            into.gaps += gaps
            return
        a = self.args
        options = {"target_ms": a.target, "yield_ms": a.yields, "mode": mode, "hz": a.hz, "keep": 8}
        scheduling = pm.Cooperative(**options)
        self.foreground.seen = scheduling.frame
        work.cooperate(scheduling)
        try:
            steps, units = work.steps(mode), 0
            # The first unit compiles, and learns how large ranges may be.
            digests = [next(steps)[1]]

            def run() -> float:
                nonlocal units
                begin = time.perf_counter()
                while time.perf_counter() - begin < seconds:
                    count, text = next(steps)
                    units += count
                    digests.append(text)
                return time.perf_counter() - begin

            taken, gaps = self.foreground.beside(run)
            receipt = scheduling.verification()
            into.verified.append(" ".join([receipt["status"], *map(str, receipt.get("downgrades") or ())]))
        finally:
            work.cooperate(None)
            self.foreground.seen = lambda: None
        into.gaps += gaps
        into.units += units
        into.rates += [units / taken] if units else []
        into.digests.append(digests)


def bit_equal(found: dict[str, Found]) -> tuple[bool, int]:
    """Whether the outputs of all runs in both modes are the same, as far as the shortest run got, and how far that is."""
    runs = [r for mode in MODES[1:] for r in found[mode].digests]
    units = min(map(len, runs), default=0)
    return len({tuple(r[:units]) for r in runs}) == 1, units


def tell(work: Work, found: dict[str, Found], goal: float) -> dict[str, Any]:
    """Prints the figures of one work and gives them as data."""
    idle = found["idle"].gap(0.99)
    print(f"\n{work.name}: {work.note}")
    print(f"  {'':12}  {'p50 ms':>7} {'p99 ms':>8} {'max ms':>8}  {'× idle p99':>10}  {'throughput':>20}   scheduler")
    for mode, f in found.items():
        ratio = f.gap(0.99) / idle
        rate = f"{f.rate:.1f} {work.unit}/s" if f.units else ""
        states = ", ".join(dict.fromkeys(f.verified))
        print(f"  {mode:12}  {f.gap(0.5):7.1f} {f.gap(0.99):8.1f} {f.gap(1):8.1f}  {ratio:10.2f}  {rate:>20}   {states}")
    ratio = found["cooperative"].gap(0.99) / idle
    whole = found["disabled"].rate
    cost = 1 - found["cooperative"].rate / whole if whole else float("nan")
    same, units = bit_equal(found)
    verdict = "met" if ratio <= goal else "MISSED"
    print(f"  p99 {ratio:.2f} × idle, goal ≤ {goal}: {verdict}; cost {cost:.1%} of the throughput; ", end="")
    print(f"outputs {'bit-equal' if same else 'DIFFERENT'} in both modes ({units} compared)")
    return {
        "note": work.note,
        "unit": work.unit,
        "modes": {mode: f.to_dict() for mode, f in found.items()},
        "ratio": ratio,
        "goal": goal,
        "met": ratio <= goal,
        "cost": cost,
        "bit_equal": same,
        "compared": units,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--works", type=some_of(WORKS), default=list(WORKS))
    parser.add_argument("--model", default="smollm2", help="a model that is pulled, or a path")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each mode in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hz", type=float, default=60.0)
    parser.add_argument("--target", type=float, default=4.0, help="milliseconds of a range")
    parser.add_argument("--yield", type=float, default=0.0, dest="yields", help="milliseconds after each range")
    parser.add_argument("--largest-step", type=float, help="FLOPs of a piece of the matmul; else as many as take the target")
    parser.add_argument("--small", action="store_true", help="a small model to train and a small matmul, for software devices")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    args = parser.parse_args(argv)
    sys.setswitchinterval(SWITCH_SECONDS)
    out: dict[str, Any] = {}
    with ExitStack() as stack:
        device = open_device(args.device)
        goal = GOALS[device.caps.dispatches]
        size = 256 if args.small else 8192 if device.caps.is_gpu else 1536
        frame = gpu_frame(device, stack) if device.caps.dispatches else host_frame()
        made = {
            "generate": lambda: generation(device, args.model, stack),
            "train": lambda: training(device, args.small, stack),
            "matmul": lambda: matmuls(device, args.target, args.largest_step, size, stack),
        }
        foreground = Foreground(frame, args.hz)
        stack.callback(foreground.close)
        for _ in range(5):
            frame()
        took = sorted(_seconds(frame) for _ in range(20))[10]
        print(f"{device.name} ({platform.machine()}), {args.hz:g} frames a second of {took * 1e3:.1f} ms, ", end="")
        print(f"target {args.target:g} ms, yield {args.yields:g} ms, {args.rounds} × {args.seconds:g} s a mode")
        bench = Bench(foreground, args)
        for name in args.works:
            work = made[name]()
            out[name] = tell(work, bench.measure(work), goal)
        if args.json is not None:
            about = {"device": device.describe(), "machine": this_machine().text}
            settings = {k: v for k, v in vars(args).items() if k != "json"}
            args.json.write_text(json.dumps({**about, "settings": settings, "frame_ms": took * 1e3, "works": out}, indent=1))
    return 0 if all(w["bit_equal"] for w in out.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
