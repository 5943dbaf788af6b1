"""Cost against size: products, sequences, batches, widths and layers on one device, kept as data for bench/plot.py.

python bench/scaling.py [--device host] [--only matmul,layers]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import numpy as np
from measure import in_turns, median_seconds, medians, seconds_of, some_of
from random_models import RandomParams, generate, random_engine, step_graph
from report import RESULTS, commit_name, this_machine, write_json
from shapes import CAUSAL, MINILM, decoder_shape
from warm import Load

import pumice as pm
from pumice.backends.base import Device
from pumice.backends.select import open_device
from pumice.core.caps import Caps
from pumice.llm.embed import Pooling, encoder_graph
from pumice.models.config import ModelArchConfig
from pumice.models.registry import EncoderArchitecture, get_architecture
from pumice.plan.build import build_plan


@dataclass
class Series:
    """One plot: lines of (size, seconds).

    `power` is how the cost should grow, for the eye to compare with; where it should be linear from the start, `axes` is.
    """

    title: str
    x: str
    power: float
    axes: Literal["log", "linear"] = "log"
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, line: str, size: float, seconds: float) -> None:
        self.lines.setdefault(line, []).append((size, seconds))
        print(f"  {self.title}, {line}: {self.x} {size:g}: {seconds * 1e3:.3f} ms", file=sys.stderr, flush=True)


def around(limits: Iterable[int], others: Iterable[int]) -> list[int]:
    """Sizes in order: just below, at and just above each limit, and others between them.

    >>> around([64], [16, 256])
    [16, 63, 64, 65, 256]
    """
    return sorted({*others, *(n + d for n in limits for d in (-1, 0, 1))})


def matmul(device: Device, big: bool, warm: Load) -> Series:
    """Square f32 products; on the host beside NumPy's own."""
    series = Series("f32 matmul n³", "n", 3)
    sizes = around((64, 128, 1024), (32, 96, 192, 256, 384, 512, 768, 1536, 2048, *((3072, 4096, 6144, 8192) if big else ())))
    rng = np.random.default_rng(0)
    for n in sizes:
        a, b = (rng.standard_normal((n, n), np.float32) for _ in range(2))
        if device.caps.target == "host":
            with pm.compile(lambda a, b: a @ b, a=pm.spec(n, n), b=pm.spec(n, n), device=device) as exe:

                def ours(i: int, exe: Any = exe, a: Any = a, b: Any = b) -> float:
                    return seconds_of(lambda: exe.run(a=a, b=b))

                def numpy(i: int, a: Any = a, b: Any = b) -> float:
                    return seconds_of(lambda: np.matmul(a, b))

                # With a rest: NumPy's threads stay awake for a while after a product.
                for line, seconds in medians(in_turns({"pumice": ours, "numpy": numpy}, 7)).items():
                    series.add(line, n, seconds)
            continue
        # Several in one submit, so that small ones are not hidden by the cost of that.
        links = 16 if n <= 2048 else 4

        def chain(params: Any, links: int = links) -> Any:
            x = params["a"]
            for _ in range(links):
                x = x @ params["b"]
            return x[:1, :1]

        params = {"a": a, "b": b / np.float32(n**0.5)}
        with pm.compile(chain, params=params, device=device) as exe:
            warm(0.2)
            series.add("pumice", n, median_seconds(exe.run, 7, 2) / links)
    return series


def sequence(device: Device, big: bool, warm: Load) -> Series:
    """A prompt, and one more token after it, by length: 512 tokens is what one pass takes."""
    series = Series("decoder of 4 layers, width 512", "tokens", 1)
    config = decoder_shape(512, max_position_embeddings=16384)
    longest = 8192 if big else 2048
    engine, _ = random_engine(config, device, context=longest + 64, dtype="f32" if device.caps.target == "host" else "f16")
    seeds = iter(range(1000))
    generate(engine, 16, 8, next(seeds))
    for n in (k for k in around((512, 1024), (1, 2, 4, 8, 16, 32, 64, 128, 256, 768, 1536, 2048, 4096, 8192)) if k <= longest):
        repeats = 5 if big or n < 512 else 2
        warm(0.2)
        found = [generate(engine, n, 17, next(seeds)) for _ in range(repeats + 1)][1:]
        series.add("prompt", n, medians({"": [t.prefill_s for t in found]})[""])
        series.add("one token after it", n, medians({"": [t.decode_s / t.decode_tokens for t in found]})[""])
    engine.close()
    return series


def batch(device: Device, big: bool, warm: Load) -> Series:
    """MiniLM by batch."""
    series = Series("MiniLM, 128 tokens a text", "texts in a batch", 1)
    cfg = ModelArchConfig.from_hf(MINILM)
    arch = get_architecture(cfg.model_type)
    assert isinstance(arch, EncoderArchitecture)
    params = RandomParams(cfg, "f32")
    specs = {"tokens": pm.spec("B", "T", dtype="i32"), "length": pm.spec("B", dtype="i32")}
    graph = pm.trace(encoder_graph(arch, cfg, Pooling()), params=params.specs, **specs)
    # As `EmbeddingModel` has it: on a GPU plans for a few sizes of batches, on the host one.
    plans = (1, 8, 32, 128, 512) if big else (32,)
    sizes = [n for n in (1, 2, 3, 4, 6, 8, 9, 12, 15, 16, 17, 24, 32, 33, 63, 64, 65, 128, 129, 256, 512) if n <= plans[-1]]
    for least, most in zip((0, *plans), plans, strict=False):
        with pm.compile(graph, device=device, max={"B": most, "T": 128}) as exe:
            exe.set_params(dict(params.arrays))
            for n in (n for n in sizes if least < n <= most):
                inputs = {"tokens": np.zeros((n, 128), np.int32), "length": np.full(n, 128, np.int32)}
                warm(0.2)
                series.add("pumice", n, median_seconds(partial(exe.run, inputs), 5 if n < 16 or big else 3))
    return series


def width(device: Device, big: bool, warm: Load) -> Series:
    """One token of a decoder by the model's width."""
    series = Series("a token of a decoder of 4 layers", "width", 2)
    for n in (64, 128, 192, 256, 384, 512, 768, 960, 1024, 1088, 1536, 2048, *((3072, 4096, 6144) if big else ())):
        engine, _ = random_engine(decoder_shape(n), device, context=128, dtype="f32" if device.caps.target == "host" else "f16")
        generate(engine, 16, 8, seed=1)
        warm(0.2)
        found = [generate(engine, 16, 33, seed) for seed in range(2, 7 if big or n < 1000 else 4)]
        series.add("pumice", n, medians({"": [t.decode_s / t.decode_tokens for t in found]})[""])
        engine.close()
    return series


def layers(device: Device, big: bool, warm: Load) -> Series:
    """Tracing, planning and opening the decode and prefill steps of a Llama-shaped model, by its layers, each cold.

    Sizes differ a little from one number of layers to the next, so that no kernel has been compiled before.
    """
    series = Series("trace, plan and compile a decoder", "layers", 1, "linear")
    shape = CAUSAL["llama1b"]
    for k, count in enumerate((1, 2, 4, 8, 12, 16, 20, 24, 28, 32)):
        # Narrow where it is opened: params take memory, which has nothing to do with compiling.
        narrow = decoder_shape(512, count, vocab_size=4096 + 64 * k, intermediate_size=1536 + 64 * k)
        planned = {**shape, "num_hidden_layers": count, "intermediate_size": shape["intermediate_size"] + 64 * k}
        seconds = {"trace": 0.0, "plan for a GPU": 0.0, "plan for the host": 0.0, f"compile on {device.name}": 0.0}
        for chunk in (None, 512):
            for caps, line in ((Caps.preset("h200"), "plan for a GPU"), (Caps.preset("host"), "plan for the host")):
                begin = time.perf_counter()
                graph = step_graph(planned, caps, chunk)
                traced = time.perf_counter()
                build_plan(graph, caps)
                seconds[line] += time.perf_counter() - traced
                seconds["trace"] += (traced - begin) / 2
            plan = build_plan(step_graph(narrow, device.caps, chunk), device.caps)
            begin = time.perf_counter()
            session = device.open(plan)
            seconds[f"compile on {device.name}"] += time.perf_counter() - begin
            session.close()
        for line, took in seconds.items():
            series.add(line, count, took)
    return series


SERIES: dict[str, Callable[[Device, bool, Load], Series]] = {
    "layers": layers,
    "matmul": matmul,
    "sequence": sequence,
    "batch": batch,
    "width": width,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="host")
    parser.add_argument("--only", type=some_of(SERIES), default=list(SERIES), help=f"some of {','.join(SERIES)}")
    args = parser.parse_args()
    device = open_device(args.device)
    machine = this_machine("" if device.caps.target == "host" else device.name)
    path = RESULTS / f"scaling-{machine.name}.json"
    series = json.loads(path.read_text())["series"] if path.exists() else {}
    warm = Load(device)
    for name in args.only:
        stamp = {"when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), "commit": commit_name()}
        series[name] = {**asdict(SERIES[name](device, not device.caps.software, warm)), **stamp}
        write_json(path, {"machine": asdict(machine), "series": series})
    warm.close()


if __name__ == "__main__":
    main()
